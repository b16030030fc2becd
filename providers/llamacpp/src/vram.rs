//! Device memory that llama-server needs, from the header of its model.
//!
//! With all layers on the GPUs (`--n-gpu-layers all --fit off`):
//!
//! | part | bytes | source |
//! |---|---|---|
//! | weights | all tensors but the input layer, which stays in main memory: `vocabulary × width × average bytes of a weight` | `llm_load_tensors` assigns the input layer to the processor |
//! | KV cache | the kit's formula for the tokens of `--ctx-size` (all slots share them), in the types of `--cache-type-k` and `-v` | `llama_kv_cache`; its log says 1024 MiB for 8192 tokens of Llama 3 8B, as this does |
//! | compute buffers | `ubatch × (vocabulary + width) × 4`: the logits of a batch, and what goes into them | the log says 258.50 MiB for Llama 3 8B and 70.50 MiB for Llama 2 7B, as this does |
//!
//! More GPUs, a context without flash attention and a CUDA context (some 300 to 600 MiB) come on top, and
//! are not counted: what is refused here fits by no means. Where the input layer serves as output layer
//! too, it is on the GPU and is not counted either.

use engine_provider_api::ModelFacts;
use engine_provider_kit::{
    flags::Flag,
    vram::{Need, Stored, cache_bytes},
};

/// `--ubatch-size` and `--batch-size` where nobody says otherwise (`common.h`).
const UBATCH: u64 = 512;
const BATCH: u64 = 2048;

/// What an engine with these flags needs; `None` where the model does not say how large it is.
pub(crate) fn need(facts: &ModelFacts, flags: &[Flag]) -> Option<Need> {
    let number = |name: &str| value(flags, name)?.parse::<u64>().ok();
    let context = number("--ctx-size").filter(|tokens| *tokens > 0);
    let tokens = context.or(facts.context_length).unwrap_or(0);
    let batch = number("--batch-size").unwrap_or(BATCH);
    let ubatch = number("--ubatch-size").unwrap_or(UBATCH).min(batch);
    let (keys, values) = (
        stored(flags, "--cache-type-k"),
        stored(flags, "--cache-type-v"),
    );
    let cache = keys.zip(values);
    let mut kept = facts.clone();
    if flags.iter().any(|flag| flag.name == "--swa-full") {
        kept.sliding_window = None;
    }
    let cache = cache.and_then(|(keys, values)| cache_bytes(&kept, tokens, keys, values));
    let logits = facts.vocabulary.zip(facts.embedding_length);
    let compute = logits.and_then(|(vocabulary, width)| {
        let each = vocabulary.checked_add(width)?.checked_mul(4)?;
        // A context shorter than a batch has no batch of that size.
        each.checked_mul(ubatch.min(tokens.max(1)))
    });
    Some(Need {
        weights: facts.weight_bytes?.saturating_sub(input_layer(facts)),
        cache: cache.unwrap_or(0),
        compute: compute.unwrap_or(0),
        tokens,
    })
}

/// Main memory that an engine on the processor needs at the least: all weights, and the context where
/// somebody says how long it is.
pub(crate) fn in_main_memory(facts: &ModelFacts, flags: &[Flag]) -> Option<u64> {
    let said = value(flags, "--ctx-size").is_some_and(|tokens| tokens != "0");
    let cache = match said {
        true => need(facts, flags)?.cache,
        false => 0,
    };
    facts.weight_bytes?.checked_add(cache)
}

fn value<'a>(flags: &'a [Flag], name: &str) -> Option<&'a str> {
    let flag = flags.iter().rfind(|flag| flag.name == name)?;
    flag.values.last().map(String::as_str)
}

/// Bytes of the input layer at the average of all weights.
fn input_layer(facts: &ModelFacts) -> u64 {
    let bytes = || {
        let numbers = u128::from(facts.vocabulary?) * u128::from(facts.embedding_length?);
        let bytes = numbers.checked_mul(facts.weight_bytes?.into())?;
        u64::try_from(bytes.checked_div(facts.parameters?.into())?).ok()
    };
    bytes().unwrap_or(0)
}

/// `kv_cache_types` in `common/arg.cpp`, with the block sizes of ggml. `None`: one that is not known.
fn stored(flags: &[Flag], name: &str) -> Option<Stored> {
    let (bytes, numbers) = match value(flags, name).unwrap_or("f16") {
        "f32" => (4, 1),
        "f16" | "bf16" => (2, 1),
        "q8_0" => (34, 32),
        "q5_1" => (24, 32),
        "q5_0" => (22, 32),
        "q4_1" => (20, 32),
        "q4_0" | "iq4_nl" => (18, 32),
        _ => return None,
    };
    Some(Stored { bytes, numbers })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// Meta-Llama-3-8B-Instruct as Q4_K_M.
    fn llama_3_8b() -> ModelFacts {
        ModelFacts {
            parameters: Some(8_030_261_248),
            context_length: Some(8192),
            layers: Some(32),
            embedding_length: Some(4096),
            kv_heads: vec![8],
            key_length: Some(128),
            value_length: Some(128),
            vocabulary: Some(128_256),
            weight_bytes: Some(4_912_898_048),
            ..ModelFacts::default()
        }
    }

    fn of(flags: &[&str]) -> Need {
        let pair = |pair: &[&str]| Flag::own(pair[0], [pair[1]]);
        let flags: Vec<Flag> = flags.chunks(2).map(pair).collect();
        need(&llama_3_8b(), &flags).unwrap()
    }

    #[test]
    fn on_the_processor_it_takes_all_weights_and_the_context_that_was_asked_for() {
        let of = |flags: &[Flag]| in_main_memory(&llama_3_8b(), flags);
        assert_eq!(of(&[]), Some(4_912_898_048));
        let context = [Flag::own("--ctx-size", ["8192"])];
        assert_eq!(of(&context), Some(4_912_898_048 + 1024 * MIB));
    }

    #[test]
    fn buffers_are_as_large_as_the_log_of_the_engine_says() {
        let need = of(&["--ctx-size", "8192"]);
        assert_eq!(need.cache, 1024 * MIB);
        assert_eq!(need.compute, 2585 * MIB / 10);
        // The log: 4403.49 MiB on the GPU, 281.81 MiB in main memory, in a type of fewer bits than the
        // average: the estimate is lower.
        assert!((4300 * MIB..4404 * MIB).contains(&need.weights), "{need:?}");
        let llama_2 = ModelFacts {
            vocabulary: Some(32_000),
            ..llama_3_8b()
        };
        assert_eq!(super::need(&llama_2, &[]).unwrap().compute, 705 * MIB / 10);
    }

    #[test]
    fn flags_change_what_is_needed() {
        // Without a word the context is the model's own.
        assert_eq!(of(&[]).tokens, 8192);
        assert_eq!(of(&["--ctx-size", "0"]).tokens, 8192);
        assert_eq!(of(&["--ctx-size", "2048"]).cache, 256 * MIB);
        let smaller = of(&["--cache-type-k", "q8_0", "--cache-type-v", "q4_0"]);
        assert_eq!(smaller.cache, 512 * MIB / 64 * 34 + 512 * MIB / 64 * 18);
        assert_eq!(of(&["--cache-type-k", "later"]).cache, 0);
        assert_eq!(of(&["--ubatch-size", "1024"]).compute, 517 * MIB);
        assert_eq!(
            of(&["--ubatch-size", "4096", "--batch-size", "512"]).compute,
            2585 * MIB / 10
        );
    }

    #[test]
    fn what_the_model_does_not_say_is_not_made_up() {
        assert_eq!(super::need(&ModelFacts::default(), &[]), None);
        let only = ModelFacts {
            weight_bytes: Some(7),
            ..ModelFacts::default()
        };
        assert_eq!(super::need(&only, &[]).unwrap().total(), 7);
    }
}
