//! Models go: one that was named, those that a clean-up chose, and what crashes have left.
//!
//! First the document goes, then the tree, then the blobs that no other model has: killed in between,
//! what is left is nobody's, and the next clean-up takes it.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Component, Path, PathBuf},
    time::{Duration, SystemTime},
};

use jiff::Timestamp;
use serde::Serialize;
use tokio_util::sync::CancellationToken;

use super::{Catalog, CatalogError, Entry, InUse, Limits, Reason, State, Writing};
use crate::store::{self, Candidate, Lock, StoreError, choose_of};

/// How long a partial download must not have grown before it is rubbish.
const PARTIAL_LIMIT: Duration = Duration::from_secs(24 * 60 * 60);

/// A model that went, or would go.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Removal {
    /// The model.
    pub id: String,
    /// Bytes of its files.
    pub size_bytes: u64,
    /// Why.
    pub reason: Reason,
}

/// What a clean-up did, or would do.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Swept {
    /// Models.
    pub removed: Vec<Removal>,
    /// Blobs that no model has, from crashes and from models that went; their bytes.
    pub blobs_bytes: u64,
    /// Downloads that nobody has continued for a day; their bytes.
    pub partial_bytes: u64,
    /// Whether blobs had to stay because something is being staged: the next clean-up takes them.
    pub postponed: bool,
}

impl Swept {
    /// Bytes that are free, or would be.
    #[must_use]
    pub fn freed_bytes(&self) -> u64 {
        self.blobs_bytes + self.partial_bytes
    }
}

impl Catalog {
    /// Who uses a model, in words, and the pool where it is one.
    pub fn user_of(
        &self,
        entry: &Entry,
        engines: &[InUse],
    ) -> Result<Option<(String, Option<String>)>, StoreError> {
        let reads = |engine: &&InUse| engine.path.starts_with(&entry.path);
        if let Some(engine) = engines.iter().find(reads) {
            let words = format!("the engine of pool `{}`", engine.pool);
            return Ok(Some((words, Some(engine.pool.clone()))));
        }
        let held = store::is_held(&self.use_lock(&entry.id))?;
        Ok(held.then(|| {
            (
                "an engine of another home, or a run that prepares one with it".to_owned(),
                None,
            )
        }))
    }

    /// Removes one model. A user's own file stays where it is.
    pub async fn remove(
        &self,
        id: &str,
        engines: &[InUse],
        cancel: &CancellationToken,
    ) -> Result<Swept, CatalogError> {
        let right = self.writing(cancel).await?;
        let Some(entry) = self.entry(id)? else {
            return Ok(Swept::default());
        };
        let in_use = |(by, pool)| CatalogError::InUse {
            id: id.to_owned(),
            by,
            pool,
        };
        if let Some(user) = self.user_of(&entry, engines)? {
            return Err(in_use(user));
        }
        let Some(_alone) = store::try_lock_quietly(&self.use_lock(id))? else {
            return Err(in_use(("a run that just began".to_owned(), None)));
        };
        self.drop_entry(&right, &entry)?;
        let mut swept = Swept {
            removed: vec![Removal {
                id: id.to_owned(),
                size_bytes: entry.size_bytes,
                reason: Reason::Asked,
            }],
            ..Swept::default()
        };
        match self.alone()? {
            None => swept.postponed = true,
            Some(_alone) => {
                let kept = self.kept()?;
                for sha256 in entry.blobs().filter(|sha256| !kept.contains(*sha256)) {
                    swept.blobs_bytes += size_of(&self.store.blob_path(sha256));
                    self.store.remove_blob(sha256)?;
                }
            }
        }
        Ok(swept)
    }

    /// Removes the models that these limits leave no room for, and what crashes have left; with `dry`
    /// only says which, and writes nothing at all.
    pub async fn sweep(
        &self,
        limits: Limits,
        engines: &[InUse],
        dry: bool,
        cancel: &CancellationToken,
    ) -> Result<Swept, CatalogError> {
        let right = match dry {
            true => None,
            false => Some(self.writing(cancel).await?),
        };
        let mut entries: BTreeMap<String, Entry> = self
            .entries()?
            .into_iter()
            .map(|entry| (entry.id.clone(), entry))
            .collect();
        let mut candidates = Vec::new();
        for entry in entries.values() {
            candidates.push(Candidate {
                id: entry.id.clone(),
                size_bytes: entry.own_bytes(),
                due: (entry.state == State::Retired).then_some(Reason::Retired),
                last_used: self.last_used(entry),
                in_use: self.user_of(entry, engines)?.is_some(),
            });
        }
        let mut swept = Swept::default();
        for (id, reason) in choose_of(candidates, limits, Timestamp::now()) {
            let entry = entries.get(&id).expect("it is one of them");
            if let Some(right) = &right {
                // Somebody may have begun to use it.
                let Some(_alone) = store::try_lock_quietly(&self.use_lock(&id))? else {
                    continue;
                };
                self.drop_entry(right, entry)?;
            }
            let entry = entries.remove(&id).expect("it is one of them");
            swept.removed.push(Removal {
                size_bytes: entry.own_bytes(),
                id,
                reason,
            });
        }
        let alone = match dry {
            true => None,
            false => self.alone()?,
        };
        let is_staged = alone.is_none() && store::is_held(&self.staging_lock())?;
        match is_staged || (alone.is_none() && !dry) {
            true => swept.postponed = true,
            false => self.sweep_files(&entries, dry, &mut swept)?,
        }
        Ok(swept)
    }

    /// Says that no new engine is to be started with a model, or that they may again.
    pub async fn set_state(
        &self,
        id: &str,
        state: State,
        cancel: &CancellationToken,
    ) -> Result<Option<Entry>, StoreError> {
        let right = self.writing(cancel).await?;
        let Some(mut entry) = self.entry(id)? else {
            return Ok(None);
        };
        if entry.state != state {
            entry.state = state;
            self.write(&right, &entry)?;
        }
        Ok(Some(entry))
    }

    /// The right to remove blobs; `None` while something is staged.
    fn alone(&self) -> Result<Option<Lock>, StoreError> {
        store::try_lock_quietly(&self.staging_lock())
    }

    /// Blobs that models have.
    fn kept(&self) -> Result<BTreeSet<String>, StoreError> {
        let entries = self.entries()?;
        Ok(entries
            .iter()
            .flat_map(|entry| entry.blobs().map(str::to_owned))
            .collect())
    }

    /// Takes away the document of a user's own file or directory, and nothing else.
    pub(in crate::model) fn forget(&self, _right: &Writing, id: &str) -> Result<(), StoreError> {
        store::remove_tree(&self.document_path(id))
    }

    fn drop_entry(&self, _right: &Writing, entry: &Entry) -> Result<(), StoreError> {
        store::remove_tree(&self.document_path(&entry.id))?;
        match self.tree_of(&entry.path) {
            Some(tree) => self.drop_tree(&tree),
            None => Ok(()),
        }
    }

    /// The tree that a path lies in.
    fn tree_of(&self, path: &Path) -> Option<PathBuf> {
        let inside = path.strip_prefix(self.trees()).ok()?;
        match inside.components().next()? {
            Component::Normal(name) => Some(self.trees().join(name)),
            _ => None,
        }
    }

    /// Removes a tree. What it shares with blobs looks different afterwards, which is written down.
    fn drop_tree(&self, tree: &Path) -> Result<(), StoreError> {
        let mut links = Vec::new();
        for file in store::files_of(tree)? {
            let identity = store::FileIdentity::of(&file)?;
            links.push((identity.inode, file));
        }
        for sha256 in self.blob_names() {
            let path = self.store.blob_path(&sha256);
            let Ok(identity) = store::FileIdentity::of(&path) else {
                continue;
            };
            for (_, file) in links.iter().filter(|(inode, _)| *inode == identity.inode) {
                self.store
                    .renaming_blob(&sha256, |_| store::remove_tree(file))?;
            }
        }
        store::remove_tree(tree)
    }

    /// Names of the blobs that this program recorded: a `cache_dir` may hold others. In its own store also of
    /// those that a crash left without a record.
    pub(super) fn blob_names(&self) -> BTreeSet<String> {
        let listed = fs::read_dir(self.store.blobs());
        let name = |found: fs::DirEntry| {
            let name = found.file_name().into_string().ok()?;
            match name.strip_suffix(".json") {
                None if self.is_own => Some(name),
                recorded => recorded.map(str::to_owned),
            }
        };
        let names = listed.into_iter().flatten().flatten();
        let names = names.filter_map(name);
        names.filter(|name| is_sha256(name)).collect()
    }

    /// Removes blobs and trees that none of these models has, and partial downloads nobody continues: by
    /// their names, since a `cache_dir` may hold what is its owner's.
    fn sweep_files(
        &self,
        entries: &BTreeMap<String, Entry>,
        dry: bool,
        swept: &mut Swept,
    ) -> Result<(), StoreError> {
        let trees: BTreeSet<PathBuf> = entries
            .values()
            .filter_map(|entry| self.tree_of(&entry.path))
            .collect();
        for tree in fs::read_dir(self.trees()).into_iter().flatten().flatten() {
            let is_ours = tree.file_name().to_str().is_some_and(is_sha256);
            if !dry && is_ours && !trees.contains(&tree.path()) {
                self.drop_tree(&tree.path())?;
            }
        }
        let kept: BTreeSet<&str> = entries.values().flat_map(Entry::blobs).collect();
        for sha256 in self.blob_names() {
            if !kept.contains(sha256.as_str()) {
                swept.blobs_bytes += size_of(&self.store.blob_path(&sha256));
                if !dry {
                    self.store.remove_blob(&sha256)?;
                }
            }
        }
        for partial in fs::read_dir(self.store.root().join("partial"))
            .into_iter()
            .flatten()
            .flatten()
        {
            let path = partial.path();
            let touched = fs::symlink_metadata(&path).and_then(|file| file.modified());
            let age = touched
                .ok()
                .and_then(|time| SystemTime::now().duration_since(time).ok());
            let name = partial.file_name();
            let is_ours = name.to_str().is_some_and(|name| name.contains(".partial"));
            if is_ours && age.is_some_and(|age| age > PARTIAL_LIMIT) {
                swept.partial_bytes += size_of(&path);
                if !dry {
                    store::remove_tree(&path)?;
                }
            }
        }
        Ok(())
    }
}

impl Entry {
    /// Bytes that it takes in the store: none of a user's own file.
    #[must_use]
    pub fn own_bytes(&self) -> u64 {
        let own = self.files.iter().filter(|file| file.place.is_none());
        own.map(|file| file.size_bytes).sum()
    }
}

fn is_sha256(name: &str) -> bool {
    name.len() == 64 && name.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Bytes that a file takes on disk.
fn size_of(path: &Path) -> u64 {
    fs::symlink_metadata(path).map_or(0, |file| file.len())
}
