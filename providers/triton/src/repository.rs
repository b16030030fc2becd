//! The model repository: the pool's own, or one made around its model.
//!
//! A repository has one directory per model, with `config.pbtxt` and a directory per version. What is
//! made lies in the engine's placed files; the model itself is never copied into it, it is mounted.

use engine_provider_api::{Mount, PlacedFile, ProviderError, Template};
use engine_provider_kit::container;
use serde_json::{Value, json};

use crate::{
    Decision, MODEL,
    options::{Backend, Options},
};

/// Where Triton looks inside a container.
pub(crate) const INSIDE: &str = "/models";
/// Where the weights of a made repository lie inside a container.
const WEIGHTS: &str = "/weights";
/// Directory of a made repository below the placed files.
const MADE: &str = "repository";

/// What is placed and mounted.
#[derive(Debug, Default)]
pub(crate) struct Repository {
    pub files: Vec<PlacedFile>,
    pub mounts: Vec<Mount>,
}

impl Repository {
    /// For a container.
    pub(crate) fn mounted(decision: &Decision, name: &str) -> Self {
        let Some(backend) = decision.options.backend else {
            return Self {
                files: Vec::new(),
                mounts: vec![container::mount(MODEL, INSIDE)],
            };
        };
        let weights = format!("{WEIGHTS}/{name}");
        let config = match backend {
            Backend::Vllm => config(name, backend, VLLM),
            Backend::TensorrtLlm => tensorrt_llm(name, &weights),
            _ => one_file(name, backend, decision),
        };
        let mut files = vec![placed(&format!("{name}/config.pbtxt"), &config)];
        if backend == Backend::Vllm {
            let settings = vllm(&decision.options, decision.engine_settings(), &weights);
            files.push(placed(&format!("{name}/1/model.json"), &settings));
        }
        let mounts = match backend.file() {
            // Nothing can be mounted inside a mount that cannot be written: file by file, then.
            Some(file) => vec![
                placed_mount(&format!("{name}/config.pbtxt")),
                container::mount(MODEL, &format!("{INSIDE}/{name}/1/{file}")),
            ],
            None => {
                // Triton wants a directory per version, even where nothing is in it.
                if backend == Backend::TensorrtLlm {
                    files.push(placed(&format!("{name}/1/.keep"), ""));
                }
                vec![placed_mount(""), container::mount(MODEL, &weights)]
            }
        };
        Self { files, mounts }
    }
}

fn placed(path: &str, text: &str) -> PlacedFile {
    PlacedFile {
        path: format!("{MADE}/{path}"),
        text: Template::literal(text),
    }
}

fn placed_mount(path: &str) -> Mount {
    let below = |root: &str| format!("{root}/{path}").trim_end_matches('/').to_owned();
    Mount {
        source: below(&format!("{{files}}/{MADE}")).into(),
        target: below(INSIDE),
    }
}

/// vLLM brings its own inputs and outputs, and places itself on the GPUs.
const VLLM: &str = "instance_group [ { count: 1 kind: KIND_MODEL } ]\n";

fn config(name: &str, backend: Backend, rest: &str) -> String {
    format!("name: \"{name}\"\nbackend: \"{}\"\n{rest}", backend.name())
}

/// Inputs and outputs are those that the file itself names.
fn one_file(name: &str, backend: Backend, decision: &Decision) -> String {
    let batch = decision.options.max_batch_size;
    let place = if decision.gpus.is_empty() {
        "KIND_CPU"
    } else {
        "KIND_GPU"
    };
    let rest = format!("max_batch_size: {batch}\ninstance_group [ {{ kind: {place} }} ]\n");
    config(name, backend, &rest)
}

/// Settings for vLLM: the pool's own over what follows from the rest of the pool.
fn vllm(options: &Options, own: Vec<(&'static str, Value)>, weights: &str) -> String {
    let mut settings = json!({ "model": weights });
    let fields = settings.as_object_mut().expect("it was made an object");
    fields.extend(
        own.into_iter()
            .map(|(name, value)| (name.to_owned(), value)),
    );
    fields.extend(options.engine.clone());
    let text = serde_json::to_string_pretty(&settings);
    text.expect("JSON can be written") + "\n"
}

/// Requests in flight are batched with each other; answers stream.
fn tensorrt_llm(name: &str, engines: &str) -> String {
    let scalar = |name: &str, kind: &str| {
        format!(
            "  {{ name: \"{name}\" data_type: {kind} dims: [ 1 ] reshape: {{ shape: [ ] }} \
             optional: true }}"
        )
    };
    let parameter = |key: &str, value: &str| {
        format!("parameters {{ key: \"{key}\" value: {{ string_value: \"{value}\" }} }}\n")
    };
    let optional = [
        ("end_id", "TYPE_INT32"),
        ("pad_id", "TYPE_INT32"),
        ("random_seed", "TYPE_UINT64"),
        ("runtime_top_k", "TYPE_INT32"),
        ("runtime_top_p", "TYPE_FP32"),
        ("temperature", "TYPE_FP32"),
        ("streaming", "TYPE_BOOL"),
    ]
    .map(|(name, kind)| scalar(name, kind))
    .join(",\n");
    let rest = format!(
        "max_batch_size: 64\n\
         model_transaction_policy {{ decoupled: true }}\n\
         input [\n\
         \u{20} {{ name: \"input_ids\" data_type: TYPE_INT32 dims: [ -1 ] allow_ragged_batch: true }},\n\
         \u{20} {{ name: \"input_lengths\" data_type: TYPE_INT32 dims: [ 1 ] reshape: {{ shape: [ ] }} }},\n\
         \u{20} {{ name: \"request_output_len\" data_type: TYPE_INT32 dims: [ 1 ] }},\n\
         {optional}\n\
         ]\n\
         output [\n\
         \u{20} {{ name: \"output_ids\" data_type: TYPE_INT32 dims: [ -1, -1 ] }},\n\
         \u{20} {{ name: \"sequence_length\" data_type: TYPE_INT32 dims: [ -1 ] }}\n\
         ]\n\
         instance_group [ {{ count: 1 kind: KIND_CPU }} ]\n\
         {}{}",
        parameter("gpt_model_type", "inflight_fused_batching"),
        parameter("gpt_model_path", engines),
    );
    config(name, Backend::TensorrtLlm, &rest)
}

/// Names become directories, URLs and quoted text.
pub(crate) fn check_name(name: &str) -> Result<(), ProviderError> {
    let plain = |letter: char| letter.is_ascii_alphanumeric() || "._-".contains(letter);
    if !name.is_empty() && !name.starts_with('.') && name.chars().all(plain) {
        return Ok(());
    }
    let message = format!("`{name}` cannot be the name of a model in a repository");
    Err(ProviderError::invalid("model", message)
        .hint("set `model` to a name of letters, digits, `.`, `_` and `-`"))
}
