//! Everything that follows from pool and machine alone; `plan` and `prepare` take the same decision.

use std::collections::BTreeMap;

use engine_provider_api::{
    ErrorCode, Facts, Gpu, GpuPolicy, ImageName, Mode, ModelSource, Pool, Profile, ProviderError,
    Template,
};
use engine_provider_kit::{
    container,
    flags::Flag,
    gpu::{self, Choice},
    model,
};
use schemars::JsonSchema;
use serde::Deserialize;

use crate::settings;

const IMAGE: &str = "ghcr.io/huggingface/text-generation-inference";
/// The last release.
const RELEASE: &str = "3.3.7";
/// Requests that are accepted at the same time where nobody says otherwise: TGI's own number.
const SLOTS: u32 = 128;

/// Settings that only TGI has.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Options {
    /// Requests served at the same time. Default: 1 under profile `deterministic`, else 128.
    #[schemars(range(min = 1))]
    pub slots: Option<u32>,
}

pub(crate) fn options_schema() -> serde_json::Value {
    schemars::schema_for!(Options).to_value()
}

/// What was decided.
pub(crate) struct Decision<'a> {
    pub pool: &'a Pool,
    pub model: &'a ModelSource,
    pub gpus: Vec<&'a Gpu>,
    pub image: ImageName,
    pub slots: u32,
    pub flags: Vec<Flag>,
    pub environment: BTreeMap<String, Template>,
    pub notes: Vec<String>,
    pub warnings: Vec<String>,
}

impl<'a> Decision<'a> {
    pub(crate) fn take(
        pool: &'a Pool,
        facts: &'a Facts,
        mode: Mode,
    ) -> Result<Self, ProviderError> {
        if mode != Mode::Container {
            let message = format!("this TGI provider does not offer mode `{mode}`");
            return Err(ProviderError::new(ErrorCode::UnsupportedMode, message)
                .hint("set `provisioning.mode` to `container` or `external`"));
        }
        let model = model::directory(pool, "TGI")?;
        let options: Options = serde_json::from_value(pool.options.clone().into())
            .map_err(|error| ProviderError::invalid("options", error.to_string()))?;
        if !pool.tensor_split.is_empty() {
            let message = "TGI gives every GPU an equal share of the model";
            return Err(
                ProviderError::invalid("tensor_split", message).hint("remove `tensor_split`")
            );
        }
        let mut warnings = vec![
            "TGI is in maintenance mode, 3.3.7 is its last release: `engine: vllm` serves the same \
             models and is developed further"
                .to_owned(),
        ];
        let gpus = match gpu::choose_nvidia(pool, &facts.gpus, "TGI")? {
            Choice::Gpus(gpus) => gpus,
            Choice::Processor { warning } => {
                warnings.extend(warning);
                Vec::new()
            }
        };
        let usual = ImageName {
            repository: IMAGE.to_owned(),
            tag: Some(RELEASE.to_owned()),
            digest: None,
        };
        if gpus.is_empty() && container::is_usual(pool) {
            return Err(no_processor());
        }
        let deterministic = pool.profile == Profile::Deterministic;
        let slots = options
            .slots
            .unwrap_or(if deterministic { 1 } else { SLOTS });
        if deterministic && slots > 1 {
            warnings.push(format!(
                "{slots} slots: equal requests may give different texts in spite of profile deterministic"
            ));
        }
        let flags = settings::flags(pool, &gpus, slots)?;
        Ok(Self {
            pool,
            model,
            gpus,
            image: container::image(pool, &usual)?,
            slots,
            environment: settings::environment(pool)?,
            flags,
            notes: vec![
                profile_note(pool.profile, slots),
                "user root inside the container: TGI cannot run as another since 3.1; a rootless \
                 runtime makes it an ordinary user of this machine"
                    .to_owned(),
            ],
            warnings,
        })
    }

    pub(crate) fn requires_gpu(&self) -> bool {
        self.pool.gpu == GpuPolicy::Require
    }
}

fn no_processor() -> ProviderError {
    ProviderError::unavailable("TGI's image runs on GPUs only, and this pool uses none")
        .hint("use `engine: vllm` or `engine: llamacpp`, which run on the processor too")
        .hint("or set `provisioning.container.tag` to one of TGI's `-intel-cpu` tags")
}

fn profile_note(profile: Profile, slots: u32) -> String {
    match profile {
        Profile::Deterministic => format!(
            "profile deterministic: {slots} request at a time, nothing out of a cache; requests bring \
             their own seed; `profile: throughput` is faster"
        ),
        Profile::Throughput => format!(
            "profile throughput: {slots} requests at once; `profile: deterministic` gives equal texts"
        ),
    }
}
