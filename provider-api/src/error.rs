//! What a provider says when it cannot do what was asked.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A refusal or failure of a provider; keeps its parts across the boundary.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema, thiserror::Error)]
#[error("{message}")]
pub struct ProviderError {
    /// What kind of failure this is; the host maps it to an exit code.
    pub code: ErrorCode,
    /// What failed, one lower-case phrase without its causes.
    pub message: String,
    /// Why, outermost first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub causes: Vec<String>,
    /// What to do about it, best first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hints: Vec<Hint>,
    /// Pool-file field that is at fault, for example `provisioning.flags[2]`: the host points at
    /// the line it came from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub field: Option<String>,
}

/// Kinds of provider failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum ErrorCode {
    /// A value in the pool is wrong, unknown or does not fit the others.
    InvalidParams,
    /// The machine cannot run this pool: no usable GPU, too little memory, no toolkit.
    PoolUnavailable,
    /// The provider does not offer the mode that was asked for.
    UnsupportedMode,
    /// The provider itself is at fault, for example it panicked.
    #[serde(other)]
    Internal,
}

/// Advice that can be followed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Hint {
    /// What to do, in words.
    pub text: String,
    /// Command to paste. `{host}` stands for the path the host was called by, `{again}` for
    /// the whole command line, less the flag that is added behind it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
}

impl ProviderError {
    /// An error without causes, hints or field.
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
            causes: Vec::new(),
            hints: Vec::new(),
            field: None,
        }
    }

    /// A value in the pool is wrong; `field` is its path, for example `ctx`.
    pub fn invalid(field: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            field: Some(field.into()),
            ..Self::new(ErrorCode::InvalidParams, message)
        }
    }

    /// The machine cannot run this pool.
    pub fn unavailable(message: impl Into<String>) -> Self {
        Self::new(ErrorCode::PoolUnavailable, message)
    }

    /// Adds a cause.
    #[must_use]
    pub fn because(mut self, cause: impl Into<String>) -> Self {
        self.causes.push(cause.into());
        self
    }

    /// Adds advice in words.
    #[must_use]
    pub fn hint(mut self, text: impl Into<String>) -> Self {
        self.hints.push(Hint {
            text: text.into(),
            command: None,
        });
        self
    }

    /// Adds advice with a command to paste.
    #[must_use]
    pub fn fix(mut self, text: impl Into<String>, command: impl Into<String>) -> Self {
        self.hints.push(Hint {
            text: text.into(),
            command: Some(command.into()),
        });
        self
    }
}
