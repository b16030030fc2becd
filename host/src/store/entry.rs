//! Results: looked up, made by one at a time, published by one rename.

use std::{
    fs,
    path::{Path, PathBuf},
};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{
    Change, Ingredients, Key, Kind, Lock, Patience, SCHEMA, Store, StoreError, document, lock,
    read_document, rubbish, tree, write_document,
};
use crate::process::Identity;

const MANIFEST: &str = "manifest.json";
const TREE: &str = "tree";

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
pub enum Begin {
    /// It is there, from before or made by somebody else meanwhile.
    Hit(Box<Entry>),
    /// It has to be made.
    Work(Work),
}

/// A result in the making. Dropped without [`Work::publish`], everything is thrown away.
#[derive(Debug)]
pub struct Work {
    store: Store,
    key: Key,
    name: String,
    ingredients: Ingredients,
    temporary: PathBuf,
    published: bool,
    _lock: Lock,
}

impl Store {
    /// Where the content of a result lies, or will lie.
    #[must_use]
    pub fn path_of(&self, key: &Key) -> PathBuf {
        self.directory_of(key).join(TREE)
    }

    fn directory_of(&self, key: &Key) -> PathBuf {
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
    /// then looks again.
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
        if let Some(entry) = self.find(&key)? {
            return Ok(Begin::Hit(Box::new(entry)));
        }
        let lock = lock(&self.lock_path(&key.slug()), doing, patience).await?;
        if let Some(entry) = self.find(&key)? {
            return Ok(Begin::Hit(Box::new(entry)));
        }
        let temporary = self.root.join("tmp").join(key.slug());
        // With the lock held nobody else works here: what lies about is from a crash.
        rubbish::remove(&temporary).await?;
        tree::remove_tree(&self.directory_of(&key))?;
        tree::make_directory(&temporary)?;
        let work = Work {
            store: self.clone(),
            key,
            name: name.to_owned(),
            ingredients,
            temporary,
            published: false,
            _lock: lock,
        };
        tree::make_directory(&work.tree())?;
        Ok(Begin::Work(work))
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
        self.temporary.join(TREE)
    }

    /// An empty directory for scratch files beside the result, owned by who runs the commands.
    /// Asked for again, it is emptied; thrown away when the result is published.
    pub fn scratch(&self, owner: Option<Identity>) -> Result<PathBuf, StoreError> {
        let path = self.temporary.join("work");
        tree::remove_tree(&path)?;
        tree::make_directory(&path)?;
        if let Some(owner) = owner {
            tree::ensure_reachable(&path, owner)?;
            tree::give_to(&path, owner)?;
        }
        Ok(path)
    }

    /// Moves a file or directory of the scratch directory into the result, under the same relative
    /// path. A link on the way is refused.
    pub fn take(&self, scratch: &Path, relative: &Path) -> Result<(), StoreError> {
        let from = tree::inside(scratch, relative)?;
        let to = self.tree().join(relative);
        if let Some(parent) = to.parent() {
            tree::make_directory(parent)?;
        }
        fs::rename(&from, &to).map_err(|source| StoreError::io("move", from, source))
    }

    /// Moves a whole directory of the scratch directory in place of the result.
    pub fn take_all(&self, directory: &Path) -> Result<(), StoreError> {
        let metadata = fs::symlink_metadata(directory)
            .map_err(|source| StoreError::io("find", directory, source))?;
        if !metadata.is_dir() {
            return Err(StoreError::Unsound {
                path: directory.to_owned(),
                reason: "is no directory".to_owned(),
            });
        }
        tree::remove_tree(&self.tree())?;
        fs::rename(directory, self.tree())
            .map_err(|source| StoreError::io("move", directory, source))
    }

    /// Seals, syncs and publishes what is in [`Work::tree`]. Blocks while it syncs.
    pub fn publish(mut self, result: serde_json::Value) -> Result<Entry, StoreError> {
        tree::remove_tree(&self.temporary.join("work"))?;
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
            name: std::mem::take(&mut self.name),
            ingredients: std::mem::take(&mut self.ingredients),
            created: Timestamp::now(),
            has_tree,
            result,
        };
        write_document(&self.temporary.join(MANIFEST), SCHEMA, 0o444, &manifest)?;
        let target = self.store.directory_of(&self.key);
        let parent = self.store.root.join(self.key.kind.as_str());
        tree::make_directory(&parent)?;
        fs::rename(&self.temporary, &target)
            .map_err(|source| StoreError::io("publish", &target, source))?;
        self.published = true;
        document::sync_directory(&parent)?;
        Ok(Entry {
            path: self.store.path_of(&self.key),
            manifest,
        })
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        if !self.published {
            // Not reported: whatever is left is removed by whoever takes the lock next.
            let _ = tree::remove_tree(&self.temporary);
        }
    }
}
