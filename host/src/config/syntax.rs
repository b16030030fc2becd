//! What single values must look like: digests, references, git names, environment values.

use std::path::{Path, PathBuf};

use engine_provider_api::Template;

use super::problem::{list, nearest};

/// What is wrong with a value, and what to write instead.
pub type Complaint = (String, Option<String>);

fn complaint(message: impl Into<String>, help: &str) -> Complaint {
    (message.into(), Some(help.to_owned()))
}

/// Directories that written paths start from.
#[derive(Debug, Clone, Default)]
pub struct Base {
    /// Directory of the file.
    pub directory: PathBuf,
    /// Home directory of the user, for `~/`.
    pub home: Option<PathBuf>,
}

impl Base {
    /// An absolute path for a written one.
    pub fn absolute(&self, written: &str) -> Result<String, Complaint> {
        let path = match (written.strip_prefix("~/"), &self.home) {
            (Some(rest), Some(home)) => home.join(rest),
            (Some(_), None) => {
                return Err(complaint("`~` has no meaning here", "write the whole path"));
            }
            (None, _) if written.starts_with('~') => {
                return Err(complaint(
                    format!("`{written}` is no path"),
                    "write the whole path",
                ));
            }
            (None, _) => self.directory.join(written),
        };
        Ok(plain(&path).to_string_lossy().into_owned())
    }
}

/// The path without `.` and without `..` where that needs no look at the disk.
fn plain(path: &Path) -> PathBuf {
    use std::path::Component;
    let mut result = PathBuf::new();
    for component in path.components() {
        match component {
            Component::CurDir => {}
            Component::ParentDir if result.file_name().is_some() => {
                result.pop();
            }
            other => result.push(other),
        }
    }
    result
}

/// Kinds of model reference.
const SCHEMES: &[&str] = &[
    "builtin", "file", "https", "http", "hf", "s3", "oci", "local",
];

/// Whether a text is a model reference, rather than a mere name.
#[must_use]
pub fn is_reference(text: &str) -> bool {
    scheme(text).is_some_and(|scheme| SCHEMES.contains(&scheme))
        || text.starts_with(['/', '.', '~'])
        || text.ends_with(".gguf")
}

fn scheme(text: &str) -> Option<&str> {
    let (scheme, _) = text.split_once(':')?;
    let is_word = |byte: u8| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte);
    (!scheme.is_empty() && scheme.bytes().all(is_word)).then_some(scheme)
}

/// Checks a model reference and makes file references absolute (`file:/…`).
pub fn model_reference(text: &str, base: &Base) -> Result<String, Complaint> {
    if text != text.trim() || text.chars().any(char::is_control) {
        return Err(complaint(
            "the reference has spaces around it or control characters in it",
            "remove them",
        ));
    }
    let rest = |scheme: &str| &text[scheme.len() + 1..];
    match scheme(text) {
        None => file_reference(text, base),
        Some(scheme @ ("file" | "local")) => {
            let path = rest(scheme);
            let path = path.strip_prefix("//").unwrap_or(path);
            if path.is_empty() {
                return Err(complaint(
                    "the reference names no file",
                    "write `file:/path/to/model.gguf`",
                ));
            }
            Ok(format!("file:{}", base.absolute(path)?))
        }
        Some("builtin") => named(text, rest("builtin"), "`builtin:haiku`"),
        Some("hf") => hub_reference(text, rest("hf")),
        Some(scheme @ ("https" | "http" | "s3" | "oci")) => web_reference(text, scheme),
        Some(other) => Err((
            format!("`{other}:` is not a kind of model reference"),
            Some(match nearest(other, SCHEMES.iter().copied()) {
                Some(near) => format!("did you mean `{near}:`?"),
                None => "write `file:`, `https://`, `hf:`, `s3://`, `oci://` or `builtin:`".into(),
            }),
        )),
    }
}

fn file_reference(text: &str, base: &Base) -> Result<String, Complaint> {
    let is_path = text.starts_with(['/', '.', '~']) || Path::new(text).extension().is_some();
    if is_path || !text.contains('/') {
        return Ok(format!("file:{}", base.absolute(text)?));
    }
    Err((
        format!("`{text}` can be a file or a hub repository"),
        Some(format!("write `./{text}` or `hf:{text}`")),
    ))
}

fn named(text: &str, name: &str, example: &str) -> Result<String, Complaint> {
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    if name.is_empty() || !name.bytes().all(is_name) {
        return Err((
            format!("`{text}` names nothing"),
            Some(format!("write for example {example}")),
        ));
    }
    Ok(text.to_owned())
}

fn hub_reference(text: &str, rest: &str) -> Result<String, Complaint> {
    let rest = rest.strip_prefix("//").unwrap_or(rest);
    let parts: Vec<&str> = rest.split('/').collect();
    let whole = parts.len() >= 2 && parts.iter().all(|part| !part.is_empty() && *part != "..");
    if !whole || rest.contains(char::is_whitespace) {
        return Err(complaint(
            format!("`{text}` names no repository"),
            "write `hf:organisation/repository` or `hf:organisation/repository/file`",
        ));
    }
    Ok(format!("hf:{rest}"))
}

fn web_reference(text: &str, scheme: &str) -> Result<String, Complaint> {
    let text = match text
        .strip_prefix(scheme)
        .and_then(|rest| rest.strip_prefix(':'))
    {
        Some(rest) if !rest.starts_with("//") => format!("{scheme}://{rest}"),
        _ => text.to_owned(),
    };
    url(&text)?;
    Ok(text)
}

/// Checks another place of a file behind a URL: http or https.
pub fn mirror(text: &str) -> Result<(), Complaint> {
    if !is_web(text) {
        let message = format!("`{text}` is no place that a file is fetched from");
        return Err(complaint(message, "write `https://…`"));
    }
    url(text)
}

/// Whether a text is an http or https URL.
#[must_use]
pub fn is_web(text: &str) -> bool {
    text.starts_with("https://") || text.starts_with("http://")
}

/// Checks a URL: it parses, has a host and carries no credentials.
pub fn url(text: &str) -> Result<(), Complaint> {
    let parsed =
        url::Url::parse(text).map_err(|error| (format!("this is no URL: {error}"), None))?;
    if parsed.host_str().is_none_or(str::is_empty) && parsed.scheme() != "file" {
        return Err(("the URL names no host".to_owned(), None));
    }
    if parsed.password().is_some() {
        return Err(complaint(
            "the URL carries a password",
            "take it out: secrets never stand in URLs",
        ));
    }
    Ok(())
}

/// Checks where an engine answers that runs already: `http://HOST[:PORT]`. Probes speak plain HTTP, and
/// a path before the engine's own would have to be known to everybody who reads the handoff.
pub fn engine_url(text: &str) -> Result<(), Complaint> {
    url(text)?;
    let fix = "write it like `http://127.0.0.1:8000`";
    let parsed = url::Url::parse(text).expect("it was read a moment ago");
    if parsed.scheme() != "http" {
        let message = format!(
            "an engine is not attached to through `{}:`",
            parsed.scheme()
        );
        return Err(complaint(&message, fix));
    }
    if !parsed.username().is_empty() {
        return Err(complaint("the URL carries a user name", fix));
    }
    if parsed.path() != "/" || parsed.query().is_some() || parsed.fragment().is_some() {
        return Err(complaint("this is more than the engine's own address", fix));
    }
    Ok(())
}

/// Whether a URL leads to this machine.
#[must_use]
pub fn is_loopback(text: &str) -> bool {
    let parsed = url::Url::parse(text).ok();
    match parsed.as_ref().and_then(url::Url::host) {
        Some(url::Host::Ipv4(address)) => address.is_loopback(),
        Some(url::Host::Ipv6(address)) => address.is_loopback(),
        Some(url::Host::Domain(name)) => name == "localhost",
        None => false,
    }
}

/// Algorithms of digests and their lengths in hexadecimal digits.
const ALGORITHMS: &[(&str, usize)] = &[("sha256", 64), ("sha512", 128)];

/// Checks a digest, `ALGORITHM:HEX`, of one of the algorithms allowed.
pub fn digest(text: &str, allowed: &[&str]) -> Result<(), Complaint> {
    let wanted = || {
        let shapes = ALGORITHMS.iter().filter(|(name, _)| allowed.contains(name));
        let shapes: Vec<String> = shapes
            .map(|(name, digits)| format!("`{name}:` and {digits} hexadecimal digits"))
            .collect();
        format!("write {}", shapes.join(", or "))
    };
    let is_hex = |digits: &str| digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    let Some((algorithm, digits)) = text.split_once(':') else {
        let known = ALGORITHMS.iter().find(|(_, digits)| *digits == text.len());
        return Err(match known.filter(|_| is_hex(text)) {
            Some((name, _)) => (
                "the digest does not say its algorithm".to_owned(),
                Some(format!("did you mean `{name}:{text}`?")),
            ),
            None => (format!("`{text}` is no digest"), Some(wanted())),
        });
    };
    let Some((_, expected)) = ALGORITHMS
        .iter()
        .find(|(name, _)| *name == algorithm && allowed.contains(name))
    else {
        return Err((
            format!("digests of algorithm `{algorithm}` are not accepted here"),
            Some(wanted()),
        ));
    };
    if digits.len() != *expected || !is_hex(digits) {
        return Err((
            format!(
                "a {algorithm} digest has {expected} hexadecimal digits, not {} characters",
                digits.chars().count()
            ),
            None,
        ));
    }
    if digits.bytes().any(|byte| byte.is_ascii_uppercase()) {
        return Err((
            "digests are written in lower case".to_owned(),
            Some(format!("write `{algorithm}:{}`", digits.to_lowercase())),
        ));
    }
    Ok(())
}

/// Checks a commit, tag or branch by the rules of git-check-ref-format(1) that matter here.
pub fn git_reference(text: &str) -> Result<(), Complaint> {
    let forbidden = |c: char| c.is_whitespace() || c.is_control() || "~^:?*[\\".contains(c);
    if text.is_empty()
        || text.starts_with(['-', '/'])
        || text.ends_with(['/', '.'])
        || text.contains("..")
        || text.contains("@{")
        || text.contains(forbidden)
    {
        return Err(complaint(
            format!("`{text}` cannot be a commit, tag or branch"),
            "write a full commit, a tag or a branch",
        ));
    }
    Ok(())
}

/// Checks a git repository: a URL without credentials, `user@host:path`, or a path; never an option.
pub fn git_repository(text: &str) -> Result<(), Complaint> {
    const KINDS: &[&str] = &["https", "http", "ssh", "git", "file"];
    if text.starts_with('-') || text.is_empty() || text.contains(char::is_whitespace) {
        return Err((format!("`{text}` is no git repository"), None));
    }
    match text.split_once("://") {
        Some((scheme, _)) if KINDS.contains(&scheme) => url(text),
        Some((scheme, _)) => Err((
            format!("git repositories are not fetched by `{scheme}`"),
            Some(format!("use one of {}", list(KINDS.iter().copied()))),
        )),
        // `ext::sh -c …` and its like run programs.
        None if text.contains("::") => Err((format!("`{text}` is no git repository"), None)),
        None => Ok(()),
    }
}

/// Checks the name of an environment variable.
pub fn variable_name(name: &str) -> Result<(), Complaint> {
    let word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    if name.is_empty() || !name.bytes().all(word) || name.as_bytes()[0].is_ascii_digit() {
        return Err(complaint(
            format!("`{name}` cannot name an environment variable"),
            "use letters, digits and `_`",
        ));
    }
    Ok(())
}

/// Checks the value of an environment variable: `{secret.NAME}` is its only placeholder.
pub fn variable_value(text: &str) -> Result<(), Complaint> {
    let template = Template::new(text);
    let placeholders = template.placeholders().map_err(|error| {
        (
            error.reason,
            Some("`{secret.NAME}` is the only placeholder; write `{{` and `}}` for braces".into()),
        )
    })?;
    for name in placeholders {
        let secret = name
            .strip_prefix("secret.")
            .filter(|name| !name.contains('.'));
        if secret.is_none() {
            return Err(complaint(
                format!("`{{{name}}}` cannot be filled in here"),
                "`{secret.NAME}` is the only placeholder; write `{{` and `}}` for braces",
            ));
        }
    }
    if text.contains('\0') {
        return Err(("the value holds a zero byte".to_owned(), None));
    }
    Ok(())
}

/// Whether a name says that its value is secret. Names that count tokens (`MAX_INPUT_TOKENS`) do not.
#[must_use]
pub fn names_a_secret(name: &str) -> bool {
    let name = name.to_ascii_uppercase();
    let ends_a_word = |rest: &str| !rest.starts_with(|next: char| next.is_ascii_alphabetic());
    if name.split("TOKEN").skip(1).any(ends_a_word) {
        return true;
    }
    [
        "SECRET",
        "PASSWORD",
        "PASSWD",
        "API_KEY",
        "APIKEY",
        "ACCESS_KEY",
    ]
    .iter()
    .any(|word| name.contains(word))
}

#[cfg(test)]
mod tests;
