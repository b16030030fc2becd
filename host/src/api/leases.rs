//! Leases of those who are not in this process, until they are given back or expire.
//!
//! The registry's guards are held here, one for each: whatever ends a lease frees its slot by dropping
//! the guard. They do not outlive the daemon, nor does their slot.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, Weak},
    time::Duration,
};

use jiff::Timestamp;
use tokio::{sync::Notify, time::Instant};
use tokio_util::sync::CancellationToken;

use super::documents::LeaseStatus;
use crate::{
    narrate::{Actor, Narrator, TraceContext},
    pool::Lease,
};

/// Leases by their names.
pub(super) struct Leases {
    held: Mutex<BTreeMap<String, Held>>,
    /// Told when one may expire sooner than was known.
    sooner: Arc<Notify>,
    narrator: Narrator,
}

struct Held {
    status: LeaseStatus,
    until: Instant,
    lease: Lease,
}

impl Held {
    fn renew(&mut self, time: Duration) {
        self.until = Instant::now() + time;
        self.status.ttl_ms = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        self.status.expires_at = Timestamp::now() + time;
    }
}

impl Leases {
    /// None yet. Those that expire are dropped by a task of this runtime, until `end`.
    pub(super) fn new(narrator: Narrator, end: CancellationToken) -> Arc<Self> {
        let leases = Arc::new(Self {
            held: Mutex::default(),
            sooner: Arc::default(),
            narrator,
        });
        let sweeping = sweep(Arc::downgrade(&leases), Arc::clone(&leases.sooner));
        tokio::spawn(async move { end.run_until_cancelled(sweeping).await });
        leases
    }

    /// Keeps a lease for this long.
    pub(super) fn keep(&self, lease: Lease, time: Duration, held_by: &str) -> LeaseStatus {
        let status = LeaseStatus {
            lease_id: TraceContext::root().trace_id(),
            pool_id: lease.pool_id().to_owned(),
            replica_id: lease.replica_id().to_owned(),
            url: lease.url().to_owned(),
            ttl_ms: 0,
            expires_at: Timestamp::now(),
            held_by: held_by.to_owned(),
        };
        let mut held = Held {
            status,
            until: Instant::now(),
            lease,
        };
        held.renew(time);
        let status = held.status.clone();
        self.lock().insert(status.lease_id.clone(), held);
        self.sooner.notify_one();
        status
    }

    /// Lets a lease hold from now on, for its own time where no other is named; `None` where there is no
    /// such lease, or no longer an engine that it is for.
    pub(super) fn renew(
        &self,
        pool: &str,
        name: &str,
        time: Option<Duration>,
    ) -> Option<LeaseStatus> {
        let mut all = self.lock();
        let held = all.get_mut(name).filter(|it| it.status.pool_id == pool)?;
        if held.until <= Instant::now() || !held.lease.is_of_use() {
            let over = all.remove(name);
            drop(all);
            drop(over);
            return None;
        }
        let own = Duration::from_millis(held.status.ttl_ms);
        held.renew(time.unwrap_or(own));
        let status = held.status.clone();
        drop(all);
        self.sooner.notify_one();
        Some(status)
    }

    /// Gives a lease back; whether there was one.
    pub(super) fn release(&self, pool: &str, name: &str) -> bool {
        let mut all = self.lock();
        let is_there = all.get(name).is_some_and(|it| it.status.pool_id == pool);
        let held = is_there.then(|| all.remove(name)).flatten();
        drop(all);
        held.is_some()
    }

    /// The leases of a pool, the first to expire first.
    pub(super) fn of(&self, pool: &str) -> Vec<LeaseStatus> {
        let all = self.lock();
        let own = all.values().filter(|it| it.status.pool_id == pool);
        let mut own: Vec<LeaseStatus> = own.map(|it| it.status.clone()).collect();
        own.sort_by_key(|it| it.expires_at);
        own
    }

    /// Drops those whose time is over, and says when the next one's is.
    fn expire(&self, now: Instant) -> Option<Instant> {
        let over: Vec<Held> = {
            let mut all = self.lock();
            let (over, left) = std::mem::take(&mut *all)
                .into_iter()
                .partition::<BTreeMap<_, _>, _>(|(_, held)| held.until <= now);
            *all = left;
            over.into_values().collect()
        };
        for Held { status, .. } in &over {
            let human = format!(
                "a lease of pool {} that {} held expired",
                status.pool_id, status.held_by
            );
            let narrator = self.narrator.with(|context| {
                context.pool_id = Some(status.pool_id.clone());
                context.replica_id = Some(status.replica_id.clone());
            });
            narrator.warn(Actor::PoolManager, "lease-expired", &status.pool_id, human);
        }
        self.lock().values().map(|held| held.until).min()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Held>> {
        self.held.lock().expect("no holder panics")
    }
}

/// Drops leases when their time is over.
async fn sweep(leases: Weak<Leases>, sooner: Arc<Notify>) {
    while let Some(leases) = leases.upgrade() {
        let next = leases.expire(Instant::now());
        drop(leases);
        let until = async {
            match next {
                Some(next) => tokio::time::sleep_until(next).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = until => {}
            () = sooner.notified() => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::pool::Registry;

    const MINUTE: Duration = Duration::from_secs(60);
    const MOMENT: Duration = Duration::from_millis(50);

    fn ready() -> (Registry, Arc<Leases>) {
        let registry = Registry::default();
        let handoff = json!({"url": "http://127.0.0.1:1", "slots_total": 2});
        let registered = registry.register_ready_from_handoff("chat", &handoff);
        registered.unwrap();
        let leases = Leases::new(Narrator::silent(), CancellationToken::new());
        (registry, leases)
    }

    fn free(registry: &Registry) -> u32 {
        registry.status("chat").unwrap().slots.free
    }

    async fn wait_free(registry: &Registry, count: u32) {
        let start = Instant::now();
        while free(registry) != count {
            assert!(start.elapsed() < MINUTE / 2, "{} are free", free(registry));
            tokio::time::sleep(MOMENT / 10).await;
        }
    }

    #[tokio::test]
    async fn a_lease_that_nobody_renews_frees_its_slot() {
        let (registry, leases) = ready();
        let renewed = leases.keep(registry.lease("chat").unwrap(), MOMENT, "uid:7");
        let left = leases.keep(registry.lease("chat").unwrap(), MOMENT * 2, "uid:7");
        assert_ne!(renewed.lease_id, left.lease_id);
        assert_eq!(free(&registry), 0);
        let id = renewed.lease_id.as_str();
        let again = leases.renew("chat", id, Some(MINUTE)).unwrap();
        assert!(again.expires_at > renewed.expires_at);
        wait_free(&registry, 1).await;
        assert_eq!(leases.of("chat"), [again]);
        assert!(leases.renew("chat", &left.lease_id, None).is_none());
        // Shorter than it was.
        assert!(leases.renew("chat", id, Some(MOMENT)).is_some());
        wait_free(&registry, 2).await;
    }

    #[tokio::test]
    async fn a_lease_is_given_back_once_and_by_its_pool() {
        let (registry, leases) = ready();
        let lease = leases.keep(registry.lease("chat").unwrap(), MINUTE, "uid:7");
        assert!(!leases.release("other", &lease.lease_id));
        assert!(leases.release("chat", &lease.lease_id));
        assert!(!leases.release("chat", &lease.lease_id));
        assert_eq!(free(&registry), 2);
    }
}
