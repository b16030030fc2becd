//! What a model is, as its own files say.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What the header of a model's files says of it, known before the rest of it is fetched.
///
/// Every number is what the files claim; absent is what they do not say. Only to estimate and to
/// describe by: the files are proven by their digest, not by this.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct ModelFacts {
    /// Format of its files: `gguf` or `safetensors`.
    pub format: String,
    /// Kind of model, in its format's own word: `llama` in a GGUF file, `LlamaForCausalLM` in
    /// `config.json`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub architecture: Option<String>,
    /// Number of weights.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parameters: Option<u64>,
    /// How weights are stored: `Q4_K_M`, `BF16`, `awq`; types of a mixture by their most common one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quantisation: Option<String>,
    /// Longest context that it was made for, in tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub context_length: Option<u64>,
    /// Number of layers (blocks).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub layers: Option<u64>,
    /// Width of what goes from layer to layer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub embedding_length: Option<u64>,
    /// Width inside the feed-forward part of a layer; the widest, where they differ.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub feed_forward_length: Option<u64>,
    /// Attention heads of a layer; the most, where layers differ.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attention_heads: Option<u64>,
    /// Heads whose keys and values are kept: one number where every layer has as many, else one per
    /// layer, 0 for a layer that keeps none. Empty where it is not known.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub kv_heads: Vec<u64>,
    /// Numbers in the key that a head keeps per token.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key_length: Option<u64>,
    /// Numbers in the value that a head keeps per token; 0 where it is part of the key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value_length: Option<u64>,
    /// Tokens that a layer with a sliding window looks back; some of the layers or all have one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sliding_window: Option<u64>,
    /// Which layers have it, one truth value per layer; empty where the files do not say.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub windowed_layers: Vec<bool>,
    /// Size of the vocabulary, in tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vocabulary: Option<u64>,
    /// Size of all weights in bytes, without what else the files hold.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weight_bytes: Option<u64>,
    /// Number of files that hold weights.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub files: Option<u64>,
}
