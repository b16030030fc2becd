//! A Llama of random weights, small enough to be written here.

use std::{fs, os::unix::fs::PermissionsExt, path::Path};

use serde_json::{Map, Value, json};

const HIDDEN: usize = 64;
const INNER: usize = 128;
const LAYERS: usize = 2;
/// One token per byte, begin and end of text.
const TOKENS: usize = 258;

/// Writes the model into a directory of this name, readable for everybody.
pub(super) fn write(directory: &Path) {
    fs::create_dir(directory).unwrap();
    let texts = [
        ("config.json", config()),
        ("tokenizer.json", tokenizer()),
        ("tokenizer_config.json", tokenizer_config()),
    ];
    for (name, text) in texts {
        fs::write(directory.join(name), text.to_string()).unwrap();
    }
    fs::write(directory.join("model.safetensors"), weights()).unwrap();
    fs::set_permissions(directory, fs::Permissions::from_mode(0o755)).unwrap();
}

fn config() -> Value {
    json!({
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-5,
        "vocab_size": TOKENS,
        "bos_token_id": 256,
        "eos_token_id": 257,
        "hidden_act": "silu",
        "tie_word_embeddings": false,
        "torch_dtype": "float32",
        "rope_theta": 10000.0,
    })
}

/// Tokens are bytes, spelled with the printable stand-ins that byte-level tokenizers use.
fn tokenizer() -> Value {
    let printable = |byte: u32| matches!(byte, 33..=126 | 161..=172 | 174..=255);
    let mut stand_in = 256;
    let mut vocabulary = Map::new();
    for byte in 0..256_u32 {
        let letter = if printable(byte) {
            byte
        } else {
            stand_in += 1;
            stand_in - 1
        };
        let letter = char::from_u32(letter).expect("below the surrogates");
        vocabulary.insert(letter.to_string(), json!(byte));
    }
    vocabulary.insert("<s>".to_owned(), json!(256));
    vocabulary.insert("</s>".to_owned(), json!(257));
    let special = |id: u32, content: &str| {
        json!({
            "id": id, "content": content, "single_word": false, "lstrip": false,
            "rstrip": false, "normalized": false, "special": true,
        })
    };
    let bytes = json!({
        "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true,
    });
    json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": [special(256, "<s>"), special(257, "</s>")],
        "normalizer": null,
        "pre_tokenizer": bytes,
        "post_processor": null,
        "decoder": bytes,
        "model": {
            "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false,
            "vocab": vocabulary, "merges": [],
        },
    })
}

fn tokenizer_config() -> Value {
    json!({
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "model_max_length": 2048,
        "chat_template": "{% for message in messages %}{{ message['content'] }}\n{% endfor %}",
    })
}

/// The weights as a safetensors file: length of the header, header, numbers.
fn weights() -> Vec<u8> {
    let mut numbers = Random(1);
    let (mut header, mut data) = (Map::new(), Vec::new());
    for (name, shape) in tensors() {
        let begin = data.len();
        for _ in 0..shape.iter().product() {
            let number = match shape.len() {
                1 => 1.0,
                _ => numbers.draw(),
            };
            data.extend(f32::to_le_bytes(number));
        }
        let tensor = json!({ "dtype": "F32", "shape": shape, "data_offsets": [begin, data.len()] });
        header.insert(name, tensor);
    }
    let mut header = Value::Object(header).to_string().into_bytes();
    header.resize(header.len().next_multiple_of(8), b' ');
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.append(&mut header);
    file.append(&mut data);
    file
}

fn tensors() -> Vec<(String, Vec<usize>)> {
    let mut tensors = vec![
        ("model.embed_tokens.weight".to_owned(), vec![TOKENS, HIDDEN]),
        ("model.norm.weight".to_owned(), vec![HIDDEN]),
        ("lm_head.weight".to_owned(), vec![TOKENS, HIDDEN]),
    ];
    for layer in 0..LAYERS {
        let parts: [(&str, &[usize]); 9] = [
            ("self_attn.q_proj", &[HIDDEN, HIDDEN]),
            ("self_attn.k_proj", &[HIDDEN, HIDDEN]),
            ("self_attn.v_proj", &[HIDDEN, HIDDEN]),
            ("self_attn.o_proj", &[HIDDEN, HIDDEN]),
            ("mlp.gate_proj", &[INNER, HIDDEN]),
            ("mlp.up_proj", &[INNER, HIDDEN]),
            ("mlp.down_proj", &[HIDDEN, INNER]),
            ("input_layernorm", &[HIDDEN]),
            ("post_attention_layernorm", &[HIDDEN]),
        ];
        let named = |(part, shape): (&str, &[usize])| {
            (
                format!("model.layers.{layer}.{part}.weight"),
                shape.to_vec(),
            )
        };
        tensors.extend(parts.map(named));
    }
    tensors
}

/// Numbers between -0.3 and 0.3, the same in every run.
struct Random(u64);

impl Random {
    fn draw(&mut self) -> f32 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        let share = (self.0 >> 40) as f32 / (1_u64 << 24) as f32;
        share.mul_add(0.6, -0.3)
    }
}
