//! llama.cpp: how `llama-server` is built from source, and how it is run.
//!
//! | module | decides |
//! |---|---|
//! | [`source`] | which commit, and where it can be had |
//! | [`backend`] | CUDA, HIP, Vulkan or the processor, on which GPUs |
//! | [`cmake`] | the commands that build it, and what to try when they fail |
//! | [`flags`] | what an operator may pass, under which name |
//! | [`own`] | what the provider passes |
//! | [`built`] | what was really built |
//! | [`run`] | the command line, environment and probes of the engine |
//! | [`diagnoses`] | what its last words mean |

mod backend;
mod built;
mod cmake;
mod diagnoses;
mod flags;
mod options;
mod own;
mod run;
mod source;

use std::collections::BTreeMap;

use engine_provider_api::{
    Act, EngineProvisioner, ErrorCode, Facts, GpuPolicy, Mode, ModelSource, Observe, Plan,
    PlanRequest, Pool, PrepareRequest, PreparedEngine, ProviderError, ProviderInfo, Provisioning,
    StageModel, Step, Template, export_provider,
};
use engine_provider_kit::{flags::Flag, tools};

use crate::{
    backend::Target,
    cmake::{Given, Recipe},
    options::Options,
    source::Source,
};

/// The provider.
#[derive(Default)]
pub struct LlamaCpp;

export_provider!(LlamaCpp, manifest = {
    name: "llamacpp",
    description: "llama.cpp's llama-server, built from source for this machine.",
    modes: ["source"],
});

const PREFLIGHT: &str = "preflight-tools";
const CLONE: &str = "git-clone";
const BUILD: &str = "build";
const VERSION: &str = "observe-version";
const HELP: &str = "observe-help";
const DEVICES: &str = "observe-devices";
const MODEL: &str = "model-fetch";

impl EngineProvisioner for LlamaCpp {
    fn info(&self) -> ProviderInfo {
        let needed = ["git", "cmake", "cc", "cxx"].map(|name| tools::probe(name, &[Mode::Source]));
        let helpful = ["ninja", "make", "ccache"].map(|name| tools::probe(name, &[]));
        ProviderInfo {
            requires: Vec::new(),
            name: "llamacpp".to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            modes: vec![Mode::Source],
            tools: needed.into_iter().chain(helpful).collect(),
            options_schema: options::schema(),
            default_pool: default_pool(),
            homepage: Some(source::REPOSITORY.to_owned()),
        }
    }

    fn plan(&self, request: &PlanRequest) -> Result<Plan, ProviderError> {
        let decision = Decision::take(&request.pool, &request.facts, request.mode)?;
        let recipe = decision.recipe();
        let build = recipe.build();
        let requires = match build.attempts.len() {
            1 => Vec::new(),
            _ => vec!["build.attempts".to_owned()],
        };
        let checkout = decision.source.checkout(&request.facts);
        let steps = vec![
            step(PREFLIGHT, Act::RequireTools(recipe.tools())),
            after(PREFLIGHT, step(CLONE, Act::Checkout(checkout))),
            step(BUILD, Act::Build(build)),
            step(VERSION, observe("--version", false)),
            step(HELP, observe("--help", false)),
            step(DEVICES, observe("--list-devices", true)),
            step(MODEL, Act::StageModel(decision.model())),
        ];
        Ok(Plan {
            requires,
            steps,
            notes: decision.notes,
            warnings: decision.warnings,
        })
    }

    fn prepare(&self, request: &PrepareRequest) -> Result<PreparedEngine, ProviderError> {
        let decision = Decision::take(&request.pool, &request.facts, request.mode)?;
        run::prepare(&decision, request)
    }
}

/// Everything that follows from pool and machine alone; `plan` and `prepare` take the same one.
struct Decision<'a> {
    pool: &'a Pool,
    facts: &'a Facts,
    options: Options,
    source: Source,
    cmake: Given,
    target: Target<'a>,
    reference: &'a ModelSource,
    flags: Vec<Flag>,
    environment: BTreeMap<String, Template>,
    notes: Vec<String>,
    warnings: Vec<String>,
}

impl<'a> Decision<'a> {
    fn take(pool: &'a Pool, facts: &'a Facts, mode: Mode) -> Result<Self, ProviderError> {
        if mode != Mode::Source {
            let message = format!("this llama.cpp provider does not offer mode `{mode}`");
            return Err(ProviderError::new(ErrorCode::UnsupportedMode, message)
                .hint("set `provisioning.mode: source`, or leave it out"));
        }
        let reference = pool.provisioning.model.as_ref().ok_or_else(|| {
            ProviderError::invalid("provisioning.model", "the pool names no model to serve")
                .hint("set `provisioning.model.ref`, for example to `builtin:haiku`")
        })?;
        let options = Options::read(pool)?;
        let source = Source::of(pool);
        let cmake = Given::read(pool)?;
        let flags = flags::given(pool, source.pinned())?;
        let environment = flags::environment(pool)?;
        let (target, warnings) = Target::choose(pool, facts, &cmake)?;
        let mut decision = Self {
            pool,
            facts,
            options,
            source,
            cmake,
            target,
            reference,
            flags,
            environment,
            notes: Vec::new(),
            warnings,
        };
        decision.explain();
        Ok(decision)
    }

    fn explain(&mut self) {
        self.notes.push(run::profile_note(self.pool.profile));
        self.notes.push(self.target.note());
        self.notes.extend(self.source.note());
        self.notes.append(&mut self.cmake.notes);
        let placed = !self.pool.devices.is_empty()
            || !self.pool.tensor_split.is_empty()
            || flags::asks_for_gpu(&self.flags);
        if self.target.gpus.is_empty() && placed {
            let warning = "`devices`, `tensor_split` and flags that place layers on GPUs have no \
                           effect on the processor";
            self.warnings.push(warning.to_owned());
        }
    }

    fn recipe(&self) -> Recipe<'_> {
        Recipe {
            given: &self.cmake,
            facts: self.facts,
            source: &self.source,
            target: &self.target,
        }
    }

    fn requires_gpu(&self) -> bool {
        self.pool.gpu == GpuPolicy::Require
    }

    fn model(&self) -> StageModel {
        StageModel {
            reference: self.reference.reference.clone(),
            quant: self.pool.quant.clone(),
            digest: self.reference.checksum.clone(),
            cache_dir: self.reference.cache_dir.clone(),
            formats: vec!["gguf".to_owned()],
            ..StageModel::default()
        }
    }
}

fn default_pool() -> Pool {
    let model = ModelSource {
        reference: "builtin:haiku".to_owned(),
        ..ModelSource::default()
    };
    let named = serde_json::json!({ "id": "default", "engine": "llamacpp" });
    let pool = serde_json::from_value(named).expect("id and engine make a pool");
    Pool {
        provisioning: Provisioning {
            mode: Some(Mode::Source),
            model: Some(model),
            ..Provisioning::default()
        },
        ..pool
    }
}

fn step(id: &str, act: Act) -> Step {
    Step {
        id: id.to_owned(),
        after: Vec::new(),
        act,
    }
}

fn after(earlier: &str, step: Step) -> Step {
    Step {
        after: vec![earlier.to_owned()],
        ..step
    }
}

fn observe(argument: &str, asks_devices: bool) -> Act {
    Act::Observe(Observe {
        program: run::program(),
        args: vec![argument.into()],
        asks_devices,
        timeout_ms: 20_000,
    })
}

#[cfg(test)]
mod tests;
