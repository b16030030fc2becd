//! What earlier engines of the same instance mean for a start.
//!
//! One that stays is reported as running. One that is on its way out (its host was killed, somebody
//! stops it, its start was given up) is waited for: telling its URL would hand out an engine that is
//! about to end. Whoever ends it normally does so in time; where they were killed half-way, it is
//! ended here.

use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;

use super::{EngineError, Instance, Side, leftover, records, side, stop};
use crate::{
    config::paths::Home,
    narrate::{Actor, Narrator},
    process::ProcessIdentity,
};

/// How long the minder of a dead engine may still take.
const CLEAN_UP_LIMIT: Duration = Duration::from_secs(15);

/// Pause between two looks.
const INTERVAL: Duration = Duration::from_millis(5);

/// The engine of this instance that stands. Where none does, nothing is left of any; where another one
/// stays beside it that nobody looks after, that one is ended. To be called with the instance's lock
/// held.
pub(super) async fn settle(
    home: &Home,
    key: &str,
    narrator: &Narrator,
    cancel: &CancellationToken,
) -> Result<Option<Instance>, EngineError> {
    let mut leaving = Leaving::new(home, narrator, cancel);
    loop {
        let sides = records::recorded_sides(home, key)?;
        if let Some(standing) = side::standing(&sides) {
            end_rivals(home, standing, &sides, narrator).await?;
            return Ok(Some(standing.clone()));
        }
        if leaving.see_off(&sides).await? {
            return Ok(None);
        }
    }
}

/// Waits until nothing is left of what was on one side. To be called with the instance's lock held.
pub(super) async fn make_room(
    home: &Home,
    key: &str,
    side: Side,
    narrator: &Narrator,
    cancel: &CancellationToken,
) -> Result<(), EngineError> {
    let mut leaving = Leaving::new(home, narrator, cancel);
    loop {
        let found = records::recorded(home, &side.key(key))?;
        if let Some(stays) = found.as_ref().filter(|found| found.stays()) {
            return Err(EngineError::BothSides {
                pool: stays.pool_id.clone(),
                url: stays.url.clone(),
            });
        }
        if leaving.see_off(found.as_slice()).await? {
            return Ok(());
        }
    }
}

/// Ends what stays beside the one that stands and has nobody: its host was killed while it swapped.
pub(super) async fn end_rivals(
    home: &Home,
    standing: &Instance,
    sides: &[Instance],
    narrator: &Narrator,
) -> Result<(), EngineError> {
    let rivals = sides
        .iter()
        .filter(|side| side.process != standing.process && side.is_alive() && !side.is_attended());
    for rival in rivals {
        let words = format!(
            "ending the engine on {}, in whose place the one on {} stands",
            rival.url, standing.url
        );
        narrator.say(Actor::EngineProvisioner, "stop", &rival.pool_id, words);
        rival.mark_stopping(home);
        stop::finish(home, rival).await?;
    }
    Ok(())
}

/// Engines that do not stay, waited for.
struct Leaving<'a> {
    home: &'a Home,
    narrator: &'a Narrator,
    cancel: &'a CancellationToken,
    start: Instant,
    told: bool,
    /// Those of which nothing is left, whatever their records say.
    gone: Vec<ProcessIdentity>,
}

impl<'a> Leaving<'a> {
    fn new(home: &'a Home, narrator: &'a Narrator, cancel: &'a CancellationToken) -> Self {
        Self {
            home,
            narrator,
            cancel,
            start: Instant::now(),
            told: false,
            gone: Vec::new(),
        }
    }

    /// One round: whether nothing is left of these; else a pause.
    async fn see_off(&mut self, all: &[Instance]) -> Result<bool, EngineError> {
        let mut left = false;
        for found in all {
            if !self.gone.contains(&found.process) {
                left |= !self.has_gone(found).await?;
            }
        }
        if !left {
            return Ok(true);
        }
        tokio::select! {
            () = tokio::time::sleep(INTERVAL) => Ok(false),
            () = self.cancel.cancelled() => Err(EngineError::Cancelled),
        }
    }

    async fn has_gone(&mut self, found: &Instance) -> Result<bool, EngineError> {
        let (alive, waited) = (found.is_alive(), self.start.elapsed());
        let clean_up = CLEAN_UP_LIMIT + farewell_limit(found);
        if !alive && (!found.is_watched() || waited > clean_up) {
            leftover::settle(self.home, found).await?;
            self.gone.push(found.process);
            return Ok(true);
        }
        if alive && (!found.is_watched() || waited > patience(found)) {
            stop::finish(self.home, found).await?;
        }
        if alive && !std::mem::replace(&mut self.told, true) {
            let words = format!("waiting for the engine on {} to end", found.url);
            let narrator = self.narrator;
            narrator.say(Actor::EngineProvisioner, "launch", &found.pool_id, words);
        }
        Ok(false)
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
