//! NVIDIA Triton Inference Server and its back ends.

use engine_provider_api::{
    EngineProvisioner, Mode, Plan, PlanRequest, Pool, PrepareRequest, PreparedEngine,
    ProviderError, ProviderInfo, export_provider,
};

#[derive(Default)]
struct Triton;

impl EngineProvisioner for Triton {
    fn info(&self) -> ProviderInfo {
        ProviderInfo {
            requires: Vec::new(),
            name: "triton".to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            modes: vec![Mode::Container],
            tools: Vec::new(),
            options_schema: serde_json::Value::Null,
            default_pool: Pool::new("default", "triton"),
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

export_provider!(Triton, manifest = {
    name: "triton",
    description: "NVIDIA Triton Inference Server and its back ends.",
    modes: ["container"],
});
