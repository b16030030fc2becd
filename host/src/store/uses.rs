//! Who uses what is kept: a lock per result, and per model, that is shared by every run from the moment it
//! takes the thing until the run's end, and by whoever minds an engine that reads it.
//!
//! Whoever removes something has its lock alone meanwhile. When a lock was last touched says when the thing
//! was last used, and its text by which pool. A result of an earlier version has no such lock before its
//! next use.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;

use super::{Key, Kind, Lock, Store, StoreError, lock};

/// Longest wait while a result is being moved aside, which takes moments.
const REMOVAL_LIMIT: Duration = Duration::from_secs(60);

/// A path that an engine reads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InUse {
    /// The file or directory.
    pub path: PathBuf,
    /// The pool whose engine reads it.
    pub pool: String,
}

/// Something that is used for as long as this is there. Its end is noted as its last use.
#[derive(Debug)]
pub(crate) struct Use(Lock);

impl Use {
    /// The use of what this lock is for, from now on.
    pub(crate) fn of(lock: Lock) -> Self {
        lock.touch();
        Self(lock)
    }
}

impl Drop for Use {
    fn drop(&mut self) {
        self.0.touch();
    }
}

/// What is kept from being removed while any copy of this is there. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Uses(Vec<Arc<Use>>);

impl Uses {
    /// All of these.
    pub(crate) fn all(uses: impl IntoIterator<Item = Arc<Use>>) -> Self {
        Self(uses.into_iter().collect())
    }

    /// These and others.
    #[must_use]
    pub fn and(mut self, others: &Self) -> Self {
        self.0.extend(others.0.iter().cloned());
        self
    }

    /// The lock files, absolute, for whoever goes on keeping them when this is gone.
    #[must_use]
    pub fn locks(&self) -> Vec<PathBuf> {
        let paths = self.0.iter().map(|held| held.0.path());
        let absolute = paths.map(|path| std::path::absolute(path).unwrap_or(path.to_owned()));
        absolute.collect()
    }
}

/// What was taken through one store and its copies, by the paths of the locks.
#[derive(Debug, Clone, Default)]
pub(super) struct Taken(Arc<Mutex<ByLock>>);

type ByLock = BTreeMap<PathBuf, (Kind, Arc<Use>)>;

impl Taken {
    fn lock(&self) -> MutexGuard<'_, ByLock> {
        self.0.lock().expect("no holder panics")
    }
}

/// What is written in the lock of a result.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct LastUse {
    pool: String,
}

impl Store {
    /// The same store; what is taken from it is noted as used by this pool.
    #[must_use]
    pub fn used_by(self, pool: &str) -> Self {
        Self {
            user: Some(pool.into()),
            ..self
        }
    }

    /// The results that were taken from this store and its copies, and that an engine made of them reads: no
    /// source is one.
    #[must_use]
    pub fn uses(&self) -> Uses {
        let taken = self.taken.lock();
        let read = taken.values().filter(|(kind, _)| *kind != Kind::Source);
        Uses::all(read.map(|(_, held)| Arc::clone(held)))
    }

    /// The lock of a result that its users share. Another one than that of whoever makes it.
    pub(super) fn use_lock(&self, key: &Key) -> PathBuf {
        self.lock_path(&format!("use-{}", key.slug()))
    }

    /// Uses a result, or one that is about to be made; waits while it is being moved aside.
    pub(super) async fn share_use(
        &self,
        key: &Key,
        cancel: &CancellationToken,
    ) -> Result<Use, StoreError> {
        let path = self.use_lock(key);
        let lock = lock::share(&path, "removing a result", REMOVAL_LIMIT, cancel).await?;
        if let Some(pool) = &self.user {
            let last = LastUse {
                pool: pool.to_string(),
            };
            if last_user(&path).as_ref() != Some(&last.pool) {
                lock.write_down(&last);
            }
        }
        Ok(Use::of(lock))
    }

    /// Keeps a result from being removed until the last copy of this store is gone.
    pub(super) fn keep(&self, key: &Key, held: Use) {
        let path = self.use_lock(key);
        self.taken.lock().insert(path, (key.kind, Arc::new(held)));
    }
}

/// When what this lock is for was last used, as far as that was noted.
pub(crate) fn last_use(path: &Path) -> Option<Timestamp> {
    let touched = fs::metadata(path).and_then(|file| file.modified());
    Timestamp::try_from(touched.ok()?).ok()
}

/// The pool that used a result last, as far as that was noted.
pub(super) fn last_user(path: &Path) -> Option<String> {
    let text = fs::read(path).ok()?;
    let last: LastUse = serde_json::from_slice(&text).ok()?;
    Some(last.pool)
}
