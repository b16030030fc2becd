//! What can go wrong when results are removed.

use super::User;
use crate::{
    fault::{Detail, Exit, Fault, Hint, hint},
    process::quote,
    store::StoreError,
};

/// A failure to remove a result.
#[derive(Debug, thiserror::Error)]
pub enum ResultError {
    /// Nothing here is called so.
    #[error("there is no engine or source `{name}` here")]
    Unknown {
        /// What was asked for.
        name: String,
        /// The names that there are.
        there: Vec<String>,
    },
    /// Several are.
    #[error("`{name}` may be any of {}", keys.join(", "))]
    Ambiguous {
        /// What was asked for.
        name: String,
        /// First digits of their keys.
        keys: Vec<String>,
    },
    /// Somebody uses it.
    #[error("`{name}` ({key}) is in use by {user}")]
    InUse {
        /// Its name.
        name: String,
        /// First digits of its key.
        key: String,
        /// Who.
        user: User,
    },
    /// The store could not be read or written.
    #[error("the store cannot be used")]
    Store {
        /// Why.
        #[source]
        source: StoreError,
    },
}

impl From<StoreError> for ResultError {
    fn from(source: StoreError) -> Self {
        Self::Store { source }
    }
}

impl Fault for ResultError {
    fn exit(&self) -> Exit {
        match self {
            Self::Unknown { .. } | Self::Ambiguous { .. } => Exit::NotFound,
            Self::InUse { .. } => Exit::Busy,
            Self::Store { source } => source.exit(),
        }
    }

    fn hints(&self) -> Vec<Hint> {
        match self {
            Self::Unknown { there, .. } => {
                let list = hint("see which there are", Some("{host} engine list"));
                let names = match there.is_empty() {
                    true => None,
                    false => Some(hint(format!("there are {}", there.join(", ")), None)),
                };
                names.into_iter().chain([list]).collect()
            }
            Self::Ambiguous { .. } => vec![hint(
                "give the beginning of its key",
                Some("{host} engine list"),
            )],
            Self::InUse {
                user: User::Pools(pools),
                ..
            } => {
                let pools: Vec<String> = pools.iter().map(|pool| quote(pool)).collect();
                let command = format!("{{host}} stop {}", pools.join(" "));
                let text = match pools.len() {
                    1 => "stop the engine first",
                    _ => "stop the engines first",
                };
                vec![hint(text, Some(&command))]
            }
            Self::InUse { .. } => vec![hint("try again once that has ended", None)],
            Self::Store { source } => source.hints(),
        }
    }

    fn details(&self) -> Vec<Detail> {
        match self {
            Self::Store { source } => source.details(),
            _ => Vec::new(),
        }
    }

    fn kind(&self) -> &'static str {
        match self {
            Self::Unknown { .. } => "unknown-result",
            Self::Ambiguous { .. } => "ambiguous-result",
            Self::InUse { .. } => "result-in-use",
            Self::Store { source } => source.kind(),
        }
    }
}
