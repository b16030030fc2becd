//! Whether the GPUs of a pool have room for its model, told by the host whatever its provider says.
//!
//! Under `gpu: require` all weights go onto the GPUs. Of how many bytes they are the model's own files say
//! enough for a bound that no engine stays below, so that a refusal by it is right:
//!
//! | files | least |
//! |---|---|
//! | GGUF | all tensors but the input layer, which may stay in main memory |
//! | safetensors in 32 or 16 bits | what is left when the engine makes them 4 bits while it loads them |
//! | other safetensors | all of them |
//!
//! A provider that says more is believed; one that says less, or nothing, is not.

use std::fmt;

use engine_provider_api::{
    Act, Device, Facts, Gpu, GpuPolicy, ModelFacts, Plan, Pool, PreparedEngine,
};

use crate::{
    act::Artifacts,
    fault::{Hint, hint},
};

/// What a driver keeps of an NVIDIA GPU for each process, at the least.
const CONTEXT_BYTES: u64 = 128 << 20;

/// More than the GPUs have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NoRoom {
    /// The pool.
    pub pool: String,
    /// Device memory that is needed, in bytes.
    pub need_bytes: u64,
    /// What the provider said, where the host did not believe it.
    pub said: Option<Option<u64>>,
    /// Index and memory of each GPU, in bytes.
    pub gpus: Vec<(u32, u64)>,
}

impl fmt::Display for NoRoom {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let gpus: Vec<String> = self
            .gpus
            .iter()
            .map(|(index, bytes)| format!("GPU {index} has {}", gib(*bytes)))
            .collect();
        let what = match self.said {
            Some(_) => " for the weights of its model",
            None => "",
        };
        write!(
            formatter,
            "pool `{}` needs at least {} of GPU memory{what}, and {}",
            self.pool,
            gib(self.need_bytes),
            gpus.join(", ")
        )
    }
}

impl NoRoom {
    pub(super) fn hints(&self) -> Vec<Hint> {
        vec![
            hint(
                "choose a smaller quantisation of the model, or a smaller model",
                None,
            ),
            hint(
                "use more GPUs, or larger ones (`devices` in the pool)",
                None,
            ),
            hint(
                "let the engine keep weights in main memory (`gpu: prefer` in the pool)",
                Some("{again} --gpu prefer"),
            ),
        ]
    }

    /// What the provider said, for whoever wrote it.
    pub(super) fn provider_said(&self) -> Option<String> {
        Some(match self.said? {
            None => "nothing of device memory (`resources.vram_bytes`)".to_owned(),
            Some(bytes) => format!("{} (`resources.vram_bytes`)", gib(bytes)),
        })
    }
}

/// Refuses an engine that cannot fit. Gives a warning where its weights do not fit beside what uses the
/// GPUs now, and its provider did not count them. GPUs whose memory is not known (0) say nothing.
pub(super) fn check(
    engine: &PreparedEngine,
    plan: &Plan,
    pool: &Pool,
    facts: &Facts,
    artifacts: &Artifacts,
) -> Result<Option<String>, NoRoom> {
    let gpus = chosen(pool, facts);
    let unknown = gpus.iter().any(|gpu| gpu.memory_total_bytes == 0);
    if pool.gpu != GpuPolicy::Require || gpus.is_empty() || unknown {
        return Ok(None);
    }
    let said = engine.resources.vram_bytes;
    let weights = weights(plan, artifacts);
    let believed = said.is_some_and(|said| said >= weights);
    let total: u64 = gpus.iter().map(|gpu| gpu.memory_total_bytes).sum();
    let contexts = gpus.iter().filter(|gpu| gpu.vendor == "nvidia").count() as u64 * CONTEXT_BYTES;
    // A provider counts the driver's own in, or leaves it out: that is its business.
    let (need_bytes, room) = match believed {
        true => (said.unwrap_or(0), total),
        false => (weights, total.saturating_sub(contexts)),
    };
    if need_bytes > room {
        return Err(NoRoom {
            pool: pool.id.clone(),
            need_bytes,
            said: (!believed).then_some(said),
            gpus: gpus
                .iter()
                .map(|gpu| (gpu.index, gpu.memory_total_bytes))
                .collect(),
        });
    }
    let free: u64 = gpus.iter().map(|gpu| gpu.memory_free_bytes).sum();
    Ok((!believed && need_bytes > free).then(|| {
        format!(
            "the weights of the model take at least {} of GPU memory, and {} are free",
            gib(need_bytes),
            gib(free)
        )
    }))
}

/// The GPUs that a pool names, or all there are: more than an engine may use, never fewer.
fn chosen<'a>(pool: &Pool, facts: &'a Facts) -> Vec<&'a Gpu> {
    let named = |gpu: &&Gpu| {
        let is_it = |device: &Device| match device {
            Device::Index(index) => gpu.index == *index && !gpu.mig,
            Device::Uuid(uuid) => gpu.uuid == *uuid,
        };
        pool.devices.is_empty() || pool.devices.iter().any(is_it)
    };
    facts.gpus.devices.iter().filter(named).collect()
}

/// Bytes of the weights of a plan's models, as far as their files say them.
fn weights(plan: &Plan, artifacts: &Artifacts) -> u64 {
    plan.steps
        .iter()
        .filter(|step| matches!(step.act, Act::StageModel(_)))
        .filter_map(|step| least(artifacts.get(&step.id)?.model.as_ref()?))
        .fold(0, u64::saturating_add)
}

fn least(facts: &ModelFacts) -> Option<u64> {
    let stored = facts.weight_bytes?;
    Some(match (&*facts.format, facts.quantisation.as_deref()) {
        ("gguf", _) => stored.saturating_sub(input_layer(facts).unwrap_or(0)),
        (_, Some("F32")) => stored / 8,
        (_, Some("F16" | "BF16")) => stored / 4,
        _ => stored,
    })
}

/// Bytes of the input layer of a GGUF model, at the average of all weights.
fn input_layer(facts: &ModelFacts) -> Option<u64> {
    let numbers = u128::from(facts.vocabulary?) * u128::from(facts.embedding_length?);
    let bytes = numbers.checked_mul(facts.weight_bytes?.into())?;
    u64::try_from(bytes.checked_div(facts.parameters?.into())?).ok()
}

fn gib(bytes: u64) -> String {
    format!("{:.1} GiB", bytes as f64 / f64::from(1 << 30))
}

#[cfg(test)]
mod tests {
    use engine_provider_api::{Artifact, Resources};
    use serde_json::json;

    use super::*;

    const GIB: u64 = 1 << 30;

    /// What the host finds of a model on one NVIDIA GPU of 24 GiB, 20 of which are free.
    fn of(model: ModelFacts, said: Option<u64>, gpu: &str) -> Result<Option<String>, NoRoom> {
        let pool = json!({"id": "chat", "engine": "toy", "gpu": gpu});
        let pool: Pool = serde_json::from_value(pool).unwrap();
        let mut facts = Facts::default();
        facts.gpus.devices.push(Gpu {
            vendor: "nvidia".to_owned(),
            memory_total_bytes: 24 * GIB,
            memory_free_bytes: 20 * GIB,
            ..Gpu::default()
        });
        let plan: Plan = serde_json::from_value(json!({"steps": [
            {"id": "m", "kind": "stage-model", "label": "m", "reference": "x"}]}))
        .unwrap();
        let artifact = Artifact {
            model: Some(model),
            ..Artifact::default()
        };
        let artifacts = Artifacts::from([("m".to_owned(), artifact)]);
        let engine = engine(said);
        check(&engine, &plan, &pool, &facts, &artifacts)
    }

    fn engine(said: Option<u64>) -> PreparedEngine {
        let least =
            include_str!("../../../provider-api/tests/documents/1.2/PreparedEngine.least.json");
        PreparedEngine {
            resources: Resources {
                vram_bytes: said,
                ..Resources::default()
            },
            ..serde_json::from_str(least).unwrap()
        }
    }

    fn gguf(weights: u64) -> ModelFacts {
        ModelFacts {
            format: "gguf".to_owned(),
            weight_bytes: Some(weights),
            ..ModelFacts::default()
        }
    }

    #[test]
    fn a_provider_that_says_nothing_or_too_little_is_not_believed() {
        for said in [None, Some(0), Some(GIB)] {
            let error = of(gguf(40 * GIB), said, "require").unwrap_err();
            assert_eq!(
                error.to_string(),
                "pool `chat` needs at least 40.0 GiB of GPU memory for the weights of its model, and GPU 0 \
                 has 24.0 GiB"
            );
            assert_eq!(error.said, Some(said));
        }
        let warning = of(gguf(22 * GIB), None, "require").unwrap().unwrap();
        assert!(
            warning.ends_with("22.0 GiB of GPU memory, and 20.0 GiB are free"),
            "{warning}"
        );
        assert!(
            of(gguf(24 * GIB), None, "require").is_err(),
            "the driver needs some"
        );
    }

    #[test]
    fn one_that_says_more_is_believed() {
        assert_eq!(of(gguf(GIB), Some(24 * GIB), "require"), Ok(None));
        let error = of(gguf(GIB), Some(25 * GIB), "require").unwrap_err();
        assert_eq!((error.need_bytes, error.said), (25 * GIB, None));
    }

    #[test]
    fn where_main_memory_is_allowed_nothing_is_refused() {
        for gpu in ["prefer", "forbid"] {
            assert_eq!(of(gguf(400 * GIB), None, gpu), Ok(None), "{gpu}");
        }
    }

    #[test]
    fn what_may_become_smaller_or_stay_elsewhere_is_not_counted() {
        let whole = ModelFacts {
            format: "safetensors".to_owned(),
            quantisation: Some("BF16".to_owned()),
            weight_bytes: Some(80 * GIB),
            ..ModelFacts::default()
        };
        assert_eq!(least(&whole), Some(20 * GIB));
        let quantised = ModelFacts {
            quantisation: Some("awq-4bit".to_owned()),
            ..whole
        };
        assert_eq!(least(&quantised), Some(80 * GIB));
        let with_input = ModelFacts {
            vocabulary: Some(1000),
            embedding_length: Some(1000),
            parameters: Some(10_000_000),
            ..gguf(10 * GIB)
        };
        assert_eq!(least(&with_input), Some(9 * GIB));
        assert_eq!(least(&ModelFacts::default()), None);
    }
}
