//! Engines that are Python packages: a virtual environment from a list of exact versions and hashes.
//!
//! Nothing is resolved on the machine and nothing is built from source: pip installs the wheels of the
//! list and no others, so that the same list gives the same engine everywhere.

use std::{borrow::Cow, collections::BTreeMap};

use engine_provider_api::{
    Act, Attempt, BuildStep, Command, Facts, Narration, ProviderError, Step, Template,
};

/// Step that makes the virtual environment.
pub const VENV: &str = "venv";
/// File that the list of packages is given to pip in.
const LIST: &str = "requirements.txt";
/// Directory of the environment below the step's result.
const DIRECTORY: &str = "python";
const USUAL_INDEX: &str = "https://pypi.org/simple";

/// Packages, each with its exact version and hashes, one to a line.
#[derive(Debug, Clone)]
pub struct Lock<'a> {
    text: Cow<'a, str>,
}

impl<'a> Lock<'a> {
    /// A list that is known to be sound.
    #[must_use]
    pub const fn new(text: &'a str) -> Self {
        Self {
            text: Cow::Borrowed(text),
        }
    }

    /// A list from an operator: each line `NAME==VERSION --hash=sha256:…`, empty lines and comments
    /// aside. Lines that end in `\` go on in the next. `field` is where it stands in the pool.
    ///
    /// Pip is given what was understood here and not the text itself, of which it may understand more.
    pub fn read(text: &str, field: &str) -> Result<Self, ProviderError> {
        let mut understood = String::new();
        for line in requirements(text) {
            if !is_pinned(&line) {
                let message = format!("`{line}` is no package with exact version and hashes");
                return Err(ProviderError::invalid(field, message)
                    .hint("write the list with `uv pip compile --generate-hashes`"));
            }
            understood += &line;
            understood.push('\n');
        }
        Ok(Self {
            text: Cow::Owned(understood),
        })
    }

    /// The version of a package in the list.
    #[must_use]
    pub fn version(&self, project: &str) -> Option<&str> {
        lines(&self.text).find_map(|line| {
            let (name, rest) = line.split_once("==")?;
            let version = rest.split_whitespace().next()?;
            (name == project).then_some(version)
        })
    }
}

fn lines(text: &str) -> impl Iterator<Item = &str> {
    let lines = text.lines().map(str::trim);
    lines.filter(|line| !line.is_empty() && !line.starts_with('#'))
}

/// Requirements of a list, each on one line. As in pip's reader, a comment ends a line that goes on, and
/// does not go on itself.
fn requirements(text: &str) -> Vec<String> {
    let (mut all, mut open) = (Vec::new(), String::new());
    for line in text.lines() {
        let is_comment = line.trim_start().starts_with('#');
        if !is_comment {
            open += line.trim_end_matches('\\');
        }
        if is_comment || !line.ends_with('\\') {
            all.push(std::mem::take(&mut open));
        }
    }
    all.push(open);
    let words = all.iter().map(|line| line.split_whitespace());
    let plain = words.map(|words| words.collect::<Vec<_>>().join(" "));
    plain.filter(|line| !line.is_empty()).collect()
}

/// Whether a requirement is `NAME==VERSION`, extras allowed, with hashes and nothing else: that could name
/// another index, or a file of this machine or another one.
fn is_pinned(line: &str) -> bool {
    let mut words = line.split(' ');
    let package = words.next().unwrap_or_default();
    let is_hash = |word: &str| {
        let hex = word.strip_prefix("--hash=sha256:").unwrap_or_default();
        hex.len() == 64 && hex.bytes().all(|byte| byte.is_ascii_hexdigit())
    };
    let mut hashes = words.peekable();
    is_exact(package) && hashes.peek().is_some() && hashes.all(is_hash)
}

fn is_exact(package: &str) -> bool {
    let Some((name, version)) = package.split_once("==") else {
        return false;
    };
    let (name, extras) = match name.split_once('[') {
        Some((name, rest)) => (name, rest.strip_suffix(']')),
        None => (name, Some("")),
    };
    let plain = |text: &str, more: &[u8]| {
        let fits = |byte: u8| byte.is_ascii_alphanumeric() || more.contains(&byte);
        text.bytes().all(fits)
    };
    let named = name.starts_with(|first: char| first.is_ascii_alphanumeric());
    named
        && plain(name, b"._-")
        && extras.is_some_and(|extras| plain(extras, b"._-,"))
        && !version.is_empty()
        && plain(version, b"._-+!")
}

/// The interpreter of the environment.
#[must_use]
pub fn interpreter() -> Template {
    format!("{{{VENV}.path}}/{DIRECTORY}/bin/python").into()
}

/// The step that makes the environment with the Python that `tool` names.
///
/// It is fetched from the package index that the facts name. `labels` are recorded with it.
#[must_use]
pub fn environment(
    facts: &Facts,
    tool: &str,
    lock: Lock<'_>,
    labels: BTreeMap<String, String>,
) -> Step {
    let index = facts.package_index.as_deref().unwrap_or(USUAL_INDEX);
    let inside = format!("{{work}}/{DIRECTORY}");
    let create = Command {
        id: "venv-create".to_owned(),
        program: format!("{{tool.{tool}}}").into(),
        args: vec!["-m".into(), "venv".into(), inside.clone().into()],
        narration: narration("venv-create"),
        ..Command::default()
    };
    let fixed = "-m pip install --no-deps --require-hashes --only-binary :all: --no-input \
                 --no-cache-dir --disable-pip-version-check --progress-bar off --index-url";
    let mut args: Vec<Template> = fixed.split_whitespace().map(Into::into).collect();
    args.push(Template::literal(index));
    args.extend(["--requirement".into(), format!("{{work}}/{LIST}").into()]);
    let install = Command {
        id: "pip-install".to_owned(),
        program: format!("{inside}/bin/python").into(),
        args,
        narration: narration("pip-install"),
        ..Command::default()
    };
    Step {
        id: VENV.to_owned(),
        after: Vec::new(),
        act: Act::Build(BuildStep {
            attempts: vec![Attempt {
                commands: vec![create, install],
                ..Attempt::default()
            }],
            outputs: vec![DIRECTORY.to_owned()],
            network: hosts(index),
            labels,
            fixed_path: true,
            inputs: BTreeMap::from([(LIST.to_owned(), lock.text.into_owned())]),
            ..BuildStep::default()
        }),
    }
}

fn narration(start: &str) -> Narration {
    Narration {
        start: start.to_owned(),
        ..Narration::default()
    }
}

/// Hosts that an index sends its visitors to: its own, and for the usual one that of its files.
fn hosts(index: &str) -> Vec<String> {
    let rest = index.split_once("://").map_or(index, |(_, rest)| rest);
    let authority = rest.split('/').next().unwrap_or_default();
    let host = authority.split(':').next().unwrap_or_default().to_owned();
    match host.as_str() {
        "pypi.org" => vec![host, "files.pythonhosted.org".to_owned()],
        _ => vec![host],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HASH: &str =
        "--hash=sha256:1111111111111111111111111111111111111111111111111111111111111111";

    #[test]
    fn only_exact_versions_with_hashes_are_installed() {
        let good = format!("# comment\ntorch==2.13.0 {HASH} {HASH}\nvllm==0.32.0 \\\n    {HASH}\n");
        let lock = Lock::read(&good, "options.requirements").unwrap();
        assert_eq!(lock.version("torch"), Some("2.13.0"));
        assert_eq!(lock.version("vllm"), Some("0.32.0"));
        assert_eq!(lock.version("vll"), None);
        assert_eq!(
            &*lock.text,
            format!("torch==2.13.0 {HASH} {HASH}\nvllm==0.32.0 {HASH}\n")
        );
        // More of its lines may end in a comment for pip than for anybody else.
        let odd =
            format!("# a\u{2028}--index-url https://elsewhere/simple\na[b,c]==1+cu129 {HASH}");
        let lock = Lock::read(&odd, "options.requirements").unwrap();
        assert_eq!(&*lock.text, format!("a[b,c]==1+cu129 {HASH}\n"));
        for bad in [
            "torch==2.13.0".to_owned(),
            format!("torch>=2.13.0 {HASH}"),
            "--index-url https://elsewhere/simple".to_owned(),
            format!("-r other==1.txt {HASH}"),
            format!("torch==2.13.0 {HASH} --index-url=x"),
            // Pip knows no comment that goes on.
            "# comment \\\n--index-url https://elsewhere/simple".to_owned(),
            format!("torch==2.13.0 {HASH} \\\n# comment \\\n--index-url https://elsewhere/simple"),
            // Pip knows more ends of lines.
            format!("torch==2.13.0 {HASH}\u{2028}--index-url https://elsewhere/simple"),
            format!("vllm@https://elsewhere/x==1.whl {HASH}"),
            format!("vllm[x @ https://elsewhere/x]==1 {HASH}"),
            format!("vllm==1@https://elsewhere/x.whl {HASH}"),
            format!("vllm==${{VERSION}} {HASH}"),
            "vllm==1 --hash=sha256:${HASH}".to_owned(),
            format!("vllm== {HASH}"),
        ] {
            assert!(Lock::read(&bad, "options.requirements").is_err(), "{bad}");
        }
    }

    #[test]
    fn the_index_of_the_machine_is_asked_and_named() {
        let facts = Facts {
            package_index: Some("https://mirror.example:8443/simple".to_owned()),
            ..Facts::default()
        };
        let step = environment(&facts, "python312", Lock::new(""), BTreeMap::new());
        let Act::Build(build) = step.act else {
            panic!("no build")
        };
        assert_eq!(build.network, ["mirror.example"]);
        assert!(build.fixed_path);
        let args = &build.attempts[0].commands[1].args;
        assert!(args.contains(&"https://mirror.example:8443/simple".into()));
        assert_eq!(
            hosts("https://pypi.org/simple"),
            ["pypi.org", "files.pythonhosted.org"]
        );
    }
}
