//! `options{}` of a llama.cpp pool.

use engine_provider_api::{Pool, ProviderError};
use schemars::JsonSchema;
use serde::Deserialize;

/// Settings that only llama.cpp has.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Options {
    /// Seed for requests that bring none.
    pub seed: u32,
    /// Threads for generation on the processor. Default: one per core, two hardware threads being
    /// counted as one core on x86.
    #[schemars(range(min = 1))]
    pub threads: Option<u32>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            seed: 42,
            threads: None,
        }
    }
}

impl Options {
    pub(crate) fn read(pool: &Pool) -> Result<Self, ProviderError> {
        let options = serde_json::Value::Object(pool.options.clone());
        serde_json::from_value(options)
            .map_err(|error| ProviderError::invalid("options", error.to_string()))
    }
}

pub(crate) fn schema() -> serde_json::Value {
    schemars::schema_for!(Options).to_value()
}
