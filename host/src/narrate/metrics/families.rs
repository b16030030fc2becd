//! What is counted and measured, and under which names.

use std::{collections::BTreeSet, hash::Hash, sync::Mutex};

use prometheus_client::{
    metrics::{counter::Counter, family::Family, histogram::Histogram},
    registry::{Metric, Registry},
};

use super::labels::{
    ByFetch, ByKind, ByLevel, ByOutcome, ByPool, ByPoolOutcome, ByPoolReason, BySource, ByStep,
};
use crate::narrate::{Ended, Event, Outcome, Work};

/// Upper bounds for work that takes from milliseconds (all is there) to an hour (a large build), in
/// seconds.
const WORK_SECONDS: [f64; 16] = [
    0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 15.0, 60.0, 180.0, 600.0, 1800.0,
    3600.0,
];

type Histograms<L> = Family<L, Histogram, fn() -> Histogram>;

fn histograms<L: Clone + Hash + Eq>() -> Histograms<L> {
    Family::new_with_constructor(|| Histogram::new(WORK_SECONDS))
}

/// Every metric of this room.
pub(super) struct Families {
    plans: Histograms<ByOutcome>,
    prepares: Histograms<ByOutcome>,
    steps: Histograms<ByStep>,
    hits: Family<ByKind, Counter>,
    misses: Family<ByKind, Counter>,
    fetched: Family<BySource, Counter>,
    fetches: Family<ByFetch, Counter>,
    waits: Histograms<ByKind>,
    launches: Family<ByPoolOutcome, Counter>,
    ready: Histograms<ByPool>,
    drains: Histograms<ByPoolOutcome>,
    reloads: Histograms<ByPoolOutcome>,
    restarts: Family<ByPoolReason, Counter>,
    events: Family<ByLevel, Counter>,
    /// Pools and reasons that have been values of labels: what a family has cannot be listed.
    used: Mutex<(BTreeSet<String>, BTreeSet<&'static str>)>,
}

impl Families {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let new = Self {
            plans: histograms(),
            prepares: histograms(),
            steps: histograms(),
            hits: Family::default(),
            misses: Family::default(),
            fetched: Family::default(),
            fetches: Family::default(),
            waits: histograms(),
            launches: Family::default(),
            ready: histograms(),
            drains: histograms(),
            reloads: histograms(),
            restarts: Family::default(),
            events: Family::default(),
            used: Mutex::default(),
        };
        let mut names = Names(registry);
        names.seconds("plan_duration", "asking a provider for a plan", &new.plans);
        names.seconds("prepare_duration", "obtaining an engine", &new.prepares);
        names.seconds("step_duration", "steps of plans", &new.steps);
        names.seconds("lock_wait", "waiting for who holds it", &new.waits);
        names.seconds("time_to_ready", "starting until ready", &new.ready);
        names.seconds("drain_duration", "finishing what a pool had", &new.drains);
        names.seconds("reload_duration", "changing a pool's engine", &new.reloads);
        names.count("cache_hits", "Steps whose result was there", &new.hits);
        names.count("cache_misses", "Steps whose result was made", &new.misses);
        names.count("fetched_bytes", "Bytes over the network", &new.fetched);
        names.count("fetches", "Files fetched over the network", &new.fetches);
        names.count("launches", "Starts of engines", &new.launches);
        names.count("restarts", "Starts of engines that fell", &new.restarts);
        names.count("events", "Events told", &new.events);
        new
    }

    pub(super) fn event(&self, event: &Event, pool: impl Fn() -> String) {
        let (actor, level) = (event.actor.as_str(), event.level.as_str());
        self.events.get_or_create(&ByLevel { actor, level }).inc();
        if let Some(reason) = event.cause {
            let pool = self.using(pool());
            let mut used = self.used.lock().expect("no holder panics");
            used.1.insert(reason);
            let labels = ByPoolReason { pool, reason };
            self.restarts.get_or_create(&labels).inc();
        }
    }

    pub(super) fn ended(&self, ended: &Ended, pool: impl Fn() -> String) {
        let (kind, outcome) = (ended.kind, ended.outcome.as_str());
        let pool = || self.using(pool());
        let by_pool = || ByPoolOutcome {
            pool: pool(),
            outcome,
        };
        match ended.work {
            Work::Plan => measure(&self.plans, &ByOutcome { outcome }, ended),
            Work::Prepare => measure(&self.prepares, &ByOutcome { outcome }, ended),
            Work::Step => self.step(ended),
            Work::Fetch => self.fetch(ended),
            Work::Wait => measure(&self.waits, &ByKind { kind }, ended),
            Work::Launch => {
                self.launches.get_or_create(&by_pool()).inc();
                if ended.outcome == Outcome::Done {
                    measure(&self.ready, &ByPool { pool: pool() }, ended);
                }
            }
            Work::Drain => measure(&self.drains, &by_pool(), ended),
            Work::Reload => measure(&self.reloads, &by_pool(), ended),
            Work::Job | Work::Ready => {}
        }
    }

    /// A step counts among those whose result was there or those whose result was made. One that failed
    /// before it came to that counts among neither.
    fn step(&self, ended: &Ended) {
        let (kind, outcome) = (ended.kind, ended.outcome.as_str());
        measure(&self.steps, &ByStep { kind, outcome }, ended);
        let family = match (ended.outcome, ended.made) {
            (Outcome::Cached, _) => &self.hits,
            (_, true) => &self.misses,
            (_, false) => return,
        };
        family.get_or_create(&ByKind { kind }).inc();
    }

    fn fetch(&self, ended: &Ended) {
        let (source, outcome) = (ended.kind, ended.outcome.as_str());
        let fetched = self.fetched.get_or_create_owned(&BySource { source });
        fetched.inc_by(ended.bytes);
        let labels = ByFetch { source, outcome };
        self.fetches.get_or_create(&labels).inc();
    }

    /// Notes that a pool is the value of a label.
    fn using(&self, pool: String) -> String {
        let mut used = self.used.lock().expect("no holder panics");
        if !used.0.contains(&pool) {
            used.0.insert(pool.clone());
        }
        pool
    }

    /// Forgets what was counted of pools that are no longer known.
    pub(super) fn forget(&self, is_known: impl Fn(&str) -> bool) {
        let mut used = self.used.lock().expect("no holder panics");
        let (pools, reasons) = &mut *used;
        pools.retain(|pool| {
            let known = is_known(pool);
            if !known {
                self.remove(pool, reasons);
            }
            known
        });
    }

    fn remove(&self, pool: &str, reasons: &BTreeSet<&'static str>) {
        let pool = pool.to_owned();
        for outcome in Outcome::ALL.iter().map(|outcome| outcome.as_str()) {
            let labels = ByPoolOutcome {
                pool: pool.clone(),
                outcome,
            };
            self.launches.remove(&labels);
            self.drains.remove(&labels);
            self.reloads.remove(&labels);
        }
        for reason in reasons {
            let labels = ByPoolReason {
                pool: pool.clone(),
                reason,
            };
            self.restarts.remove(&labels);
        }
        self.ready.remove(&ByPool { pool });
    }
}

fn measure<L: Clone + Hash + Eq>(histograms: &Histograms<L>, labels: &L, ended: &Ended) {
    let seconds = ended.duration.as_secs_f64();
    histograms.get_or_create(labels).observe(seconds);
}

/// Gives names and help texts.
struct Names<'a>(&'a mut Registry);

impl Names<'_> {
    fn seconds(&mut self, name: &str, of: &str, metric: &(impl Metric + Clone)) {
        let (name, help) = (format!("{name}_seconds"), format!("Seconds of {of}"));
        self.0.register(name, help, metric.clone());
    }

    fn count(&mut self, name: &str, help: &str, metric: &(impl Metric + Clone)) {
        self.0.register(name, help, metric.clone());
    }
}
