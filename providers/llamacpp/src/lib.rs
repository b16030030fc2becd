//! llama.cpp: how `llama-server` is built or obtained, and how it is run.
//!
//! | module | decides |
//! |---|---|
//! | [`origin`] | how it comes onto the machine, and what that means for its program and version |
//! | [`source`] | which commit, and where it can be had |
//! | [`image`], [`package`], [`binary`] | what is pulled, installed, downloaded |
//! | [`backend`] | CUDA, HIP, Vulkan or the processor, on which GPUs |
//! | [`cmake`] | the commands that build it, and what to try when they fail |
//! | [`flags`] | what an operator may pass, under which name |
//! | [`own`] | what the provider passes |
//! | [`built`] | what was really built |
//! | [`run`] | the command line, environment and probes of the engine |
//! | [`vram`] | device memory that it needs |
//! | [`diagnoses`] | what its last words mean |

mod backend;
mod binary;
mod built;
mod cmake;
mod diagnoses;
mod flags;
mod image;
mod options;
mod origin;
mod own;
mod package;
mod run;
mod source;
mod vram;

use std::collections::BTreeMap;

use engine_provider_api::{
    Act, EngineProvisioner, Facts, GpuPolicy, Mode, ModelSource, Plan, PlanRequest, Pool,
    PrepareRequest, PreparedEngine, ProviderError, ProviderInfo, Provisioning, StageModel, Step,
    Template, export_provider,
};
use engine_provider_kit::{container, external, flags::Flag, tools};

use crate::{
    backend::{Backend, Target},
    cmake::Recipe,
    options::Options,
    origin::Origin,
};

/// The provider.
#[derive(Default)]
pub struct LlamaCpp;

export_provider!(LlamaCpp, manifest = {
    name: "llamacpp",
    description: "llama.cpp's llama-server: built from source for this machine, or obtained.",
    modes: ["source", "container", "package", "binary", "external"],
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
            modes: vec![
                Mode::Source,
                Mode::Container,
                Mode::Package,
                Mode::Binary,
                Mode::External,
            ],
            tools: needed.into_iter().chain(helpful).collect(),
            options_schema: options::schema(),
            default_pool: default_pool(),
            homepage: Some(source::REPOSITORY.to_owned()),
        }
    }

    fn plan(&self, request: &PlanRequest) -> Result<Plan, ProviderError> {
        if request.mode == Mode::External {
            return external::plan(&request.pool);
        }
        let decision = Decision::take(&request.pool, &request.facts, request.mode)?;
        let mut steps = decision.steps();
        let several =
            |step: &Step| matches!(&step.act, Act::Build(build) if build.attempts.len() > 1);
        let retried = steps.iter().any(several);
        steps.push(step(MODEL, Act::StageModel(decision.model())));
        Ok(Plan {
            requires: retried
                .then(|| "build.attempts".to_owned())
                .into_iter()
                .collect(),
            steps,
            notes: decision.notes,
            warnings: decision.warnings,
        })
    }

    fn prepare(&self, request: &PrepareRequest) -> Result<PreparedEngine, ProviderError> {
        if request.mode == Mode::External {
            return external::prepare(&request.pool, run::family());
        }
        let mut decision = Decision::take(&request.pool, &request.facts, request.mode)?;
        decision.settle(request);
        run::prepare(&decision, request)
    }
}

/// Everything that follows from pool and machine alone; `plan` and `prepare` take the same one.
struct Decision<'a> {
    pool: &'a Pool,
    facts: &'a Facts,
    options: Options,
    origin: Origin,
    target: Target<'a>,
    reference: &'a ModelSource,
    flags: Vec<Flag>,
    environment: BTreeMap<String, Template>,
    notes: Vec<String>,
    warnings: Vec<String>,
}

impl<'a> Decision<'a> {
    fn take(pool: &'a Pool, facts: &'a Facts, mode: Mode) -> Result<Self, ProviderError> {
        let reference = pool.provisioning.model.as_ref().ok_or_else(|| {
            ProviderError::invalid("provisioning.model", "the pool names no model to serve")
                .hint("set `provisioning.model.ref`, for example to `builtin:haiku`")
        })?;
        let options = Options::read(pool)?;
        let origin = Origin::read(pool, mode)?;
        let flags = flags::given(pool, origin.pinned())?;
        let environment = flags::environment(pool)?;
        let (target, warnings) = match &origin {
            Origin::Source { cmake, .. } => Target::choose(pool, facts, cmake)?,
            Origin::Image(image) => image.target(pool, facts)?,
            other => Target::found(pool, facts, other.backend())?,
        };
        let mut decision = Self {
            pool,
            facts,
            options,
            origin,
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
        match &mut self.origin {
            Origin::Source { source, cmake } => {
                self.notes.extend(source.note());
                self.notes.append(&mut cmake.notes);
            }
            Origin::Package(package) => self.notes.push(package.note()),
            Origin::Image(image) => self.warnings.extend(image.warning()),
            Origin::Binary(_) => {}
        }
        let placed = !self.pool.devices.is_empty()
            || !self.pool.tensor_split.is_empty()
            || flags::asks_for_gpu(&self.flags);
        if self.target.gpus.is_empty() && placed {
            let warning = "`devices`, `tensor_split` and flags that place layers on GPUs have no \
                           effect on the processor";
            self.warnings.push(warning.to_owned());
        }
    }

    /// Steps that obtain the program and ask it what it is.
    fn steps(&self) -> Vec<Step> {
        let backend = self.target.backend;
        let mut steps = match &self.origin {
            Origin::Source { source, cmake } => {
                let recipe = Recipe {
                    given: cmake,
                    facts: self.facts,
                    source,
                    target: &self.target,
                };
                let checkout = source.checkout(self.facts);
                vec![
                    step(PREFLIGHT, Act::RequireTools(recipe.tools())),
                    after(PREFLIGHT, step(CLONE, Act::Checkout(checkout))),
                    step(BUILD, Act::Build(recipe.build())),
                ]
            }
            Origin::Package(package) => {
                let install = package.install(backend);
                vec![step(package::INSTALL, Act::InstallPackages(install))]
            }
            Origin::Binary(binary) => vec![step(binary::PROGRAM, binary.step())],
            // A container is not asked: its log tells.
            Origin::Image(image) => return vec![container::pull(image.name(backend))],
        };
        let questions = [
            (VERSION, "--version", false),
            (HELP, "--help", false),
            (DEVICES, "--list-devices", true),
        ];
        for (id, argument, asks_devices) in questions {
            steps.push(step(id, self.origin.observe(argument, asks_devices)));
        }
        steps
    }

    /// Takes the back end that a program from elsewhere really has.
    fn settle(&mut self, request: &PrepareRequest) {
        let Some(output) = request.output(DEVICES) else {
            return;
        };
        if !matches!(self.origin, Origin::Source { .. }) {
            let listed = |backend: Backend| built::listed(output, backend.device_prefix());
            self.target.settle(listed);
        }
    }

    fn requires_gpu(&self) -> bool {
        self.pool.gpu == GpuPolicy::Require
    }

    fn model(&self) -> StageModel {
        StageModel {
            reference: self.reference.reference.clone(),
            mirrors: self.reference.mirrors.clone(),
            quant: self.pool.quant.clone(),
            digest: self.reference.checksum.clone(),
            cache_dir: self.reference.cache_dir.clone(),
            include: self.reference.include.clone(),
            exclude: self.reference.exclude.clone(),
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

#[cfg(test)]
mod tests;
