//! A cache that the hub's own tools filled: what lies there need not be fetched again.
//!
//! `models--OWNER--NAME/blobs/ETAG` holds each file under the name that the hub gives its content: the
//! SHA-256 of large files, git's name of the others. Where links cannot be made, files lie in
//! `snapshots/COMMIT/PATH` themselves. Source:
//! <https://huggingface.co/docs/huggingface_hub/guides/manage-cache>.

use std::path::{Path, PathBuf};

use super::described::File;
use crate::config::environment::Environment;

/// Where the cache of this environment is, whether or not it is there.
pub(super) fn root(environment: &Environment) -> Option<PathBuf> {
    let named = ["HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"];
    let named = named.into_iter().find_map(|name| environment.path(name));
    named.or_else(|| Some(super::home(environment)?.join("hub")))
}

/// The part of a cache that is about one repository.
#[derive(Debug, Clone)]
pub(super) struct Cached {
    repository: PathBuf,
    snapshot: PathBuf,
}

impl Cached {
    pub(super) fn new(root: &Path, repository: &str, commit: &str) -> Self {
        let repository = root.join(format!("models--{}", repository.replace('/', "--")));
        Self {
            snapshot: repository.join("snapshots").join(commit),
            repository,
        }
    }

    /// A file that seems to be this one: its name and size say so, its content was not read. Not where
    /// nothing could tell.
    pub(super) fn find(&self, file: &File) -> Option<PathBuf> {
        let name = file.sha256.as_ref().or(file.git_blob.as_ref())?;
        let size_bytes = file.size_bytes?;
        let blob = self.repository.join("blobs").join(name);
        let copy = self.snapshot.join(&file.path);
        [blob, copy].into_iter().find(|path| {
            let seen = std::fs::metadata(path);
            seen.is_ok_and(|seen| seen.is_file() && seen.len() == size_bytes)
        })
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn it_is_where_the_hubs_own_tools_keep_it() {
        let at =
            |pairs: &[(&str, &str)]| root(&Environment::from_pairs(pairs.iter().copied())).unwrap();
        let mut pairs = vec![("HOME", "/u")];
        assert_eq!(at(&pairs), Path::new("/u/.cache/huggingface/hub"));
        pairs.push(("HF_HOME", "/h"));
        assert_eq!(at(&pairs), Path::new("/h/hub"));
        pairs.push(("HF_HUB_CACHE", "/c"));
        assert_eq!(at(&pairs), Path::new("/c"));
    }

    #[test]
    fn a_file_is_found_by_its_content_or_its_place_and_by_its_size() {
        let root = tempfile::tempdir().unwrap();
        let cached = Cached::new(root.path(), "o/n", "c0");
        let (sha256, git) = ("ab".repeat(32), "cd".repeat(20));
        let put = |path: &str| {
            let path = root.path().join("models--o--n").join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, "12345").unwrap();
            path
        };
        let blob = put(&format!("blobs/{sha256}"));
        let copy = put("snapshots/c0/sub/config.json");
        let mut file = File {
            path: "sub/m.gguf".to_owned(),
            size_bytes: Some(5),
            sha256: Some(sha256),
            git_blob: None,
        };
        assert_eq!(cached.find(&file), Some(blob));
        file.size_bytes = Some(6);
        assert_eq!(cached.find(&file), None);
        let mut file = File {
            path: "sub/config.json".to_owned(),
            size_bytes: Some(5),
            sha256: None,
            git_blob: Some(git),
        };
        assert_eq!(cached.find(&file), Some(copy));
        file.git_blob = None;
        assert_eq!(cached.find(&file), None);
    }
}
