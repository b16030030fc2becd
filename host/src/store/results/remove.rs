//! Results go: one that was named, those that a clean-up chose, and what crashes have left.
//!
//! A result is moved aside by one rename, under both of its locks, and deleted afterwards: killed in between,
//! what is left is rubbish of a crash. Whoever wants it next makes it again.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use jiff::Timestamp;
use serde::Serialize;
use tokio_util::sync::CancellationToken;

use super::{InUse, Kept, ResultError, Results, User, superseded::is_superseded};
use crate::store::{
    Candidate, Counted, Key, Kind, Limits, Reason, StoreError, Temporary, choose_of,
    document::sync_directory, entry::MANIFEST, hold, is_held, make_directory, remove_tree,
    try_lock, try_lock_quietly,
};

/// A result that went, or would go.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Removal {
    /// Its key, 64 hexadecimal digits.
    pub key: String,
    /// What it was.
    pub kind: Kind,
    /// What it was for people.
    pub name: String,
    /// Bytes that it took on disk.
    pub size_bytes: u64,
    /// Why.
    pub reason: Reason,
}

/// What a clean-up did, or would do.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Swept {
    /// Results.
    pub removed: Vec<Removal>,
    /// What crashed runs have left half made; its bytes.
    pub rubbish_bytes: u64,
}

impl Swept {
    /// Bytes that are free, or would be.
    #[must_use]
    pub fn freed_bytes(&self) -> u64 {
        let results: u64 = self.removed.iter().map(|one| one.size_bytes).sum();
        results + self.rubbish_bytes
    }
}

impl Removal {
    fn of(kept: &Kept, size_bytes: u64, reason: Reason) -> Self {
        Self {
            key: kept.manifest.key.hex.clone(),
            kind: kept.manifest.key.kind,
            name: kept.manifest.name.clone(),
            size_bytes,
            reason,
        }
    }
}

impl Results {
    /// Removes one result; with `dry` only says whether it would go. Blocks for as long as deleting takes.
    pub fn remove(
        &self,
        kept: &Kept,
        engines: &[InUse],
        dry: bool,
        cancel: &CancellationToken,
    ) -> Result<Removal, ResultError> {
        let key = &kept.manifest.key;
        let in_use = |user| ResultError::InUse {
            name: kept.manifest.name.clone(),
            key: kept.short().to_owned(),
            user,
        };
        if let Some(user) = self.user_of(key, engines)? {
            return Err(in_use(user));
        }
        let size_bytes = Counted::default().bytes(&kept.path);
        if !dry {
            refuse_cancelled(cancel)?;
            let aside = self.move_aside(key)?;
            delete(aside.ok_or_else(|| in_use(User::Run))?)?;
        }
        Ok(Removal::of(kept, size_bytes, Reason::Asked))
    }

    /// Removes results that were superseded, those that these limits leave no room for, and what crashes have
    /// left; with `dry` only says which, and writes nothing at all. Blocks for as long as deleting takes.
    pub fn sweep(
        &self,
        limits: Limits,
        engines: &[InUse],
        dry: bool,
        cancel: &CancellationToken,
    ) -> Result<Swept, ResultError> {
        let all = self.all();
        let mut counted = Counted::default();
        let mut by_id = BTreeMap::new();
        let mut candidates = Vec::new();
        for kept in &all {
            let (id, size_bytes) = (kept.manifest.key.slug(), counted.bytes(&kept.path));
            by_id.insert(id.clone(), (kept, size_bytes));
            candidates.push(Candidate {
                id,
                size_bytes,
                due: is_superseded(kept, &all).then_some(Reason::Superseded),
                last_used: kept.last_used,
                in_use: self.user_of(&kept.manifest.key, engines)?.is_some(),
            });
        }
        let mut swept = Swept::default();
        for (id, reason) in choose_of(candidates, limits, Timestamp::now()) {
            let (kept, size_bytes) = by_id[&id];
            if !dry {
                refuse_cancelled(cancel)?;
                // Somebody may have begun to use it.
                let Some(aside) = self.move_aside(&kept.manifest.key)? else {
                    continue;
                };
                delete(aside)?;
            }
            swept.removed.push(Removal::of(kept, size_bytes, reason));
        }
        swept.rubbish_bytes = self.rubbish().map(|path| counted.bytes(&path)).sum();
        if !dry {
            self.store.sweep()?;
        }
        Ok(swept)
    }

    /// Takes a result out of its place, where nobody has it: from then on it does not exist. `None` where
    /// somebody has begun to use it, or makes it.
    fn move_aside(&self, key: &Key) -> Result<Option<Temporary>, StoreError> {
        let making = self.store.lock_path(&key.slug());
        make_directory(&self.store.root().join("locks"))?;
        let Some(_making) = try_lock(&making, "removing it")? else {
            return Ok(None);
        };
        let Some(_alone) = try_lock_quietly(&self.store.use_lock(key))? else {
            return Ok(None);
        };
        let directory = self.store.directory_of(key);
        let aside = self.store.temporary("removed")?;
        match fs::rename(&directory, aside.path().join("it")) {
            // Somebody else has removed it meanwhile.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            renamed => {
                renamed.map_err(|source| StoreError::io("move aside", &directory, source))?;
                // Nothing of it goes as long as a power failure could bring its manifest back.
                sync_directory(aside.path())?;
                sync_directory(directory.parent().unwrap_or(Path::new("/")))?;
            }
        }
        Ok(Some(aside))
    }

    /// What crashed runs have left in `tmp/` and half made in its final place.
    fn rubbish(&self) -> impl Iterator<Item = PathBuf> {
        let root = self.store.root();
        let left = list(&root.join("tmp"));
        let left = left.filter(|path| matches!(hold(path), Ok(Some(_))));
        let unfinished = Kind::ALL.into_iter().flat_map(move |kind| {
            let directories = list(&root.join(kind.as_str()));
            directories.filter(move |path| {
                let name = path.file_name().unwrap_or_default().to_string_lossy();
                let lock = self.store.lock_path(&format!("{}-{name}", kind.as_str()));
                !path.join(MANIFEST).exists() && is_held(&lock).is_ok_and(|held| !held)
            })
        });
        left.chain(unfinished)
    }
}

fn list(directory: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    let listed = fs::read_dir(directory).into_iter().flatten().flatten();
    listed.map(|found| found.path())
}

fn delete(aside: Temporary) -> Result<(), StoreError> {
    remove_tree(&aside.path().join("it"))
}

fn refuse_cancelled(cancel: &CancellationToken) -> Result<(), StoreError> {
    match cancel.is_cancelled() {
        false => Ok(()),
        true => Err(StoreError::Cancelled {
            what: "the clean-up".to_owned(),
        }),
    }
}
