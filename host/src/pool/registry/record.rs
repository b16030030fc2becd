//! What is kept of a pool and of a replica, and the documents that are made of it.

use std::{
    borrow::Cow,
    collections::BTreeMap,
    time::{Duration, Instant},
};

use jiff::Timestamp;

use crate::{
    fault::Fault,
    narrate::{Secrets, chain},
    pool::{
        BreakerState, Health, PoolError, PoolStatus, ReplicaState, ReplicaStatus, Slots, Want,
        status::{Evidence, LastError},
    },
};

#[derive(Debug)]
pub(super) struct PoolRecord {
    pub(super) engine: String,
    pub(super) want: Want,
    pub(super) last_error: Option<LastError>,
    /// Each apart: a map has room for several, and most pools have one.
    pub(super) replicas: BTreeMap<String, Box<ReplicaRecord>>,
    /// When the last lease was given back, or the pool came up.
    pub(super) used: Instant,
}

#[derive(Debug)]
pub(super) struct ReplicaRecord {
    pub(super) status: ReplicaStatus,
    /// Number of the engine that serves as this replica, or did last; 0: none has.
    pub(super) epoch: u64,
    /// Leases by the engine they were given for.
    pub(super) held: BTreeMap<u64, u32>,
}

impl PoolRecord {
    pub(super) fn new(engine: &str, want: Want) -> Self {
        Self {
            engine: engine.to_owned(),
            want,
            last_error: None,
            replicas: BTreeMap::new(),
            used: Instant::now(),
        }
    }

    /// A replica of it, made known where it is not.
    pub(super) fn replica(&mut self, name: &str) -> &mut ReplicaRecord {
        let make = || Box::new(ReplicaRecord::new(name));
        self.replicas.entry(name.to_owned()).or_insert_with(make)
    }

    pub(super) fn status(&self, pool: &str) -> PoolStatus {
        let replicas: Vec<ReplicaStatus> = self.replicas.values().map(|it| it.status()).collect();
        let serving = || replicas.iter().filter(|it| it.health.ready);
        PoolStatus {
            pool_id: pool.to_owned(),
            engine: self.engine.clone(),
            want: self.want,
            health: Health {
                live: replicas.iter().any(|it| it.health.live),
                ready: serving().next().is_some(),
            },
            slots: Slots {
                total: serving().map(|it| it.slots.total).sum(),
                free: serving().map(|it| it.slots.free).sum(),
            },
            leases: replicas.iter().map(|it| it.leases).sum(),
            replicas,
            last_error: self.last_error.clone(),
        }
    }

    /// Why nothing can be leased.
    pub(super) fn refusal(&self, pool: &str) -> PoolError {
        let pool = pool.to_owned();
        match self.want {
            Want::Draining => PoolError::Draining { pool },
            Want::Down => PoolError::Down { pool },
            Want::Up | Want::OnDemand => self.not_yet(pool),
        }
    }

    /// Why nothing serves yet: by the replica of which there is most to hope.
    fn not_yet(&self, pool: String) -> PoolError {
        let lost = |it: &&ReplicaRecord| match it.status.state {
            ReplicaState::Failed => 2,
            ReplicaState::Broken => 1,
            _ => 0,
        };
        let replicas = self.replicas.values().map(|it| &**it);
        let Some(replica) = replicas.min_by_key(lost) else {
            return PoolError::Unready {
                pool,
                reason: "it has no replica".to_owned(),
                retry_after: None,
            };
        };
        let status = &replica.status;
        let (name, state) = (&status.replica_id, status.state.as_str());
        let reason = format!("{name} is {state}, {}", status.reason);
        let pause = |at: Timestamp| Duration::try_from(at.duration_since(Timestamp::now()));
        let retry_after = status.next_start.map(|at| pause(at).unwrap_or_default());
        match status.state {
            ReplicaState::Failed | ReplicaState::Broken => PoolError::Unavailable {
                pool,
                reason,
                retry_after,
            },
            _ => PoolError::Unready {
                pool,
                reason,
                retry_after,
            },
        }
    }
}

impl ReplicaRecord {
    pub(super) fn new(name: &str) -> Self {
        Self {
            status: ReplicaStatus::new(name),
            epoch: 0,
            held: BTreeMap::new(),
        }
    }

    pub(super) fn free(&self) -> u32 {
        let held = self.held.get(&self.epoch).copied().unwrap_or(0);
        self.status.slots.total.saturating_sub(held)
    }

    pub(super) fn status(&self) -> ReplicaStatus {
        let mut status = self.status.clone();
        status.leases = self.held.values().sum();
        status.slots.free = match status.health.ready {
            true => self.free(),
            false => 0,
        };
        status
    }
}

impl ReplicaStatus {
    /// A replica that does not run.
    #[must_use]
    pub(in crate::pool) fn new(name: &str) -> Self {
        Self {
            replica_id: name.to_owned(),
            state: ReplicaState::Stopped,
            since: Timestamp::now(),
            reason: "not started".to_owned(),
            health: Health::default(),
            url: None,
            engine_version: None,
            observed_version: None,
            provider_version: None,
            mode: None,
            model: None,
            workloads: Vec::new(),
            dialect: None,
            digest: None,
            device_mask: Vec::new(),
            vram_bytes: None,
            slots: Slots::default(),
            leases: 0,
            pid: None,
            started_at: None,
            heartbeat: None,
            restarts: 0,
            restarts_by: BTreeMap::new(),
            breaker: BreakerState::Closed,
            next_start: None,
            last_error: None,
            log: None,
        }
    }

    /// Enters a state.
    pub(in crate::pool) fn set(&mut self, state: ReplicaState, reason: impl Into<String>) {
        if self.state != state {
            self.since = Timestamp::now();
        }
        self.state = state;
        self.reason = reason.into();
        self.next_start = None;
    }
}

impl LastError {
    /// What is kept of a failure.
    #[must_use]
    pub fn of(error: &dyn Fault) -> Self {
        let details = error.details().into_iter();
        Self {
            kind: error.kind().to_owned(),
            message: chain(error),
            details: details
                .map(|it| Evidence {
                    label: it.label.to_owned(),
                    text: it.text,
                })
                .collect(),
            fixes: error.hints(),
            at: Timestamp::now(),
        }
    }

    /// The same without secrets: what an engine has printed is in it.
    #[must_use]
    pub fn masked(mut self, secrets: &Secrets) -> Self {
        let mask = |text: &mut String| {
            if let Cow::Owned(masked) = secrets.mask(text) {
                *text = masked;
            }
        };
        mask(&mut self.message);
        self.details.iter_mut().for_each(|it| mask(&mut it.text));
        for hint in &mut self.fixes {
            mask(&mut hint.text);
            hint.command.iter_mut().for_each(mask);
        }
        self
    }
}
