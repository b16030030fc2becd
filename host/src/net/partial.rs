//! A file that is being collected, possibly over several connections and runs.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read as _, Write as _},
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use super::{Digest, digest::Hashes};
use crate::store::StoreError;

/// What the server said about the file, kept beside it: without an expected digest, only the same
/// version of the same URL may be resumed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Validator {
    pub(super) url: String,
    /// A strong `ETag`, for `If-Range`.
    pub(super) etag: String,
}

pub(super) struct Partial {
    path: PathBuf,
    file: File,
    hashes: Hashes,
    fresh: Hashes,
    pub(super) size_bytes: u64,
    /// Bytes that were there before this run.
    pub(super) resumed_bytes: u64,
}

impl Partial {
    /// Opens what is there, hashing it again, or starts anew. Blocks for as long as that takes.
    pub(super) fn open(path: &Path, expected: Option<&Digest>) -> Result<Self, StoreError> {
        let failed = |source| StoreError::io("open", path, source);
        let mut file = OpenOptions::new()
            .read(true)
            .append(true)
            .create(true)
            .open(path)
            .map_err(failed)?;
        let fresh = Hashes::for_expected(expected);
        let mut hashes = fresh.clone();
        let mut buffer = vec![0; 256 * 1024];
        let mut size_bytes = 0;
        loop {
            match file.read(&mut buffer) {
                Ok(0) => break,
                Ok(count) => {
                    hashes.update(&buffer[..count]);
                    size_bytes += count as u64;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(source) => return Err(StoreError::io("read", path, source)),
            }
        }
        Ok(Self {
            path: path.to_owned(),
            file,
            hashes,
            fresh,
            size_bytes,
            resumed_bytes: size_bytes,
        })
    }

    pub(super) fn append(&mut self, bytes: &[u8]) -> Result<(), StoreError> {
        self.file
            .write_all(bytes)
            .map_err(|source| StoreError::io("write", &self.path, source))?;
        self.hashes.update(bytes);
        self.size_bytes += bytes.len() as u64;
        Ok(())
    }

    /// Throws away what is there.
    pub(super) fn reset(&mut self) -> Result<(), StoreError> {
        self.file
            .set_len(0)
            .map_err(|source| StoreError::io("shorten", &self.path, source))?;
        self.hashes = self.fresh.clone();
        self.size_bytes = 0;
        self.resumed_bytes = 0;
        Ok(())
    }

    /// Removes the file: what was collected is of no use.
    pub(super) fn discard(self) {
        // What stays is hashed, and found wrong, next time.
        let _ = fs::remove_file(self.validator_path());
        let _ = fs::remove_file(&self.path);
    }

    /// The file is whole: forgets how it was collected.
    pub(super) fn finish(&self) {
        let _ = fs::remove_file(self.validator_path());
    }

    pub(super) fn hashes(&self) -> &Hashes {
        &self.hashes
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn validator(&self) -> Option<Validator> {
        let text = fs::read(self.validator_path()).ok()?;
        serde_json::from_slice(&text).ok()
    }

    pub(super) fn set_validator(&self, validator: &Validator) {
        let text = serde_json::to_vec(validator).expect("a validator is plain data");
        // Without it the next run starts anew.
        let _ = fs::write(self.validator_path(), text);
    }

    fn validator_path(&self) -> PathBuf {
        self.path.with_extension("partial.json")
    }
}
