//! The catalog: which models are here, what they are, and who may take them away.
//!
//! One document per model, `models/ID.json`, written last: a model without one does not exist, and what
//! lies in the store for it is rubbish of a crash, taken away by [`Catalog::sweep`]. Documents are
//! written under one lock that is held for moments.
//!
//! | lock | shared by | alone |
//! |---|---|---|
//! | `models` | – | whoever writes a document or a tree |
//! | `models-staging` | every staging, from its first look to its document | whoever removes blobs |
//! | `model-ID` | every run that uses the model, and whoever minds an engine that reads it | whoever removes the model |
//!
//! Engines of this home are known by their records as well; those of another one, with which a `cache_dir`
//! is shared, by the lock alone. Removal only tries its locks: nobody waits for a clean-up, and a clean-up
//! waits for nobody. When `model-ID` was last touched says when the model was last used.

mod entry;
mod error;
mod remove;
mod select;

use std::{
    fs,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use jiff::Timestamp;
use tokio_util::sync::CancellationToken;

pub(crate) use entry::moment;
pub use entry::{Entry, EntryFile, Name, Origin, Provenance, State, Trust};
pub use error::CatalogError;
pub use remove::{Removal, Swept};

pub use crate::store::{InUse, Limits, Reason};
use crate::{
    config::paths::Home,
    store::{self, Lock, Patience, Store, StoreError},
};

/// Schema of the documents that this version writes.
const SCHEMA: u32 = 1;

/// Longest wait for somebody who writes a document or a tree of links.
const WRITING_LIMIT: Duration = Duration::from_secs(60);

/// How long somebody may have a model's lock who only asks whether it is used, and how often it is tried
/// again meanwhile: who gave up at once would fetch again what is here.
const ASKING_LIMIT: Duration = Duration::from_millis(500);
const ASKING_RETRY: Duration = Duration::from_millis(2);

/// The models of one store. Opening it creates nothing.
#[derive(Debug, Clone)]
pub struct Catalog {
    store: Store,
    /// Whether nobody else keeps anything there, as may be in a `cache_dir`.
    is_own: bool,
}

/// The sole right to change the catalog.
#[derive(Debug)]
pub(super) struct Writing {
    _lock: Lock,
}

impl Catalog {
    /// The models of a store.
    #[must_use]
    pub fn of(store: &Store) -> Self {
        Self {
            store: store.clone(),
            is_own: false,
        }
    }

    /// The models of a home's own store.
    #[must_use]
    pub fn of_home(home: &Home) -> Self {
        Self {
            store: Store::open(home),
            is_own: true,
        }
    }

    /// The store that the models lie in.
    #[must_use]
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Every model, sorted by id. A document that is damaged is none: staging writes it again.
    pub fn entries(&self) -> Result<Vec<Entry>, StoreError> {
        let listed = match fs::read_dir(self.directory()) {
            Ok(listed) => listed,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(source) => return Err(StoreError::io("list", self.directory(), source)),
        };
        let mut entries = Vec::new();
        for found in listed {
            let path = found
                .map_err(|source| StoreError::io("list", self.directory(), source))?
                .path();
            if path
                .extension()
                .is_some_and(|extension| extension == "json")
            {
                entries.extend(read(&path)?);
            }
        }
        entries.sort_by(|a: &Entry, b| a.id.cmp(&b.id));
        Ok(entries)
    }

    /// The model of this id.
    pub fn entry(&self, id: &str) -> Result<Option<Entry>, StoreError> {
        read(&self.document_path(id))
    }

    /// When a model was last used.
    #[must_use]
    pub fn last_used(&self, entry: &Entry) -> Timestamp {
        let noted = store::last_use(&self.use_lock(&entry.id));
        noted.map_or(entry.added, |time| time.max(entry.added))
    }

    /// When all of a model's files were last hashed, of the one for which that is longest ago; `None`
    /// where one of them was not.
    #[must_use]
    pub fn last_verified(&self, entry: &Entry) -> Option<Timestamp> {
        let times = entry.files.iter().map(|file| match &file.place {
            None => Some(self.store.recorded_blob(&file.sha256)?.verified),
            Some(place) => Some(self.store.witnessed(place).ok()??.verified),
        });
        times.collect::<Option<Vec<_>>>()?.into_iter().min()
    }

    /// Keeps a model from being removed while the lock is held. `None` while somebody removes it. Blocks for
    /// moments.
    pub(super) fn hold(&self, id: &str) -> Result<Option<Lock>, StoreError> {
        let path = self.use_lock(id);
        let start = Instant::now();
        loop {
            match store::try_share(&path)? {
                None if start.elapsed() < ASKING_LIMIT => std::thread::sleep(ASKING_RETRY),
                lock => return Ok(lock),
            }
        }
    }

    /// Keeps blobs from being removed while something is staged. Waits while some are.
    pub(super) async fn staging(&self, cancel: &CancellationToken) -> Result<Lock, StoreError> {
        let path = self.staging_lock();
        store::share(&path, "removing models", WRITING_LIMIT, cancel).await
    }

    /// The right to change the catalog.
    pub(super) async fn writing(&self, cancel: &CancellationToken) -> Result<Writing, StoreError> {
        let patience = Patience {
            limit: WRITING_LIMIT,
            cancel,
            on_wait: &|_| {},
        };
        let path = self.store.lock_path("models");
        let lock = store::lock(&path, "writing the catalog of models", patience).await?;
        Ok(Writing { _lock: lock })
    }

    /// Writes a model's document.
    pub(super) fn write(&self, _right: &Writing, entry: &Entry) -> Result<(), StoreError> {
        store::make_directory(&self.directory())?;
        store::write_document(&self.document_path(&entry.id), SCHEMA, 0o644, entry)
    }

    /// Where trees of files lie.
    pub(super) fn trees(&self) -> PathBuf {
        self.directory().join("trees")
    }

    fn directory(&self) -> PathBuf {
        self.store.root().join("models")
    }

    fn document_path(&self, id: &str) -> PathBuf {
        self.directory().join(format!("{id}.json"))
    }

    fn use_lock(&self, id: &str) -> PathBuf {
        self.store.lock_path(&format!("model-{id}"))
    }

    fn staging_lock(&self) -> PathBuf {
        self.store.lock_path("models-staging")
    }
}

/// The model of a document; one that is damaged, or about another id than its name says, is none.
fn read(path: &Path) -> Result<Option<Entry>, StoreError> {
    let entry: Option<Entry> = match store::read_document(path, SCHEMA) {
        Err(StoreError::Damaged { .. }) => None,
        other => other?,
    };
    Ok(entry.filter(|entry| path.file_stem().is_some_and(|stem| stem == &*entry.id)))
}

#[cfg(test)]
mod tests;
