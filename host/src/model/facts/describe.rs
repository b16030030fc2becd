//! What GGUF headers say of a model, in the words of the contract.
//!
//! Keys as in `docs/gguf.md` of ggml and `LLM_KV_NAMES` of llama.cpp; most of them begin with the
//! architecture.

use engine_provider_api::ModelFacts;

use super::gguf::{Header, TensorType, Value, file_type_name};

/// Most layers that are told one by one.
const LIMIT_LAYERS: u64 = 4096;

/// Every how many layers one without a window comes, where the files say the window alone
/// (`set_swa_pattern` of llama.cpp's loaders).
const PERIODS: [(&str, u64); 5] = [
    ("gemma2", 2),
    ("gemma3", 6),
    ("gpt-oss", 2),
    ("cohere2", 4),
    ("exaone4", 4),
];

/// Describes a model by the headers of its files; the first of them has the pairs.
pub(super) fn describe(headers: &[Header]) -> Option<ModelFacts> {
    let first = headers.first()?;
    let keys = Keys {
        header: first,
        architecture: first.text("general.architecture").unwrap_or_default(),
    };
    let layers = keys.number("block_count");
    let embedding_length = keys.number("embedding_length");
    let attention_heads = keys.most("attention.head_count");
    let usual_length = embedding_length
        .zip(attention_heads.filter(|heads| *heads > 0))
        .map(|(width, heads)| width / heads);
    Some(ModelFacts {
        format: "gguf".to_owned(),
        architecture: Some(keys.architecture.to_owned()).filter(|name| !name.is_empty()),
        parameters: sum(headers.iter().map(|header| Some(header.parameters))),
        quantisation: quantisation(headers),
        context_length: keys.number("context_length"),
        layers,
        embedding_length,
        feed_forward_length: keys.most("feed_forward_length"),
        attention_heads,
        kv_heads: keys.kv_heads(layers, attention_heads),
        key_length: keys.number("attention.key_length").or(usual_length),
        value_length: keys.value_length().or(usual_length),
        sliding_window: keys.window(),
        windowed_layers: keys.windowed_layers(layers),
        vocabulary: keys.vocabulary(),
        weight_bytes: sum(headers.iter().map(|header| header.tensor_bytes)),
        files: Some(headers.len() as u64),
    })
}

/// A sum, where every part of it is known and it is one that can be.
pub(super) fn sum(mut parts: impl Iterator<Item = Option<u64>>) -> Option<u64> {
    parts.try_fold(0_u64, |sum, part| sum.checked_add(part?))
}

/// What the file calls itself, else the type that takes the most bytes.
fn quantisation(headers: &[Header]) -> Option<String> {
    let said = headers[0]
        .number("general.file_type")
        .and_then(file_type_name);
    if let Some(name) = said {
        return Some(name.to_owned());
    }
    let mut by_type = std::collections::BTreeMap::new();
    for (number, bytes) in headers.iter().flat_map(|header| &header.by_type) {
        let sum: &mut u64 = by_type.entry(*number).or_default();
        *sum = sum.saturating_add(*bytes);
    }
    let (number, _) = by_type.into_iter().max_by_key(|(_, bytes)| *bytes)?;
    TensorType::find(number).map(|kind| kind.name.to_owned())
}

struct Keys<'a> {
    header: &'a Header,
    architecture: &'a str,
}

impl Keys<'_> {
    fn value(&self, key: &str) -> Option<&Value> {
        self.header
            .pairs
            .get(&format!("{}.{key}", self.architecture))
    }

    fn number(&self, key: &str) -> Option<u64> {
        self.header.number(&format!("{}.{key}", self.architecture))
    }

    /// A number, the largest one where layers differ.
    fn most(&self, key: &str) -> Option<u64> {
        match self.value(key)? {
            Value::Number(number) => Some(*number),
            Value::Numbers(numbers) => numbers.iter().copied().max(),
            _ => None,
        }
    }

    /// Without a word about them there are as many as attention heads. Some architectures keep keys
    /// in every so many layers only, or let the last ones use those of others.
    fn kv_heads(&self, layers: Option<u64>, attention_heads: Option<u64>) -> Vec<u64> {
        let heads = match self.value("attention.head_count_kv") {
            Some(Value::Numbers(numbers)) => return uniform(numbers.clone()),
            Some(Value::Number(heads)) => *heads,
            _ => match self.value("attention.head_count") {
                Some(Value::Numbers(numbers)) => return uniform(numbers.clone()),
                _ => match attention_heads {
                    Some(heads) => heads,
                    None => return Vec::new(),
                },
            },
        };
        let every = self.number("full_attention_interval").unwrap_or(1).max(1);
        let shared = self.number("attention.shared_kv_layers").unwrap_or(0);
        let layers = layers.filter(|layers| *layers <= LIMIT_LAYERS);
        match layers {
            Some(layers) if every > 1 || shared > 0 => {
                let own = layers.saturating_sub(shared);
                let keeps = |layer: u64| layer < own && (layer + 1).is_multiple_of(every);
                uniform(
                    (0..layers)
                        .map(|layer| if keeps(layer) { heads } else { 0 })
                        .collect(),
                )
            }
            _ => vec![heads],
        }
    }

    /// Latent attention keeps one compressed key, which its values are part of.
    fn value_length(&self) -> Option<u64> {
        if self.number("attention.key_length_mla").is_some() {
            return Some(0);
        }
        self.number("attention.value_length")
    }

    /// Which layers look back no further than the window: said one by one, or as a period, the last layer
    /// of each of which sees everything. Where the file has no key, what llama.cpp gives the architecture.
    fn windowed_layers(&self, layers: Option<u64>) -> Vec<bool> {
        let layers = layers.filter(|layers| *layers <= LIMIT_LAYERS);
        let (Some(layers), Some(_)) = (layers, self.window()) else {
            return Vec::new();
        };
        let period = match self.value("attention.sliding_window_pattern") {
            Some(Value::Numbers(each)) if each.len() as u64 == layers => {
                return each.iter().map(|windowed| *windowed != 0).collect();
            }
            Some(Value::Number(period)) => Some(*period),
            Some(_) => None,
            None => PERIODS
                .iter()
                .find(|(architecture, _)| *architecture == self.architecture)
                .map(|(_, period)| *period),
        };
        let Some(period) = period.filter(|period| *period > 0) else {
            return Vec::new();
        };
        (0..layers)
            .map(|layer| layer % period < period - 1)
            .collect()
    }

    fn window(&self) -> Option<u64> {
        self.number("attention.sliding_window")
            .filter(|tokens| *tokens > 0)
    }

    fn vocabulary(&self) -> Option<u64> {
        let tokens = self.header.pairs.get("tokenizer.ggml.tokens");
        self.number("vocab_size").or_else(|| tokens?.length())
    }
}

/// One number where all are alike.
fn uniform(mut numbers: Vec<u64>) -> Vec<u64> {
    if numbers.windows(2).all(|pair| pair[0] == pair[1]) {
        numbers.truncate(1);
    }
    numbers
}
