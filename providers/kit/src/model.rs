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
}
