//! NVIDIA Triton Inference Server: which image or package, which model repository, how it is run.
//!
//! | module | decides |
//! |---|---|
//! | [`release`] | which image, and whether the driver is new enough for it |
//! | [`package`] | `tritonserver` without a container |
//! | [`repository`] | the model repository: the pool's, or one made around its model |
//! | [`flags`] | what an operator may pass |
//! | [`run`] | command line, ports, probes and proof |
//! | [`diagnoses`] | what its last words mean |

mod diagnoses;
mod flags;
mod options;
mod package;
mod release;
mod repository;
mod run;

use std::collections::BTreeMap;

use engine_provider_api::{
    Act, EngineProvisioner, ErrorCode, Facts, Gpu, ImageName, Mode, ModelShape, ModelSource, Plan,
    PlanRequest, Pool, PrepareRequest, PreparedEngine, Profile, ProviderError, ProviderInfo,
    Provisioning, StageModel, Step, Template, export_provider,
};
use engine_provider_kit::{
    container, external,
    flags::Flag,
    gpu::{self, Choice},
    model::public_name,
};
use serde_json::{Value, json};

use crate::options::{Backend, Options};

/// The provider.
#[derive(Default)]
pub struct Triton;

export_provider!(Triton, manifest = {
    name: "triton",
    description: "NVIDIA Triton Inference Server and its back ends.",
    modes: ["container", "package", "external"],
});

const PREFLIGHT: &str = "preflight-tools";
const MODEL: &str = "model-fetch";
/// Formats, by name suffix, of what makes a directory a model repository: descriptions of models, and the
/// files of those that Triton describes itself (its documentation, "Auto-Generated Model Configuration").
const REPOSITORY: &[&str] = &["pbtxt", "onnx", "plan", "pb", "xml", "graphdef", "py"];
const MODES: [Mode; 3] = [Mode::Container, Mode::Package, Mode::External];

impl EngineProvisioner for Triton {
    fn info(&self) -> ProviderInfo {
        ProviderInfo {
            requires: Vec::new(),
            name: "triton".to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            modes: MODES.to_vec(),
            tools: vec![package::tool()],
            options_schema: options::schema(),
            default_pool: default_pool(),
            homepage: Some("https://github.com/triton-inference-server/server".to_owned()),
        }
    }

    fn plan(&self, request: &PlanRequest) -> Result<Plan, ProviderError> {
        if request.mode == Mode::External {
            return external::plan(&request.pool);
        }
        let decision = Decision::take(&request.pool, &request.facts, request.mode)?;
        let mut steps = match &decision.image {
            Some(image) => vec![container::pull(image.clone())],
            None => package::steps(decision.facts)?,
        };
        steps.push(Step {
            id: MODEL.to_owned(),
            after: Vec::new(),
            act: Act::StageModel(decision.model()),
        });
        Ok(Plan {
            steps,
            notes: decision.notes,
            warnings: decision.warnings,
            ..Plan::default()
        })
    }

    fn prepare(&self, request: &PrepareRequest) -> Result<PreparedEngine, ProviderError> {
        if request.mode == Mode::External {
            return external::prepare(&request.pool, run::family());
        }
        let decision = Decision::take(&request.pool, &request.facts, request.mode)?;
        run::prepare(&decision, request)
    }
}

/// Everything that follows from pool and machine alone; `plan` and `prepare` take the same one.
struct Decision<'a> {
    pool: &'a Pool,
    facts: &'a Facts,
    options: Options,
    /// GPUs in the pool's order; empty for the processor.
    gpus: Vec<&'a Gpu>,
    /// The image; `None` in mode package.
    image: Option<ImageName>,
    reference: &'a ModelSource,
    /// Name of the model in its repository.
    name: String,
    flags: Vec<Flag>,
    environment: BTreeMap<String, Template>,
    notes: Vec<String>,
    warnings: Vec<String>,
}

impl<'a> Decision<'a> {
    fn take(pool: &'a Pool, facts: &'a Facts, mode: Mode) -> Result<Self, ProviderError> {
        if !MODES.contains(&mode) {
            let message = format!("this Triton provider does not offer mode `{mode}`");
            return Err(ProviderError::new(ErrorCode::UnsupportedMode, message)
                .hint("set `provisioning.mode: container`, or leave it out"));
        }
        let options = Options::read(pool)?;
        check_fields(pool, &options, mode)?;
        let reference = pool.provisioning.model.as_ref().ok_or_else(|| {
            ProviderError::invalid("provisioning.model", "the pool names no model to serve")
                .hint("set `provisioning.model.ref` to the directory of a model repository")
        })?;
        let given = pool.model.clone();
        let name = given.unwrap_or_else(|| public_name(&reference.reference));
        repository::check_name(&name)?;
        let flags = flags::given(pool)?;
        let environment = flags::environment(pool)?;
        let (gpus, warnings) = gpus(pool, facts, options.backend)?;
        let image = match mode {
            Mode::Container => Some(release::image(pool, options.backend)?),
            _ => None,
        };
        if let Some(image) = &image {
            release::check_driver(image, &gpus, facts)?;
        }
        let mut decision = Self {
            pool,
            facts,
            options,
            gpus,
            image,
            reference,
            name,
            flags,
            environment,
            notes: Vec::new(),
            warnings,
        };
        decision.explain();
        Ok(decision)
    }

    fn explain(&mut self) {
        let name = &self.name;
        self.notes.push(match self.options.backend {
            Some(backend) => format!(
                "a repository is made with model `{name}` for {}",
                backend.name()
            ),
            None if self.model_is_known() => {
                format!("the model repository must hold model `{name}`")
            }
            None => "every model of the repository is served; `model` names the one that requests \
                     are for"
                .to_owned(),
        });
        if self.image.is_none() {
            let note = "the package has the Python back end and no other";
            self.notes.push(note.to_owned());
        }
    }

    /// Whether it is known that the repository has a model of this name.
    fn model_is_known(&self) -> bool {
        self.pool.model.is_some() || self.options.backend.is_some()
    }

    fn model(&self) -> StageModel {
        let file = self.options.backend.and_then(Backend::file);
        let formats = self.options.backend.map_or(REPOSITORY, Backend::formats);
        StageModel {
            reference: self.reference.reference.clone(),
            mirrors: self.reference.mirrors.clone(),
            quant: self.pool.quant.clone(),
            digest: self.reference.checksum.clone(),
            cache_dir: self.reference.cache_dir.clone(),
            include: self.reference.include.clone(),
            exclude: self.reference.exclude.clone(),
            formats: formats.iter().map(|&suffix| suffix.to_owned()).collect(),
            layout: self.layout(),
            shape: match file {
                Some(_) => ModelShape::File,
                None => ModelShape::Directory,
            },
        }
    }

    /// Where a model repository has a file: of the model that is named, else of any.
    fn layout(&self) -> Vec<String> {
        if self.options.backend.is_some() {
            return Vec::new();
        }
        let name = self.pool.model.as_deref().unwrap_or("*");
        vec![format!("{name}/config.pbtxt"), format!("{name}/#/")]
    }

    /// What of the pool vLLM must be told.
    fn engine_settings(&self) -> Vec<(&'static str, Value)> {
        let mut settings = vec![
            ("disable_log_stats", json!(true)),
            ("tensor_parallel_size", json!(self.gpus.len())),
        ];
        if let Some(ctx) = self.pool.ctx {
            settings.push(("max_model_len", json!(ctx)));
        }
        if self.pool.profile == Profile::Deterministic {
            settings.push(("seed", json!(42)));
        }
        settings
    }
}

/// GPUs of the pool; a back end that does nothing without one takes no processor.
fn gpus<'a>(
    pool: &Pool,
    facts: &'a Facts,
    backend: Option<Backend>,
) -> Result<(Vec<&'a Gpu>, Vec<String>), ProviderError> {
    match gpu::choose(pool, &facts.gpus)? {
        Choice::Gpus(gpus) => {
            release::check_vendor(&gpus)?;
            Ok((gpus, Vec::new()))
        }
        Choice::Processor { warning } => match backend.filter(|backend| backend.needs_gpu()) {
            None => Ok((Vec::new(), warning.into_iter().collect())),
            Some(backend) => {
                let message = format!("back end {} of Triton runs on GPUs only", backend.name());
                let error = ProviderError::unavailable(message);
                Err(warning.into_iter().fold(error, ProviderError::because))
            }
        },
    }
}

/// Refuses what could have no effect.
fn check_fields(pool: &Pool, options: &Options, mode: Mode) -> Result<(), ProviderError> {
    let vllm = options.backend == Some(Backend::Vllm);
    let package = pool.provisioning.package.clone().unwrap_or_default();
    let other = package
        .version
        .is_some_and(|version| version != package::VERSION);
    let idle = [
        (
            "tensor_split",
            !pool.tensor_split.is_empty(),
            "Triton's models say themselves how they are divided",
        ),
        (
            "ctx",
            pool.ctx.is_some() && !vllm,
            "it is the model's own business but for `backend: vllm`",
        ),
        (
            "quant",
            pool.quant.is_some(),
            "Triton's models are not chosen by quantisation",
        ),
        (
            "provisioning.package.name",
            package.name.is_some(),
            "the package is nvidia-pytriton",
        ),
        (
            "provisioning.package.repo",
            package.repo.is_some(),
            "it comes from the package index",
        ),
        (
            "provisioning.package.version",
            other,
            "this provider knows version 0.7.0 by its hashes",
        ),
        (
            "options.backend",
            mode == Mode::Package && options.backend.is_some(),
            "in mode `package` the model is a whole repository",
        ),
    ];
    match idle.iter().find(|(_, given, _)| *given) {
        Some((field, _, why)) => {
            let error = ProviderError::invalid(*field, format!("`{field}` has no effect: {why}"));
            Err(error.hint(format!("remove `{field}`")))
        }
        None => Ok(()),
    }
}

fn default_pool() -> Pool {
    let model = ModelSource {
        reference: "./model_repository".to_owned(),
        ..ModelSource::default()
    };
    Pool {
        provisioning: Provisioning {
            mode: Some(Mode::Container),
            model: Some(model),
            ..Provisioning::default()
        },
        ..Pool::new("default", "triton")
    }
}

#[cfg(test)]
mod tests;
