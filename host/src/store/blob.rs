//! Single files by digest: models and other downloads.

use std::{
    fs,
    os::unix::fs::{MetadataExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{SCHEMA, Store, StoreError, document, read_document, tree, write_document};

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

    /// Whether a file that looked so has the same content still: its `ctime` is left out, since a name more
    /// or less changes that.
    pub(crate) fn has_content_of(self, before: Self) -> bool {
        let changed_ns = before.changed_ns;
        Self { changed_ns, ..self } == before
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
        self.verified(
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
        self.publish_blob_as(file, sha256, origin, 0o444)
    }

    /// The same for what nobody may read but this process's user and one group.
    pub(crate) fn publish_blob_for(
        &self,
        file: &Path,
        sha256: &str,
        origin: &str,
        group: u32,
    ) -> Result<Blob, StoreError> {
        std::os::unix::fs::chown(file, None, Some(group))
            .map_err(|source| StoreError::io("change the group of", file, source))?;
        self.publish_blob_as(file, sha256, origin, 0o440)
    }

    fn publish_blob_as(
        &self,
        file: &Path,
        sha256: &str,
        origin: &str,
        mode: u32,
    ) -> Result<Blob, StoreError> {
        let path = self.blob_path(sha256);
        tree::make_directory(&self.blobs())?;
        place(file, &path, mode)?;
        record(&path, &self.record_path(sha256), sha256, origin)
    }

    /// Hashes a blob again, whatever it looks like; `None` where it is gone or not what it was. Blocks.
    pub fn rehash_blob(&self, sha256: &str) -> Result<Option<Blob>, StoreError> {
        let path = self.blob_path(sha256);
        if !path.exists() || self.digest_of(&path)? != sha256 {
            return Ok(None);
        }
        let notes = self.record_path(sha256);
        let recorded = self.recorded_blob(sha256);
        let origin = recorded.map_or_else(String::new, |blob| blob.origin);
        record(&path, &notes, sha256, &origin).map(Some)
    }

    /// Gives a file that is not the store's a name among the blobs, as it is: its mode stays what its
    /// owner made it. Fails where the file systems differ, and where it is no longer what was hashed: its
    /// owner may write to it.
    pub(crate) fn adopt_blob(&self, witness: &Blob) -> Result<Blob, StoreError> {
        let (file, sha256) = (&witness.path, &witness.sha256);
        let path = self.blob_path(sha256);
        tree::make_directory(&self.blobs())?;
        tree::remove_tree(&path)?;
        fs::hard_link(file, &path).map_err(|source| StoreError::io("link", &path, source))?;
        let identity = FileIdentity::of(&path)?;
        if !identity.has_content_of(witness.identity) {
            tree::remove_tree(&path)?;
            return Err(StoreError::Unsound {
                path: file.clone(),
                reason: "changed after it was read".to_owned(),
            });
        }
        let origin = file.display().to_string();
        record_as(identity, &path, &self.record_path(sha256), sha256, &origin)
    }

    /// Does something that changes how many names a blob's file has, and with that its `ctime`. Where it
    /// looked as it was recorded before and nothing else changed, that is recorded too; otherwise it is
    /// hashed when it is next used. The caller sees to it that nobody else does the same.
    pub(crate) fn renaming_blob<T>(
        &self,
        sha256: &str,
        act: impl FnOnce(&Path) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let (path, notes) = (self.blob_path(sha256), self.record_path(sha256));
        let sound = self
            .recorded_blob(sha256)
            .filter(|blob| FileIdentity::of(&path).is_ok_and(|identity| identity == blob.identity));
        let done = act(&path)?;
        if let Some(mut blob) = sound
            && let Ok(now) = FileIdentity::of(&path)
            && now.has_content_of(blob.identity)
            && now != blob.identity
        {
            blob.identity = now;
            write_document(&notes, SCHEMA, 0o644, &blob)?;
        }
        Ok(done)
    }

    /// Removes a blob and what is known of it. The caller holds its lock.
    pub(crate) fn remove_blob(&self, sha256: &str) -> Result<(), StoreError> {
        tree::remove_tree(&self.blob_path(sha256))?;
        tree::remove_tree(&self.record_path(sha256))
    }

    /// What is written down about a blob, whether it still holds or not.
    pub(crate) fn recorded_blob(&self, sha256: &str) -> Option<Blob> {
        read_document(&self.record_path(sha256), SCHEMA)
            .ok()
            .flatten()
    }

    fn record_path(&self, sha256: &str) -> PathBuf {
        self.blobs().join(format!("{sha256}.json"))
    }

    /// Verifies a file that lies outside the store, remembering the outcome in the store, so that
    /// it is hashed once as long as it looks the same. May block for as long as hashing takes.
    pub fn witness(&self, file: &Path) -> Result<Blob, StoreError> {
        match self.witnessed(file)? {
            Some(blob) => Ok(blob),
            None => self.witness_again(file),
        }
    }

    /// What is known of a file outside the store that looks as it did when it was hashed. Reads nothing
    /// of it.
    pub(crate) fn witnessed(&self, file: &Path) -> Result<Option<Blob>, StoreError> {
        self.verified(file, &self.notes_of(file), None)
    }

    /// Hashes a file outside the store, whatever it looks like, and remembers the outcome. Blocks.
    pub(crate) fn witness_again(&self, file: &Path) -> Result<Blob, StoreError> {
        tree::make_directory(&self.root.join("witness"))?;
        let before = FileIdentity::of(file)?;
        let sha256 = self.digest_of(file)?;
        // Its owner may write to it meanwhile: then what was hashed is neither the old nor the new one.
        if FileIdentity::of(file)? != before {
            return Err(StoreError::Unsound {
                path: file.to_owned(),
                reason: "changed while it was read".to_owned(),
            });
        }
        let origin = file.display().to_string();
        record(file, &self.notes_of(file), &sha256, &origin)
    }

    /// The record of a file if it still holds; re-hashes a file that looks different. `expected` is
    /// needed where there may be a file without a record (a crash between the two).
    fn verified(
        &self,
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
                if self.digest_of(path)? != expected {
                    return Ok(None);
                }
                let origin = recorded.map_or_else(String::new, |blob| blob.origin);
                record(path, notes, expected, &origin).map(Some)
            }
            (_, None) => Ok(None),
        }
    }

    fn notes_of(&self, file: &Path) -> PathBuf {
        use sha2::Digest as _;
        let name = sha2::Sha256::digest(file.as_os_str().as_encoded_bytes());
        let name = format!("{}.json", &super::key::hex(&name)[..32]);
        self.root.join("witness").join(name)
    }
}

/// Renames a file over `path`, with this mode and durable.
fn place(file: &Path, path: &Path, mode: u32) -> Result<(), StoreError> {
    let failed = |source| StoreError::io("publish", path, source);
    fs::set_permissions(file, fs::Permissions::from_mode(mode)).map_err(failed)?;
    fs::File::open(file)
        .and_then(|file| file.sync_all())
        .map_err(failed)?;
    fs::rename(file, path).map_err(failed)?;
    document::sync_directory(path.parent().unwrap_or(Path::new("/")))
}

/// Writes down that a file was hashed and what it looks like.
fn record(path: &Path, notes: &Path, sha256: &str, origin: &str) -> Result<Blob, StoreError> {
    record_as(FileIdentity::of(path)?, path, notes, sha256, origin)
}

/// The same of a file that looked so when its content was known.
fn record_as(
    identity: FileIdentity,
    path: &Path,
    notes: &Path,
    sha256: &str,
    origin: &str,
) -> Result<Blob, StoreError> {
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
