//! By what a model is looked up: the reference as it was written and all that decides what it means.

use std::sync::Arc;

use engine_provider_api::{ModelShape, StageModel};
use sha2::{Digest as _, Sha256};

use super::{Reference, Request, Stage, source::Versions};
use crate::{net::Url, store};

/// Hexadecimal digits of a name: enough that two never meet.
const DIGITS: usize = 32;

/// What a reference is looked up by: a digest of what was written, so that a token in a URL is kept
/// nowhere.
///
/// | part | why |
/// |---|---|
/// | reference, relative paths made absolute | what is asked for |
/// | quantisation | picks other files |
/// | shape | a file or all files |
/// | patterns | pick other files |
///
/// Within a run mirrors and locked versions count as well: who has some is not given the places of who has
/// none. Of what is here they say nothing.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key {
    name: String,
    mirrors: Vec<Url>,
    versions: Arc<Versions>,
}

impl Key {
    pub(super) fn new(stage: &Stage, request: &Request, step: &StageModel) -> Self {
        let reference = match &request.reference {
            Reference::File(path) => {
                let place = super::own::place(stage, path);
                place.to_string_lossy().into_owned()
            }
            _ => step.reference.clone(),
        };
        let shape = match step.shape {
            ModelShape::File => "file",
            ModelShape::Directory => "directory",
        };
        let patterns = (&step.include, &step.exclude);
        let parts = (reference, &step.quant, shape, patterns);
        let text = serde_json::to_vec(&parts).expect("texts can be written");
        Self {
            name: store::hex(&Sha256::digest(&text))[..DIGITS].to_owned(),
            mirrors: request.mirrors.clone(),
            versions: Arc::clone(&stage.versions),
        }
    }

    pub(super) fn as_str(&self) -> &str {
        &self.name
    }
}

/// A name for people, out of the last part of a reference: lower-case letters, digits, `.`, `-`, `_`.
pub(super) fn slug(text: &str) -> String {
    const LONGEST: usize = 48;
    let last = text
        .trim_end_matches('/')
        .rsplit('/')
        .next()
        .unwrap_or(text);
    let last = last.split(['@', '?', '#']).next().unwrap_or(last);
    let last = match last.split_once(':') {
        // An artifact keeps its name without its tag, a repository without its quantisation.
        Some((name, _)) if text.contains('/') => name,
        Some((_, name)) => name,
        None => last,
    };
    let stem = [".gguf", ".safetensors"]
        .iter()
        .find_map(|suffix| last.strip_suffix(suffix))
        .unwrap_or(last);
    let plain = |letter: char| match letter.to_ascii_lowercase() {
        letter if letter.is_ascii_alphanumeric() || "._-".contains(letter) => letter,
        _ => '-',
    };
    let name: String = stem.chars().map(plain).take(LONGEST).collect();
    match name.trim_matches(['.', '-', '_']) {
        "" => "model".to_owned(),
        name => name.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_for_people_come_from_the_last_part() {
        for (text, name) in [
            (
                "hf:Qwen/Qwen2.5-0.5B-Instruct@main",
                "qwen2.5-0.5b-instruct",
            ),
            ("https://host/a/Model Q4.gguf?token=x", "model-q4"),
            ("/models/.hidden", "hidden"),
            ("oci://host:5000/a/tiny:v1", "tiny"),
            ("oci://host:5000/a/tiny@sha256:00ff", "tiny"),
            ("hf:o/repo:Q4_K_M", "repo"),
            ("builtin:haiku", "haiku"),
            ("///", "model"),
        ] {
            assert_eq!(slug(text), name, "{text}");
        }
    }
}
