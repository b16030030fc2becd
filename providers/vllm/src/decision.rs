//! Everything that follows from pool and machine alone; `plan` and `prepare` take the same decision.

use std::collections::BTreeMap;

use engine_provider_api::{
    Facts, Gpu, GpuPolicy, Mode, ModelSource, Pool, Profile, ProviderError, Template,
};
use engine_provider_kit::{
    flags::Flag,
    gpu::{self, Choice},
    model,
};
use schemars::JsonSchema;
use serde::Deserialize;

use crate::{flags, origin::Origin};

/// Settings that only vLLM has.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Options {
    /// Seed under profile `deterministic`.
    pub seed: u32,
    /// Requests served at the same time. Default: 256 on GPUs, 128 on the processor, and 1 where equal
    /// texts can be had in no other way.
    #[schemars(range(min = 1))]
    pub slots: Option<u32>,
    /// Mode `package`: packages with exact versions and hashes, as `uv pip compile --generate-hashes`
    /// writes them, instead of the provider's own list.
    pub requirements: Option<String>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            seed: 42,
            slots: None,
            requirements: None,
        }
    }
}

pub(crate) fn options_schema() -> serde_json::Value {
    schemars::schema_for!(Options).to_value()
}

/// What was decided.
pub(crate) struct Decision<'a> {
    pub pool: &'a Pool,
    pub model: &'a ModelSource,
    /// In the order vLLM sees them; empty: the processor.
    pub gpus: Vec<&'a Gpu>,
    pub origin: Origin<'a>,
    /// Whether results do not depend on what else is in the batch.
    pub invariant: bool,
    pub slots: u32,
    /// The provider's and the operator's, `--host` and the like aside.
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
        let model = model::directory(pool, "vLLM")?;
        let (mut notes, mut warnings) = (Vec::new(), Vec::new());
        let gpus = match gpu::choose_nvidia(pool, &facts.gpus, "vLLM")? {
            Choice::Gpus(gpus) => gpus,
            Choice::Processor { warning } => {
                warnings.extend(warning);
                Vec::new()
            }
        };
        if !pool.tensor_split.is_empty() {
            let message = "vLLM gives every GPU an equal share of the model";
            return Err(
                ProviderError::invalid("tensor_split", message).hint("remove `tensor_split`")
            );
        }
        let options = options(pool)?;
        let requirements = pool.options.get("requirements").and_then(|it| it.as_str());
        let on_gpu = !gpus.is_empty();
        let origin = Origin::choose(pool, facts, mode, requirements, on_gpu, &mut notes)?;
        let invariant = invariant(pool, &gpus);
        let slots = options
            .slots
            .unwrap_or(usual_slots(pool, on_gpu, invariant));
        notes.insert(0, profile_note(pool.profile, invariant, slots));
        if pool.profile == Profile::Deterministic && !invariant && slots > 1 {
            warnings.push(format!(
                "{slots} slots: equal requests may give different texts in spite of profile deterministic"
            ));
        }
        let mut decision = Self {
            pool,
            model,
            gpus,
            origin,
            invariant,
            slots,
            flags: Vec::new(),
            environment: flags::environment(pool)?,
            notes,
            warnings,
        };
        decision.flags = flags::all(&decision, &options)?;
        Ok(decision)
    }

    pub(crate) fn requires_gpu(&self) -> bool {
        self.pool.gpu == GpuPolicy::Require
    }
}

fn options(pool: &Pool) -> Result<Options, ProviderError> {
    let options = serde_json::Value::Object(pool.options.clone());
    serde_json::from_value(options)
        .map_err(|error| ProviderError::invalid("options", error.to_string()))
}

/// vLLM's kernels that do not depend on the batch need a GPU of compute capability 8.0 or newer.
fn invariant(pool: &Pool, gpus: &[&Gpu]) -> bool {
    let new = |gpu: &&Gpu| {
        let major = gpu.compute_capability.split('.').next();
        major.and_then(|major| major.parse::<u32>().ok()) >= Some(8)
    };
    pool.profile == Profile::Deterministic && !gpus.is_empty() && gpus.iter().all(new)
}

fn usual_slots(pool: &Pool, on_gpu: bool, invariant: bool) -> u32 {
    match pool.profile {
        Profile::Deterministic if !invariant => 1,
        _ if on_gpu => 256,
        _ => 128,
    }
}

fn profile_note(profile: Profile, invariant: bool, slots: u32) -> String {
    match profile {
        Profile::Deterministic if invariant => format!(
            "profile deterministic: kernels that do not depend on the batch, {slots} requests at once; \
             `profile: throughput` is faster"
        ),
        Profile::Deterministic => format!(
            "profile deterministic: {slots} request at a time, because kernels that do not depend on \
             the batch need a GPU of compute capability 8.0; `profile: throughput` is faster"
        ),
        Profile::Throughput => format!(
            "profile throughput: {slots} requests at once; `profile: deterministic` gives equal texts"
        ),
    }
}
