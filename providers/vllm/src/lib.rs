//! vLLM: how it comes onto the machine, and how it is run.
//!
//! | module | decides |
//! |---|---|
//! | [`decision`] | what follows from pool and machine alone |
//! | [`origin`] | which image, or which packages |
//! | [`flags`] | what an operator may pass, and what the provider passes |
//! | [`run`] | command line, environment, probes and proof of the engine |
//! | [`diagnoses`] | what its last words mean |

mod decision;
mod diagnoses;
mod flags;
mod origin;
mod run;

use std::collections::BTreeMap;

use engine_provider_api::{
    Act, EngineProvisioner, Mode, ModelShape, Plan, PlanRequest, Pool, PrepareRequest,
    PreparedEngine, ProviderError, ProviderInfo, StageModel, Step, ToolProbe, export_provider,
};
use engine_provider_kit::{container, external, model::WEIGHTS, python, tools};

use crate::{
    decision::{Decision, options_schema},
    origin::{Origin, PYTHON},
};

/// The provider.
#[derive(Default)]
pub struct Vllm;

export_provider!(Vllm, manifest = {
    name: "vllm",
    description: "vLLM: throughput-oriented serving of Hugging Face models.",
    modes: ["container", "package", "external"],
});

const MODES: [Mode; 3] = [Mode::Container, Mode::Package, Mode::External];
const PREFLIGHT: &str = "preflight-tools";
const MODEL: &str = "model-fetch";

impl EngineProvisioner for Vllm {
    fn info(&self) -> ProviderInfo {
        ProviderInfo {
            requires: Vec::new(),
            name: "vllm".to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            modes: MODES.to_vec(),
            tools: vec![python_probe(), tools::probe("cxx", &[Mode::Package])],
            options_schema: options_schema(),
            default_pool: Pool::new("default", "vllm"),
            homepage: Some("https://github.com/vllm-project/vllm".to_owned()),
        }
    }

    fn plan(&self, request: &PlanRequest) -> Result<Plan, ProviderError> {
        if request.mode == Mode::External {
            return external::plan(&request.pool);
        }
        let decision = Decision::take(&request.pool, &request.facts, request.mode)?;
        let mut steps = match &decision.origin {
            Origin::Image(image) => vec![container::pull(image.clone())],
            Origin::Packages(packages) => {
                let mut venv = packages.environment(&request.facts);
                venv.after = vec![PREFLIGHT.to_owned()];
                vec![
                    step(
                        PREFLIGHT,
                        Act::RequireTools(origin::required_tools(&request.facts)),
                    ),
                    venv,
                ]
            }
        };
        steps.push(step(MODEL, Act::StageModel(model(&decision))));
        Ok(Plan {
            requires: Vec::new(),
            steps,
            notes: decision.notes,
            warnings: decision.warnings,
        })
    }

    fn prepare(&self, request: &PrepareRequest) -> Result<PreparedEngine, ProviderError> {
        if request.mode == Mode::External {
            return external::prepare(&request.pool, run::from_outside());
        }
        let decision = Decision::take(&request.pool, &request.facts, request.mode)?;
        run::prepare(decision, request)
    }
}

/// The interpreter that the lists of packages were resolved for, and no other.
fn python_probe() -> ToolProbe {
    ToolProbe {
        name: PYTHON.to_owned(),
        programs: vec!["python3.12".to_owned()],
        version_args: vec!["--version".to_owned()],
        extra_directories: Vec::new(),
        needed_by: vec![Mode::Package],
        // Which systems have it is known with the facts.
        packages: BTreeMap::new(),
    }
}

fn model(decision: &Decision) -> StageModel {
    StageModel {
        reference: decision.model.reference.clone(),
        mirrors: decision.model.mirrors.clone(),
        digest: decision.model.checksum.clone(),
        cache_dir: decision.model.cache_dir.clone(),
        include: decision.model.include.clone(),
        exclude: decision.model.exclude.clone(),
        formats: WEIGHTS.map(str::to_owned).into(),
        shape: ModelShape::Directory,
        ..StageModel::default()
    }
}

fn step(id: &str, act: Act) -> Step {
    Step {
        id: id.to_owned(),
        after: Vec::new(),
        act,
    }
}

/// Where the interpreter lies once it is installed.
fn program() -> engine_provider_api::Template {
    python::interpreter()
}

#[cfg(test)]
mod tests;
