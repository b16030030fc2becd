//! What can go wrong with a model.

use std::path::PathBuf;

use engine_provider_api::ModelShape;

use crate::{
    fault::{Detail, Exit, Fault, Hint, hint},
    net::{Digest, DigestError, NetError},
    store::StoreError,
};

/// A failure to stage a model.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// A reference that cannot be read.
    #[error("`{reference}` is no model reference: {reason}")]
    BadReference {
        /// The reference.
        reference: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// A kind of reference that this version does not serve.
    #[error("`{reference}`: {what} is not supported by this version")]
    Unsupported {
        /// The reference.
        reference: String,
        /// Where it points to, in words.
        what: &'static str,
        /// What the engine reads.
        shape: ModelShape,
    },
    /// No such model in this program.
    #[error("there is no built-in model `{name}`, only {}", known.join(", "))]
    UnknownBuiltin {
        /// The name asked for.
        name: String,
        /// Names there are.
        known: Vec<&'static str>,
    },
    /// The engine does not read this kind of file.
    #[error("`{reference}` is not one of the formats that the engine reads ({})", formats.join(", "))]
    Format {
        /// The reference.
        reference: String,
        /// Formats, by name suffix.
        formats: Vec<String>,
    },
    /// No such file or directory.
    #[error("there is no model {shape} {}", path.display())]
    Missing {
        /// The path looked at.
        path: PathBuf,
        /// `file` or `directory`.
        shape: &'static str,
    },
    /// Something else than a file with content.
    #[error("{} is {what}, not a model file", path.display())]
    NotAFile {
        /// The path looked at.
        path: PathBuf,
        /// What it is.
        what: &'static str,
    },
    /// Something else than a directory with files.
    #[error("{} is {what}, not a model directory", path.display())]
    NotADirectory {
        /// The path looked at.
        path: PathBuf,
        /// What it is.
        what: &'static str,
    },
    /// Something in a directory that cannot be part of a model.
    #[error("{} {reason}, so it cannot be part of a model", path.display())]
    Unfit {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// The expected digest cannot be compared.
    #[error("the checksum of model `{reference}` cannot be used")]
    BadDigest {
        /// The reference.
        reference: String,
        /// Why.
        #[source]
        source: DigestError,
    },
    /// The file is another one.
    #[error("{} is not the model it should be", path.display())]
    Mismatch {
        /// The file.
        path: PathBuf,
        /// Digest expected.
        expected: Digest,
        /// Its digest.
        actual: Digest,
    },
    /// A URL gives something else than the first time.
    #[error("model {url} is not what it was when it was first fetched")]
    Changed {
        /// The URL.
        url: String,
        /// Where the first digest is written down.
        record: PathBuf,
        /// Why.
        #[source]
        source: Box<NetError>,
    },
    /// It could not be fetched.
    #[error("model `{reference}` could not be fetched")]
    Net {
        /// The reference.
        reference: String,
        /// Why.
        #[source]
        source: Box<NetError>,
    },
    /// It could not be kept or read.
    #[error("model `{reference}` could not be stored")]
    Store {
        /// The reference.
        reference: String,
        /// Why.
        #[source]
        source: Box<StoreError>,
    },
}

impl ModelError {
    /// Whether this only says that the wait or transfer was cancelled.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        match self {
            Self::Net { source, .. } => matches!(**source, NetError::Cancelled { .. }),
            Self::Store { source, .. } => matches!(**source, StoreError::Cancelled { .. }),
            _ => false,
        }
    }

    /// The word of the event that tells this failure.
    pub(super) fn action(&self) -> &'static str {
        match self {
            Self::Mismatch { .. } | Self::Changed { .. } => "verify-failed",
            Self::Net { source, .. } if source.exit() == Exit::Verification => "verify-failed",
            Self::Net { .. } => "download-failed",
            Self::BadReference { .. } | Self::Unsupported { .. } | Self::UnknownBuiltin { .. } => {
                "resolve-failed"
            }
            _ => "ensure-failed",
        }
    }
}

impl Fault for ModelError {
    fn exit(&self) -> Exit {
        match self {
            Self::Missing { .. } => Exit::NotFound,
            Self::Mismatch { .. } | Self::Changed { .. } => Exit::Verification,
            Self::Net { source, .. } => source.exit(),
            Self::Store { source, .. } => source.exit(),
            _ => Exit::Config,
        }
    }

    fn hints(&self) -> Vec<Hint> {
        match self {
            Self::Unsupported {
                shape: ModelShape::Directory,
                ..
            } => vec![hint(
                "download it into a directory and refer to that by path",
                None,
            )],
            Self::NotADirectory { .. } => vec![hint(
                "this engine reads a directory with all files of the model: refer to that",
                None,
            )],
            Self::Unfit { .. } => vec![hint(
                "copy the directory with `cp -rL`, which copies what links lead to, and refer to the copy",
                None,
            )],
            Self::Mismatch { path, .. } if path.is_dir() => vec![hint(
                "compare with the checksum that it had, then correct `provisioning.model.checksum`",
                Some(&format!(
                    "cd {} && find -L . -type f -not -path '*/.*' -printf '%P\\0' | LC_ALL=C sort -z | \
                     xargs -0 sha256sum | sha256sum",
                    crate::process::quote(&path.to_string_lossy())
                )),
            )],
            Self::Unsupported { .. } => vec![hint(
                "download the file and refer to it by path, or give its https URL with a checksum",
                None,
            )],
            Self::UnknownBuiltin { known, .. } => known
                .iter()
                .map(|name| hint(format!("use `builtin:{name}`"), None))
                .collect(),
            Self::Changed { record, .. } => vec![hint(
                "if the change is expected, forget the first one",
                Some(&format!("rm {}", record.display())),
            )],
            Self::Mismatch { path, .. } => vec![hint(
                "compare with the checksum its publisher gives, then fetch it again or correct \
                 `provisioning.model.checksum`",
                Some(&format!("sha256sum {}", path.display())),
            )],
            Self::Net { source, .. } => source.hints(),
            Self::Store { source, .. } => source.hints(),
            _ => Vec::new(),
        }
    }

    fn details(&self) -> Vec<Detail> {
        match self {
            Self::Mismatch {
                expected, actual, ..
            } => vec![
                Detail::new("expected", expected.to_string()),
                Detail::new("actual", actual.to_string()),
            ],
            Self::Net { source, .. } | Self::Changed { source, .. } => source.details(),
            Self::Store { source, .. } => source.details(),
            _ => Vec::new(),
        }
    }

    fn kind(&self) -> &'static str {
        match self {
            Self::BadReference { .. } => "bad-model-reference",
            Self::Unsupported { .. } => "unsupported-model-reference",
            Self::UnknownBuiltin { .. } => "unknown-builtin",
            Self::Format { .. } => "model-format",
            Self::Missing { .. } => "model-missing",
            Self::NotAFile { .. } => "model-not-a-file",
            Self::NotADirectory { .. } => "model-not-a-directory",
            Self::Unfit { .. } => "model-unfit",
            Self::BadDigest { .. } => "bad-digest",
            Self::Mismatch { .. } | Self::Changed { .. } => "digest-mismatch",
            Self::Net { source, .. } => source.kind(),
            Self::Store { source, .. } => source.kind(),
        }
    }
}
