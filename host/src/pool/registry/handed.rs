//! Handoffs that are taken in, whoever wrote them.

use engine_provider_api::Mode;
use jiff::Timestamp;
use serde::Deserialize as _;
use serde_json::Value;

use super::{Registry, record::PoolRecord};
use crate::pool::{Health, PoolError, ReplicaState, Want};

impl Registry {
    /// Takes in a handoff, whoever wrote it: its replica is ready from now on. What optional fields do
    /// not say stays unknown; said again, it is updated.
    pub fn register_ready_from_handoff(
        &self,
        pool: &str,
        document: &Value,
    ) -> Result<(), PoolError> {
        let text = |name: &str| document.get(name).and_then(Value::as_str);
        let refuse = |message: &str| PoolError::Handoff {
            pool: pool.to_owned(),
            message: message.to_owned(),
        };
        let url = text("url").ok_or_else(|| refuse("it has no `url`"))?;
        if text("pool_id").is_some_and(|named| named != pool) {
            return Err(refuse("it is another pool's"));
        }
        let said = Said::of(document);
        let mut pools = self.shared.lock();
        let make = || PoolRecord::new("", Want::Up);
        let record = pools.entry(pool.to_owned()).or_insert_with(make);
        if let Some(engine) = text("engine") {
            engine.clone_into(&mut record.engine);
        }
        let replica = record.replica(text("replica_id").unwrap_or("r0"));
        let status = &mut replica.status;
        let is_known = status.health.ready
            && status.url.as_deref() == Some(url)
            && status.started_at == said.started_at;
        // Leases of an engine that is handed off once more are of the same engine.
        if !is_known {
            replica.epoch = self.shared.next_engine();
        }
        status.set(ReplicaState::Ready, "handed off");
        status.health = Health {
            live: true,
            ready: true,
        };
        status.url = Some(url.to_owned());
        status.engine_version = text("engine_version").map(str::to_owned);
        status.observed_version = text("observed_version").map(str::to_owned);
        status.dialect = text("dialect").map(str::to_owned);
        status.mode = said.mode;
        status.model = said.model;
        status.digest = said.digest;
        status.device_mask = said.device_mask;
        status.started_at = said.started_at;
        status.slots.total = said.slots.unwrap_or(1);
        status.heartbeat = Some(Timestamp::now());
        status.last_error = None;
        self.shared.tell(&pools, pool);
        Ok(())
    }
}

/// What a handoff says beside its names, each by itself: whoever wrote it may have left out the rest.
struct Said {
    mode: Option<Mode>,
    model: Option<String>,
    digest: Option<String>,
    device_mask: Vec<String>,
    started_at: Option<Timestamp>,
    slots: Option<u32>,
}

impl Said {
    fn of(document: &Value) -> Self {
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let model = &document["model"];
        let masks = document["device_mask"].as_array();
        let slots = document["slots_total"].as_u64();
        Self {
            mode: Mode::deserialize(&document["provisioning_mode"]).ok(),
            model: text(&model["id"]),
            digest: text(&model["digest"]),
            device_mask: masks.into_iter().flatten().filter_map(text).collect(),
            started_at: Timestamp::deserialize(&document["started_at"]).ok(),
            slots: slots.and_then(|slots| u32::try_from(slots).ok()),
        }
    }
}
