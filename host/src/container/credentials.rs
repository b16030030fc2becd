//! Who we are to a registry: read from where podman and docker keep it, never asked for.
//!
//! | place | who reads it |
//! |---|---|
//! | `REGISTRY_AUTH_FILE` | podman |
//! | `$XDG_RUNTIME_DIR/containers/auth.json`, else `/run/containers/UID/auth.json` | podman |
//! | `$XDG_CONFIG_HOME/containers/auth.json` | podman |
//! | `$DOCKER_CONFIG/config.json`, else `~/.docker/config.json` | docker |
//!
//! The first that has credentials for an image's repository, or for a part of its path, decides: the
//! file that was named first, then the runtime's own, then the other's. Credentials that lie in the
//! other's place are lent to the runtime's program in a private directory; they stand on no command
//! line. Every secret is registered before it is used. A place that nobody named and that this user may
//! not enter, such as `/run/containers` of root alone, is as good as none.

mod helper;

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde::Deserialize;

use super::{Reference, Runtime, reference::DOCKER_HUB};
use crate::{
    config::environment::Environment,
    fault::{Detail, Exit, Fault, Hint, hint},
    narrate::Secrets,
    process::quote,
};

/// What docker calls its own registry in `auths`.
const DOCKER_HUB_KEY: &str = "https://index.docker.io/v1/";

/// Credentials for a registry.
#[derive(Clone, PartialEq, Eq)]
pub enum Credential {
    /// User and password.
    Login {
        /// User.
        user: String,
        /// Password, or a token that stands for it.
        password: String,
    },
    /// A token that is exchanged for others (OAuth 2 refresh token).
    Identity {
        /// The token.
        token: String,
    },
}

impl std::fmt::Debug for Credential {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Login { user, .. } => write!(formatter, "Login({user}, ***)"),
            Self::Identity { .. } => formatter.write_str("Identity(***)"),
        }
    }
}

/// Credentials and where they were found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// The credentials.
    pub credential: Credential,
    /// The file that has them, or names the helper that does.
    pub place: PathBuf,
    /// Whose place that is.
    pub reader: Runtime,
}

/// Why credentials cannot be had from where they should be.
#[derive(Debug, thiserror::Error)]
pub enum CredentialsError {
    /// A file cannot be read.
    #[error("cannot read the credentials in {}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A file cannot be understood.
    #[error("{} has no credentials that can be understood: {reason}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What is wrong with it; nothing of its content.
        reason: String,
    },
    /// A credential helper did not answer.
    #[error("the credential helper `{helper}` for {registry} failed: {reason}")]
    Helper {
        /// Its program.
        helper: String,
        /// The registry.
        registry: String,
        /// The file that names it.
        path: PathBuf,
        /// Why.
        reason: String,
    },
}

impl Fault for CredentialsError {
    fn exit(&self) -> Exit {
        Exit::Config
    }

    fn hints(&self) -> Vec<Hint> {
        match self {
            Self::Unreadable { path, .. } => vec![hint(
                "let this user read it, or write it anew with `podman login` or `docker login`",
                Some(&format!("ls -l {}", quote(&path.to_string_lossy()))),
            )],
            Self::Malformed { .. } => vec![hint(
                "write it anew with `podman login REGISTRY` or `docker login REGISTRY`",
                None,
            )],
            Self::Helper {
                helper, registry, ..
            } => vec![hint(
                "see what it says",
                Some(&format!("echo {} | {helper} get", quote(registry))),
            )],
        }
    }

    fn details(&self) -> Vec<Detail> {
        match self {
            Self::Helper { path, .. } => vec![Detail::new("where", path.display().to_string())],
            _ => Vec::new(),
        }
    }

    fn kind(&self) -> &'static str {
        match self {
            Self::Unreadable { .. } => "unreadable-credentials",
            Self::Malformed { .. } => "bad-credentials-file",
            Self::Helper { .. } => "credential-helper",
        }
    }
}

/// A credentials file, the part that is used.
#[derive(Default, Deserialize)]
#[serde(default)]
struct File {
    auths: BTreeMap<String, Entry>,
    #[serde(rename = "credHelpers")]
    helpers: BTreeMap<String, String>,
    #[serde(rename = "credsStore")]
    store: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Entry {
    auth: String,
    username: String,
    password: String,
    identitytoken: String,
}

/// Finds the credentials for an image; `None` where there are none.
pub async fn find(
    environment: &Environment,
    secrets: &Secrets,
    runtime: Runtime,
    image: &Reference,
) -> Result<Option<Found>, CredentialsError> {
    for Place {
        reader,
        path: place,
        named,
    } in places(environment, runtime)
    {
        let Some(file) = understood(&place, named, fs::read_to_string(&place))? else {
            continue;
        };
        let found = match helper_of(&file, image) {
            Some((name, server)) => helper::ask(environment, &place, name, &server).await?,
            None => login_of(&file, image, &place)?,
        };
        let found = match found {
            None if !file.store.is_empty() => {
                let server = server_of(image);
                helper::ask(environment, &place, &file.store, &server).await?
            }
            found => found,
        };
        if let Some(credential) = found {
            register(secrets, &credential);
            return Ok(Some(Found {
                credential,
                place,
                reader,
            }));
        }
    }
    Ok(None)
}

/// What a file says; `None` where there is none. `named`: somebody said that it is there.
fn understood(
    place: &Path,
    named: bool,
    content: io::Result<String>,
) -> Result<Option<File>, CredentialsError> {
    match content {
        Ok(text) if text.trim().is_empty() => Ok(None),
        Ok(text) => parse(&text)
            .map(Some)
            .map_err(|reason| CredentialsError::Malformed {
                path: place.to_owned(),
                reason,
            }),
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
            ) =>
        {
            Ok(None)
        }
        Err(error)
            if error.kind() == io::ErrorKind::PermissionDenied && !named && !place.exists() =>
        {
            Ok(None)
        }
        Err(source) => Err(CredentialsError::Unreadable {
            path: place.to_owned(),
            source,
        }),
    }
}

fn parse(text: &str) -> Result<File, String> {
    // What the parser says beyond the place may quote a secret.
    serde_json::from_str(text)
        .map_err(|error| format!("line {}, column {}", error.line(), error.column()))
}

/// A file that may have credentials.
struct Place {
    /// Who reads it by itself.
    reader: Runtime,
    path: PathBuf,
    /// Whether a variable says that it is there.
    named: bool,
}

/// Files in the order in which they are asked.
fn places(environment: &Environment, runtime: Runtime) -> Vec<Place> {
    let home = environment.path("HOME");
    let in_home = |below: &str| home.as_ref().map(|home| home.join(below));
    let user = rustix::process::geteuid().as_raw();
    let running = environment
        .path("XDG_RUNTIME_DIR")
        .unwrap_or_else(|| format!("/run/containers/{user}").into());
    let running = match environment.path("XDG_RUNTIME_DIR") {
        Some(_) => running.join("containers/auth.json"),
        None => running.join("auth.json"),
    };
    let configured = environment
        .path("XDG_CONFIG_HOME")
        .or_else(|| in_home(".config"))
        .map(|directory| directory.join("containers/auth.json"));
    let of = |reader, named| {
        move |path| Place {
            reader,
            path,
            named,
        }
    };
    let says_where = environment.path("DOCKER_CONFIG").is_some();
    let docker = environment
        .path("DOCKER_CONFIG")
        .or_else(|| in_home(".docker"))
        .map(|directory| directory.join("config.json"));
    let podmans = [Some(running), configured].into_iter().flatten();
    let podmans = podmans.map(of(Runtime::Podman, false));
    let dockers = docker.into_iter().map(of(Runtime::Docker, says_where));
    let named = environment.path("REGISTRY_AUTH_FILE");
    let named = named.into_iter().map(of(Runtime::Podman, true));
    match runtime {
        Runtime::Podman => named.chain(podmans).chain(dockers).collect(),
        Runtime::Docker => named.chain(dockers).chain(podmans).collect(),
    }
}

/// What credentials for an image may be filed under, best first: its repository, each directory
/// above it, its registry.
fn keys(image: &Reference) -> Vec<String> {
    let repository = image.repository();
    let mut keys = Vec::new();
    let mut rest = repository.as_str();
    loop {
        keys.push(rest.to_owned());
        match rest.rsplit_once('/') {
            Some((above, _)) => rest = above,
            None => break,
        }
    }
    keys
}

/// A key as it is compared: old files have whole URLs.
fn normalized(key: &str) -> String {
    let plain = key
        .strip_prefix("https://")
        .or_else(|| key.strip_prefix("http://"));
    let key = match plain {
        // A URL of the API: only its host counts.
        Some(rest) => rest.split('/').next().unwrap_or_default(),
        None => key.trim_end_matches('/'),
    };
    match key {
        "index.docker.io" | "registry-1.docker.io" => DOCKER_HUB.to_owned(),
        key => key.to_owned(),
    }
}

fn login_of(
    file: &File,
    image: &Reference,
    place: &Path,
) -> Result<Option<Credential>, CredentialsError> {
    for key in keys(image) {
        let entries = file
            .auths
            .iter()
            .filter(|(name, _)| normalized(name) == key);
        for (name, entry) in entries {
            let read = credential_of(entry).map_err(|reason| CredentialsError::Malformed {
                path: place.to_owned(),
                reason: format!("`auth` of `{name}` {reason}"),
            })?;
            if read.is_some() {
                return Ok(read);
            }
        }
    }
    Ok(None)
}

/// The credentials of an entry; `None` where it only says that a helper has them.
fn credential_of(entry: &Entry) -> Result<Option<Credential>, &'static str> {
    if !entry.identitytoken.is_empty() {
        let token = entry.identitytoken.clone();
        return Ok(Some(Credential::Identity { token }));
    }
    if entry.auth.is_empty() {
        let login = Credential::Login {
            user: entry.username.clone(),
            password: entry.password.clone(),
        };
        return Ok((!entry.username.is_empty()).then_some(login));
    }
    let bytes = STANDARD
        .decode(entry.auth.trim())
        .map_err(|_| "is not base64")?;
    let text = String::from_utf8(bytes).map_err(|_| "is no text")?;
    let (user, password) = text.split_once(':').ok_or("is not `user:password`")?;
    Ok(Some(Credential::Login {
        user: user.to_owned(),
        password: password.trim_end_matches('\0').to_owned(),
    }))
}

/// The helper that a file names for this very registry, and what it knows it as.
fn helper_of<'a>(file: &'a File, image: &Reference) -> Option<(&'a str, String)> {
    keys(image).into_iter().find_map(|key| {
        let mut all = file.helpers.iter();
        let (server, name) = all.find(|(server, _)| normalized(server) == key)?;
        Some((name.as_str(), server.clone()))
    })
}

/// What a registry's credentials are filed under in a file that this runtime reads.
pub(crate) fn registry_key(image: &Reference, runtime: Runtime) -> String {
    match runtime {
        Runtime::Docker => server_of(image),
        Runtime::Podman => image.registry().to_owned(),
    }
}

/// What docker calls a registry.
fn server_of(image: &Reference) -> String {
    match image.registry() {
        DOCKER_HUB => DOCKER_HUB_KEY.to_owned(),
        registry => registry.to_owned(),
    }
}

fn register(secrets: &Secrets, credential: &Credential) {
    match credential {
        Credential::Login { user, password } => {
            secrets.register(password);
            secrets.register(&basic(user, password));
        }
        Credential::Identity { token } => secrets.register(token),
    }
}

/// User and password as HTTP's basic authentication and credentials files write them.
pub(crate) fn basic(user: &str, password: &str) -> String {
    STANDARD.encode(format!("{user}:{password}"))
}

#[cfg(test)]
mod tests;
