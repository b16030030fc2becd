//! Names of files inside a model, as hubs, buckets, registries and users' directories have them.

/// Longest part of a name (`NAME_MAX` of every usual file system).
const PART_BYTES: usize = 255;

/// Longest name: with the store's own path before it, it stays below `PATH_MAX`.
const NAME_BYTES: usize = 2048;

/// Whether a name stays inside what it starts from, whoever joins it, can be a file's on every system, and
/// is printed as it is by coreutils. A part may begin with `-`: nothing is given such a name without a
/// directory before it.
pub(in crate::model) fn is_inside(name: &str) -> bool {
    let part = |part: &str| !matches!(part, "" | "." | "..") && part.len() <= PART_BYTES;
    name.split('/').all(part)
        && name.len() <= NAME_BYTES
        && !name.chars().any(|char| char.is_control() || char == '\\')
}

#[cfg(test)]
mod tests {
    use std::path::{Component, Path};

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn plain_names_stay_inside_and_others_are_refused() {
        let long = "x".repeat(256);
        for name in [
            "a",
            "a/b.gguf",
            ".hidden",
            "..a",
            "a b/c#?%2F",
            "-rf",
            "\u{e9}",
        ] {
            assert!(is_inside(name), "{name}");
        }
        for name in [
            "", "/", "/a", "a/", "a//b", ".", "..", "../a", "a/..", "a/./b", "a\\b", "a\nb", "a\0",
            &long,
        ] {
            assert!(!is_inside(name), "{name}");
        }
    }

    proptest! {
        #[test]
        fn what_is_inside_stays_there_and_is_no_option(name in "[-a./\\\\\\x00-\\x20~é]{0,12}") {
            if is_inside(&name) {
                let path = Path::new(&name);
                let plain = |part| matches!(part, Component::Normal(_));
                prop_assert!(path.components().all(plain));
                // Nothing of it is lost, so that two names never are one file.
                let again: std::path::PathBuf = path.components().collect();
                prop_assert_eq!(again.to_str(), Some(&*name));
                let joined = Path::new("/root").join(path);
                prop_assert!(joined.starts_with("/root") && joined != Path::new("/root"));
                prop_assert!(!joined.to_str().unwrap().starts_with('-'));
            }
        }
    }
}
