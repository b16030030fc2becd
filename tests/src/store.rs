//! A look into the store from outside, as its documented layout allows.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    fs,
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
};

use sha2::{Digest, Sha256};

/// Kinds of results that are directories with a manifest.
const KINDS: [&str; 4] = ["source", "build", "observe", "archive"];

/// The store of an installation.
pub struct Store {
    root: PathBuf,
}

impl Store {
    pub(crate) fn at(root: PathBuf) -> Self {
        Self { root }
    }

    /// Results of one kind, by key.
    #[must_use]
    pub fn entries(&self, kind: &str) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(self.root.join(kind))
            .into_iter()
            .flatten()
            .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    }

    /// Digests of single files.
    #[must_use]
    pub fn blobs(&self) -> Vec<String> {
        let mut names = self.entries("blobs/sha256");
        // A hidden one was being written when its writer was killed; it is under no final name.
        names.retain(|name| !name.ends_with(".json") && !name.starts_with('.'));
        names
    }

    /// Work in progress, or left from it.
    #[must_use]
    pub fn work(&self) -> Vec<String> {
        self.entries("tmp")
    }

    /// Downloads that are not whole, and what is known of them.
    #[must_use]
    pub fn partial(&self) -> Vec<String> {
        let mut names = self.entries("partial");
        names.retain(|name| !name.ends_with(".lock"));
        names
    }

    /// Bytes of downloads that are not whole that a later run can rely on.
    #[must_use]
    pub fn kept(&self) -> u64 {
        let mut names = self.partial();
        names.retain(|name| name.ends_with(".json"));
        let journals = names.iter().map(|name| {
            let text = fs::read(self.root.join("partial").join(name)).unwrap_or_default();
            serde_json::from_slice(&text).unwrap_or_default()
        });
        journals.map(|journal| written(&journal)).sum()
    }

    /// Every published file with its inode and time of change: equal when nothing was made again.
    #[must_use]
    pub fn fingerprint(&self) -> BTreeMap<PathBuf, (u64, i64)> {
        let mut all = BTreeMap::new();
        for kind in KINDS.into_iter().chain(["blobs"]) {
            walk(&self.root.join(kind), &mut |path, metadata| {
                let seen = (metadata.ino(), metadata.mtime_nsec() + metadata.mtime());
                all.insert(path.to_owned(), seen);
            });
        }
        all
    }

    /// Asserts that what is published is whole: every result has its manifest and its content,
    /// every file is what its name says and cannot be written.
    ///
    /// # Panics
    ///
    /// When something is not.
    #[track_caller]
    pub fn assert_sound(&self) {
        for kind in KINDS {
            for key in self.entries(kind) {
                let entry = self.root.join(kind).join(&key);
                let manifest = fs::read_to_string(entry.join("manifest.json"))
                    .unwrap_or_else(|error| panic!("{} has no manifest: {error}", entry.display()));
                let manifest: serde_json::Value = serde_json::from_str(&manifest).unwrap();
                assert!(manifest["schema"].is_number(), "{manifest}");
                let has_tree = entry.join("tree").is_dir();
                assert_eq!(has_tree, kind != "observe", "{}", entry.display());
            }
        }
        for digest in self.blobs() {
            let path = self.root.join("blobs/sha256").join(&digest);
            assert_eq!(sha256(&fs::read(&path).unwrap()), digest, "a damaged file");
            let mode = fs::metadata(&path).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o444, "{}", path.display());
        }
    }
}

/// Digest of some bytes, in hexadecimal.
#[must_use]
pub fn sha256(bytes: &[u8]) -> String {
    let mut text = String::new();
    for byte in Sha256::digest(bytes) {
        let _ = write!(text, "{byte:02x}");
    }
    text
}

/// A file like no other; equal seeds give equal bytes.
#[must_use]
pub fn noise(seed: u64, size: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(size + 8);
    while bytes.len() < size {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(size);
    bytes
}

/// What a journal says was written.
fn written(journal: &serde_json::Value) -> u64 {
    let parts = journal["written"].as_array();
    let length = |part: &serde_json::Value| Some(part[1].as_u64()? - part[0].as_u64()?);
    parts.map_or(0, |parts| parts.iter().filter_map(length).sum())
}

fn walk(directory: &Path, visit: &mut dyn FnMut(&Path, &fs::Metadata)) {
    for entry in fs::read_dir(directory).into_iter().flatten() {
        let path = entry.unwrap().path();
        let metadata = fs::symlink_metadata(&path).unwrap();
        if metadata.is_dir() {
            walk(&path, visit);
        } else {
            visit(&path, &metadata);
        }
    }
}
