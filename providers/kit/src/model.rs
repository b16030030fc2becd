//! The model of a pool: what it is called when nobody named it, and whether an engine can read it.

use engine_provider_api::{ModelSource, Pool, ProviderError};

/// Formats, by name suffix, of weights that engines for directories of the Hugging Face hub read: of these
/// a model must have one.
pub const WEIGHTS: [&str; 4] = ["safetensors", "bin", "pt", "pth"];

/// The last part of a model reference without its file suffix: `hf:org/repo/Qwen-Q4.gguf` and
/// `/models/Qwen-Q4.gguf` are `Qwen-Q4`, `builtin:haiku` is `haiku`, `oci://registry/org/qwen:latest` is `qwen`.
#[must_use]
pub fn public_name(reference: &str) -> String {
    let end = reference.find(['?', '#']).unwrap_or(reference.len());
    let path = reference[..end].trim_end_matches('/');
    let path = repository(path).or_else(|| artifact(path)).unwrap_or(path);
    let last = path.rsplit(['/', ':']).next().unwrap_or(path);
    let stem = last.strip_suffix(".gguf").unwrap_or(last);
    if stem.is_empty() { "model" } else { stem }.to_owned()
}

/// `hf:OWNER/NAME` of a reference to a whole repository of the hub, without revision and quantisation;
/// a reference to a file in one keeps its last part.
fn repository(reference: &str) -> Option<&str> {
    let name = reference.strip_prefix("hf:")?.trim_start_matches('/');
    let start = name.find('/')? + 1;
    let end = start + name[start..].find(['@', ':', '/'])?;
    let whole = !name[end..].contains('/') || name[end..].starts_with("@refs/");
    whole.then(|| &name[..end])
}

/// `oci://REGISTRY/NAME` without tag and digest: which one of it is served is no part of its name.
fn artifact(reference: &str) -> Option<&str> {
    let name = reference.strip_prefix("oci://")?;
    let name = name.split('@').next().unwrap_or(name);
    let last = name.rfind('/')?;
    let end = name[last..].find(':').map_or(name.len(), |tag| last + tag);
    Some(&name[..end])
}

/// The model of a pool for an engine that reads directories as the Hugging Face hub has them, and that
/// has no model of its own; `engine` is named in messages.
pub fn directory<'a>(pool: &'a Pool, engine: &str) -> Result<&'a ModelSource, ProviderError> {
    let model = pool.provisioning.model.as_ref().ok_or_else(|| {
        ProviderError::invalid("provisioning.model", "the pool names no model to serve").hint(
            format!(
                "{engine} has no model of its own: give `--model`, or write a pool file with \
                 `provisioning.model.ref`, for example `hf:Qwen/Qwen2.5-0.5B-Instruct` or \
                 `file:/srv/models/qwen`"
            ),
        )
    })?;
    let reference = model.reference.as_str();
    let path = reference.split(['?', '#']).next().unwrap_or_default();
    if path.to_ascii_lowercase().ends_with(".gguf") || path.starts_with("builtin:") {
        let message = format!("`{reference}` is a GGUF file, and {engine} reads model directories");
        return Err(
            ProviderError::invalid("provisioning.model.ref", message).hint(
                "name the model's Hugging Face repository or a directory with `config.json`, or set \
                 `engine: llamacpp`, which reads GGUF files",
            ),
        );
    }
    Ok(model)
}

/// Where a model lies inside a container: engines show the last part of the path.
#[must_use]
pub fn inside(id: &str) -> String {
    let plain = |letter: char| match letter {
        'a'..='z' | 'A'..='Z' | '0'..='9' | '.' | '_' | '-' => letter,
        _ => '-',
    };
    let name: String = id.chars().map(plain).collect();
    match name.trim_matches('.') {
        "" => "/models/model".to_owned(),
        name => format!("/models/{name}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_from_the_last_part() {
        for (reference, name) in [
            ("builtin:haiku", "haiku"),
            ("hf:org/repo/Qwen-Q4.gguf", "Qwen-Q4"),
            ("https://host/a/b.gguf?download=true", "b"),
            ("./models/x.gguf", "x"),
            ("hf:org/repo", "repo"),
            ("hf:org/repo:Q4_K_M", "repo"),
            ("hf:org/repo@refs/pr/1", "repo"),
            ("hf:org/repo@main/sub/Qwen-Q4.gguf", "Qwen-Q4"),
            ("oci://host:5000/org/qwen:latest", "qwen"),
            ("oci://host/org/qwen@sha256:00ff", "qwen"),
            ("oci://host/org/qwen:v1@sha256:00ff", "qwen"),
            ("oci://host/qwen", "qwen"),
            ("file:/", "model"),
        ] {
            assert_eq!(public_name(reference), name, "{reference}");
        }
    }

    #[test]
    fn a_name_cannot_leave_the_directory_of_models() {
        assert_eq!(inside("Qwen/Qwen2.5 x"), "/models/Qwen-Qwen2.5-x");
        assert_eq!(inside("../etc"), "/models/-etc");
        assert_eq!(inside(".."), "/models/model");
    }
}
