//! What differs between what is locked and what is.
//!
//! Both sides are flattened to paths with texts, the names under which they stand in the file, so that a
//! new pin cannot be forgotten here. What other machines have locked is not this one's to compare.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use toml::{Table, Value};

use super::{Document, PoolLock, StepLock, is_known_digest, seal::is_seal};

/// A pin that does not hold.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Drift {
    /// The pool.
    pub pool: String,
    /// The part of it, as `--update` takes it: `POOL.PART` or, where all is missing, `POOL`.
    pub part: String,
    /// Where it stands in the pool's table, for example `provider.version`.
    pub what: String,
    /// What is locked; `None`: nothing.
    pub locked: Option<String>,
    /// What is now; `None`: it is gone.
    pub now: Option<String>,
}

/// A part of a pool that can be locked anew by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// The plugin.
    Provider,
    /// What brings the engine.
    Engine,
    /// The model.
    Model,
}

impl Part {
    /// Every part.
    pub const ALL: [Self; 3] = [Self::Provider, Self::Engine, Self::Model];

    /// Its word, in the file and for `--update`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Provider => "provider",
            Self::Engine => "engine",
            Self::Model => "model",
        }
    }
}

/// Path of a value and its text.
pub(super) type Leaves = BTreeMap<Vec<String>, String>;

/// What of a pool differs from its pins. `now` holds this machine's values alone, of the mode that is
/// asked for; what it leaves out because it is not known yet is not compared.
#[must_use]
pub fn drifts(pool: &str, locked: Option<&PoolLock>, now: &PoolLock) -> Vec<Drift> {
    let Some(locked) = locked else {
        return vec![Drift {
            pool: pool.to_owned(),
            part: pool.to_owned(),
            what: "entry".to_owned(),
            locked: None,
            now: Some("not locked yet".to_owned()),
        }];
    };
    let mut all = Vec::new();
    let modes: Vec<&String> = now.engine.keys().collect();
    let locked = leaves(&mode_only(locked, &modes));
    let now = leaves(now);
    let mut paths: Vec<&Vec<String>> = locked.keys().chain(now.keys()).collect();
    paths.sort();
    paths.dedup();
    for path in paths {
        let (was, is) = (locked.get(path), now.get(path));
        let left_open = is.is_none() && (is_of_a_machine(path) || may_be_unknown(path, &now));
        let told_later = was.is_none() && is_told_later(path);
        if was == is || left_open || told_later {
            continue;
        }
        all.push(Drift {
            pool: pool.to_owned(),
            part: format!("{pool}.{}", path[0]),
            what: path.join("."),
            locked: was.cloned(),
            now: is.cloned(),
        });
    }
    all
}

/// Digests of a pool's model that this version cannot compare with anything.
#[must_use]
pub fn incomparable(pool: &str, locked: &PoolLock) -> Vec<Drift> {
    let model = locked.model.iter();
    let digests = model.flat_map(|model| {
        let whole = ("digest".to_owned(), model.digest.as_ref());
        let files = model.files.iter();
        let files = files.map(|(name, it)| (format!("files.{name}.digest"), it.digest.as_ref()));
        std::iter::once(whole).chain(files)
    });
    let foreign = digests.filter_map(|(what, digest)| Some((what, digest?)));
    let foreign = foreign.filter(|(_, digest)| !is_known_digest(digest));
    let drifts = foreign.map(|(what, digest)| Drift {
        pool: pool.to_owned(),
        part: format!("{pool}.{}", Part::Model.as_str()),
        what: format!("{}.{what}", Part::Model.as_str()),
        locked: Some(digest.clone()),
        now: Some("of a scheme that this version cannot compare".to_owned()),
    });
    drifts.collect()
}

/// Every pin that differs between two lock files, what this version does not know included.
#[must_use]
pub fn changes(before: &Document, after: &Document) -> Vec<Drift> {
    let ids = before.pools.keys().chain(after.pools.keys());
    let ids: BTreeSet<&String> = ids.collect();
    let mut all = Vec::new();
    for id in ids {
        let of = |document: &Document| document.pools.get(id).map(leaves).unwrap_or_default();
        let (was, is) = (of(before), of(after));
        let paths: BTreeSet<&Vec<String>> = was.keys().chain(is.keys()).collect();
        let changed = paths
            .into_iter()
            .filter(|path| was.get(*path) != is.get(*path));
        all.extend(changed.map(|path| Drift {
            pool: id.clone(),
            part: format!("{id}.{}", path[0]),
            what: path.join("."),
            locked: was.get(path).cloned(),
            now: is.get(path).cloned(),
        }));
    }
    all
}

/// The pool with what is compared: without other modes, and without what this version does not know.
fn mode_only(pool: &PoolLock, modes: &[&String]) -> PoolLock {
    let mut pool = pool.clone();
    pool.rest = Table::new();
    pool.provider.rest = Table::new();
    pool.engine.retain(|mode, _| modes.contains(&mode));
    let steps = pool.engine.values_mut().flat_map(BTreeMap::values_mut);
    steps.for_each(|step: &mut StepLock| step.rest = Table::new());
    if let Some(model) = &mut pool.model {
        model.rest = Table::new();
        let files = model.files.values_mut();
        files.for_each(|file| file.rest = Table::new());
    }
    pool
}

/// Values that stand under the name of a kind of machine, of an image or of a URL.
fn is_of_a_machine(path: &[String]) -> bool {
    const KEYED: [&str; 5] = ["targets", "commands", "images", "downloads", "packages"];
    let holder = match path.first().map(String::as_str) {
        Some("provider") => path.get(1),
        Some("engine") => path.get(3),
        _ => None,
    };
    holder.is_some_and(|name| KEYED.contains(&name.as_str()))
}

/// Values that a lock is complete without: what else is pinned decides them.
fn is_told_later(path: &[String]) -> bool {
    let name = path.last().map(String::as_str).unwrap_or_default();
    match path[0].as_str() {
        "engine" => name == "tree",
        "model" => path[1] == "files" || matches!(name, "digest" | "size_bytes" | "revision"),
        _ => false,
    }
}

impl Drift {
    /// Whether a value is new that a lock is complete without.
    #[must_use]
    pub fn is_told_later(&self) -> bool {
        let path: Vec<String> = self.what.split('.').map(str::to_owned).collect();
        self.locked.is_none() && path.len() > 1 && is_told_later(&path)
    }
}

/// Values that are only known once something was asked or fetched. A part that is gone altogether is a
/// drift all the same.
fn may_be_unknown(path: &[String], now: &Leaves) -> bool {
    let (part, name) = (
        &path[0],
        path.last().map(String::as_str).unwrap_or_default(),
    );
    let there = |part: &[String]| now.keys().any(|path| path.starts_with(part));
    match part.as_str() {
        "engine" => matches!(name, "commit" | "tree") && there(&path[..path.len() - 1]),
        "model" => !is_written(name) && there(&path[..1]),
        _ => false,
    }
}

/// Values of a model that the pool file says, and nobody else.
fn is_written(name: &str) -> bool {
    ["reference", "mirrors", "quant", "include", "exclude"].contains(&name)
}

/// What is pinned: check digits are none of it.
fn leaves(pool: &PoolLock) -> Leaves {
    let table = Table::try_from(pool).expect("a lock is plain data");
    let mut all = leaves_of(&table);
    all.retain(|path, _| !is_seal(path));
    all
}

/// Every value of a table.
pub(super) fn leaves_of(table: &Table) -> Leaves {
    let mut all = Leaves::new();
    collect(&mut Vec::new(), table, &mut all);
    all
}

fn collect(path: &mut Vec<String>, table: &Table, all: &mut Leaves) {
    for (name, value) in table {
        path.push(name.clone());
        match value {
            Value::Table(table) => collect(path, table, all),
            Value::String(text) => drop(all.insert(path.clone(), text.clone())),
            Value::Array(values) => drop(all.insert(path.clone(), listed(values))),
            other => drop(all.insert(path.clone(), other.to_string())),
        }
        path.pop();
    }
}

fn listed(values: &[Value]) -> String {
    let words: Vec<String> = values
        .iter()
        .map(|value| {
            value
                .as_str()
                .map_or_else(|| value.to_string(), str::to_owned)
        })
        .collect();
    words.join(", ")
}
