//! What is known of pools, as metrics: read from the registry when somebody looks, kept nowhere else.
//!
//! | metric | labels | value |
//! |---|---|---|
//! | `engine_host_replica_state` | `pool`, `replica`, `state` | 1 for the state it is in, 0 for all others |
//! | `engine_host_replica_breaker_state` | `pool`, `replica`, `state` | the same for its breaker |
//! | `engine_host_replica_ready` | `pool`, `replica` | whether it serves |
//! | `engine_host_slots`, `engine_host_slots_free` | `pool`, `replica` | requests at the same time |
//! | `engine_host_leases` | `pool`, `replica` | leases held |
//! | `engine_host_vram_reserved_bytes` | `pool`, `replica` | where device memory is reserved |
//! | `engine_host_heartbeat_timestamp_seconds` | `pool`, `replica` | when it last answered |

use std::fmt;

use super::{BreakerState, PoolStatus, Registry, ReplicaState, ReplicaStatus};
use crate::narrate::metrics::{
    Metrics,
    prometheus_client::{
        collector::Collector,
        encoding::{DescriptorEncoder, EncodeMetric as _},
        metrics::{MetricType, gauge::ConstGauge},
    },
};

/// Shows the pools of this registry among these metrics, and lets only them be values of labels.
pub fn observe(metrics: &Metrics, registry: &Registry) {
    let known = registry.clone();
    metrics.know_pools(move |pool| known.knows(pool));
    let pools = Pools(registry.clone());
    metrics.extend(|all| all.register_collector(Box::new(pools)));
}

#[derive(Debug)]
struct Pools(Registry);

impl Collector for Pools {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let pools = self.0.list();
        Page { encoder, pools }.write()
    }
}

struct Page<'a> {
    encoder: DescriptorEncoder<'a>,
    pools: Vec<PoolStatus>,
}

impl Page<'_> {
    fn write(mut self) -> fmt::Result {
        self.states()?;
        let ready = |it: &ReplicaStatus| Some(f64::from(u8::from(it.health.ready)));
        self.gauge("replica_ready", "Whether a replica serves", ready)?;
        let slots = |it: &ReplicaStatus| Some(f64::from(it.slots.total));
        self.gauge("slots", "Requests that are served at the same time", slots)?;
        let free = |it: &ReplicaStatus| Some(f64::from(it.slots.free));
        self.gauge("slots_free", "Slots that nobody has leased", free)?;
        let leases = |it: &ReplicaStatus| Some(f64::from(it.leases));
        self.gauge("leases", "Leases held", leases)?;
        #[expect(
            clippy::cast_precision_loss,
            reason = "bytes beyond 2^53 are no device's"
        )]
        let vram = |it: &ReplicaStatus| it.vram_bytes.map(|bytes| bytes as f64);
        self.gauge("vram_reserved_bytes", "Device memory reserved", vram)?;
        let heard = |it: &ReplicaStatus| Some(it.heartbeat?.as_duration().as_secs_f64());
        self.gauge("heartbeat_timestamp_seconds", "Last answer", heard)
    }

    /// One family with a sample for every replica that has a value.
    fn gauge(
        &mut self,
        name: &str,
        help: &str,
        value: impl Fn(&ReplicaStatus) -> Option<f64>,
    ) -> fmt::Result {
        let kind = MetricType::Gauge;
        let help = format!("{help}.");
        let mut family = self.encoder.encode_descriptor(name, &help, None, kind)?;
        for pool in &self.pools {
            for replica in &pool.replicas {
                let Some(value) = value(replica) else {
                    continue;
                };
                let labels = [
                    ("pool", pool.pool_id.as_str()),
                    ("replica", replica.replica_id.as_str()),
                ];
                ConstGauge::new(value).encode(family.encode_family(&labels)?)?;
            }
        }
        Ok(())
    }

    fn states(&mut self) -> fmt::Result {
        let states = ReplicaState::ALL.iter().map(|it| (it.as_str(), *it));
        let is = |replica: &ReplicaStatus, state| replica.state == state;
        self.one_of("replica_state", "State of a replica", states, is)?;
        let states = BreakerState::ALL.iter().map(|it| (it.as_str(), *it));
        let is = |replica: &ReplicaStatus, state| replica.breaker == state;
        let help = "State of the breaker of a replica";
        self.one_of("replica_breaker_state", help, states, is)
    }

    /// One family with a sample for every replica and state, of which one is 1.
    fn one_of<S: Copy>(
        &mut self,
        name: &str,
        help: &str,
        states: impl Iterator<Item = (&'static str, S)> + Clone,
        is: impl Fn(&ReplicaStatus, S) -> bool,
    ) -> fmt::Result {
        let kind = MetricType::Gauge;
        let help = format!("{help}.");
        let mut family = self.encoder.encode_descriptor(name, &help, None, kind)?;
        for pool in &self.pools {
            for replica in &pool.replicas {
                for (word, state) in states.clone() {
                    let labels = [
                        ("pool", pool.pool_id.as_str()),
                        ("replica", replica.replica_id.as_str()),
                        ("state", word),
                    ];
                    let value = i64::from(is(replica, state));
                    ConstGauge::new(value).encode(family.encode_family(&labels)?)?;
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::Want;

    #[test]
    fn what_is_known_of_a_replica_is_what_the_page_says() {
        let (metrics, registry) = (Metrics::default(), Registry::default());
        observe(&metrics, &registry);
        assert!(!metrics.encode().contains("pool="));
        registry.declare("chat", "toy", Want::Up, &["r0".to_owned()]);
        registry.update("chat", "r0", |status| {
            status.set(ReplicaState::Ready, "it answers");
            status.health.ready = true;
            status.slots.total = 4;
            status.vram_bytes = Some(1 << 30);
        });
        let lease = registry.lease("chat").unwrap();
        let page = metrics.encode();
        let samples: Vec<&str> = page.lines().filter(|it| it.contains("pool=")).collect();
        insta::assert_snapshot!(samples.join("\n"), @r#"
        engine_host_leases{pool="chat",replica="r0"} 1.0
        engine_host_replica_breaker_state{pool="chat",replica="r0",state="closed"} 1
        engine_host_replica_breaker_state{pool="chat",replica="r0",state="half-open"} 0
        engine_host_replica_breaker_state{pool="chat",replica="r0",state="open"} 0
        engine_host_replica_ready{pool="chat",replica="r0"} 1.0
        engine_host_replica_state{pool="chat",replica="r0",state="backing-off"} 0
        engine_host_replica_state{pool="chat",replica="r0",state="broken"} 0
        engine_host_replica_state{pool="chat",replica="r0",state="draining"} 0
        engine_host_replica_state{pool="chat",replica="r0",state="failed"} 0
        engine_host_replica_state{pool="chat",replica="r0",state="preparing"} 0
        engine_host_replica_state{pool="chat",replica="r0",state="ready"} 1
        engine_host_replica_state{pool="chat",replica="r0",state="starting"} 0
        engine_host_replica_state{pool="chat",replica="r0",state="stopped"} 0
        engine_host_replica_state{pool="chat",replica="r0",state="stopping"} 0
        engine_host_slots{pool="chat",replica="r0"} 4.0
        engine_host_slots_free{pool="chat",replica="r0"} 3.0
        engine_host_vram_reserved_bytes{pool="chat",replica="r0"} 1073741824.0
        "#);
        drop(lease);
        assert!(
            metrics
                .encode()
                .contains("engine_host_slots_free{pool=\"chat\",replica=\"r0\"} 4")
        );
        registry.remove("chat");
        assert!(!metrics.encode().contains("chat"));
    }
}
