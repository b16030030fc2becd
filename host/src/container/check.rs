//! What may stand on a runtime's command line.

use std::path::Path;

use super::{ContainerError, Run};

/// Names that mean something to the runtime's program, which takes secrets from its own environment,
/// to its helpers or to the shell and the loader that start them.
const RUNTIMES_OWN: [&str; 19] = [
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "SHELL",
    "TERM",
    "TMPDIR",
    "LANG",
    "ENV",
    "BASH_ENV",
    "TZ",
    "IFS",
    "GCONV_PATH",
    "LOCPATH",
    "NLSPATH",
    "HOSTALIASES",
    "LOCALDOMAIN",
    "RES_OPTIONS",
    "OPENSSL_CONF",
];

/// Beginnings of such names.
const RUNTIMES_OWN_BEGINNINGS: [&str; 22] = [
    "DOCKER_",
    "BUILDKIT_",
    "BUILDAH_",
    "CONTAINER",
    "_CONTAINER",
    "PODMAN_",
    "STORAGE_",
    "REGISTRY_",
    "XDG_",
    "DBUS_",
    "LC_",
    "LD_",
    "GLIBC_",
    "GODEBUG",
    "GOTRACEBACK",
    "SSL_CERT_",
    "LISTEN_",
    "NOTIFY_",
    "_LIBPOD",
    "NETAVARK_",
    "MALLOC_",
    "GOMAXPROCS",
];

/// Ends of such names.
const RUNTIMES_OWN_ENDS: [&str; 1] = ["_PROXY"];

/// Refuses an image that is not named by digest.
fn image(image: &str) -> Result<(), ContainerError> {
    let digest = image.split_once("@sha256:").filter(|(repository, digest)| {
        is_plain_repository(repository)
            && digest.len() == 64
            && digest.bytes().all(|byte| byte.is_ascii_hexdigit())
    });
    digest
        .map(|_| ())
        .ok_or_else(|| ContainerError::FloatingImage {
            image: image.escape_debug().to_string(),
        })
}

fn is_plain_repository(repository: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-/:[]".contains(&byte);
    repository.starts_with(|first: char| first.is_ascii_alphanumeric() || first == '[')
        && repository.bytes().all(plain)
}

/// Refuses what would be read as something else than it is meant.
pub(super) fn all(run: &Run) -> Result<(), ContainerError> {
    image(&run.image)?;
    names(run)?;
    texts(run)?;
    let mounts = run.mounts.iter();
    let mut sources = mounts.clone().map(|mount| mount.source.to_string_lossy());
    sources.try_for_each(|source| path(&source))?;
    mounts
        .map(|mount| &mount.target)
        .chain(&run.tmpfs)
        .try_for_each(|target| path(target))
}

/// Refuses control characters, and a program that would be read as a list.
pub(super) fn texts(run: &Run) -> Result<(), ContainerError> {
    let values = run
        .env
        .iter()
        .map(|(name, value)| (format!("the value of `{name}`"), value))
        .chain(
            run.labels
                .iter()
                .map(|(name, value)| (format!("label `{name}`"), value)),
        )
        .chain(
            run.args
                .iter()
                .map(|value| (format!("argument `{}`", value.escape_debug()), value)),
        )
        .chain(
            run.entrypoint
                .iter()
                .map(|value| ("its program".to_owned(), value)),
        );
    for (what, value) in values {
        plain_text(what, value)?;
    }
    if run
        .entrypoint
        .first()
        .is_some_and(|program| program.is_empty() || program.starts_with('['))
    {
        return Err(unspeakable(
            "its program".to_owned(),
            "podman reads it as a list",
        ));
    }
    Ok(())
}

fn names(run: &Run) -> Result<(), ContainerError> {
    let word = |text: &str, more: &[u8]| {
        text.starts_with(|first: char| first.is_ascii_alphanumeric())
            && text
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || more.contains(&byte))
    };
    let plain = "only letters, digits and `_.-` can stand there";
    if !word(&run.name, b"_.-") {
        return Err(unspeakable(
            format!("the name `{}`", run.name.escape_debug()),
            plain,
        ));
    }
    for name in run.env.keys().chain(&run.secret_env) {
        let is_name = !name.starts_with(|first: char| first.is_ascii_digit())
            && !name.is_empty()
            && name
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte));
        if !is_name {
            let what = format!("the variable `{}`", name.escape_debug());
            return Err(unspeakable(what, plain));
        }
    }
    if let Some(name) = run.secret_env.iter().find(|name| is_the_runtimes(name)) {
        return Err(unspeakable(
            format!("a secret called `{name}`"),
            "the name means something to the container runtime's own program: give it another one",
        ));
    }
    let set =
        |text: &Option<String>, more: &[u8]| text.as_ref().is_none_or(|text| word(text, more));
    if !set(&run.cpus, b",-") || !set(&run.numa_nodes, b",-") {
        return Err(unspeakable(
            "the processors".to_owned(),
            "write numbers and ranges, for example `0-7,16-23`",
        ));
    }
    if !set(&run.user, b":") {
        return Err(unspeakable(
            "the user".to_owned(),
            "write numbers, for example `2000:0`",
        ));
    }
    if run.labels.keys().any(|name| !word(name, b"_.-/")) {
        return Err(unspeakable("a label".to_owned(), plain));
    }
    Ok(())
}

/// Whether a variable decides what the runtime's own program does.
pub fn is_the_runtimes(name: &str) -> bool {
    let upper = name.to_ascii_uppercase();
    RUNTIMES_OWN.contains(&upper.as_str())
        || RUNTIMES_OWN_BEGINNINGS
            .iter()
            .any(|beginning| upper.starts_with(beginning))
        || RUNTIMES_OWN_ENDS.iter().any(|end| upper.ends_with(end))
}

/// A path in the comma-separated values of `--mount` and the colon-separated ones of `--tmpfs`.
fn path(path: &str) -> Result<(), ContainerError> {
    let what = || format!("the path `{}`", path.escape_debug());
    plain_text(what(), path)?;
    if !Path::new(path).is_absolute() {
        return Err(unspeakable(what(), "it is not absolute"));
    }
    // `--mount` is read as CSV: a comma ends the path, a quotation mark begins a field.
    if path.contains([',', '"']) {
        return Err(unspeakable(
            what(),
            "container runtimes take no `,` or `\"` in the path of a mount",
        ));
    }
    Ok(())
}

fn plain_text(what: String, text: &str) -> Result<(), ContainerError> {
    if text.contains(char::is_control) {
        return Err(unspeakable(what, "it has control characters in it"));
    }
    Ok(())
}

fn unspeakable(what: String, why: &'static str) -> ContainerError {
    ContainerError::Unspeakable { what, why }
}
