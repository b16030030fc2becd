//! What the lock file holds.
//!
//! Every table keeps what it does not know in `rest`, and every digest is a text `SCHEME:VALUE`, so that
//! a file of a later version of the same schema loses nothing here.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use toml::Table;

use crate::net::Digest;

/// Schema of the lock files that this version writes.
pub const SCHEMA: u32 = 1;

/// A lock file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Document {
    /// Schema of the file.
    pub schema: u32,
    /// Pools by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub pools: BTreeMap<String, PoolLock>,
    /// What this version does not know.
    #[serde(flatten)]
    pub rest: Table,
}

impl Default for Document {
    fn default() -> Self {
        Self {
            schema: SCHEMA,
            pools: BTreeMap::new(),
            rest: Table::new(),
        }
    }
}

/// What is pinned for one pool.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct PoolLock {
    /// The plugin that decides.
    #[serde(default)]
    pub provider: ProviderLock,
    /// What brings the engine, by mode and step of the plan.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub engine: BTreeMap<String, BTreeMap<String, StepLock>>,
    /// The model, where one is staged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<ModelLock>,
    /// What this version does not know.
    #[serde(flatten)]
    pub rest: Table,
}

/// The provider that planned.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ProviderLock {
    /// Its name.
    pub name: String,
    /// Its version.
    pub version: String,
    /// Contract version that it was built against.
    pub contract: String,
    /// Digest of its library by target triple.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub targets: BTreeMap<String, String>,
    /// Check digits of its lines, so that an edit is told from what was locked ([`super::seal`]).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seal: Option<String>,
    /// What this version does not know.
    #[serde(flatten)]
    pub rest: Table,
}

/// A step that brings the engine, or part of it. Which fields are given follows from `kind`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct StepLock {
    /// Kind of step, as in the plan.
    pub kind: String,
    /// Checkout: branch, tag or commit as it was written.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reference: Option<String>,
    /// Checkout: where it can be had.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub mirrors: Vec<String>,
    /// Checkout: the commit, in full.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,
    /// Checkout: digest of the tree as git computes it, where it was known when the lock was written.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tree: Option<String>,
    /// Checkout: whether submodules belong to it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub submodules: bool,
    /// Build: digest of commands, outputs and texts, by target triple and labels such as the back end.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub commands: BTreeMap<String, String>,
    /// Images: digest by name as written and by platform.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub images: BTreeMap<String, BTreeMap<String, String>>,
    /// Download: digest by URL.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub downloads: BTreeMap<String, String>,
    /// Packages: `NAME = VERSION` by family and distribution, for example `apt debian 12`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub packages: BTreeMap<String, BTreeMap<String, String>>,
    /// Check digits of its lines, so that an edit is told from what was locked ([`super::seal`]).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seal: Option<String>,
    /// What this version does not know.
    #[serde(flatten)]
    pub rest: Table,
}

/// The model.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ModelLock {
    /// Reference as it was written.
    pub reference: String,
    /// Where the file behind a URL can be had as well, in this order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub mirrors: Vec<String>,
    /// Quantisation that was asked for, where one was.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quant: Option<String>,
    /// Patterns of files that are taken, where there are any.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub include: Vec<String>,
    /// Patterns of files that are left out, where there are any.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub exclude: Vec<String>,
    /// Reference to exactly this, where there is one beside the digest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pinned: Option<String>,
    /// Commit, version or `ETag`, where its place has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub revision: Option<String>,
    /// Digest of the file, or of the listing of a directory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
    /// Size of all of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size_bytes: Option<u64>,
    /// Its files by name, of a model that is fetched.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub files: BTreeMap<String, FileLock>,
    /// Check digits of its lines, so that an edit is told from what was locked ([`super::seal`]).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seal: Option<String>,
    /// What this version does not know.
    #[serde(flatten)]
    pub rest: Table,
}

/// A file of a model.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct FileLock {
    /// Size, where it is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size_bytes: Option<u64>,
    /// Digest, where it is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
    /// Version by which its place keeps it, where older ones are kept and `pinned` does not say it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// What this version does not know.
    #[serde(flatten)]
    pub rest: Table,
}

/// Whether this version can compute a digest of this scheme.
#[must_use]
pub fn is_known_digest(text: &str) -> bool {
    Digest::parse(text).is_ok()
}
