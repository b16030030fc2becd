//! Which of a model's files tell what it is.

/// Files that are read, by their places in the list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Pick {
    /// GGUF, all parts in their order.
    Gguf(Vec<usize>),
    /// Safetensors, with what describes them.
    Repository {
        config: Option<usize>,
        index: Option<usize>,
        weights: Vec<usize>,
    },
}

/// Chooses from the names of all files. `None`: of no known format, or several models.
pub(super) fn pick(names: &[&str]) -> Option<Pick> {
    let gguf: Vec<usize> = all(names, |name| {
        has_suffix(name, ".gguf") && !is_companion(last(name))
    });
    if !gguf.is_empty() {
        return one_model(names, gguf).map(Pick::Gguf);
    }
    let of = |wanted: &str| names.iter().position(|name| *name == wanted);
    let config = of("config.json");
    let mut weights = all(names, |name| {
        has_suffix(name, ".safetensors") && (!name.contains('/') || names.len() == 1)
    });
    // Some repositories hold the same weights twice, under the names of two programs.
    let usual: Vec<usize> = weights
        .iter()
        .copied()
        .filter(|index| last(names[*index]).starts_with("model"))
        .collect();
    if !usual.is_empty() {
        weights = usual;
    }
    (config.is_some() || !weights.is_empty()).then(|| Pick::Repository {
        config,
        index: of("model.safetensors.index.json"),
        weights,
    })
}

fn all(names: &[&str], wanted: impl Fn(&str) -> bool) -> Vec<usize> {
    let indices = 0..names.len();
    indices.filter(|index| wanted(names[*index])).collect()
}

fn last(name: &str) -> &str {
    name.rsplit('/').next().unwrap_or(name)
}

fn has_suffix(name: &str, suffix: &str) -> bool {
    let start = name.len().checked_sub(suffix.len());
    start
        .and_then(|start| name.get(start..))
        .is_some_and(|end| end.eq_ignore_ascii_case(suffix))
}

/// What lies beside models in the same format: what an image is read with, measurements.
fn is_companion(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    name.starts_with("mmproj") || name.contains("imatrix")
}

/// One file, or all that are parts of the same, in their order.
fn one_model(names: &[&str], files: Vec<usize>) -> Option<Vec<usize>> {
    if let [_] = files.as_slice() {
        return Some(files);
    }
    let parts: Option<Vec<(Part<'_>, usize)>> = files
        .into_iter()
        .map(|index| Some((Part::of(names[index])?, index)))
        .collect();
    let mut parts = parts?;
    let (first, _) = parts.first()?;
    let (prefix, of) = (first.prefix, first.of);
    if parts
        .iter()
        .any(|(part, _)| part.prefix != prefix || part.of != of)
    {
        return None;
    }
    parts.sort_by_key(|(part, _)| part.number);
    Some(parts.into_iter().map(|(_, index)| index).collect())
}

/// The name of a part, `PREFIX-00001-of-00003.gguf` (`llama_split_path` of llama.cpp).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Part<'a> {
    pub(super) prefix: &'a str,
    /// From 1.
    pub(super) number: u64,
    pub(super) of: u64,
}

impl<'a> Part<'a> {
    pub(super) fn of(name: &'a str) -> Option<Self> {
        let stem = name.strip_suffix(".gguf")?;
        let (rest, of) = stem.rsplit_once("-of-")?;
        let (prefix, number) = rest.rsplit_once('-')?;
        let digits = |text: &str| {
            let plain = text.len() == 5 && text.bytes().all(|byte| byte.is_ascii_digit());
            plain.then(|| text.parse::<u64>().ok()).flatten()
        };
        let (number, of) = (digits(number)?, digits(of)?);
        (1..=of)
            .contains(&number)
            .then_some(Self { prefix, number, of })
    }

    /// The name of another part of the same model.
    pub(super) fn sibling(&self, number: u64) -> String {
        format!("{}-{number:05}-of-{:05}.gguf", self.prefix, self.of)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_one_model_are_told_from_several_models() {
        let parts = ["q/m-00002-of-00002.gguf", "q/m-00001-of-00002.gguf"];
        assert_eq!(pick(&parts), Some(Pick::Gguf(vec![1, 0])));
        assert_eq!(pick(&["a-Q4.gguf", "a-Q8.gguf"]), None);
        let other = ["m-00001-of-00002.gguf", "n-00002-of-00002.gguf"];
        assert_eq!(pick(&other), None);
        let beside = ["mmproj-F16.gguf", "x.GGUF", "x.imatrix.gguf", "README.md"];
        assert_eq!(pick(&beside), Some(Pick::Gguf(vec![1])));
    }

    #[test]
    fn a_repository_has_a_description_or_weights() {
        let files = [
            "config.json",
            "consolidated.safetensors",
            "model-00001-of-00002.safetensors",
            "model-00002-of-00002.safetensors",
            "model.safetensors.index.json",
            "original/model.safetensors",
        ];
        let picked = Pick::Repository {
            config: Some(0),
            index: Some(4),
            weights: vec![2, 3],
        };
        assert_eq!(pick(&files), Some(picked));
        assert_eq!(pick(&["README.md"]), None);
    }

    #[test]
    fn the_name_of_a_part_is_read_and_written() {
        let part = Part::of("a-00001-of-00003.gguf").unwrap();
        assert_eq!((part.number, part.of), (1, 3));
        assert_eq!(part.sibling(3), "a-00003-of-00003.gguf");
        for no in [
            "a.gguf",
            "a-1-of-3.gguf",
            "a-00004-of-00003.gguf",
            "a-00000-of-00003.gguf",
        ] {
            assert_eq!(Part::of(no), None, "{no}");
        }
    }
}
