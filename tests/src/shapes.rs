//! Models of every shape that a provider reads, each as small as it can be.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// A directory of weights below this one: a configuration, and a file without tensors.
///
/// # Panics
///
/// When it is there already.
#[must_use]
pub fn weights_below(root: &Path) -> PathBuf {
    let weights = root.join("tiny-model");
    fs::create_dir(&weights).unwrap();
    let config = r#"{"model_type": "llama", "architectures": ["LlamaForCausalLM"]}"#;
    fs::write(weights.join("config.json"), config).unwrap();
    // The least that is a file of this format: the length of a header without tensors.
    fs::write(weights.join("model.safetensors"), b"\x02\0\0\0\0\0\0\0{}").unwrap();
    weights
}

/// A Triton repository below this directory, with one model of Python, which is empty.
///
/// # Panics
///
/// When it cannot be made.
#[must_use]
pub fn repository_below(root: &Path) -> PathBuf {
    let repository = root.join("repository");
    let version = repository.join("echo/1");
    fs::create_dir_all(&version).unwrap();
    fs::write(version.join("model.py"), "").unwrap();
    fs::write(repository.join("echo/config.pbtxt"), "").unwrap();
    repository
}

/// What the engine of each provider that runs containers can serve: its name and a model, the reference
/// of which it is given.
///
/// # Panics
///
/// When a model of it is below this directory already.
#[must_use]
pub fn engines_with_models(root: &Path) -> [(&'static str, String); 4] {
    let weights = weights_below(root).display().to_string();
    let repository = repository_below(root).display().to_string();
    [
        ("llamacpp", "builtin:haiku".to_owned()),
        ("vllm", weights.clone()),
        ("tgi", weights),
        ("triton", repository),
    ]
}
