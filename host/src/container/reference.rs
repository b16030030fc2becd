//! Names of images, read the way docker and podman read them.
//!
//! `[REGISTRY/]PATH[:TAG][@DIGEST]`, the grammar of the distribution project. What has no registry
//! is docker.io's, and there a path of one part is below `library/`. Everything is checked by
//! character: a name that was read can stand on a command line and in a URL.

use std::fmt;

use engine_provider_api::ImageName;

use crate::{
    fault::{Exit, Fault, Hint, hint},
    net::Digest,
};

/// The registry of names that name none.
pub(crate) const DOCKER_HUB: &str = "docker.io";

/// Where docker.io's registry really answers.
const DOCKER_HUB_HOST: &str = "registry-1.docker.io";

/// Where docker.io gives out tokens.
const DOCKER_HUB_TOKENS: &str = "auth.docker.io";

/// Longest repository, registry included.
const LONGEST_REPOSITORY: usize = 255;

/// Longest tag.
const LONGEST_TAG: usize = 128;

/// A name of an image that was checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reference {
    registry: String,
    path: String,
    tag: Option<String>,
    digest: Option<Digest>,
}

/// A text that is no name of an image.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is no name of an image: {reason}")]
pub struct ReferenceError {
    /// The text.
    pub text: String,
    /// What is wrong with it.
    pub reason: String,
}

impl Fault for ReferenceError {
    fn exit(&self) -> Exit {
        Exit::Config
    }

    fn hints(&self) -> Vec<Hint> {
        vec![hint(
            "images are named as in `docker.io/vllm/vllm-openai:v0.20.1`",
            None,
        )]
    }

    fn kind(&self) -> &'static str {
        "bad-image-name"
    }
}

impl Reference {
    /// Reads `[REGISTRY/]PATH[:TAG][@DIGEST]`.
    pub fn parse(text: &str) -> Result<Self, ReferenceError> {
        let bad = |reason: &str| ReferenceError {
            text: text.to_owned(),
            reason: reason.to_owned(),
        };
        let (name, digest) = match text.split_once('@') {
            None => (text, None),
            Some((name, digest)) => {
                let digest = Digest::parse(digest).map_err(|error| bad(&error.to_string()))?;
                (name, Some(digest))
            }
        };
        // A colon after the last slash begins a tag; one before it, a port.
        let (repository, tag) = match name.rsplit_once(':') {
            Some((repository, tag)) if !tag.contains('/') => (repository, Some(tag)),
            _ => (name, None),
        };
        if let Some(tag) = tag.filter(|tag| !is_tag(tag)) {
            return Err(bad(&format!("`{tag}` is no tag")));
        }
        let (registry, path) = split_registry(repository);
        if !is_registry(&registry) {
            return Err(bad(&format!("`{registry}` is no registry")));
        }
        if !path.split('/').all(is_component) {
            return Err(bad(
                "a repository is made of lower-case letters, digits and single `.`, `_`, `-`, `/` \
                 between them",
            ));
        }
        if registry.len() + 1 + path.len() > LONGEST_REPOSITORY {
            return Err(bad("it is too long"));
        }
        Ok(Self {
            registry,
            path,
            tag: tag.map(str::to_owned),
            digest,
        })
    }

    /// The image that a plan names. Tag and digest may stand in the repository's text instead, not
    /// in both. Without either, the tag is `latest`.
    pub fn of(name: &ImageName) -> Result<Self, ReferenceError> {
        let mut reference = Self::parse(&name.repository)?;
        let bad = |text: &str, reason: String| ReferenceError {
            text: text.to_owned(),
            reason,
        };
        if let Some(tag) = &name.tag {
            if !is_tag(tag) {
                return Err(bad(
                    tag,
                    "a tag is letters, digits, `_`, `.`, `-`".to_owned(),
                ));
            }
            if reference.tag.as_ref().is_some_and(|other| other != tag) {
                return Err(bad(&name.repository, format!("its tag is not `{tag}`")));
            }
            reference.tag = Some(tag.clone());
        }
        if let Some(text) = &name.digest {
            let digest = Digest::parse(text).map_err(|error| bad(text, error.to_string()))?;
            if reference
                .digest
                .as_ref()
                .is_some_and(|other| *other != digest)
            {
                return Err(bad(&name.repository, format!("its digest is not {digest}")));
            }
            reference.digest = Some(digest);
        }
        if reference.tag.is_none() && reference.digest.is_none() {
            reference.tag = Some("latest".to_owned());
        }
        Ok(reference)
    }

    /// The registry as it is written, for example `docker.io` or `localhost:5000`.
    #[must_use]
    pub fn registry(&self) -> &str {
        &self.registry
    }

    /// The path below the registry, for example `library/busybox`.
    #[must_use]
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Registry and path.
    #[must_use]
    pub fn repository(&self) -> String {
        format!("{}/{}", self.registry, self.path)
    }

    /// The tag, where it has one.
    #[must_use]
    pub fn tag(&self) -> Option<&str> {
        self.tag.as_deref()
    }

    /// The digest, where it has one.
    #[must_use]
    pub fn digest(&self) -> Option<&Digest> {
        self.digest.as_ref()
    }

    /// The same repository by digest, without a tag.
    #[must_use]
    pub fn with_digest(&self, digest: &Digest) -> Self {
        Self {
            tag: None,
            digest: Some(digest.clone()),
            ..self.clone()
        }
    }

    /// The same tag and digest in another repository.
    pub(super) fn moved_to(&self, repository: &str) -> Result<Self, ReferenceError> {
        let elsewhere = Self::parse(repository)?;
        Ok(Self {
            registry: elsewhere.registry,
            path: elsewhere.path,
            ..self.clone()
        })
    }

    /// Host and port that answer for the registry.
    #[must_use]
    pub fn authority(&self) -> &str {
        match self.registry.as_str() {
            DOCKER_HUB => DOCKER_HUB_HOST,
            registry => registry,
        }
    }

    /// Hosts that are reached for it, without ports: the registry's, and where tokens come from as
    /// far as that is known beforehand.
    #[must_use]
    pub fn hosts(&self) -> Vec<String> {
        let mut hosts = vec![host_of(self.authority()).to_owned()];
        if self.registry == DOCKER_HUB {
            hosts.push(DOCKER_HUB_TOKENS.to_owned());
        }
        hosts
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}/{}", self.registry, self.path)?;
        if let Some(tag) = &self.tag {
            write!(formatter, ":{tag}")?;
        }
        if let Some(digest) = &self.digest {
            write!(formatter, "@{digest}")?;
        }
        Ok(())
    }
}

/// A registry without its port.
pub(super) fn host_of(registry: &str) -> &str {
    match registry.rsplit_once(':') {
        Some((host, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => host,
        _ => registry,
    }
}

fn split_registry(repository: &str) -> (String, String) {
    let (registry, path) = match repository.split_once('/') {
        Some((first, rest)) if looks_like_registry(first) => (first.to_ascii_lowercase(), rest),
        _ => (DOCKER_HUB.to_owned(), repository),
    };
    let registry = match registry.as_str() {
        "index.docker.io" | DOCKER_HUB_HOST => DOCKER_HUB.to_owned(),
        _ => registry,
    };
    let path = if registry == DOCKER_HUB && !path.contains('/') {
        format!("library/{path}")
    } else {
        path.to_owned()
    };
    (registry, path)
}

/// What tells a registry from the first part of a path.
fn looks_like_registry(part: &str) -> bool {
    part == "localhost" || part.contains(['.', ':'])
}

fn is_registry(text: &str) -> bool {
    let (host, port) = match text.strip_prefix('[') {
        // An IPv6 address.
        Some(rest) => match rest.split_once(']') {
            Some((host, port)) if host.parse::<std::net::Ipv6Addr>().is_ok() => (
                "localhost",
                port.strip_prefix(':').or((!port.is_empty()).then_some("-")),
            ),
            _ => return false,
        },
        None => match text.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (text, None),
        },
    };
    let is_label = |label: &str| {
        !label.is_empty()
            && !label.starts_with('-')
            && !label.ends_with('-')
            && label
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
    };
    host.split('.').all(is_label)
        && port.is_none_or(|port| {
            port.parse::<u16>().is_ok_and(|port| port > 0) && !port.starts_with('+')
        })
}

/// `[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*`.
fn is_component(text: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let bytes = text.as_bytes();
    let separators = text
        .split(|character: char| character.is_ascii_lowercase() || character.is_ascii_digit())
        .filter(|separator| !separator.is_empty());
    bytes.first().copied().is_some_and(plain)
        && bytes.last().copied().is_some_and(plain)
        && separators.into_iter().all(|separator| {
            matches!(separator, "." | "_" | "__") || separator.bytes().all(|byte| byte == b'-')
        })
}

/// `[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}`.
fn is_tag(text: &str) -> bool {
    let word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    text.len() <= LONGEST_TAG
        && text.bytes().next().is_some_and(word)
        && text.bytes().all(|byte| word(byte) || b".-".contains(&byte))
}

#[cfg(test)]
mod tests;
