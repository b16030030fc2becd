//! A repository as the hub describes it, read.

use serde::Deserialize;

use super::super::inside::is_inside;
use crate::net::Digest;

/// Files of a repository at most. The hub itself advises fewer.
const FILES: usize = 100_000;

/// A repository at a commit.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Repository {
    /// 40 hexadecimal digits.
    pub(super) commit: String,
    pub(super) licence: Option<String>,
    pub(super) gated: bool,
    pub(super) disabled: bool,
    /// Sorted by path.
    pub(super) files: Vec<File>,
}

/// A file of a repository.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(in crate::model::source) struct File {
    pub(in crate::model::source) path: String,
    pub(in crate::model::source) size_bytes: Option<u64>,
    /// Of a file in large-file storage.
    pub(in crate::model::source) sha256: Option<String>,
    /// Git's name of any other: the SHA-1 of `blob SIZE\0` and the content.
    pub(in crate::model::source) git_blob: Option<String>,
}

/// Whether a revision is a commit in full, which never means anything else.
pub(super) fn is_commit(revision: &str) -> bool {
    let digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    revision.len() == 40 && revision.bytes().all(digit)
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Described {
    sha: String,
    #[serde(default)]
    gated: Gated,
    #[serde(default)]
    disabled: Option<bool>,
    #[serde(default)]
    card_data: Option<Card>,
    #[serde(default)]
    siblings: Vec<Sibling>,
}

/// `false`, or how access is given: `"auto"`, `"manual"`.
#[derive(Deserialize)]
#[serde(untagged)]
enum Gated {
    Said(bool),
    Unsaid(()),
    How(serde::de::IgnoredAny),
}

impl Default for Gated {
    fn default() -> Self {
        Self::Unsaid(())
    }
}

/// What its authors wrote above the description; the rest of it, which may be anything, is not kept.
#[derive(Deserialize)]
struct Card {
    #[serde(default)]
    license: Option<Names>,
    #[serde(default)]
    license_name: Option<Names>,
}

/// A name, or several; what is neither says nothing.
#[derive(Deserialize)]
#[serde(untagged)]
enum Names {
    One(String),
    Several(Vec<String>),
    Other(serde::de::IgnoredAny),
}

impl Names {
    fn first(&self) -> Option<&str> {
        let name = match self {
            Self::One(name) => Some(name),
            Self::Several(names) => names.first(),
            Self::Other(_) => None,
        };
        name.map(String::as_str)
            .filter(|name| !name.is_empty() && name.len() < 100)
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Sibling {
    rfilename: String,
    size: Option<u64>,
    blob_id: Option<String>,
    lfs: Option<Lfs>,
}

#[derive(Deserialize)]
struct Lfs {
    sha256: String,
    size: u64,
}

/// Reads the answer about a revision; on failure says why it is none.
pub(super) fn parse(body: &[u8]) -> Result<Repository, String> {
    let described: Described =
        serde_json::from_slice(body).map_err(|error| format!("it cannot be read ({error})"))?;
    if !is_commit(&described.sha) {
        return Err("it names no commit".to_owned());
    }
    if described.siblings.len() > FILES {
        return Err(format!("it names more than {FILES} files"));
    }
    let files: Result<Vec<File>, String> = described.siblings.into_iter().map(file).collect();
    let mut files = files?;
    files.sort_by(|one, other| one.path.cmp(&other.path));
    if files.windows(2).any(|pair| pair[0].path == pair[1].path) {
        return Err("it names a file twice".to_owned());
    }
    Ok(Repository {
        commit: described.sha,
        licence: described.card_data.as_ref().and_then(licence),
        gated: !matches!(described.gated, Gated::Unsaid(()) | Gated::Said(false)),
        disabled: described.disabled == Some(true),
        files,
    })
}

fn file(sibling: Sibling) -> Result<File, String> {
    let path = sibling.rfilename;
    if !is_inside(&path) {
        return Err(format!(
            "it names a file {path:?}, which could lie elsewhere"
        ));
    }
    let sha256 = match &sibling.lfs {
        Some(lfs) => {
            let digest = Digest::parse(&format!("sha256:{}", lfs.sha256));
            let digest = digest.map_err(|error| format!("of {path:?} it says {error}"))?;
            Some(digest.hex().to_owned())
        }
        None => None,
    };
    let git_blob = match (&sha256, sibling.blob_id) {
        (None, Some(name)) if !is_commit(&name) => {
            return Err(format!("the blob of {path:?} has no name of git's"));
        }
        (None, name) => name,
        // That would be the name of the pointer to it.
        (Some(_), _) => None,
    };
    Ok(File {
        path,
        size_bytes: sibling.lfs.map(|lfs| lfs.size).or(sibling.size),
        sha256,
        git_blob,
    })
}

/// `license: apache-2.0`; of `license: other` the name that its authors gave it.
fn licence(card: &Card) -> Option<String> {
    let name = card.license_name.as_ref().and_then(Names::first);
    match card.license.as_ref()?.first()? {
        "other" => Some(name.unwrap_or("other").to_owned()),
        licence => Some(licence.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

    #[test]
    fn files_are_known_by_sha256_or_by_their_name_in_git() {
        let sha256 = "ab".repeat(32);
        let body = format!(
            r#"{{"id": "o/n", "sha": "{COMMIT}", "gated": "manual", "disabled": false,
                "cardData": {{"license": "other", "license_name": "llama3"}},
                "siblings": [
                  {{"rfilename": "m.gguf", "size": 9, "blobId": "{COMMIT}",
                    "lfs": {{"sha256": "{sha256}", "size": 9, "pointerSize": 134}}}},
                  {{"rfilename": "config.json", "size": 2, "blobId": "{COMMIT}"}}]}}"#
        );
        let repository = parse(body.as_bytes()).unwrap();
        assert_eq!(repository.commit, COMMIT);
        assert_eq!(repository.licence.as_deref(), Some("llama3"));
        assert!(repository.gated && !repository.disabled);
        let [config, model] = &repository.files[..] else {
            panic!("{repository:?}");
        };
        assert_eq!(config.git_blob.as_deref(), Some(COMMIT));
        assert_eq!(
            (model.sha256.as_ref(), &model.git_blob),
            (Some(&sha256), &None)
        );
        let least = format!(r#"{{"sha": "{COMMIT}"}}"#);
        assert!(!parse(least.as_bytes()).unwrap().gated);
    }

    #[test]
    fn answers_that_no_hub_gives_are_refused() {
        let with = |path: &str| {
            format!(r#"{{"sha": "{COMMIT}", "siblings": [{{"rfilename": "{path}"}}]}}"#)
        };
        let twice = format!(
            r#"{{"sha": "{COMMIT}", "siblings": [{{"rfilename": "a"}}, {{"rfilename": "a"}}]}}"#
        );
        let siblings: Vec<String> = (0..=FILES)
            .map(|number| format!(r#"{{"rfilename": "{number}"}}"#))
            .collect();
        let many = |siblings: &[String]| {
            let siblings = siblings.join(",");
            format!(r#"{{"sha": "{COMMIT}", "siblings": [{siblings}]}}"#)
        };
        assert!(parse(many(&siblings[1..]).as_bytes()).is_ok());
        for bad in [
            many(&siblings),
            "<html>".to_owned(),
            r#"{"sha": "main"}"#.to_owned(),
            with("../x"),
            with("/etc/passwd"),
            with("a/../../x"),
            twice,
        ] {
            assert!(parse(bad.as_bytes()).is_err(), "{bad:.200}");
        }
    }
}
