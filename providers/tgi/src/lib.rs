//! Text Generation Inference: how its container is run.
//!
//! | module | decides |
//! |---|---|
//! | [`decision`] | what follows from pool and machine alone |
//! | [`settings`] | what an operator may set, and what the provider sets: all through the environment |
//! | [`run`] | container, probes and proof of the engine |
//! | [`diagnoses`] | what its last words mean |

mod decision;
mod diagnoses;
mod run;
mod settings;

use engine_provider_api::{
    Act, EngineProvisioner, Mode, ModelShape, Plan, PlanRequest, Pool, PrepareRequest,
    PreparedEngine, ProviderError, ProviderInfo, StageModel, Step, export_provider,
};
use engine_provider_kit::{container, external, model};

use crate::decision::{Decision, options_schema};

/// The provider.
#[derive(Default)]
pub struct Tgi;

export_provider!(Tgi, manifest = {
    name: "tgi",
    description: "Text Generation Inference, from Hugging Face's container image.",
    modes: ["container", "external"],
});

const MODEL: &str = "model-fetch";

impl EngineProvisioner for Tgi {
    fn info(&self) -> ProviderInfo {
        ProviderInfo {
            requires: Vec::new(),
            name: "tgi".to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            modes: vec![Mode::Container, Mode::External],
            tools: Vec::new(),
            options_schema: options_schema(),
            default_pool: Pool::new("default", "tgi"),
            homepage: Some("https://github.com/huggingface/text-generation-inference".to_owned()),
        }
    }

    fn plan(&self, request: &PlanRequest) -> Result<Plan, ProviderError> {
        if request.mode == Mode::External {
            return external::plan(&request.pool);
        }
        let decision = Decision::take(&request.pool, &request.facts, request.mode)?;
        let model = Step {
            id: MODEL.to_owned(),
            after: Vec::new(),
            act: Act::StageModel(StageModel {
                reference: decision.model.reference.clone(),
                mirrors: decision.model.mirrors.clone(),
                digest: decision.model.checksum.clone(),
                cache_dir: decision.model.cache_dir.clone(),
                include: decision.model.include.clone(),
                exclude: decision.model.exclude.clone(),
                formats: model::WEIGHTS.map(str::to_owned).into(),
                shape: ModelShape::Directory,
                ..StageModel::default()
            }),
        };
        Ok(Plan {
            requires: Vec::new(),
            steps: vec![container::pull(decision.image.clone()), model],
            notes: decision.notes,
            warnings: decision.warnings,
        })
    }

    fn prepare(&self, request: &PrepareRequest) -> Result<PreparedEngine, ProviderError> {
        if request.mode == Mode::External {
            return external::prepare(&request.pool, run::from_outside());
        }
        let decision = Decision::take(&request.pool, &request.facts, request.mode)?;
        run::prepare(&decision, request)
    }
}

#[cfg(test)]
mod tests;
