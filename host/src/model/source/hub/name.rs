//! How a model of the hub is named: `hf:OWNER/NAME[@REVISION][:QUANT][/PATH]`.

use std::fmt;

use super::super::inside::is_inside;

/// A repository of the hub, or something in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HubName {
    /// `OWNER/NAME`.
    pub repository: String,
    /// Branch, tag, commit or `refs/pr/7`; `None`: `main`. A `/` in it is written `%2F`, except in
    /// `refs/pr/…` and `refs/convert/…`, where it can be nothing else.
    pub revision: Option<String>,
    /// Quantisation to pick, as llama.cpp's users write it; excludes a path.
    pub quant: Option<String>,
    /// Path of a file or directory in the repository; `None`: all of it.
    pub path: Option<String>,
}

impl HubName {
    /// Reads what follows `hf:`.
    pub(crate) fn parse(rest: &str) -> Option<Self> {
        let rest = rest.strip_prefix("//").unwrap_or(rest);
        let (owner, rest) = rest.split_once('/')?;
        let end = rest.find(['@', ':', '/']).unwrap_or(rest.len());
        let (name, rest) = rest.split_at(end);
        let (revision, rest) = match rest.strip_prefix('@') {
            Some(rest) => {
                let (revision, rest) = split_revision(rest)?;
                (Some(revision), rest)
            }
            None => (None, rest),
        };
        let (quant, path) = match (rest.strip_prefix(':'), rest.strip_prefix('/')) {
            (Some(quant), _) => (Some(quant), None),
            (_, path) => (None, path),
        };
        let repository = format!("{owner}/{name}");
        let whole = is_part(owner)
            && is_part(name)
            && !repository.contains("--")
            && quant.is_none_or(is_part)
            && path.is_none_or(is_inside);
        whole.then(|| Self {
            repository,
            revision,
            quant: quant.map(str::to_owned),
            path: path.map(str::to_owned),
        })
    }

    /// The same at a commit, whatever was picked from it.
    pub(super) fn pinned(&self, commit: &str, path: Option<&str>) -> Self {
        Self {
            repository: self.repository.clone(),
            revision: Some(commit.to_owned()),
            quant: None,
            path: path.map(str::to_owned),
        }
    }
}

impl fmt::Display for HubName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "hf:{}", self.repository)?;
        if let Some(revision) = &self.revision {
            write!(formatter, "@{}", revision.replace('/', "%2F"))?;
        }
        if let Some(quant) = &self.quant {
            write!(formatter, ":{quant}")?;
        }
        self.path
            .iter()
            .try_for_each(|path| write!(formatter, "/{path}"))
    }
}

/// The revision at the start of a text, and what follows it.
fn split_revision(text: &str) -> Option<(String, &str)> {
    let special = ["refs/pr/", "refs/convert/"]
        .into_iter()
        .find(|special| text.starts_with(special))
        .map_or(0, str::len);
    let end = text[special..].find([':', '/']).map(|end| special + end);
    let (revision, rest) = text.split_at(end.unwrap_or(text.len()));
    let revision = revision.replace("%2F", "/").replace("%2f", "/");
    is_revision(&revision).then_some((revision, rest))
}

/// What git accepts as the name of a branch or tag, less the rare.
fn is_revision(text: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.+/".contains(&byte);
    let part = |part: &str| !part.is_empty() && !part.starts_with(['.', '-']);
    text.bytes().all(plain) && !text.contains("..") && text.split('/').all(part)
}

/// An owner, a repository or a quantisation: no option, no hidden file, no way up.
fn is_part(text: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    !text.is_empty()
        && !text.starts_with(['.', '-'])
        && !text.contains("..")
        && text.bytes().all(plain)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn name(revision: Option<&str>, quant: Option<&str>, path: Option<&str>) -> Option<HubName> {
        Some(HubName {
            repository: "o/n.x-GGUF".to_owned(),
            revision: revision.map(str::to_owned),
            quant: quant.map(str::to_owned),
            path: path.map(str::to_owned),
        })
    }

    #[test]
    fn every_part_is_read() {
        for (text, expected) in [
            ("o/n.x-GGUF", name(None, None, None)),
            ("//o/n.x-GGUF@v1.0", name(Some("v1.0"), None, None)),
            ("o/n.x-GGUF:Q4_K_M", name(None, Some("Q4_K_M"), None)),
            (
                "o/n.x-GGUF@main:Q8_0",
                name(Some("main"), Some("Q8_0"), None),
            ),
            (
                "o/n.x-GGUF@main/a/b:c@d",
                name(Some("main"), None, Some("a/b:c@d")),
            ),
            ("o/n.x-GGUF@refs/pr/1", name(Some("refs/pr/1"), None, None)),
            (
                "o/n.x-GGUF@refs/pr/1/x",
                name(Some("refs/pr/1"), None, Some("x")),
            ),
            ("o/n.x-GGUF@a%2Fb/x", name(Some("a/b"), None, Some("x"))),
        ] {
            assert_eq!(HubName::parse(text), expected, "{text}");
        }
    }

    #[test]
    fn what_could_lead_elsewhere_is_refused() {
        for bad in [
            "o",
            "o/",
            "/n",
            "o/n/",
            "o/n@",
            "o/n:",
            "o/n@/x",
            "../n",
            "o/..",
            "-o/n",
            "o/-n",
            "o/n/../x",
            "o/n/./x",
            "o/n//x",
            "o/n/a\\b",
            "o/n/a\nb",
            "o/n@-x",
            "o/n@a%2F..%2Fb",
            "o/n@a%2F%2Fb",
            "o/n@..",
            "o/n@a b",
            "o/n:a/b",
            "o/n:-x",
            "o/n@refs/pr/",
            "a--b/n",
        ] {
            assert_eq!(HubName::parse(bad), None, "{bad}");
        }
    }

    proptest! {
        #[test]
        fn what_is_read_is_harmless_and_can_be_read_again(
            text in "(//)?[a-zA-Z./%-]{0,6}/[a-z.-]{0,6}(@(refs/pr/)?[a-z0-9./%2F-]{0,8})?(:[A-Z0-9_-]{0,6})?(/[a-z./ -]{0,12})?"
        ) {
            if let Some(name) = HubName::parse(&text) {
                let shown = name.to_string();
                prop_assert_eq!(HubName::parse(shown.strip_prefix("hf:").unwrap()), Some(name.clone()));
                let paths = [Some(&name.repository), name.revision.as_ref(), name.path.as_ref()];
                for path in paths.into_iter().flatten() {
                    let lexical = std::path::Path::new(path).components();
                    prop_assert!(lexical.into_iter().all(|part| matches!(part, std::path::Component::Normal(_))));
                }
                for word in [Some(&name.repository), name.revision.as_ref(), name.quant.as_ref()] {
                    prop_assert!(!word.is_some_and(|word| word.starts_with('-')));
                }
            }
        }
    }
}
