//! The results of a store as an operator sees them: which there are, who uses them, and how they go.
//!
//! | lock | shared by | alone |
//! |---|---|---|
//! | `KIND-KEY` | – | whoever makes a result, and whoever moves one aside |
//! | `use-KIND-KEY` | every run that took the result, and whoever minds an engine made of it | whoever moves it aside |
//!
//! Engines of this home are known by their records as well. Removal only tries its locks: nobody waits for a
//! clean-up but for the moment of one rename, and a clean-up waits for nobody.

mod error;
mod remove;
mod select;
mod superseded;

use std::{fmt, path::PathBuf};

use jiff::Timestamp;

pub use error::ResultError;
pub use remove::{Removal, Swept};

use super::{InUse, Key, Kind, Manifest, Store, StoreError, is_held, last_use, uses::last_user};

/// The results of one store. Opening it creates nothing.
#[derive(Debug, Clone)]
pub struct Results {
    store: Store,
}

/// A result that is here.
#[derive(Debug, Clone, PartialEq)]
pub struct Kept {
    /// What is known about it.
    pub manifest: Manifest,
    /// Everything of it.
    pub path: PathBuf,
    /// When it was last used, or made.
    pub last_used: Timestamp,
    /// The pool that used it last, as far as that is known.
    pub last_used_by: Option<String>,
}

/// Who uses a result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum User {
    /// Engines of these pools, one or more.
    Pools(Vec<String>),
    /// A run that prepares an engine with it, or a daemon that keeps one ready to start.
    Run,
}

impl fmt::Display for User {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pools(pools) if pools.len() == 1 => {
                write!(formatter, "the engine of pool `{}`", pools[0])
            }
            Self::Pools(pools) => {
                write!(formatter, "the engines of pools `{}`", pools.join("`, `"))
            }
            Self::Run => formatter
                .write_str("a run that prepares an engine with it, or a daemon that keeps one"),
        }
    }
}

impl Kept {
    /// What it is called on the command line: the first digits of its key.
    #[must_use]
    pub fn short(&self) -> &str {
        short(&self.manifest.key)
    }
}

fn short(key: &Key) -> &str {
    const DIGITS: usize = 12;
    &key.hex[..DIGITS]
}

impl Results {
    /// The results of a store.
    #[must_use]
    pub fn of(store: &Store) -> Self {
        Self {
            store: store.clone(),
        }
    }

    /// All of them, by name, of one name that first which was used last.
    #[must_use]
    pub fn all(&self) -> Vec<Kept> {
        let kinds = Kind::ALL.into_iter();
        let manifests = kinds.flat_map(|kind| {
            let of_kind = move |manifest: &Manifest| manifest.key.kind == kind;
            self.store.entries(kind).into_iter().filter(of_kind)
        });
        let mut all: Vec<Kept> = manifests
            .filter(|manifest| manifest.key.is_whole())
            .map(|manifest| self.kept(manifest))
            .collect();
        all.sort_by(|a, b| {
            let (name, other) = (&a.manifest.name, &b.manifest.name);
            name.cmp(other).then(b.last_used.cmp(&a.last_used))
        });
        all
    }

    /// Who uses a result, by the records of engines and by its lock. A source is used by runs alone: no engine
    /// reads one.
    pub fn user_of(&self, key: &Key, engines: &[InUse]) -> Result<Option<User>, StoreError> {
        let directory = self.store.directory_of(key);
        let reads =
            |engine: &&InUse| key.kind != Kind::Source && engine.path.starts_with(&directory);
        let mut pools: Vec<String> = engines
            .iter()
            .filter(reads)
            .map(|engine| engine.pool.clone())
            .collect();
        pools.sort();
        pools.dedup();
        if !pools.is_empty() {
            return Ok(Some(User::Pools(pools)));
        }
        Ok(is_held(&self.store.use_lock(key))?.then_some(User::Run))
    }

    fn kept(&self, manifest: Manifest) -> Kept {
        let lock = self.store.use_lock(&manifest.key);
        let noted = last_use(&lock);
        Kept {
            path: self.store.directory_of(&manifest.key),
            last_used: noted.map_or(manifest.created, |time| time.max(manifest.created)),
            last_used_by: last_user(&lock),
            manifest,
        }
    }
}

#[cfg(test)]
mod tests;
