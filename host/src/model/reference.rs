//! Model references as operators write them.

use std::{fmt, path::PathBuf};

use engine_provider_api::{ModelShape, StageModel};
use url::Url;

use super::{ModelError, source::hub::HubName};
use crate::{container, net};

/// What begins the version of an object.
const VERSION: &str = "?versionId=";

/// Where a model is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reference {
    /// In this program, by name.
    Builtin(String),
    /// A file; a relative path starts at the pool file.
    File(PathBuf),
    /// A file behind an http(s) URL.
    Url(Url),
    /// A repository of the Hugging Face hub, or something in one:
    /// `hf:OWNER/NAME[@REVISION][:QUANT][/PATH]`.
    HuggingFace(HubName),
    /// An object, or all below a prefix: `s3://BUCKET/KEY[?versionId=VERSION]`, `s3://BUCKET/PREFIX/`.
    S3 {
        /// Bucket.
        bucket: String,
        /// Key; a prefix where it ends with `/` or is empty.
        key: String,
        /// Version of the object.
        version: Option<String>,
    },
    /// An artifact of an OCI registry: `oci://REGISTRY/REPOSITORY[:TAG][@DIGEST]`.
    Oci(container::Reference),
}

impl Reference {
    /// The word for where it is had.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Builtin(_) => "builtin",
            Self::File(_) => "file",
            Self::Url(_) => "url",
            Self::HuggingFace(_) => "hub",
            Self::S3 { .. } => "s3",
            Self::Oci(_) => "oci",
        }
    }

    /// Reads a reference. What has no scheme is a path.
    pub fn parse(text: &str) -> Result<Self, ModelError> {
        let bad = |reason| ModelError::BadReference {
            reference: text.to_owned(),
            reason,
        };
        if text.trim() != text || text.is_empty() || text.chars().any(char::is_control) {
            return Err(bad(
                "it is empty, has blanks around it, or characters that cannot be shown",
            ));
        }
        let Some((scheme, rest)) = split_scheme(text) else {
            return Ok(Self::File(PathBuf::from(text)));
        };
        match scheme {
            "builtin" if is_word(rest) => Ok(Self::Builtin(rest.to_owned())),
            "builtin" => Err(bad("a built-in model is named like `builtin:haiku`")),
            "file" => parse_file(rest).ok_or_else(|| bad("a file is named like `file:/models/x`")),
            "https" | "http" => match Url::parse(text) {
                Ok(url) if url.has_host() => Ok(Self::Url(url)),
                _ => Err(bad("it is not a whole URL")),
            },
            "hf" => HubName::parse(rest)
                .map(Self::HuggingFace)
                .ok_or_else(|| bad("a hub model is named like `hf:owner/name/file.gguf`")),
            "s3" => parse_s3(rest).ok_or_else(|| bad("an object is named like `s3://bucket/key`")),
            "oci" => parse_oci(rest).map(Self::Oci).ok_or_else(|| {
                bad("an artifact is named like `oci://registry.example.com/name:tag`")
            }),
            _ => Err(bad(
                "its scheme is none of builtin, file, https, hf, s3, oci",
            )),
        }
    }

    /// The error for kinds that are understood and not served.
    pub(super) fn unsupported(&self, step: &StageModel) -> ModelError {
        self.unsupported_as(&step.reference, step.shape)
    }

    /// The same, of what was written.
    pub(super) fn unsupported_as(&self, written: &str, shape: ModelShape) -> ModelError {
        let what = match self {
            Self::HuggingFace(_) => "the Hugging Face hub",
            Self::S3 { .. } => "S3",
            Self::Oci(_) => "an OCI registry",
            Self::Builtin(_) => "a built-in model as a directory",
            Self::Url(_) => "a directory behind a URL",
            Self::File(_) => "this kind of reference",
        };
        ModelError::Unsupported {
            reference: written.to_owned(),
            what,
            shape,
        }
    }

    /// Refuses names whose suffix is none of these, where any are given.
    pub(super) fn check_format(&self, formats: &[String]) -> Result<(), ModelError> {
        let name = match self {
            Self::Builtin(_) => return Ok(()),
            Self::File(path) => path.to_string_lossy().into_owned(),
            Self::Url(url) => url.path().to_owned(),
            _ => return Ok(()),
        };
        let name = name.to_ascii_lowercase();
        let fits = |format: &String| name.ends_with(&format!(".{}", format.to_ascii_lowercase()));
        if formats.is_empty() || formats.iter().any(fits) {
            Ok(())
        } else {
            Err(ModelError::Format {
                reference: self.to_string(),
                formats: formats.to_vec(),
            })
        }
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Builtin(name) => write!(formatter, "builtin:{name}"),
            Self::File(path) => write!(formatter, "{}", path.display()),
            Self::Url(url) => formatter.write_str(&net::shown(url)),
            Self::HuggingFace(name) => name.fmt(formatter),
            Self::S3 {
                bucket,
                key,
                version,
            } => {
                write!(formatter, "s3://{bucket}/{key}")?;
                version
                    .iter()
                    .try_for_each(|version| write!(formatter, "{VERSION}{version}"))
            }
            Self::Oci(name) => write!(formatter, "oci://{name}"),
        }
    }
}

/// `SCHEME:REST`; a path such as `./a:b` or `dir/a:b` has none.
fn split_scheme(text: &str) -> Option<(&str, &str)> {
    let (scheme, rest) = text.split_once(':')?;
    let letters = scheme.bytes().all(|byte| byte.is_ascii_alphanumeric());
    (letters && !scheme.is_empty()).then_some((scheme, rest))
}

/// `PATH`, `//PATH` with an empty host as in `file:///models/x`.
fn parse_file(rest: &str) -> Option<Reference> {
    let path = match rest.strip_prefix("//") {
        Some(path) => path.strip_prefix("localhost").unwrap_or(path),
        None => rest,
    };
    let whole = rest.starts_with("//") && !path.starts_with('/');
    (!path.is_empty() && !whole).then(|| Reference::File(PathBuf::from(path)))
}

/// Only a version is told from the key: a key may have a `?` of its own.
fn parse_s3(rest: &str) -> Option<Reference> {
    let (bucket, key) = rest.strip_prefix("//")?.split_once('/')?;
    let (key, version) = match key.split_once(VERSION) {
        Some((key, version)) => (key, Some(version)),
        None => (key, None),
    };
    let prefix = key.is_empty() || key.ends_with('/');
    // Such parts mean other keys once they stand in a URL.
    let plain = key.split('/').all(|part| !matches!(part, "." | ".."));
    let whole = version.is_none_or(|version| is_version(version) && !prefix);
    (is_word(bucket) && plain && whole).then(|| Reference::S3 {
        bucket: bucket.to_owned(),
        key: key.to_owned(),
        version: version.map(str::to_owned),
    })
}

fn is_version(text: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    !text.is_empty() && text.bytes().all(plain)
}

/// The registry is always named: without one it would be docker.io's to podman and docker, and the
/// first part of the name to everybody else.
fn parse_oci(rest: &str) -> Option<container::Reference> {
    let rest = rest.strip_prefix("//")?;
    let (registry, _) = rest.split_once('/')?;
    let named = registry == "localhost" || registry.contains(['.', ':']);
    let reference = named.then(|| container::Reference::parse(rest))?.ok()?;
    Some(reference)
}

/// The name of a bucket or a built-in model: no option, no hidden file, no way up.
fn is_word(text: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    !text.is_empty()
        && !text.starts_with(['.', '-'])
        && !text.contains("..")
        && text.bytes().all(plain)
}

#[cfg(test)]
mod tests;
