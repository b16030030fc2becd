//! Device memory that an engine needs, from what its model is.
//!
//! An estimate that is never too high: what it counts is needed for certain, so that refusing a pool by it
//! is right. It leaves out what depends on driver and engine: the rest of a CUDA context (some 300 to 600 MiB
//! for each process and GPU), fragmentation, graphs.
//!
//! | part | formula |
//! |---|---|
//! | weights | bytes of all tensors, as the model's files say |
//! | KV cache | tokens × Σ over layers of KV heads × (key length × bytes + value length × bytes) |
//! | compute buffers | the engine's own, see the provider |
//!
//! Layers with a sliding window keep no more tokens than it has; where the files do not say which layers
//! have one, all of them are counted as if they had. The driver's own context on each NVIDIA GPU is counted
//! with [`CONTEXT_BYTES`], less than any driver takes.

use engine_provider_api::{Gpu, ModelFacts, Pool, ProviderError};

use crate::gpu::allow_processor;

/// What the driver keeps of a GPU's memory for a process, at the least.
pub const CONTEXT_BYTES: u64 = 128 << 20;

/// How numbers of a cache are stored: bytes of a block, and numbers in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stored {
    /// Bytes of a block.
    pub bytes: u64,
    /// Numbers in a block.
    pub numbers: u64,
}

impl Stored {
    /// Two bytes each: `f16`, `bf16`.
    pub const HALF: Self = Self {
        bytes: 2,
        numbers: 1,
    };

    /// One byte each.
    pub const BYTE: Self = Self {
        bytes: 1,
        numbers: 1,
    };
}

/// Bytes of keys and values of that many tokens over all layers; `None` where the model does not say.
#[must_use]
pub fn cache_bytes(facts: &ModelFacts, tokens: u64, keys: Stored, values: Stored) -> Option<u64> {
    let kept = kept(facts, tokens)?;
    let bytes = |length: u64, stored: Stored| {
        kept.checked_mul(length.into())?
            .checked_mul(stored.bytes.into())
            .map(|bytes| bytes / u128::from(stored.numbers))
    };
    let all = bytes(facts.key_length?, keys)?.checked_add(bytes(facts.value_length?, values)?)?;
    u64::try_from(all).ok()
}

/// Heads times tokens that keys are kept of, over all layers.
fn kept(facts: &ModelFacts, tokens: u64) -> Option<u128> {
    let within = tokens.min(facts.sliding_window.unwrap_or(u64::MAX));
    // Of which layers it is not known, all may have the window.
    let tokens_of = |layer: usize| match facts.windowed_layers.get(layer) {
        Some(false) => u128::from(tokens),
        Some(true) | None => u128::from(within),
    };
    match facts.kv_heads.as_slice() {
        [] => None,
        [alike] => {
            let (layers, heads) = (facts.layers?, u128::from(*alike));
            let told = facts
                .windowed_layers
                .len()
                .min(usize::try_from(layers).ok()?);
            let rest = u128::from(layers - told as u64).checked_mul(within.into())?;
            let told: u128 = (0..told).map(tokens_of).sum();
            heads.checked_mul(told.checked_add(rest)?)
        }
        each => {
            let of_layer =
                |(layer, heads): (usize, &u64)| u128::from(*heads).checked_mul(tokens_of(layer));
            each.iter()
                .enumerate()
                .try_fold(0_u128, |sum, it| sum.checked_add(of_layer(it)?))
        }
    }
}

/// Device memory, part by part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Need {
    /// Weights on the GPUs, in bytes.
    pub weights: u64,
    /// Keys and values of the context, in bytes; 0 where they are not known.
    pub cache: u64,
    /// What is computed in, in bytes; 0 where it is not known.
    pub compute: u64,
    /// Tokens that `cache` is for.
    pub tokens: u64,
}

impl Need {
    /// All of it, in bytes.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.weights
            .saturating_add(self.cache)
            .saturating_add(self.compute)
    }

    /// `61.2 GiB of GPU memory (weights 55.1 + KV cache 5.1 + compute buffers 1.0)`.
    #[must_use]
    pub fn shown(&self) -> String {
        let (total, weights) = (gib(self.total()), plain(self.weights));
        let mut text = format!("{total} of GPU memory (weights {weights}");
        for (name, bytes) in [("KV cache", self.cache), ("compute buffers", self.compute)] {
            if bytes > 0 {
                text.push_str(&format!(" + {name} {}", plain(bytes)));
            }
        }
        text.push(')');
        text
    }

    /// The longest context that fits into so much memory, in steps of 1024 tokens, where the context is
    /// what makes it too much.
    fn fitting_context(&self, room: u64) -> Option<u64> {
        let left = room.checked_sub(self.weights.checked_add(self.compute)?)?;
        if self.cache == 0 || self.tokens == 0 {
            return None;
        }
        let tokens = u128::from(left) * u128::from(self.tokens) / u128::from(self.cache);
        let tokens = u64::try_from(tokens).ok()?.min(self.tokens) / 1024 * 1024;
        (tokens > 0).then_some(tokens)
    }
}

/// What a server of safetensors needs least: its weights, and the cache of one context of `tokens`.
///
/// Weights in 32 bits are loaded in 16. `made_smaller`: the engine itself makes them smaller while it
/// loads them, to 4 bits at the least.
#[must_use]
pub fn least(facts: &ModelFacts, tokens: u64, cached: Stored, made_smaller: bool) -> Option<Need> {
    let stored = facts.weight_bytes?;
    let plain = match facts.quantisation.as_deref() {
        Some("F32") => Some(4),
        Some("F16" | "BF16") => Some(2),
        _ => None,
    };
    let weights = match (plain, made_smaller) {
        (Some(width), true) => stored / (width * 2),
        (Some(4), false) => stored / 2,
        _ => stored,
    };
    Some(Need {
        weights,
        cache: cache_bytes(facts, tokens, cached, cached).unwrap_or(0),
        compute: 0,
        tokens,
    })
}

/// Refuses what cannot fit, before anything is fetched; `share` is the part of each GPU that the engine
/// may take, 1.0 for all.
///
/// Gives a warning where it would not fit beside what uses the GPUs now. GPUs whose memory is not
/// known (0) say nothing.
pub fn check(
    pool: &Pool,
    gpus: &[&Gpu],
    share: f64,
    need: &Need,
    facts: &ModelFacts,
) -> Result<Option<String>, ProviderError> {
    if gpus.is_empty() || gpus.iter().any(|gpu| gpu.memory_total_bytes == 0) {
        return Ok(None);
    }
    let total: u64 = gpus.iter().map(|gpu| gpu.memory_total_bytes).sum();
    let free: u64 = gpus.iter().map(|gpu| gpu.memory_free_bytes).sum();
    let contexts = gpus.iter().filter(|gpu| gpu.vendor == "nvidia").count() as u64 * CONTEXT_BYTES;
    let room = ((total as f64 * share) as u64).min(total.saturating_sub(contexts));
    if need.total() > room {
        return Err(refusal(pool, gpus, share, need, facts, room));
    }
    Ok((need.total() > free).then(|| {
        format!(
            "the engine needs at least {}, and {} are free",
            need.shown(),
            gib(free)
        )
    }))
}

fn refusal(
    pool: &Pool,
    gpus: &[&Gpu],
    share: f64,
    need: &Need,
    facts: &ModelFacts,
    room: u64,
) -> ProviderError {
    let total: u64 = gpus.iter().map(|gpu| gpu.memory_total_bytes).sum();
    // The driver's own matters where all of the GPU would do.
    let nearly = need.total() <= total;
    let part = match (share < 1.0, nearly) {
        (true, _) => format!(", {} of which the engine may take", gib(room)),
        (false, true) => format!(", {} of which are not the driver's own", gib(room)),
        (false, false) => String::new(),
    };
    let mut error = ProviderError::unavailable(format!(
        "pool `{}` needs at least {}, and {}{part}",
        pool.id,
        need.shown(),
        have(gpus)
    ))
    .because(described(facts));
    if let Some(tokens) = need.fitting_context(room) {
        error = error
            .because(format!("the KV cache is for {} tokens", need.tokens))
            .hint(format!(
                "a shorter context fits: set `ctx: {tokens}` in the pool"
            ));
    } else {
        error = error.hint(match facts.format.as_str() {
            "gguf" => "choose a smaller quantisation of the model (`quant`), or a smaller model",
            _ => "choose a quantised model (AWQ, GPTQ, FP8), or a smaller one",
        });
    }
    allow_processor(error.hint("use more GPUs, or larger ones (`devices` in the pool)"))
}

/// What the model is, in a line.
fn described(facts: &ModelFacts) -> String {
    let mut parts = Vec::new();
    parts.extend(facts.architecture.clone());
    parts.extend(facts.parameters.map(|number| match number {
        0..1_000_000_000 => format!("{:.0} million parameters", number as f64 / 1e6),
        _ => format!("{:.1} billion parameters", number as f64 / 1e9),
    }));
    parts.extend(facts.quantisation.clone());
    parts.extend(facts.layers.map(|layers| format!("{layers} layers")));
    format!("the model says of itself: {}", parts.join(", "))
}

fn have(gpus: &[&Gpu]) -> String {
    let each: Vec<String> = gpus
        .iter()
        .map(|gpu| format!("GPU {} has {}", gpu.index, gib(gpu.memory_total_bytes)))
        .collect();
    each.join(", ")
}

fn plain(bytes: u64) -> String {
    format!("{:.1}", bytes as f64 / f64::from(1 << 30))
}

/// `55.1 GiB`.
#[must_use]
pub fn gib(bytes: u64) -> String {
    format!("{} GiB", plain(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn llama_70b() -> ModelFacts {
        ModelFacts {
            format: "gguf".to_owned(),
            architecture: Some("llama".to_owned()),
            parameters: Some(70_553_706_496),
            quantisation: Some("Q4_K_M".to_owned()),
            layers: Some(80),
            kv_heads: vec![8],
            key_length: Some(128),
            value_length: Some(128),
            ..ModelFacts::default()
        }
    }

    fn cache(facts: &ModelFacts, tokens: u64) -> Option<u64> {
        cache_bytes(facts, tokens, Stored::HALF, Stored::HALF)
    }

    /// 320 KiB for each token, as Meta's paper and llama.cpp's log say of this model.
    #[test]
    fn the_cache_is_what_the_engines_say() {
        let facts = llama_70b();
        assert_eq!(cache(&facts, 1), Some(320 << 10));
        let eight = Stored {
            bytes: 34,
            numbers: 32,
        };
        let smaller = cache_bytes(&facts, 1024, eight, eight).unwrap();
        assert_eq!(smaller, (320 << 20) / 64 * 34);
        let windowed = ModelFacts {
            sliding_window: Some(1024),
            ..facts.clone()
        };
        assert_eq!(cache(&windowed, 100_000), cache(&facts, 1024));
        let some = ModelFacts {
            kv_heads: vec![0, 0, 0, 8],
            ..facts.clone()
        };
        assert_eq!(cache(&some, 1), Some(4 << 10));
        assert_eq!(cache(&facts, u64::MAX), None);
        assert_eq!(cache(&ModelFacts::default(), 1), None);
    }

    /// gpt-oss 20B with 131072 tokens, as the log of llama-server says: 12 layers that see everything take
    /// 3072 MiB; the 12 others have a window of 128 tokens (and the engine a batch more).
    #[test]
    fn layers_with_a_window_keep_no_more_than_it() {
        let mut facts = ModelFacts {
            layers: Some(24),
            kv_heads: vec![8],
            key_length: Some(64),
            value_length: Some(64),
            sliding_window: Some(128),
            windowed_layers: [true, false].repeat(12),
            ..ModelFacts::default()
        };
        assert_eq!(cache(&facts, 131_072), Some((3072 + 3) << 20));
        assert_eq!(cache(&facts, 64), Some(24 * 64 * 2048));
        facts.kv_heads = [8, 0].repeat(12);
        assert_eq!(cache(&facts, 131_072), Some(3 << 20));
        facts.kv_heads = vec![8];
        // What is said of some layers only is believed of those.
        facts.windowed_layers.truncate(2);
        assert_eq!(cache(&facts, 131_072), Some((256 << 20) + 23 * (1 << 18)));
    }

    #[test]
    fn the_drivers_own_memory_is_not_the_engines() {
        let need = Need {
            weights: 24 << 30,
            cache: 0,
            compute: 0,
            tokens: 0,
        };
        assert!(
            refused(24, 1.0, &need).is_none(),
            "of whose GPU nothing is known"
        );
        let error = refused_by("nvidia", 24, 1.0, &need).unwrap();
        assert!(
            error
                .message
                .ends_with("GPU 0 has 24.0 GiB, 23.9 GiB of which are not the driver's own"),
            "{}",
            error.message
        );
    }

    #[test]
    fn weights_are_counted_as_they_are_loaded() {
        let weights = |quantisation: &str, made_smaller| {
            let facts = ModelFacts {
                weight_bytes: Some(4096),
                quantisation: Some(quantisation.to_owned()),
                ..ModelFacts::default()
            };
            let need = least(&facts, 0, Stored::HALF, made_smaller).unwrap();
            need.total()
        };
        assert_eq!(weights("BF16", false), 4096);
        assert_eq!(weights("BF16", true), 1024);
        assert_eq!(weights("F32", false), 2048);
        assert_eq!(weights("F32", true), 512);
        assert_eq!(weights("awq-4bit", true), 4096);
    }

    fn refused(room_gib: u64, share: f64, need: &Need) -> Option<ProviderError> {
        refused_by("", room_gib, share, need)
    }

    fn refused_by(vendor: &str, room_gib: u64, share: f64, need: &Need) -> Option<ProviderError> {
        let pool = serde_json::from_value(json!({"id": "chat", "engine": "toy"})).unwrap();
        let gpu = Gpu {
            vendor: vendor.to_owned(),
            memory_total_bytes: room_gib << 30,
            memory_free_bytes: room_gib << 30,
            ..Gpu::default()
        };
        check(&pool, &[&gpu], share, need, &llama_70b()).err()
    }

    #[test]
    fn what_cannot_fit_is_refused_with_the_numbers_and_what_would_help() {
        let need = Need {
            weights: 40 << 30,
            cache: 20 << 30,
            compute: 1 << 29,
            tokens: 65_536,
        };
        let error = refused(24, 1.0, &need).unwrap();
        assert_eq!(
            error.message,
            "pool `chat` needs at least 60.5 GiB of GPU memory (weights 40.0 + KV cache 20.0 + compute \
             buffers 0.5), and GPU 0 has 24.0 GiB"
        );
        assert_eq!(
            error.causes,
            ["the model says of itself: llama, 70.6 billion parameters, Q4_K_M, 80 layers"]
        );
        let hints = |error: &ProviderError| -> Vec<String> {
            error.hints.iter().map(|hint| hint.text.clone()).collect()
        };
        assert!(hints(&error)[0].starts_with("choose a smaller quantisation"));
        assert_eq!(
            error.hints.last().unwrap().command.as_deref(),
            Some("{again} --gpu prefer")
        );

        // 48 - 40.5 GiB are 7.5 of the 20 that 65536 tokens take.
        let error = refused(48, 1.0, &need).unwrap();
        assert_eq!(
            hints(&error)[0],
            "a shorter context fits: set `ctx: 24576` in the pool"
        );
        assert!(refused(61, 1.0, &need).is_none());
        let error = refused(61, 0.9, &need).unwrap();
        assert!(
            error
                .message
                .ends_with("GPU 0 has 61.0 GiB, 54.9 GiB of which the engine may take")
        );
        assert!(refused(0, 1.0, &need).is_none());
    }
}
