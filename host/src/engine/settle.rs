//! What an earlier engine of the same instance means for a start.
//!
//! One that stays is reported as running. One that is on its way out (its host was killed, somebody
//! stops it, its start was given up) is waited for: telling its URL would hand out an engine that is
//! about to end. Whoever ends it normally does so in time; where they were killed half-way, it is
//! ended here.

use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;

use super::{EngineError, Instance, instance, leftover, stop};
use crate::{
    config::paths::Home,
    narrate::{Actor, Narrator},
};

/// How long the minder of a dead engine may still take.
const CLEAN_UP_LIMIT: Duration = Duration::from_secs(15);

/// Pause between two looks.
const INTERVAL: Duration = Duration::from_millis(5);

/// The engine of this instance that stays, once nothing of any other is left. To be called with the
/// instance's lock held.
pub(super) async fn settle(
    home: &Home,
    key: &str,
    narrator: &Narrator,
    cancel: &CancellationToken,
) -> Result<Option<Instance>, EngineError> {
    let start = Instant::now();
    let mut told = false;
    loop {
        let Some(found) = instance::recorded(home, key)? else {
            return Ok(None);
        };
        if found.stays() {
            return Ok(Some(found));
        }
        let alive = found.is_alive();
        let clean_up = CLEAN_UP_LIMIT + farewell_limit(&found);
        if !alive && (!found.is_watched() || start.elapsed() > clean_up) {
            leftover::settle(home, &found).await?;
            return Ok(None);
        }
        if alive && start.elapsed() > patience(&found) {
            stop::finish(home, &found).await?;
        }
        if alive && !std::mem::replace(&mut told, true) {
            let words = format!("waiting for the engine on {} to end", found.url);
            narrator.say(Actor::EngineProvisioner, "launch", &found.pool_id, words);
        }
        tokio::select! {
            () = tokio::time::sleep(INTERVAL) => {}
            () = cancel.cancelled() => return Err(EngineError::Cancelled),
        }
    }
}

/// Longest time whoever ends an engine takes to do so: draining and the grace after TERM.
fn patience(instance: &Instance) -> Duration {
    stop::DRAIN_LIMIT + Duration::from_millis(instance.grace_ms)
}

/// Longest time its minder takes to remove what it leaves elsewhere.
fn farewell_limit(instance: &Instance) -> Duration {
    let container = instance.container.as_ref();
    container.map_or(Duration::ZERO, |it| it.farewell.limit())
}
