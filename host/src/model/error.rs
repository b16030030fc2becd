//! What can go wrong with a model.

mod fault;

use std::path::PathBuf;

use engine_provider_api::ModelShape;
use jiff::Timestamp;

use super::{catalog::moment, source::hub::HubError};
use crate::{
    fault::{Exit, Fault as _},
    net::{Digest, DigestError, NetError},
    policy::Refusal,
    store::StoreError,
};

#[cfg(feature = "s3")]
use super::source::S3Error;
use super::source::{NoChoice, OciError};

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
    /// Other places of a model that cannot be used.
    #[error("the mirrors of `{reference}` cannot be used: {reason}")]
    BadMirrors {
        /// The reference.
        reference: String,
        /// What is wrong with them.
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
    /// A kind of reference that this program was built without.
    #[error(
        "`{reference}` needs the feature `{feature}` of `engine-host`, which this program was built without"
    )]
    LeftOut {
        /// The reference.
        reference: String,
        /// The feature.
        feature: &'static str,
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
    /// A user's own file or directory is no longer what it should be and was.
    #[error("{} changed since {}: it is no longer the model it should be", path.display(), moment(*since))]
    OwnChanged {
        /// The file or directory.
        path: PathBuf,
        /// When it was last found to be right.
        since: Timestamp,
        /// Digest expected, which it had then.
        expected: Digest,
        /// Its digest.
        actual: Digest,
    },
    /// No new engine may be started with it.
    #[error("model `{reference}` was retired here, as {id}")]
    Retired {
        /// The reference.
        reference: String,
        /// The model.
        id: String,
        /// Words of `host model add` that name just this.
        again: String,
    },
    /// Nobody says what it must be, and that is not enough here.
    #[error("nothing says what model `{reference}` must be: neither a checksum nor its source")]
    Unverified {
        /// The reference.
        reference: String,
        /// The policy in the way.
        #[source]
        source: Box<Refusal>,
    },
    /// An option that picks among files, where there is nothing to pick.
    #[error("`{option}` picks files of a repository, and `{reference}` names none")]
    NothingToPick {
        /// The reference.
        reference: String,
        /// The option of the command line.
        option: &'static str,
    },
    /// Nothing of it is what the engine reads, or a part of it is missing.
    #[error("model `{reference}` cannot be used")]
    Choice {
        /// The reference.
        reference: String,
        /// Why.
        #[source]
        source: Box<NoChoice>,
    },
    /// A file whose name does not stay inside its model.
    #[error("model `{reference}` has a file that cannot be kept, `{}`: {reason}", name.escape_debug())]
    BadName {
        /// The reference.
        reference: String,
        /// The name.
        name: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// An archive of it that is not unpacked.
    #[error("archive `{name}` of model `{reference}` is not unpacked: {reason}")]
    Archive {
        /// The reference.
        reference: String,
        /// The archive.
        name: String,
        /// What is wrong with it.
        reason: String,
    },
    /// More files than a model can have.
    #[error("model `{reference}` has {count} files, more than the {limit} that a model can have")]
    TooMany {
        /// The reference.
        reference: String,
        /// How many there are.
        count: usize,
        /// How many there may be.
        limit: usize,
    },
    /// Nothing in it.
    #[error("there is no file in model `{reference}`")]
    Empty {
        /// The reference.
        reference: String,
    },
    /// A URL gives something else than the first time.
    #[error("model {url} is not what it was when it was first fetched")]
    Changed {
        /// The URL.
        url: String,
        /// Words of `host model add` that name just this.
        again: String,
        /// Why.
        #[source]
        source: Box<NetError>,
    },
    /// A registry does not have it, or not as files.
    #[error("model `{reference}` could not be looked up")]
    Oci {
        /// The reference.
        reference: String,
        /// Why.
        #[source]
        source: Box<OciError>,
    },
    /// A bucket does not say what it has.
    #[cfg(feature = "s3")]
    #[error("model `{reference}` could not be looked up")]
    S3 {
        /// The reference.
        reference: String,
        /// Why.
        #[source]
        source: Box<S3Error>,
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
    /// What the hub has is not what is wanted, or is not given out.
    #[error("model `{reference}` cannot be had")]
    Hub {
        /// The reference.
        reference: String,
        /// Why.
        #[source]
        source: Box<HubError>,
    },
    /// Another small file than the hub has.
    #[error("{url} gave another file than the hub has")]
    OtherBlob {
        /// Where it was had.
        url: String,
        /// Words of `host model add` that name just this model.
        again: String,
        /// Git's name of the one expected.
        expected: String,
        /// Git's name of this one.
        actual: String,
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
            Self::Hub { source, .. } => source.is_cancelled(),
            Self::Store { source, .. } => matches!(**source, StoreError::Cancelled { .. }),
            #[cfg(feature = "s3")]
            Self::S3 { source, .. } => source.is_cancelled(),
            Self::Oci { source, .. } => source.is_cancelled(),
            _ => false,
        }
    }

    /// The word of the event that tells this failure.
    pub(super) fn action(&self) -> &'static str {
        match self {
            Self::Mismatch { .. }
            | Self::OwnChanged { .. }
            | Self::Changed { .. }
            | Self::OtherBlob { .. } => "verify-failed",
            Self::Net { source, .. } if source.exit() == Exit::Verification => "verify-failed",
            Self::Net { .. } => "download-failed",
            Self::BadReference { .. }
            | Self::Unsupported { .. }
            | Self::LeftOut { .. }
            | Self::NothingToPick { .. }
            | Self::UnknownBuiltin { .. }
            | Self::Oci { .. }
            | Self::Hub { .. } => "resolve-failed",
            #[cfg(feature = "s3")]
            Self::S3 { .. } => "resolve-failed",
            _ => "ensure-failed",
        }
    }
}
