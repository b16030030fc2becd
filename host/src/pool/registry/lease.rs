//! Leases: who may send a request where, and who waits until they are given back.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use super::{Registry, Shared, no_such, record::ReplicaRecord};
use crate::pool::{PoolError, Want};

/// The right to send one request to a replica. Dropped, its slot is free again.
#[derive(Debug)]
pub struct Lease {
    shared: Arc<Shared>,
    pool: String,
    replica: String,
    epoch: u64,
    url: String,
}

impl Lease {
    /// Where the request goes.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The pool.
    #[must_use]
    pub fn pool_id(&self) -> &str {
        &self.pool
    }

    /// Whether its engine may still answer; one that drains or was swapped out does.
    #[must_use]
    pub fn is_of_use(&self) -> bool {
        let pools = self.shared.lock();
        let pool = pools.get(&self.pool);
        let replica = pool.and_then(|it| it.replicas.get(&self.replica));
        replica.is_some_and(|it| {
            let is_known = it.held.contains_key(&self.epoch);
            is_known && (self.epoch != it.epoch || it.status.url.is_some())
        })
    }

    /// The replica that serves it.
    #[must_use]
    pub fn replica_id(&self) -> &str {
        &self.replica
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let mut pools = self.shared.lock();
        if let Some(pool) = pools.get_mut(&self.pool) {
            pool.used = Instant::now();
            if let Some(replica) = pool.replicas.get_mut(&self.replica)
                && let Some(held) = replica.held.get_mut(&self.epoch)
            {
                *held = held.saturating_sub(1);
                if *held == 0 {
                    replica.held.remove(&self.epoch);
                }
            }
        }
        drop(pools);
        self.shared.freed.notify_waiters();
    }
}

impl Registry {
    /// Leases a slot of the replica that has the most free ones.
    pub fn lease(&self, pool: &str) -> Result<Lease, PoolError> {
        let mut pools = self.shared.lock();
        let Some(record) = pools.get_mut(pool) else {
            return Err(no_such(&pools, pool));
        };
        let ready = |replica: &&mut ReplicaRecord| replica.status.health.ready;
        let free = |replica: &&mut ReplicaRecord| replica.free();
        let best = record
            .replicas
            .values_mut()
            .map(Box::as_mut)
            .filter(ready)
            .max_by_key(free);
        let Some(replica) = best else {
            return Err(record.refusal(pool));
        };
        if record.want == Want::Draining {
            let pool = pool.to_owned();
            return Err(PoolError::Draining { pool });
        }
        if replica.free() == 0 {
            let total = record.status(pool).slots.total;
            let pool = pool.to_owned();
            return Err(PoolError::Busy { pool, total });
        }
        *replica.held.entry(replica.epoch).or_default() += 1;
        let lease = Lease {
            shared: Arc::clone(&self.shared),
            pool: pool.to_owned(),
            replica: replica.status.replica_id.clone(),
            epoch: replica.epoch,
            url: replica.status.url.clone().unwrap_or_default(),
        };
        record.used = Instant::now();
        Ok(lease)
    }

    /// Leases of one engine; the current one's where none is named.
    #[must_use]
    pub(in crate::pool) fn held(&self, pool: &str, replica: &str, epoch: Option<u64>) -> u32 {
        let pools = self.shared.lock();
        let found = pools.get(pool).and_then(|it| it.replicas.get(replica));
        found.map_or(0, |record| {
            let epoch = epoch.unwrap_or(record.epoch);
            record.held.get(&epoch).copied().unwrap_or(0)
        })
    }

    /// Waits until an engine has no lease, at most until the limit; whether it has none.
    pub(in crate::pool) async fn unleased(
        &self,
        pool: &str,
        replica: &str,
        epoch: Option<u64>,
        limit: Duration,
    ) -> bool {
        let empty = async {
            loop {
                let freed = self.shared.freed.notified();
                tokio::pin!(freed);
                freed.as_mut().enable();
                if self.held(pool, replica, epoch) == 0 {
                    return;
                }
                freed.await;
            }
        };
        tokio::time::timeout(limit, empty).await.is_ok()
    }

    /// How long a pool has had no lease; `None` while it has one, or where there is no such pool.
    #[must_use]
    pub(in crate::pool) fn idle_for(&self, pool: &str) -> Option<Duration> {
        let pools = self.shared.lock();
        let record = pools.get(pool)?;
        let idle = record.replicas.values().all(|it| it.held.is_empty());
        idle.then(|| record.used.elapsed())
    }

    /// Whether a pool runs only while it is used.
    #[must_use]
    pub(in crate::pool) fn is_on_demand(&self, pool: &str) -> bool {
        let pools = self.shared.lock();
        pools.get(pool).is_some_and(|it| it.want == Want::OnDemand)
    }

    /// Counts a pool as used now.
    pub(in crate::pool) fn touch(&self, pool: &str) {
        if let Some(record) = self.shared.lock().get_mut(pool) {
            record.used = Instant::now();
        }
    }
}
