//! What can go wrong with the catalog.

use crate::{
    fault::{Detail, Exit, Fault, Hint, hint},
    store::StoreError,
};

/// A failure of the catalog.
#[derive(Debug, thiserror::Error)]
pub enum CatalogError {
    /// Nothing here is called so.
    #[error("there is no model `{name}` here")]
    Unknown {
        /// What was asked for.
        name: String,
        /// Ids that look alike, most alike first.
        nearest: Vec<String>,
    },
    /// Several are.
    #[error("`{name}` may be any of {}", ids.join(", "))]
    Ambiguous {
        /// What was asked for.
        name: String,
        /// Their ids.
        ids: Vec<String>,
    },
    /// Somebody uses it.
    #[error("model `{id}` is in use by {by}")]
    InUse {
        /// The model.
        id: String,
        /// Who, in words.
        by: String,
        /// The pool whose engine uses it, where it is one.
        pool: Option<String>,
    },
    /// Files of it are damaged or gone.
    #[error("{} of {checked} {} not what {} should be", damaged.len(), words(*checked).0, words(*checked).1)]
    Damaged {
        /// Models and their files, as `ID: FILE`.
        damaged: Vec<String>,
        /// Models that were looked at.
        checked: usize,
        /// The first of them, and how it is had again.
        again: Option<String>,
    },
    /// It could not be read or written.
    #[error("the catalog of models cannot be used")]
    Store {
        /// Why.
        #[source]
        source: StoreError,
    },
}

fn words(count: usize) -> (&'static str, &'static str) {
    match count {
        1 => ("model is", "it"),
        _ => ("models are", "they"),
    }
}

impl From<StoreError> for CatalogError {
    fn from(source: StoreError) -> Self {
        Self::Store { source }
    }
}

impl Fault for CatalogError {
    fn exit(&self) -> Exit {
        match self {
            Self::Unknown { .. } | Self::Ambiguous { .. } => Exit::NotFound,
            Self::InUse { .. } => Exit::Busy,
            Self::Damaged { .. } => Exit::Verification,
            Self::Store { source } => source.exit(),
        }
    }

    fn hints(&self) -> Vec<Hint> {
        match self {
            Self::Unknown { nearest, .. } if nearest.is_empty() => {
                vec![hint("see which there are", Some("{host} model list"))]
            }
            Self::Unknown { nearest, .. } => vec![
                hint(format!("did you mean {}?", nearest.join(" or ")), None),
                hint("see which there are", Some("{host} model list")),
            ],
            Self::Ambiguous { .. } => vec![hint("give more of its id", None)],
            Self::InUse {
                pool: Some(pool), ..
            } => vec![hint(
                "stop the engine first",
                Some(&format!("{{host}} stop {pool}")),
            )],
            Self::InUse { .. } => vec![hint("try again once that has ended", None)],
            Self::Damaged { again, .. } => again
                .iter()
                .map(|command| hint("fetch what is damaged again", Some(command)))
                .collect(),
            Self::Store { source } => source.hints(),
        }
    }

    fn details(&self) -> Vec<Detail> {
        match self {
            Self::Damaged { damaged, .. } => vec![Detail::new("damaged", damaged.join("\n"))],
            Self::Store { source } => source.details(),
            _ => Vec::new(),
        }
    }

    fn kind(&self) -> &'static str {
        match self {
            Self::Unknown { .. } => "unknown-model",
            Self::Ambiguous { .. } => "ambiguous-model",
            Self::InUse { .. } => "model-in-use",
            Self::Damaged { .. } => "model-damaged",
            Self::Store { source } => source.kind(),
        }
    }
}
