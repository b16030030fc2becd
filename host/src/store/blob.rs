//! Single files by digest: models and other downloads.

use std::{
    fs,
    os::unix::fs::{MetadataExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{
    SCHEMA, Store, StoreError, digest_file, document, read_document, tree, write_document,
};

/// A verified file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Blob {
    /// Where it lies.
    pub path: PathBuf,
    /// SHA-256 of its content, 64 hexadecimal digits.
    pub sha256: String,
    /// Size.
    pub size_bytes: u64,
    /// Where it came from, without secrets.
    pub origin: String,
    /// When its content was last hashed.
    pub verified: Timestamp,
    /// What the file looked like then. While it looks the same it is not hashed again.
    pub identity: FileIdentity,
}

/// What tells that a file has not been touched, without reading it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileIdentity {
    /// Device it lies on.
    pub device: u64,
    /// Inode number.
    pub inode: u64,
    /// Size in bytes.
    pub size_bytes: u64,
    /// Time of the last change of content, in nanoseconds since the epoch.
    pub modified_ns: i128,
    /// Time of the last change of content or attributes: cannot be set back by a program.
    pub changed_ns: i128,
}

impl FileIdentity {
    /// What the file at this path, behind links, looks like now.
    pub fn of(path: &Path) -> Result<Self, StoreError> {
        let metadata = fs::metadata(path).map_err(|source| StoreError::io("read", path, source))?;
        let nanoseconds =
            |seconds: i64, rest: i64| i128::from(seconds) * 1_000_000_000 + i128::from(rest);
        Ok(Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            size_bytes: metadata.len(),
            modified_ns: nanoseconds(metadata.mtime(), metadata.mtime_nsec()),
            changed_ns: nanoseconds(metadata.ctime(), metadata.ctime_nsec()),
        })
    }
}

impl Store {
    /// The directory of blobs, which need not exist.
    #[must_use]
    pub fn blobs(&self) -> PathBuf {
        self.root.join("blobs").join("sha256")
    }

    /// Where the blob of a digest lies, or will lie.
    #[must_use]
    pub fn blob_path(&self, sha256: &str) -> PathBuf {
        self.blobs().join(sha256)
    }

    /// The verified blob of a digest. Hashes the file again only when it looks different from what
    /// was recorded; a file that turns out damaged is no blob. May block for as long as hashing
    /// takes.
    pub fn blob(&self, sha256: &str) -> Result<Option<Blob>, StoreError> {
        verified(
            &self.blob_path(sha256),
            &self.record_path(sha256),
            Some(sha256),
        )
    }

    /// Publishes a file that was just hashed, by renaming it into the blobs. It must lie on the
    /// store's file system.
    pub fn publish_blob(
        &self,
        file: &Path,
        sha256: &str,
        origin: &str,
    ) -> Result<Blob, StoreError> {
        let path = self.blob_path(sha256);
        tree::make_directory(&self.blobs())?;
        place(file, &path)?;
        record(&path, &self.record_path(sha256), sha256, origin)
    }

    fn record_path(&self, sha256: &str) -> PathBuf {
        self.blobs().join(format!("{sha256}.json"))
    }

    /// Verifies a file that lies outside the store, remembering the outcome in the store, so that
    /// it is hashed once as long as it looks the same. May block for as long as hashing takes.
    pub fn witness(&self, file: &Path) -> Result<Blob, StoreError> {
        use sha2::Digest as _;
        let name = sha2::Sha256::digest(file.as_os_str().as_encoded_bytes());
        let directory = self.root.join("witness");
        tree::make_directory(&directory)?;
        let notes = directory.join(format!("{}.json", &super::key::hex(&name)[..32]));
        if let Some(blob) = verified(file, &notes, None)? {
            return Ok(blob);
        }
        let sha256 = digest_file(file)?;
        record(file, &notes, &sha256, &file.display().to_string())
    }
}

/// Renames a file over `path`, read-only and durable.
pub(crate) fn place(file: &Path, path: &Path) -> Result<(), StoreError> {
    let failed = |source| StoreError::io("publish", path, source);
    fs::set_permissions(file, fs::Permissions::from_mode(0o444)).map_err(failed)?;
    fs::File::open(file)
        .and_then(|file| file.sync_all())
        .map_err(failed)?;
    fs::rename(file, path).map_err(failed)?;
    document::sync_directory(path.parent().unwrap_or(Path::new("/")))
}

/// Writes down that a file was hashed and what it looks like.
pub(crate) fn record(
    path: &Path,
    notes: &Path,
    sha256: &str,
    origin: &str,
) -> Result<Blob, StoreError> {
    let identity = FileIdentity::of(path)?;
    let blob = Blob {
        path: path.to_owned(),
        sha256: sha256.to_owned(),
        size_bytes: identity.size_bytes,
        origin: origin.to_owned(),
        verified: Timestamp::now(),
        identity,
    };
    write_document(notes, SCHEMA, 0o644, &blob)?;
    Ok(blob)
}

/// The record of a file if it still holds; re-hashes a file that looks different. `expected` is
/// needed where there may be a file without a record (a crash between the two).
pub(crate) fn verified(
    path: &Path,
    notes: &Path,
    expected: Option<&str>,
) -> Result<Option<Blob>, StoreError> {
    if !path.exists() {
        return Ok(None);
    }
    let recorded: Option<Blob> = match read_document(notes, SCHEMA) {
        Err(StoreError::Damaged { .. }) => None,
        other => other?,
    };
    let recorded = recorded.filter(|blob| {
        blob.path == path && expected.is_none_or(|expected| expected == blob.sha256)
    });
    match (recorded, expected) {
        (Some(blob), _) if FileIdentity::of(path)? == blob.identity => Ok(Some(blob)),
        (recorded, Some(expected)) => {
            if digest_file(path)? != expected {
                return Ok(None);
            }
            let origin = recorded.map_or_else(String::new, |blob| blob.origin);
            record(path, notes, expected, &origin).map(Some)
        }
        (_, None) => Ok(None),
    }
}
