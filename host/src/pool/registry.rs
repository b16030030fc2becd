//! What is known of every replica, who holds leases, and who listens.
//!
//! One short lock, never held across an await. A lease belongs to the engine it was given for: when
//! that engine is gone its leases free nothing, and an engine that is swapped out keeps its own until
//! they are given back.
//!
//! | file | job |
//! |---|---|
//! | `record` | what is kept of a pool and of a replica |
//! | `lease` | leases, and who waits until they are given back |
//! | `handed` | handoffs that are taken in |

mod handed;
mod lease;
mod record;

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicU64, Ordering},
    },
};

use jiff::Timestamp;
use tokio::sync::{Notify, broadcast};

pub use self::lease::Lease;
use self::record::PoolRecord;
use super::{Change, PoolError, PoolStatus, ReplicaStatus, Want, status::LastError};

/// Changes kept for a subscriber that is slow; beyond that it is told that it missed some.
const CHANGES_KEPT: usize = 1024;

/// What is known of every replica. Cheap to clone; clones are the same registry.
#[derive(Clone, Debug)]
pub struct Registry {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    pools: Mutex<BTreeMap<String, PoolRecord>>,
    changes: broadcast::Sender<Change>,
    sequence: AtomicU64,
    /// Counts the engines that have served, of all pools: no two have one number.
    engines: AtomicU64,
    /// Told whenever a lease is given back.
    freed: Notify,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, PoolRecord>> {
        self.pools.lock().expect("no holder panics")
    }

    fn next_engine(&self) -> u64 {
        self.engines.fetch_add(1, Ordering::Relaxed) + 1
    }

    fn tell(&self, pools: &BTreeMap<String, PoolRecord>, pool: &str) {
        let sequence = self.sequence.fetch_add(1, Ordering::Relaxed) + 1;
        // Built for nobody it would only cost.
        if self.changes.receiver_count() == 0 {
            return;
        }
        let _ = self.changes.send(Change {
            sequence,
            pool_id: pool.to_owned(),
            status: pools.get(pool).map(|record| record.status(pool)),
        });
    }
}

impl Default for Registry {
    fn default() -> Self {
        Self {
            shared: Arc::new(Shared {
                pools: Mutex::default(),
                changes: broadcast::channel(CHANGES_KEPT).0,
                sequence: AtomicU64::new(0),
                engines: AtomicU64::new(0),
                freed: Notify::new(),
            }),
        }
    }
}

impl Registry {
    /// All pools, by name.
    #[must_use]
    pub fn list(&self) -> Vec<PoolStatus> {
        let pools = self.shared.lock();
        let status = |(name, record): (&String, &PoolRecord)| record.status(name);
        pools.iter().map(status).collect()
    }

    /// Whether there is such a pool.
    #[must_use]
    pub fn knows(&self, pool: &str) -> bool {
        self.shared.lock().contains_key(pool)
    }

    /// One pool.
    pub fn status(&self, pool: &str) -> Result<PoolStatus, PoolError> {
        let pools = self.shared.lock();
        let record = pools.get(pool).ok_or_else(|| no_such(&pools, pool))?;
        Ok(record.status(pool))
    }

    /// Every change from now on.
    #[must_use]
    pub fn subscribe(&self) -> broadcast::Receiver<Change> {
        self.shared.changes.subscribe()
    }

    /// Makes a pool known with these replicas; those that were known already stay as they are.
    pub(super) fn declare(&self, pool: &str, engine: &str, want: Want, replicas: &[String]) {
        let mut pools = self.shared.lock();
        let make = || PoolRecord::new(engine, want);
        let record = pools.entry(pool.to_owned()).or_insert_with(make);
        record.engine = engine.to_owned();
        record.replicas.retain(|name, _| replicas.contains(name));
        for name in replicas {
            let _ = record.replica(name);
        }
        self.shared.tell(&pools, pool);
    }

    /// Forgets a pool.
    pub(super) fn remove(&self, pool: &str) {
        let mut pools = self.shared.lock();
        if pools.remove(pool).is_some() {
            self.shared.tell(&pools, pool);
        }
    }

    /// Says what is wanted of a pool.
    pub(super) fn want(&self, pool: &str, want: Want) {
        self.change_pool(pool, |record| record.want = want);
    }

    /// Keeps or clears the failure of a pool as a whole.
    pub(super) fn fail(&self, pool: &str, error: Option<LastError>) {
        self.change_pool(pool, |record| record.last_error = error);
    }

    fn change_pool(&self, pool: &str, change: impl FnOnce(&mut PoolRecord)) {
        let mut pools = self.shared.lock();
        if let Some(record) = pools.get_mut(pool) {
            change(record);
            self.shared.tell(&pools, pool);
        }
    }

    /// Changes what is known of a replica, and tells.
    pub(super) fn update(
        &self,
        pool: &str,
        replica: &str,
        change: impl FnOnce(&mut ReplicaStatus),
    ) {
        let mut pools = self.shared.lock();
        let found = pools
            .get_mut(pool)
            .and_then(|it| it.replicas.get_mut(replica));
        if let Some(record) = found {
            change(&mut record.status);
            self.shared.tell(&pools, pool);
        }
    }

    /// Notes that a replica answered. Not told: it happens all the time.
    pub(super) fn heard(&self, pool: &str, replica: &str) {
        let mut pools = self.shared.lock();
        let found = pools
            .get_mut(pool)
            .and_then(|it| it.replicas.get_mut(replica));
        if let Some(record) = found {
            record.status.heartbeat = Some(Timestamp::now());
        }
    }

    /// From now on another engine serves as this replica, of which this is known. Returns its number;
    /// leases of the one before run on.
    pub(super) fn serve_anew(
        &self,
        pool: &str,
        replica: &str,
        known: impl FnOnce(&mut ReplicaStatus),
    ) -> u64 {
        let number = self.shared.next_engine();
        let mut pools = self.shared.lock();
        let found = pools
            .get_mut(pool)
            .and_then(|it| it.replicas.get_mut(replica));
        if let Some(record) = found {
            record.epoch = number;
            known(&mut record.status);
            self.shared.tell(&pools, pool);
        }
        number
    }
}

fn no_such(pools: &BTreeMap<String, PoolRecord>, pool: &str) -> PoolError {
    PoolError::NoSuchPool {
        pool: pool.to_owned(),
        pools: pools.keys().cloned().collect(),
    }
}

#[cfg(test)]
mod tests;
