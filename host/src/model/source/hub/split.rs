//! Models in GGUF: which files are one, and what their names say.
//!
//! llama.cpp splits a model into `NAME-00001-of-00003.gguf` and so on and is given the first. The rest
//! of a name is convention: its quantisation stands in it, between `-` or `.`.

use std::collections::{HashMap, HashSet};

use super::{
    described::File,
    error::{Choice, HubError},
};

/// A model: one file, or all parts of a split one in their order.
#[derive(Debug, Clone)]
pub(in crate::model::source) struct Model<'a> {
    pub(in crate::model::source) files: Vec<&'a File>,
    /// Parts that there should be; 1 for what is not split.
    total: usize,
}

impl<'a> Model<'a> {
    /// The models that these files are, by the path of their first part.
    pub(in crate::model::source) fn all(files: impl Iterator<Item = &'a File>) -> Vec<Self> {
        let mut models: Vec<Self> = Vec::new();
        let mut sets = HashMap::new();
        for file in files {
            let part = Part::of(&file.path);
            let next = models.len();
            let index = part.map_or(next, |part| *sets.entry(part.set()).or_insert(next));
            match models.get_mut(index) {
                Some(model) => model.files.push(file),
                None => models.push(Self {
                    files: vec![file],
                    total: part.map_or(1, |part| part.total),
                }),
            }
        }
        models
    }

    /// Its path, or that of its first part.
    pub(in crate::model::source) fn path(&self) -> &'a str {
        &self.files[0].path
    }

    pub(super) fn has(&self, path: &str) -> bool {
        self.files.iter().any(|file| file.path == path)
    }

    pub(super) fn choice(&self) -> Choice {
        Choice {
            path: self.path().to_owned(),
            quant: quant(self.path()),
            size_bytes: super::super::total(self.files.iter().map(|file| file.size_bytes)),
        }
    }

    /// Refuses a set of which a part is missing.
    pub(in crate::model::source) fn check(&self) -> Result<(), HubError> {
        let Some(first) = Part::of(self.path()) else {
            return Ok(());
        };
        let there: HashSet<&str> = self.files.iter().map(|file| file.path.as_str()).collect();
        let missing: Vec<String> = (1..=self.total)
            .map(|number| first.named(number))
            .filter(|name| !there.contains(name.as_str()))
            .collect();
        if missing.is_empty() && self.files.len() == self.total {
            return Ok(());
        }
        Err(HubError::Incomplete {
            name: first.named(1),
            total: self.total,
            missing,
        })
    }

    /// Whether its name carries this quantisation as a whole word: `Q4_K` is not in `Q4_K_M`.
    pub(in crate::model::source) fn is_quant(&self, quant: &str) -> bool {
        has_word(&file_name(self.path()), quant)
    }

    /// The same of the directories that it is in, for repositories that sort by them.
    pub(in crate::model::source) fn is_below_quant(&self, quant: &str) -> bool {
        has_word(self.path(), quant)
    }
}

/// Parts that a model has at most.
const MOST_PARTS: usize = 4096;

/// Names of all parts of the split model that a file of this name is one of, in their order; `None`: it is
/// a model by itself. What stands before the name, a directory or a URL, stays there.
pub(crate) fn parts(name: &str) -> Option<Vec<String>> {
    let part = Part::of(name).filter(|part| (2..=MOST_PARTS).contains(&part.total))?;
    let all: Vec<String> = (1..=part.total).map(|number| part.named(number)).collect();
    all.iter().any(|one| one == name).then_some(all)
}

/// A part of a split model, read from its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Part<'a> {
    prefix: &'a str,
    total: usize,
}

impl<'a> Part<'a> {
    fn of(path: &'a str) -> Option<Self> {
        let stem = path.strip_suffix(".gguf")?;
        let (rest, total) = stem.rsplit_once("-of-")?;
        let (prefix, number) = rest.rsplit_once('-')?;
        let read = |digits: &str| {
            let plain = digits.len() == 5 && digits.bytes().all(|byte| byte.is_ascii_digit());
            plain.then(|| digits.parse::<usize>().ok()).flatten()
        };
        read(number)?;
        let total = read(total).filter(|total| *total > 0)?;
        Some(Self { prefix, total })
    }

    /// What its parts have in common.
    fn set(self) -> (&'a str, usize) {
        (self.prefix, self.total)
    }

    fn named(self, number: usize) -> String {
        format!("{}-{number:05}-of-{:05}.gguf", self.prefix, self.total)
    }
}

/// Files beside a model that are none: projectors for images, and what quantisations are made with.
pub(in crate::model::source) fn is_companion(path: &str) -> bool {
    let name = file_name(path).to_ascii_lowercase();
    name.contains("mmproj") || name.contains("imatrix")
}

/// The quantisation that a name carries, in upper case.
pub(super) fn quant(path: &str) -> Option<String> {
    let name = file_name(path).to_ascii_uppercase();
    let words: Vec<&str> = name.split(['-', '.']).collect();
    let at = words.iter().rposition(|word| is_quant_word(word))?;
    // Unsloth's dynamic quantisations stand beside the others of the same name.
    let dynamic = at > 0 && words[at - 1] == "UD";
    Some(format!("{}{}", if dynamic { "UD-" } else { "" }, words[at]))
}

fn is_quant_word(word: &str) -> bool {
    if matches!(
        word,
        "F16" | "BF16" | "F32" | "FP16" | "FP32" | "MXFP4" | "MXFP4_MOE"
    ) {
        return true;
    }
    let word = word.strip_prefix(['I', 'T']).unwrap_or(word);
    let digits = word.strip_prefix('Q').unwrap_or_default();
    digits.starts_with(|char: char| char.is_ascii_digit())
        && digits
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

fn has_word(text: &str, word: &str) -> bool {
    let (text, word) = (text.to_ascii_uppercase(), word.to_ascii_uppercase());
    let joins = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    !word.is_empty()
        && text.match_indices(&word).any(|(start, _)| {
            // Before it `_` is a separator, too, as in `model_q8_0.gguf`; no quantisation ends another.
            let before = text[..start].bytes().next_back();
            let after = text[start + word.len()..].bytes().next();
            !before.is_some_and(|byte| byte.is_ascii_alphanumeric()) && !after.is_some_and(joins)
        })
}

fn file_name(path: &str) -> String {
    path.rsplit('/').next().unwrap_or(path).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(paths: &[&str]) -> Vec<File> {
        let file = |path: &&str| File {
            path: (*path).to_owned(),
            size_bytes: Some(1),
            ..File::default()
        };
        paths.iter().map(file).collect()
    }

    #[test]
    fn a_long_list_is_sorted_into_models_in_no_time() {
        let set = |number: usize| File {
            path: format!("{number}-00001-of-99999.gguf"),
            ..File::default()
        };
        let parts = |number: usize| File {
            path: format!("m-{number:05}-of-99999.gguf"),
            ..File::default()
        };
        let all: Vec<File> = (0..50_000).map(set).chain((1..50_000).map(parts)).collect();
        let start = std::time::Instant::now();
        let models = Model::all(all.iter());
        assert_eq!(models.len(), 50_001);
        let error = models.last().unwrap().check().unwrap_err();
        assert!(
            matches!(&error, HubError::Incomplete { missing, .. } if missing.len() == 50_000),
            "{error}"
        );
        // Each compared with each takes minutes.
        assert!(start.elapsed().as_secs() < 30, "{:?}", start.elapsed());
    }

    #[test]
    fn parts_are_one_model_and_a_missing_one_is_named() {
        let all = files(&[
            "Q8/m-Q8_0-00001-of-00003.gguf",
            "Q8/m-Q8_0-00002-of-00003.gguf",
            "Q8/m-Q8_0-00003-of-00003.gguf",
            "b-00001-of-00003.gguf",
            "b-00003-of-00003.gguf",
            "c.gguf",
        ]);
        let models = Model::all(all.iter());
        let counts: Vec<usize> = models.iter().map(|model| model.files.len()).collect();
        assert_eq!(counts, [3, 2, 1]);
        models[0].check().unwrap();
        models[2].check().unwrap();
        let Err(HubError::Incomplete { missing, .. }) = models[1].check() else {
            panic!("a part is missing");
        };
        assert_eq!(missing, ["b-00002-of-00003.gguf"]);
        let odd = files(&["b-00004-of-00003.gguf"]);
        assert!(Model::all(odd.iter())[0].check().is_err());
    }

    #[test]
    fn whoever_names_a_part_names_them_all() {
        let all = ["a/m-00001-of-00002.gguf", "a/m-00002-of-00002.gguf"];
        for name in all {
            assert_eq!(parts(name).unwrap(), all);
        }
        for no in [
            "m.gguf",
            "m-00001-of-00001.gguf",
            "m-00003-of-00002.gguf",
            "m-00000-of-00002.gguf",
            "m-00001-of-99999.gguf",
            "m-00001-of-00002.safetensors",
        ] {
            assert_eq!(parts(no), None, "{no}");
        }
    }

    #[test]
    fn a_quantisation_is_a_whole_word_of_a_name() {
        for (name, word) in [
            ("m-Q4_K_M.gguf", "q4_k_m"),
            ("m.Q4_K_M-00001-of-00002.gguf", "Q4_K_M"),
            ("model_q8_0.gguf", "Q8_0"),
            ("m-UD-Q4_K_XL.gguf", "UD-Q4_K_XL"),
        ] {
            assert!(has_word(name, word), "{name} {word}");
        }
        for (name, word) in [
            ("m-Q4_K_M.gguf", "Q4_K"),
            ("m-IQ4_XS.gguf", "Q4_XS"),
            ("m-Q4_0_4_4.gguf", "Q4_0"),
            ("m-bf16.gguf", "F16"),
            ("m.gguf", ""),
        ] {
            assert!(!has_word(name, word), "{name} {word}");
        }
    }

    #[test]
    fn names_say_their_quantisation() {
        for (path, expected) in [
            ("Llama-3.2-1B-Instruct-Q4_K_M.gguf", Some("Q4_K_M")),
            ("x/qwen2.5-7b-instruct-iq3_xxs.gguf", Some("IQ3_XXS")),
            ("m-UD-Q4_K_XL-00001-of-00002.gguf", Some("UD-Q4_K_XL")),
            ("m.BF16.gguf", Some("BF16")),
            ("gpt-oss-20b-mxfp4.gguf", Some("MXFP4")),
            ("qwen2-q.gguf", None),
        ] {
            assert_eq!(quant(path).as_deref(), expected, "{path}");
        }
    }

    proptest::proptest! {
        #[test]
        fn no_name_panics(path in "[a-zQ0-9_./é-]{0,16}(-0000[0-9]-of-0000[0-9])?(\\.gguf)?", word in "[Qé0-9_k]{0,4}") {
            let all = files(&[&path]);
            for model in Model::all(all.iter()) {
                let _ = (model.check(), model.choice(), model.is_quant(&word), is_companion(&path));
            }
        }
    }
}
