//! What can go wrong with artifacts.

use super::super::NoChoice;
use crate::{
    container::RegistryError,
    fault::{Detail, Exit, Fault, Hint, hint},
};

/// A failure to find out what an artifact is.
#[derive(Debug, thiserror::Error)]
pub enum OciError {
    /// Its registry does not say.
    #[error("its registry does not say what it is")]
    Registry {
        /// Why.
        #[source]
        source: Box<RegistryError>,
    },
    /// A layer is an archive.
    #[error("`{name}` of {what} is an archive ({media_type}), not a file")]
    Archive {
        /// The artifact.
        what: String,
        /// The layer.
        name: String,
        /// What it says it is.
        media_type: String,
    },
    /// A layer is a file of no name.
    #[error("a layer of {what} does not say which file it is ({media_type})")]
    Nameless {
        /// The artifact.
        what: String,
        /// Digest of the layer.
        digest: String,
        /// What it says it is.
        media_type: String,
    },
    /// A name that cannot be a file's, or is another's too.
    #[error("{what} has a file `{name}`, which cannot lie beside the others")]
    Name {
        /// The artifact.
        what: String,
        /// The name.
        name: String,
    },
    /// No files.
    #[error("{what} has no file that is wanted")]
    Nothing {
        /// The artifact.
        what: String,
    },
    /// Several models, or none that the engine reads.
    #[error(transparent)]
    Choice(#[from] NoChoice),
}

impl OciError {
    /// Whether it only says that somebody ended it.
    pub(in crate::model) fn is_cancelled(&self) -> bool {
        matches!(self, Self::Registry { source } if source.is_cancelled())
    }
}

impl Fault for OciError {
    fn exit(&self) -> Exit {
        match self {
            Self::Registry { source } => match **source {
                RegistryError::NotFound { .. } => Exit::NotFound,
                _ => source.exit(),
            },
            Self::Choice(inner) => inner.exit(),
            Self::Archive { .. } | Self::Nameless { .. } | Self::Name { .. } => Exit::Verification,
            Self::Nothing { .. } => Exit::Config,
        }
    }

    fn hints(&self) -> Vec<Hint> {
        match self {
            Self::Registry { source } => match **source {
                // What it says of images is not what is written here.
                RegistryError::NotFound { .. } => vec![hint(
                    "compare name and tag with what its publisher lists",
                    None,
                )],
                _ => source.hints(),
            },
            Self::Archive { .. } => vec![hint(
                "push the files themselves, each as a layer, for example",
                Some("oras push REGISTRY/NAME:TAG model.gguf:application/octet-stream"),
            )],
            Self::Nameless { .. } => vec![hint(
                "push it with a tool that annotates each layer with `org.opencontainers.image.title`",
                None,
            )],
            Self::Choice(inner) => inner.hints(),
            Self::Name { .. } | Self::Nothing { .. } => Vec::new(),
        }
    }

    fn details(&self) -> Vec<Detail> {
        match self {
            Self::Registry { source } => source.details(),
            Self::Nameless { digest, .. } => vec![Detail::new("layer", digest.clone())],
            Self::Choice(inner) => inner.details(),
            _ => Vec::new(),
        }
    }

    fn kind(&self) -> &'static str {
        match self {
            Self::Registry { source } => match **source {
                RegistryError::NotFound { .. } => "artifact-not-found",
                _ => source.kind(),
            },
            Self::Archive { .. } => "model-archived",
            Self::Nameless { .. } | Self::Name { .. } => "model-bad-name",
            Self::Nothing { .. } => "model-empty",
            Self::Choice(inner) => inner.kind(),
        }
    }
}
