//! Results: looked up, made by one at a time, published by one rename.

use std::{fs, path::PathBuf};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use tokio_util::sync::CancellationToken;

use super::{
    Change, Ingredients, Key, Kind, Lock, Patience, SCHEMA, Store, StoreError, Use, copy::Outputs,
    document, lock, place, read_document, temporary::Temporary, tree, write_document,
};
use crate::process::Identity;

pub(super) const MANIFEST: &str = "manifest.json";
pub(super) const TREE: &str = "tree";
const SCRATCH: &str = "work";

/// What is known about a result. Written last: a result without one does not exist.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    /// Its key, in full.
    pub key: Key,
    /// What it is for people, the same across rebuilds, for example `llamacpp/cmake-build`.
    pub name: String,
    /// What it was made of.
    pub ingredients: Ingredients,
    /// When it was finished.
    pub created: Timestamp,
    /// Whether it has content beside this manifest.
    pub has_tree: bool,
    /// What its maker wants to know again.
    pub result: serde_json::Value,
}

/// A finished result.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    /// Its content. Does not exist for results that are all in `manifest.result`.
    pub path: PathBuf,
    /// What is known about it.
    pub manifest: Manifest,
}

/// Why there is no result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Miss {
    /// Nothing of this name was ever made here.
    First,
    /// The latest result of this name was made of something else.
    Changed(Vec<Change>),
}

impl Miss {
    /// The reason in one line, for example `cmake argument changed: -DX=1 → -DX=2`; `None` for a
    /// first time.
    #[must_use]
    pub fn reason(&self) -> Option<String> {
        const SHOWN: usize = 3;
        let Self::Changed(changes) = self else {
            return None;
        };
        let shown: Vec<String> = changes.iter().take(SHOWN).map(Change::to_string).collect();
        let more = changes.len().saturating_sub(SHOWN);
        let tail = if more > 0 {
            format!(", and {more} more")
        } else {
            String::new()
        };
        Some(shown.join(", ") + &tail)
    }
}

/// What a caller that wants a result gets.
#[derive(Debug)]
pub enum Begin<W = Work> {
    /// It is there, from before or made by somebody else meanwhile.
    Hit(Box<Entry>),
    /// It has to be made.
    Work(W),
}

impl<W> Begin<W> {
    /// The same with the work wrapped in something else.
    pub(crate) fn map<V>(self, wrap: impl FnOnce(W) -> V) -> Begin<V> {
        match self {
            Self::Hit(entry) => Begin::Hit(entry),
            Self::Work(work) => Begin::Work(wrap(work)),
        }
    }
}

/// A result, which is in use from then on, or the sole right to make it.
pub(super) enum Claim {
    Hit(Box<Entry>),
    Make(Lock, Use),
}

/// A result in the making. Dropped without [`Work::publish`], everything is thrown away.
#[derive(Debug)]
pub struct Work {
    store: Store,
    key: Key,
    name: String,
    ingredients: Ingredients,
    temporary: Temporary,
    used: Use,
    _lock: Lock,
}

impl Store {
    /// Where the content of a result lies, or will lie.
    #[must_use]
    pub fn path_of(&self, key: &Key) -> PathBuf {
        self.directory_of(key).join(TREE)
    }

    pub(super) fn directory_of(&self, key: &Key) -> PathBuf {
        self.root.join(key.kind.as_str()).join(key.directory())
    }

    /// The result of a key, if it is finished. Takes no lock.
    pub fn find(&self, key: &Key) -> Result<Option<Entry>, StoreError> {
        let manifest: Option<Manifest> =
            match read_document(&self.directory_of(key).join(MANIFEST), SCHEMA) {
                // Renamed whole: a damaged manifest is damage to the disk, and is made again.
                Err(StoreError::Damaged { .. }) => None,
                other => other?,
            };
        Ok(manifest
            .filter(|manifest| manifest.key == *key)
            // Somebody may have deleted the content by hand.
            .filter(|manifest| !manifest.has_tree || self.path_of(key).exists())
            .map(|manifest| Entry {
                path: self.path_of(key),
                manifest,
            }))
    }

    /// What is known of the result that a path lies in; `None` of a path that lies in none.
    pub fn manifest_of(&self, path: &std::path::Path) -> Result<Option<Manifest>, StoreError> {
        let Ok(inside) = path.strip_prefix(&self.root) else {
            return Ok(None);
        };
        let mut parts = inside.iter();
        let (Some(kind), Some(directory)) = (parts.next(), parts.next()) else {
            return Ok(None);
        };
        if !Kind::ALL.iter().any(|known| kind == known.as_str()) {
            return Ok(None);
        }
        let path = self.root.join(kind).join(directory).join(MANIFEST);
        read_document(&path, SCHEMA)
    }

    /// Why there is no result of these ingredients: compared with the latest one of the same kind
    /// and name.
    pub fn explain(&self, kind: Kind, name: &str, ingredients: &Ingredients) -> Miss {
        let latest = self
            .entries(kind)
            .into_iter()
            .filter(|manifest| manifest.name == name)
            .max_by_key(|manifest| manifest.created);
        match latest {
            None => Miss::First,
            Some(latest) => Miss::Changed(ingredients.changes_since(&latest.ingredients)),
        }
    }

    /// Manifests of all finished results of a kind; those that cannot be read are left out.
    #[must_use]
    pub fn entries(&self, kind: Kind) -> Vec<Manifest> {
        let Ok(directory) = fs::read_dir(self.root.join(kind.as_str())) else {
            return Vec::new();
        };
        directory
            .filter_map(|entry| read_document(&entry.ok()?.path().join(MANIFEST), SCHEMA).ok()?)
            .collect()
    }

    /// Gives the result, or the right to make it: waits while another thread or process makes it,
    /// then looks again. Nobody removes it until the last copy of this store is gone.
    ///
    /// `doing` says what for, to whoever waits; `name` is what `explain` compares by.
    pub async fn begin(
        &self,
        kind: Kind,
        name: &str,
        ingredients: Ingredients,
        doing: &str,
        patience: Patience<'_>,
    ) -> Result<Begin, StoreError> {
        let key = ingredients.key(kind);
        let (lock, used) = match self.claim(&key, doing, patience).await? {
            Claim::Hit(entry) => return Ok(Begin::Hit(entry)),
            Claim::Make(lock, used) => (lock, used),
        };
        let temporary = self.temporary(&key.slug())?;
        let work = Work {
            store: self.clone(),
            key,
            name: name.to_owned(),
            ingredients,
            temporary,
            used,
            _lock: lock,
        };
        tree::make_directory(&work.tree())?;
        Ok(Begin::Work(work))
    }

    /// Takes a result if it is finished: nobody removes it until the last copy of this store is gone. It may have
    /// been removed until its use was known, so that it is looked for again.
    pub async fn take(
        &self,
        key: &Key,
        cancel: &CancellationToken,
    ) -> Result<Option<Entry>, StoreError> {
        if self.find(key)?.is_none() {
            return Ok(None);
        }
        let used = self.share_use(key, cancel).await?;
        let found = self.find(key)?;
        if found.is_some() {
            self.keep(key, used);
        }
        Ok(found)
    }

    /// Takes a result, else locks its key, then looks again.
    pub(super) async fn claim(
        &self,
        key: &Key,
        doing: &str,
        patience: Patience<'_>,
    ) -> Result<Claim, StoreError> {
        if let Some(entry) = self.take(key, patience.cancel).await? {
            return Ok(Claim::Hit(Box::new(entry)));
        }
        let lock = lock(&self.lock_path(&key.slug()), doing, patience).await?;
        let used = self.share_use(key, patience.cancel).await?;
        if let Some(entry) = self.find(key)? {
            self.keep(key, used);
            return Ok(Claim::Hit(Box::new(entry)));
        }
        // With the lock held nobody else makes it: what has no manifest is from a crash.
        self.discard(&self.directory_of(key))?;
        Ok(Claim::Make(lock, used))
    }
}

impl Work {
    /// The key of what is made.
    #[must_use]
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// The directory that will be the result. Empty at first; not written to by commands.
    #[must_use]
    pub fn tree(&self) -> PathBuf {
        self.temporary.path().join(TREE)
    }

    /// A name beside the result, for what commands may read and only this process writes. Thrown
    /// away when the result is published.
    #[must_use]
    pub fn beside(&self, name: &str) -> PathBuf {
        self.temporary.path().join(name)
    }

    /// An empty directory for scratch files, with these empty directories in it, owned by who runs
    /// the commands. Asked for again, it is emptied; thrown away when the result is published.
    ///
    /// Once it is handed over, this process no longer trusts a path in it.
    pub fn scratch(&self, owner: Option<Identity>, places: &[&str]) -> Result<PathBuf, StoreError> {
        let path = self.beside(SCRATCH);
        tree::remove_tree(&path)?;
        place::make_for(&path, None)?;
        if let Some(owner) = owner {
            place::ensure_reachable(&path, owner)?;
        }
        for place in places {
            place::make_for(&path.join(place), owner)?;
        }
        if let Some(owner) = owner {
            std::os::unix::fs::lchown(&path, Some(owner.uid), Some(owner.gid))
                .map_err(|source| StoreError::io("change the owner of", &path, source))?;
        }
        Ok(path)
    }

    /// The way from the scratch directory into the result; `owner` is who ran the commands.
    #[must_use]
    pub fn outputs(&self, owner: Option<Identity>) -> Outputs {
        Outputs {
            scratch: self.beside(SCRATCH),
            tree: self.tree(),
            owner: owner.map(|owner| owner.uid),
        }
    }

    /// Seals, syncs and publishes what is in [`Work::tree`]. Blocks while it syncs.
    pub fn publish(self, result: serde_json::Value) -> Result<Entry, StoreError> {
        self.remove_all_but_the_tree()?;
        let content = self.tree();
        let mut entries =
            fs::read_dir(&content).map_err(|source| StoreError::io("read", &content, source))?;
        let has_tree = entries.next().is_some();
        if has_tree {
            tree::seal(&content)?;
            tree::sync_tree(&content)?;
        } else {
            tree::remove_tree(&content)?;
        }
        let manifest = Manifest {
            key: self.key.clone(),
            name: self.name,
            ingredients: self.ingredients,
            created: Timestamp::now(),
            has_tree,
            result,
        };
        let document = self.temporary.path().join(MANIFEST);
        write_document(&document, SCHEMA, 0o444, &manifest)?;
        let target = self.store.directory_of(&self.key);
        let parent = self.store.root.join(self.key.kind.as_str());
        tree::make_directory(&parent)?;
        self.temporary.move_to(&target)?;
        self.store.keep(&self.key, self.used);
        document::sync_directory(&parent)?;
        Ok(Entry {
            path: self.store.path_of(&self.key),
            manifest,
        })
    }

    fn remove_all_but_the_tree(&self) -> Result<(), StoreError> {
        let path = self.temporary.path();
        let failed = |source| StoreError::io("read", path, source);
        for entry in fs::read_dir(path).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            if entry.file_name() != TREE {
                tree::remove_tree(&entry.path())?;
            }
        }
        Ok(())
    }
}
