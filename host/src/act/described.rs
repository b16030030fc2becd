//! What a result of the store is in words, by what its step has noted.

use serde_json::Value;

use crate::store::{Kind, Manifest};

/// What a result is, as far as its step knew.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Described {
    /// Version, commit or tag.
    pub version: Option<String>,
    /// Where it was fetched from, without secrets.
    pub from: Option<String>,
}

/// Reads what is noted with a result. What earlier versions did not note is not known.
#[must_use]
pub fn described(manifest: &Manifest) -> Described {
    let noted = &manifest.result;
    let text = |pointer: &str| noted.pointer(pointer)?.as_str().map(str::to_owned);
    match manifest.key.kind {
        Kind::Source => Described {
            version: text("/commit").map(shortened),
            from: text("/from"),
        },
        Kind::Build => Described {
            version: text("/labels/version")
                .or_else(|| Some(text("/labels/package")?.split_once("==")?.1.to_owned()))
                .or_else(|| commit_of_build(noted).map(shortened)),
            from: None,
        },
        Kind::Archive => Described {
            version: text("/image/tag").or_else(|| text("/image/digest")),
            from: text("/from").or_else(|| text("/image/reference")),
        },
        Kind::Observe => Described::default(),
    }
}

/// The commit of a build's source, where it has one source.
fn commit_of_build(noted: &Value) -> Option<String> {
    let commits = noted.get("commits")?.as_object()?;
    let mut commits = commits.values();
    let first = commits.next()?.as_str()?;
    commits.next().is_none().then(|| first.to_owned())
}

/// A commit as people write it.
fn shortened(commit: String) -> String {
    commit.get(..12).map_or(commit.clone(), str::to_owned)
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use serde_json::json;

    use super::*;
    use crate::store::Ingredients;

    #[test]
    fn a_version_is_what_its_step_noted() {
        const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
        let version = |kind: Kind, result: Value| {
            let manifest = Manifest {
                key: Ingredients::new().key(kind),
                name: "toy/x".to_owned(),
                ingredients: Ingredients::new(),
                created: Timestamp::UNIX_EPOCH,
                has_tree: true,
                result,
            };
            described(&manifest).version
        };
        let some = |text: &str| Some(text.to_owned());
        let commit = json!({"commit": COMMIT});
        assert_eq!(version(Kind::Source, commit), some("0123456789ab"));
        let of_two = json!({"commits": {"a": COMMIT, "b": COMMIT}, "labels": {}});
        assert_eq!(version(Kind::Build, of_two), None);
        let built = json!({"commits": {"checkout": COMMIT}, "labels": {"backend": "cpu"}});
        assert_eq!(version(Kind::Build, built), some("0123456789ab"));
        let installed = json!({"labels": {"package": "engine", "version": "1.2"}});
        assert_eq!(version(Kind::Build, installed), some("1.2"));
        let installed = json!({"labels": {"package": "engine==1.2"}});
        assert_eq!(version(Kind::Build, installed), some("1.2"));
        let image = json!({"image": {"reference": "r/e@sha256:00", "digest": "sha256:00"}});
        assert_eq!(version(Kind::Archive, image), some("sha256:00"));
        let earlier = json!({"attempt": 0});
        assert_eq!(version(Kind::Build, earlier), None);
    }
}
