//! Content-addressed results, locks, single flight.
//!
//! ```text
//! store/
//!   source/KEY/    manifest.json, tree/      source trees
//!   build/KEY/     manifest.json, tree/      build outputs
//!   observe/KEY/   manifest.json             what programs printed
//!   archive/KEY/   manifest.json, tree/      unpacked downloads
//!   images/        HEX.json                  what is known of pulled container images
//!   blobs/sha256/  HEX, HEX.json             single files, mode 0444 or 0440, and how they were verified
//!   models/        ID.json, trees/HEX/       the catalog of models, and those that are directories
//!   partial/       NAME.partial              downloads that may be resumed
//!   tmp/           NAME.RANDOM/              work of one run; rubbish once nobody holds it
//!   git/           config-…                  the only configuration that git reads
//!   locks/         NAME.lock                 never deleted
//! ```
//!
//! The rules that keep it sound:
//!
//! * A key is the SHA-256 of everything that changes the bytes ([`Ingredients`]), kept beside the
//!   result, so that a miss can say which ingredient changed.
//! * Work happens in `tmp/`, on the same file system, under the key's lock. It is published by one
//!   rename, with its manifest written last; a directory without one is rubbish from a crash.
//! * What may not be moved is made in its final place, by the same lock; there, too, the manifest is
//!   written last.
//! * Whoever wants a result locks its key, then looks again: the holder before may have made it.
//! * Whoever takes a result shares its use lock until it needs it no longer. Whoever removes one has both
//!   locks, moves it to `tmp/` by one rename, and deletes it there.
//! * A document of a newer schema is never rewritten.
//! * A blob may have a second name, in a model's tree: a change to either is seen by its identity.
//! * Files of results are read-only and belong to the host's user, whoever built them; directories
//!   stay writable for the host's user, so that a home can be deleted with `rm -r`.

mod blob;
mod copy;
mod document;
mod entry;
mod error;
mod evict;
mod fixed;
mod key;
mod link;
mod lock;
mod place;
pub mod results;
mod space;
mod temporary;
mod tree;
mod uses;
mod walk;
mod watch;

use std::{
    fs::File,
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

pub use blob::{Blob, FileIdentity};
pub use copy::Outputs;
pub(crate) use document::sync_directory;
pub use document::{read_document, write_document, write_file};
pub use entry::{Begin, Entry, Manifest, Miss, Work};
pub use error::StoreError;
pub(crate) use error::{ensure_space, free_bytes, human_bytes};
pub(crate) use evict::{Candidate, choose_of};
pub use evict::{Limits, Reason};
pub use fixed::{FixedWork, Room};
pub(crate) use key::hex;
pub use key::{Change, Ingredient, Ingredients, Key, Kind};
pub(crate) use link::check_link;
pub use lock::{Holder, Lock, Patience, holder, lock, try_lock};
pub(crate) use lock::{is_held, share, try_lock_quietly, try_share};
pub(crate) use place::ensure_owned;
pub use place::{ensure_reachable, make_place, write_for};
pub use space::Counted;
pub(crate) use temporary::{Held, Temporary, hold};
pub use tree::{digest_file, digest_tree, remove_tree, sync_tree};
pub(crate) use tree::{files_of, make_directory, seal, size_of_tree};
pub use uses::{InUse, Uses};
pub(crate) use uses::{Use, last_use};
pub(crate) use watch::{Watch, Watched};

use crate::config::paths::Home;

/// Schema of the manifests that this version writes.
pub const SCHEMA: u32 = 1;

/// Results of one installation. Opening it creates nothing. What is taken from one is kept from being removed
/// until the last copy of it is gone.
#[derive(Debug, Clone)]
pub struct Store {
    root: PathBuf,
    watch: Option<Arc<dyn Watch>>,
    /// The pool that results are taken for.
    user: Option<Arc<str>>,
    taken: uses::Taken,
}

impl Store {
    /// The store of a home.
    #[must_use]
    pub fn open(home: &Home) -> Self {
        Self::at(home.store())
    }

    /// A store in this directory, for caches that lie elsewhere.
    pub fn at(root: impl Into<PathBuf>) -> Self {
        Self {
            root: root.into(),
            watch: None,
            user: None,
            taken: uses::Taken::default(),
        }
    }

    /// The same store; how far it is with hashing a file is told to `watch`, which may end it.
    pub(crate) fn watched(self, watch: Arc<dyn Watch>) -> Self {
        Self {
            watch: Some(watch),
            ..self
        }
    }

    /// A file's content, read watched. What it fails with once its watch has it end is made an error by
    /// [`StoreError::of_reading`].
    pub(crate) fn watching<'a>(
        &'a self,
        file: File,
        path: &'a Path,
    ) -> io::Result<Watched<'a, File>> {
        let size_bytes = file.metadata()?.len();
        Ok(Watched::new(file, path, size_bytes, self.watch.as_deref()))
    }

    /// SHA-256 of a file's content, as [`digest_file`] gives it, watched.
    pub(crate) fn digest_of(&self, path: &Path) -> Result<String, StoreError> {
        tree::digest_watched(path, self.watch.as_deref())
    }

    /// The directory that everything lies in.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Where the lock of this name lies.
    #[must_use]
    pub fn lock_path(&self, name: &str) -> PathBuf {
        self.root.join("locks").join(format!("{name}.lock"))
    }

    /// Where a download of this name is collected until it is whole. Its directory exists after
    /// [`Store::prepare_partial`].
    #[must_use]
    pub fn partial_path(&self, name: &str) -> PathBuf {
        self.root.join("partial").join(format!("{name}.partial"))
    }

    /// Creates the directory of partial downloads and gives a path in it.
    pub fn prepare_partial(&self, name: &str) -> Result<PathBuf, StoreError> {
        tree::make_directory(&self.root.join("partial"))?;
        Ok(self.partial_path(name))
    }
}

#[cfg(test)]
mod tests;
