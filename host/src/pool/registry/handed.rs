//! Handoffs that are taken in, whoever wrote them.

use engine_provider_api::Mode;
use jiff::Timestamp;
use serde::Deserialize as _;
use serde_json::Value;

use super::Registry;
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
        let replica = text("replica_id").unwrap_or("r0");
        let said = Said::of(document);
        self.declare_with(pool, text("engine"), replica);
        self.serve_anew(pool, replica, |status| {
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
        });
        Ok(())
    }

    /// Makes a replica known where it is not, and its engine where that is named.
    fn declare_with(&self, pool: &str, engine: Option<&str>, replica: &str) {
        let known = self.shared.lock().get(pool).map(|record| {
            let names = record.replicas.keys().cloned();
            (
                record.want,
                record.engine.clone(),
                names.collect::<Vec<String>>(),
            )
        });
        let (want, before, mut names) = known.unwrap_or((Want::Up, String::new(), Vec::new()));
        let engine = engine.unwrap_or(&before);
        let is_new = !names.iter().any(|name| name == replica);
        if is_new {
            names.push(replica.to_owned());
        }
        if is_new || engine != before {
            self.declare(pool, engine, want, &names);
        }
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
