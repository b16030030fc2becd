//! Model references as operators write them.

use std::{fmt, path::PathBuf};

use engine_provider_api::StageModel;
use url::Url;

use super::ModelError;
use crate::net;

/// Where a model is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reference {
    /// In this program, by name.
    Builtin(String),
    /// A file; a relative path starts at the pool file.
    File(PathBuf),
    /// A file behind an http(s) URL.
    Url(Url),
    /// A repository of the Hugging Face hub, or a file in one: `hf:OWNER/NAME[@REVISION][/FILE]`.
    HuggingFace {
        /// `OWNER/NAME`.
        repository: String,
        /// Branch, tag or commit.
        revision: Option<String>,
        /// Path in the repository; `None`: all of it.
        file: Option<String>,
    },
    /// An object: `s3://BUCKET/KEY`.
    S3 {
        /// Bucket.
        bucket: String,
        /// Key.
        key: String,
    },
    /// An artifact of an OCI registry: `oci://REGISTRY/REPOSITORY[:TAG|@DIGEST]`.
    Oci(String),
}

impl Reference {
    /// Reads a reference. What has no scheme is a path.
    pub fn parse(text: &str) -> Result<Self, ModelError> {
        let bad = |reason| ModelError::BadReference {
            reference: text.to_owned(),
            reason,
        };
        if text.trim() != text || text.is_empty() || text.contains('\0') {
            return Err(bad("it is empty, or has blanks around it"));
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
            "hf" => parse_hub(rest)
                .ok_or_else(|| bad("a hub model is named like `hf:owner/name/file.gguf`")),
            "s3" => parse_s3(rest).ok_or_else(|| bad("an object is named like `s3://bucket/key`")),
            "oci" => rest
                .strip_prefix("//")
                .filter(|rest| rest.contains('/') && !rest.starts_with('/'))
                .map(|rest| Self::Oci(rest.to_owned()))
                .ok_or_else(|| bad("an artifact is named like `oci://registry/name:tag`")),
            _ => Err(bad(
                "its scheme is none of builtin, file, https, hf, s3, oci",
            )),
        }
    }

    /// The error for kinds that are understood and not served.
    pub(super) fn unsupported(&self, step: &StageModel) -> ModelError {
        let what = match self {
            Self::HuggingFace { .. } => "the Hugging Face hub",
            Self::S3 { .. } => "S3",
            Self::Oci(_) => "an OCI registry",
            Self::Builtin(_) => "a built-in model as a directory",
            Self::Url(_) => "a directory behind a URL",
            Self::File(_) => "this kind of reference",
        };
        ModelError::Unsupported {
            reference: step.reference.clone(),
            what,
            shape: step.shape,
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
            Self::HuggingFace {
                repository,
                revision,
                file,
            } => {
                write!(formatter, "hf:{repository}")?;
                if let Some(revision) = revision {
                    write!(formatter, "@{revision}")?;
                }
                file.iter()
                    .try_for_each(|file| write!(formatter, "/{file}"))
            }
            Self::S3 { bucket, key } => write!(formatter, "s3://{bucket}/{key}"),
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

fn parse_hub(rest: &str) -> Option<Reference> {
    let rest = rest.strip_prefix("//").unwrap_or(rest);
    let mut parts = rest.splitn(3, '/');
    let (owner, name) = (parts.next()?, parts.next()?);
    let (name, revision) = match name.split_once('@') {
        Some((name, revision)) => (name, Some(revision)),
        None => (name, None),
    };
    let file = parts.next();
    let inside = file.is_none_or(|file| {
        !file
            .split('/')
            .any(|part| part.is_empty() || part == "." || part == "..")
    });
    let whole = is_word(owner) && is_word(name) && revision.is_none_or(|text| !text.is_empty());
    (whole && inside).then(|| Reference::HuggingFace {
        repository: format!("{owner}/{name}"),
        revision: revision.map(str::to_owned),
        file: file.map(str::to_owned),
    })
}

fn parse_s3(rest: &str) -> Option<Reference> {
    let (bucket, key) = rest.strip_prefix("//")?.split_once('/')?;
    (is_word(bucket) && !key.is_empty()).then(|| Reference::S3 {
        bucket: bucket.to_owned(),
        key: key.to_owned(),
    })
}

fn is_word(text: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    !text.is_empty() && !text.starts_with('.') && text.bytes().all(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_reference_is_read() {
        let file = |path: &str| Reference::File(PathBuf::from(path));
        let cases = [
            ("builtin:haiku", Reference::Builtin("haiku".to_owned())),
            ("file:/models/x.gguf", file("/models/x.gguf")),
            ("file:///models/x.gguf", file("/models/x.gguf")),
            ("file:x.gguf", file("x.gguf")),
            ("/models/x.gguf", file("/models/x.gguf")),
            ("./x.gguf", file("./x.gguf")),
            ("models/a:b.gguf", file("models/a:b.gguf")),
            (
                "https://host/x.gguf",
                Reference::Url(Url::parse("https://host/x.gguf").unwrap()),
            ),
            (
                "hf:Owner/Name-GGUF@main/q/x.gguf",
                Reference::HuggingFace {
                    repository: "Owner/Name-GGUF".to_owned(),
                    revision: Some("main".to_owned()),
                    file: Some("q/x.gguf".to_owned()),
                },
            ),
            (
                "s3://bucket/a/b",
                Reference::S3 {
                    bucket: "bucket".to_owned(),
                    key: "a/b".to_owned(),
                },
            ),
            (
                "oci://host:5000/a/b:tag",
                Reference::Oci("host:5000/a/b:tag".to_owned()),
            ),
        ];
        for (text, reference) in cases {
            assert_eq!(Reference::parse(text).unwrap(), reference, "{text}");
        }
    }

    #[test]
    fn what_cannot_be_read_is_refused() {
        for bad in [
            "",
            " x",
            "builtin:",
            "builtin:a/b",
            "file:",
            "file://host",
            "https:",
            "https://",
            "hf:owner",
            "hf:owner/name/../x",
            "hf:owner/name@/x",
            "s3://bucket",
            "s3:/x",
            "oci:x",
            "ftp://host/x",
            "c:\\models\\x",
        ] {
            assert!(Reference::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn the_formats_of_an_engine_are_held() {
        let formats = ["gguf".to_owned()];
        let check = |text: &str| Reference::parse(text).unwrap().check_format(&formats);
        assert!(check("x.GGUF").is_ok());
        assert!(check("https://h/x.gguf?token=1").is_ok());
        assert!(check("x.safetensors").is_err());
        assert!(check("builtin:haiku").is_ok());
    }

    proptest::proptest! {
        #[test]
        fn what_is_read_can_be_written_and_read_again(text in "(hf:|s3://|oci://|builtin:)?[a-z@./:-]{0,20}") {
            if let Ok(reference) = Reference::parse(&text) {
                proptest::prop_assert_eq!(
                    Reference::parse(&reference.to_string()).unwrap(),
                    reference
                );
            }
        }
    }
}
