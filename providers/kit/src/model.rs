//! What a model is called when nobody named it.

/// The last part of a model reference without its file suffix: `hf:org/repo/Qwen-Q4.gguf` and
/// `/models/Qwen-Q4.gguf` are `Qwen-Q4`, `builtin:haiku` is `haiku`.
#[must_use]
pub fn public_name(reference: &str) -> String {
    let end = reference.find(['?', '#']).unwrap_or(reference.len());
    let path = reference[..end].trim_end_matches('/');
    let last = path.rsplit(['/', ':']).next().unwrap_or(path);
    let stem = last.strip_suffix(".gguf").unwrap_or(last);
    if stem.is_empty() { "model" } else { stem }.to_owned()
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
