//! What a repository as the Hugging Face hub has them says of its model: `config.json`, and
//! `model.safetensors.index.json` where there is one.
//!
//! Names as in the `PretrainedConfig` of transformers; older architectures have their own.

use std::{collections::BTreeSet, fmt};

use engine_provider_api::ModelFacts;
use serde::{
    Deserialize, Deserializer,
    de::{Error as _, IgnoredAny, MapAccess, Visitor},
};
use serde_json::Value;

use super::{HeaderError, safetensors};

/// Longest `config.json` that is read. Real ones have some thousand bytes, some hundred thousand where
/// they name every layer. In memory a hostile one takes a hundred times as much.
pub(super) const CONFIG_LIMIT_BYTES: u64 = 2 << 20;
/// Longest index that is read; those of the largest models have 20 MB. Only sums of it are kept.
pub(super) const INDEX_LIMIT_BYTES: u64 = 64 << 20;
/// Most files that an index names.
const LIMIT_FILES: usize = 1 << 16;
/// Most layers that are told one by one.
const LIMIT_LAYERS: usize = 4096;

/// Describes a model by its `config.json`.
pub(super) fn describe(text: &[u8]) -> Result<ModelFacts, HeaderError> {
    let whole = json(text, "config.json")?;
    // Models that see and hear keep what is about text apart.
    let inner = ["text_config", "llm_config", "language_config"]
        .iter()
        .find_map(|name| whole.get(name).filter(|config| config.is_object()));
    let config = Config {
        inner: inner.unwrap_or(&whole),
        whole: &whole,
    };
    let attention_heads = config.number(&["num_attention_heads", "n_head", "num_heads"]);
    let embedding_length = config.number(&["hidden_size", "n_embd", "d_model"]);
    let usual_length = embedding_length
        .zip(attention_heads.filter(|heads| *heads > 0))
        .map(|(width, heads)| width / heads);
    let head = config.number(&["head_dim"]).or(usual_length);
    let mut facts = ModelFacts {
        format: "safetensors".to_owned(),
        architecture: config.architecture(),
        quantisation: config.quantisation(),
        context_length: config.number(&["max_position_embeddings", "n_positions", "n_ctx"]),
        layers: config.number(&["num_hidden_layers", "n_layer", "num_layers"]),
        embedding_length,
        feed_forward_length: config.number(&["intermediate_size", "n_inner", "ffn_dim"]),
        attention_heads,
        kv_heads: config.kv_heads(attention_heads),
        key_length: head,
        value_length: config.number(&["v_head_dim"]).or(head),
        sliding_window: config.sliding_window(),
        windowed_layers: config.windowed_layers(),
        vocabulary: config.number(&["vocab_size"]),
        ..ModelFacts::default()
    };
    // Latent attention: one compressed key per token and layer, and a part for the position.
    if let Some(rank) = config.number(&["kv_lora_rank"]) {
        let position = config.number(&["qk_rope_head_dim"]).unwrap_or(0);
        facts.kv_heads = vec![1];
        facts.key_length = rank.checked_add(position);
        facts.value_length = Some(0);
    }
    Ok(facts)
}

/// What the index of a model in several files says.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Index {
    /// Bytes of all tensors.
    pub(super) total_bytes: Option<u64>,
    /// Numbers in them.
    pub(super) parameters: Option<u64>,
    /// Number of files with tensors.
    pub(super) files: u64,
}

/// Reads `model.safetensors.index.json`, keeping sums alone.
pub(super) fn index(text: &[u8]) -> Result<Index, HeaderError> {
    let written: Written = serde_json::from_slice(text).map_err(|error| HeaderError::Json {
        what: "model.safetensors.index.json",
        reason: error.to_string(),
    })?;
    let metadata = written.metadata.unwrap_or_default();
    Ok(Index {
        total_bytes: metadata.total_size.and_then(Amount::number),
        parameters: metadata.total_parameters.and_then(Amount::number),
        files: written.weight_map.0,
    })
}

#[derive(Deserialize)]
struct Written {
    #[serde(default)]
    metadata: Option<Metadata>,
    #[serde(default)]
    weight_map: Files,
}

#[derive(Default, Deserialize)]
struct Metadata {
    #[serde(default)]
    total_size: Option<Amount>,
    #[serde(default)]
    total_parameters: Option<Amount>,
}

/// A number; some tools write it with a point.
#[derive(Deserialize)]
#[serde(untagged)]
enum Amount {
    Whole(u64),
    Float(f64),
    Other(IgnoredAny),
}

impl Amount {
    fn number(self) -> Option<u64> {
        match self {
            Self::Whole(number) => Some(number),
            Self::Float(float) if (0.0..1e18).contains(&float) => Some(float as u64),
            Self::Float(_) | Self::Other(_) => None,
        }
    }
}

/// How many files the tensors of a `weight_map` lie in.
#[derive(Default)]
struct Files(u64);

impl<'de> Deserialize<'de> for Files {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Names;
        impl<'de> Visitor<'de> for Names {
            type Value = Files;

            fn expecting(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
                to.write_str("a file for each tensor")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Files, A::Error> {
                let mut names = BTreeSet::new();
                while let Some((_, name)) = map.next_entry::<IgnoredAny, String>()? {
                    if names.len() >= LIMIT_FILES && !names.contains(&name) {
                        return Err(A::Error::custom(
                            "it names more files than a model can have",
                        ));
                    }
                    names.insert(name);
                }
                Ok(Files(names.len() as u64))
            }
        }
        from.deserialize_map(Names)
    }
}

/// The number of weights of that many bytes, where each has a width of its own.
pub(super) fn parameters(bytes: u64, facts: &ModelFacts) -> Option<u64> {
    Some(bytes / safetensors::width(facts.quantisation.as_deref()?)?)
}

fn json(text: &[u8], what: &'static str) -> Result<Value, HeaderError> {
    let value: Value = serde_json::from_slice(text).map_err(|error| HeaderError::Json {
        what,
        reason: error.to_string(),
    })?;
    match value {
        Value::Object(_) => Ok(value),
        _ => Err(HeaderError::Json {
            what,
            reason: "it is no object".to_owned(),
        }),
    }
}

struct Config<'a> {
    inner: &'a Value,
    whole: &'a Value,
}

impl Config<'_> {
    fn get(&self, name: &str) -> Option<&Value> {
        let given = |config: &'_ Value| config.get(name).is_some_and(|value| !value.is_null());
        let config = if given(self.inner) {
            self.inner
        } else {
            self.whole
        };
        config.get(name).filter(|value| !value.is_null())
    }

    fn number(&self, names: &[&str]) -> Option<u64> {
        names.iter().find_map(|name| self.get(name)?.as_u64())
    }

    fn text(&self, name: &str) -> Option<&str> {
        self.get(name)?.as_str()
    }

    fn architecture(&self) -> Option<String> {
        let first = self.whole.get("architectures").and_then(|all| all.get(0));
        let name = first
            .and_then(Value::as_str)
            .or_else(|| self.text("model_type"));
        name.map(str::to_owned)
    }

    /// The method that weights were made smaller by, with its bits, else their type.
    fn quantisation(&self) -> Option<String> {
        if let Some(config) = self.get("quantization_config") {
            let method = config.get("quant_method").and_then(Value::as_str);
            let method = method.unwrap_or("quantised");
            let bits = config.get("bits").and_then(Value::as_u64);
            return Some(match bits {
                Some(bits) => format!("{method}-{bits}bit"),
                None => method.to_owned(),
            });
        }
        let dtype = self.text("torch_dtype").or_else(|| self.text("dtype"))?;
        Some(match dtype.trim_start_matches("torch.") {
            "bfloat16" => "BF16".to_owned(),
            "float16" | "half" => "F16".to_owned(),
            "float32" | "float" => "F32".to_owned(),
            other => other.to_owned(),
        })
    }

    /// As many as attention heads where nothing is said; none in layers without attention.
    fn kv_heads(&self, attention_heads: Option<u64>) -> Vec<u64> {
        let said = self.number(&["num_key_value_heads", "num_kv_heads"]);
        let Some(heads) = said.or(attention_heads) else {
            return Vec::new();
        };
        let kinds = self.get("layer_types").and_then(Value::as_array);
        let kinds = kinds.filter(|kinds| kinds.len() <= LIMIT_LAYERS);
        let keeps = |kind: &Value| kind.as_str().is_none_or(|kind| !kind.starts_with("linear"));
        match kinds {
            Some(kinds) if !kinds.iter().all(keeps) => kinds
                .iter()
                .map(|kind| if keeps(kind) { heads } else { 0 })
                .collect(),
            _ => vec![heads],
        }
    }

    /// `layer_types` says it of each layer; older files give the period, the last layer of which sees
    /// everything.
    fn windowed_layers(&self) -> Vec<bool> {
        if self.sliding_window().is_none() {
            return Vec::new();
        }
        let kinds = self.get("layer_types").and_then(Value::as_array);
        if let Some(kinds) = kinds.filter(|kinds| kinds.len() <= LIMIT_LAYERS) {
            let windowed = |kind: &Value| kind.as_str() == Some("sliding_attention");
            return kinds.iter().map(windowed).collect();
        }
        let layers = self.number(&["num_hidden_layers"]);
        let layers = layers.filter(|layers| *layers <= LIMIT_LAYERS as u64);
        let period = self.number(&["sliding_window_pattern"]);
        match (layers, period.filter(|period| *period > 0)) {
            (Some(layers), Some(period)) => (0..layers)
                .map(|layer| layer % period < period - 1)
                .collect(),
            _ => Vec::new(),
        }
    }

    fn sliding_window(&self) -> Option<u64> {
        let used = self.get("use_sliding_window").and_then(Value::as_bool);
        self.number(&["sliding_window"])
            .filter(|tokens| *tokens > 0 && used != Some(false))
    }
}
