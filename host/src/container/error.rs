//! What can go wrong before a container runtime is even started.

use crate::fault::{Detail, Exit, Fault, Hint, hint};

/// Why no container can be run here.
#[derive(Debug, thiserror::Error)]
pub enum ContainerError {
    /// No runtime can be used.
    #[error("no container runtime can be used here")]
    NoRuntime {
        /// Each with the reason why it was passed over.
        passed_over: Vec<String>,
    },
}

impl Fault for ContainerError {
    fn exit(&self) -> Exit {
        match self {
            Self::NoRuntime { .. } => Exit::Unavailable,
        }
    }

    fn kind(&self) -> &'static str {
        match self {
            Self::NoRuntime { .. } => "no-container-runtime",
        }
    }

    fn hints(&self) -> Vec<Hint> {
        match self {
            Self::NoRuntime { .. } => vec![hint(
                "see what is there and what is missing",
                Some("{host} doctor"),
            )],
        }
    }

    fn details(&self) -> Vec<Detail> {
        match self {
            Self::NoRuntime { passed_over } => passed_over
                .iter()
                .map(|reason| Detail::new("passed over", reason))
                .collect(),
        }
    }
}
