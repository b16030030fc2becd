//! Numbers for Prometheus: what happened is counted when it is told, what is the case is asked for
//! when somebody looks.
//!
//! [`Metrics`] is a sink: events and ended work ([`Ended`]) are all that it counts, so that every
//! number follows from something that was done. What is known of pools comes from a collector that
//! the pool room registers: state is read, never kept twice. Nothing is made up on a scrape.
//!
//! Values of labels come from fixed lists; the only names among them are those of pools, and of these
//! only such as the pool room knows ([`Metrics::know_pools`]): all others are counted as `other`.
//!
//! | metric | labels |
//! |---|---|
//! | `engine_host_build_info` | `version` |
//! | `engine_host_plan_duration_seconds` | `outcome` |
//! | `engine_host_prepare_duration_seconds` | `outcome` |
//! | `engine_host_step_duration_seconds` | `kind`, `outcome` |
//! | `engine_host_cache_hits_total`, `…_misses_total` | `kind` of step |
//! | `engine_host_fetched_bytes_total`, `engine_host_fetches_total` | `source` (and `outcome`) |
//! | `engine_host_lock_wait_seconds` | `kind` of what is waited for |
//! | `engine_host_launches_total` | `pool`, `outcome` |
//! | `engine_host_time_to_ready_seconds` | `pool` |
//! | `engine_host_drain_duration_seconds`, `…_reload_…` | `pool`, `outcome` |
//! | `engine_host_restarts_total` | `pool`, `reason` |
//! | `engine_host_events_total` | `actor`, `level` |

mod exposition;
mod families;
mod labels;
mod sample;

use std::sync::{Arc, Mutex, OnceLock};

pub use prometheus_client;
use prometheus_client::{encoding::text, metrics::info::Info, registry::Registry};

pub use self::exposition::{Exposition, Limits, Taken};
use self::families::Families;
use super::{Context, Ended, Event, Sink};

/// The pool that stands for all that are not known.
const OTHER: &str = "other";

/// What every name begins with.
const PREFIX: &str = "engine_host";

/// Whether a pool is known.
type Known = Box<dyn Fn(&str) -> bool + Send + Sync>;

/// Counts and measures. Cheap to clone; clones count together.
#[derive(Clone)]
pub struct Metrics {
    shared: Arc<Shared>,
}

struct Shared {
    registry: Mutex<Registry>,
    known: OnceLock<Known>,
    families: Families,
}

impl Default for Metrics {
    fn default() -> Self {
        let mut registry = Registry::with_prefix(PREFIX);
        let families = Families::register(&mut registry);
        let build = Info::new([("version", env!("CARGO_PKG_VERSION"))]);
        registry.register("build", "This program", build);
        Self {
            shared: Arc::new(Shared {
                registry: Mutex::new(registry),
                known: OnceLock::new(),
                families,
            }),
        }
    }
}

impl Metrics {
    /// Says which pools there are: only those become values of labels. The first word counts.
    pub fn know_pools(&self, known: impl Fn(&str) -> bool + Send + Sync + 'static) {
        let _ = self.shared.known.set(Box::new(known));
    }

    /// Lets another room add metrics; the prefix `engine_host` is there already.
    pub fn extend(&self, add: impl FnOnce(&mut Registry)) {
        add(&mut self.shared.registry.lock().expect("no holder panics"));
    }

    /// The page, in Prometheus' text format 0.0.4.
    #[must_use]
    pub fn encode(&self) -> String {
        self.exposition().text()
    }

    /// The page, to which those of engines can be added.
    #[must_use]
    pub fn exposition(&self) -> Exposition {
        self.shared.families.forget(|pool| self.is_known(pool));
        let mut page = String::new();
        let registry = self.shared.registry.lock().expect("no holder panics");
        text::encode(&mut page, &registry).expect("writing to a text cannot fail");
        drop(registry);
        let mut exposition = Exposition::default();
        exposition.add_own(&page);
        exposition
    }

    fn is_known(&self, pool: &str) -> bool {
        pool == OTHER || self.shared.known.get().is_some_and(|known| known(pool))
    }

    fn pool_of(&self, context: &Context) -> String {
        let pool = context.pool_id.as_deref().unwrap_or(OTHER);
        if self.is_known(pool) { pool } else { OTHER }.to_owned()
    }
}

impl Sink for Metrics {
    fn event(&self, event: &Event) {
        let families = &self.shared.families;
        families.event(event, || self.pool_of(&event.context));
    }

    fn ended(&self, ended: &Ended) {
        let families = &self.shared.families;
        families.ended(ended, || self.pool_of(&ended.context));
    }
}

impl std::fmt::Debug for Metrics {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Metrics").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
