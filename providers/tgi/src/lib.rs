//! Hugging Face Text Generation Inference, in maintenance upstream.

use engine_provider_api::{
    EngineProvisioner, Mode, Plan, PlanRequest, Pool, PrepareRequest, PreparedEngine,
    ProviderError, ProviderInfo, export_provider,
};

#[derive(Default)]
struct Tgi;

impl EngineProvisioner for Tgi {
    fn info(&self) -> ProviderInfo {
        ProviderInfo {
            requires: Vec::new(),
            name: "tgi".to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            modes: vec![Mode::Container],
            tools: Vec::new(),
            options_schema: serde_json::Value::Null,
            default_pool: Pool::new("default", "tgi"),
            homepage: None,
        }
    }

    fn plan(&self, _: &PlanRequest) -> Result<Plan, ProviderError> {
        Err(ProviderError::unavailable("not yet"))
    }

    fn prepare(&self, _: &PrepareRequest) -> Result<PreparedEngine, ProviderError> {
        Err(ProviderError::unavailable("not yet"))
    }
}

export_provider!(Tgi, manifest = {
    name: "tgi",
    description: "Hugging Face Text Generation Inference, in maintenance upstream.",
    modes: ["container"],
});
