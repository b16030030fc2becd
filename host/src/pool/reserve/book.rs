//! The document: one entry per replica that has GPUs, read with distrust.

use std::{collections::BTreeMap, fs, os::unix::fs::PermissionsExt as _, path::Path};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::{
    engine::boot,
    process::ProcessIdentity,
    store::{StoreError, read_document},
};

/// Schema of the document that this version writes.
const SCHEMA: u32 = 1;

/// All reservations of a home.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Book {
    /// Schema of the document.
    #[serde(default)]
    pub(super) schema: u32,
    /// Boot of the machine that the process ids belong to.
    pub(super) boot: String,
    /// In the order in which they were made.
    pub(super) reservations: Vec<Entry>,
}

/// The place of one replica.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Entry {
    /// What tells it from all others: during a reload a replica has two.
    pub(super) id: String,
    /// Pool.
    pub(super) pool_id: String,
    /// Replica of the pool.
    pub(super) replica_id: String,
    /// The process without which it means nothing.
    pub(super) owner: ProcessIdentity,
    /// The host that looks after it; absent, or gone: whoever comes next may.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) holder: Option<ProcessIdentity>,
    /// Whether the engine has its memory, so that the driver counts it.
    pub(super) allocated: bool,
    /// How much of which GPU.
    pub(super) devices: Vec<Share>,
    /// Main memory that it is about to take; absent once it has it, and where it is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) memory: Option<Claim>,
    /// Since when.
    pub(super) since: Timestamp,
}

impl Entry {
    /// Whether it reserves nothing.
    pub(super) fn is_empty(&self) -> bool {
        self.devices.is_empty() && self.memory.is_none()
    }
}

/// Main memory that an engine takes while it starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Claim {
    /// Bytes, by its provider's word.
    pub(super) bytes: u64,
    /// Bytes that were left for others when it was placed. What it has taken of its own by now is in the
    /// machine's figure, which part of it is not: this tells what is left however far it is.
    pub(super) left: u64,
}

/// A part of one GPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Share {
    /// Driver-assigned id, `GPU-…` or `MIG-…`.
    pub uuid: String,
    /// Device memory in bytes; 0: not known yet.
    pub bytes: u64,
}

impl Book {
    /// Reads the document; none, one of another boot and one that cannot be understood are empty.
    pub(super) fn read(path: &Path) -> Result<Self, StoreError> {
        let book = match read_document::<Self>(path, SCHEMA) {
            Ok(Some(book)) if book.boot == boot() => book,
            Ok(_) | Err(StoreError::Damaged { .. }) => Self {
                schema: SCHEMA,
                boot: boot(),
                reservations: Vec::new(),
            },
            Err(error) => return Err(error),
        };
        Ok(book)
    }

    /// Writes the document beside and renames it into place. Not synced: after a power failure nothing
    /// it speaks of runs any more.
    pub(super) fn write(&self, path: &Path) -> Result<(), StoreError> {
        let failed = |source| StoreError::io("write", path, source);
        let mut text = serde_json::to_vec_pretty(self).expect("reservations are plain data");
        text.push(b'\n');
        // One name, under the lock: what a killed host has left here is overwritten by the next one.
        let beside = path.with_extension("partial");
        fs::write(&beside, text)
            .and_then(|()| fs::set_permissions(&beside, fs::Permissions::from_mode(0o640)))
            .and_then(|()| fs::rename(&beside, path))
            .map_err(failed)
    }

    /// Forgets what belonged to processes that are gone.
    pub(super) fn drop_stale(&mut self) {
        self.reservations.retain(|entry| entry.owner.is_alive());
    }

    /// The place of a replica whose engine runs and that no host looks after.
    pub(super) fn left_behind(&self, pool: &str, replica: &str) -> Option<Entry> {
        let is_left = |entry: &&Entry| {
            entry.pool_id == pool
                && entry.replica_id == replica
                && entry.allocated
                && !entry.holder.is_some_and(ProcessIdentity::is_alive)
        };
        self.reservations.iter().find(is_left).cloned()
    }

    /// Makes it say what this process knows: what it holds is there, what it gave back is not, and what
    /// it left nobody holds.
    pub(super) fn settle(
        &mut self,
        held: &BTreeMap<String, Entry>,
        returned: &[String],
        left: &[String],
    ) {
        self.reservations
            .retain(|entry| !returned.contains(&entry.id));
        for entry in &mut self.reservations {
            if left.contains(&entry.id) {
                entry.holder = None;
            }
        }
        for entry in held.values().filter(|entry| entry.owner.is_alive()) {
            self.put(entry.clone());
        }
    }

    /// Adds an entry, or replaces the one of its name; one that reserves nothing is none.
    pub(super) fn put(&mut self, entry: Entry) {
        if entry.is_empty() {
            self.reservations.retain(|known| known.id != entry.id);
            return;
        }
        let mut all = self.reservations.iter_mut();
        match all.find(|known| known.id == entry.id) {
            Some(known) => *known = entry,
            None => self.reservations.push(entry),
        }
    }

    /// Main memory that another engine may take of what is available: no more than what those that are
    /// starting leave.
    pub(super) fn memory_left(&self, available: u64) -> u64 {
        let claims = self.reservations.iter().filter_map(|entry| entry.memory);
        claims.map(|claim| claim.left).fold(available, u64::min)
    }

    /// All entries but this one.
    pub(super) fn others(&self, id: &str) -> Vec<Entry> {
        let others = self.reservations.iter().filter(|entry| entry.id != id);
        others.cloned().collect()
    }
}
