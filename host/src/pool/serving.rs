//! An engine that serves as a replica: started or adopted, asked whether it lives, told in the registry.

use std::{
    path::Path,
    sync::{Mutex, MutexGuard},
    time::{Duration, Instant},
};

use jiff::Timestamp;
use tokio_util::sync::CancellationToken;

use super::{
    Cause, Health, PoolError, ReplicaState, ReplicaStatus, Reserved, Supervision, placing::Placed,
    replica::Replica,
};
use crate::{
    drive::{Host, Startable},
    engine::{self, EngineEnd, Instance, Outcome, RunningEngine},
    fault::{Because, Failure},
};

/// Moments of an interval at which engines are asked. One is asked late by the pause between two at most.
const LOOKS_TOGETHER: u32 = 20;

/// How long an engine that cannot be kept is waited for, in case it has ended.
const END_LIMIT: Duration = Duration::from_secs(1);

/// An engine that serves.
#[derive(Debug)]
pub(super) struct Serving {
    pub(super) engine: RunningEngine,
    /// What it was made of, before it was placed; not known of one that was adopted, until it was
    /// compared with what the pool file has.
    pub(super) startable: Option<Startable>,
    /// Its GPUs.
    reserved: Reserved,
    /// Its number in the registry, which its leases carry.
    pub(super) epoch: u64,
    /// How it answered so far; kept apart from whoever waits, who may be interrupted.
    looks: Mutex<Looks>,
}

/// How an engine that served has fallen.
#[derive(Debug)]
pub(super) enum Fall {
    /// It has ended.
    Ended(EngineEnd),
    /// It runs and does not answer.
    Hung {
        /// What its probe said last.
        said: String,
    },
}

/// How an engine answers when it is asked whether it lives.
#[derive(Debug, Default)]
struct Looks {
    /// When it is asked next.
    next: Option<Instant>,
    /// How often it has not answered, in a row.
    missed: u32,
}

impl Serving {
    /// Starts an engine, or adopts the one that runs already with the same command. `beside`: while the
    /// replica's old one serves, which it takes over from.
    pub(super) async fn start(
        replica: &Replica,
        host: &Host,
        startable: &Startable,
        beside: bool,
    ) -> Result<Self, Because> {
        let Placed {
            base,
            startable: placed,
            mut reserved,
        } = Box::pin(replica.place(host, startable)).await?;
        // Beside another one it is not this engine that serves.
        if !beside {
            replica.show(|status| status.describe(&placed, &reserved));
        }
        let handoffs = &replica.request.handoff_dir;
        // So that whoever asks why it does not come up finds where it says so.
        let launched = |log: &Path| replica.show(|status| status.log = Some(log.to_owned()));
        let started = match beside {
            false => {
                let name = &replica.name;
                host.start_again(&placed, name, handoffs, &launched).await
            }
            true => host.start_beside(&placed, &replica.name, handoffs).await,
        };
        let mut engine = match started.map_err(Failure::from)? {
            Outcome::Started(engine) => *engine,
            Outcome::AlreadyRunning(instance) => {
                host.adopt(&instance).await.map_err(Failure::from)?
            }
        };
        let ready = async {
            if let Some(limit) = replica.shared.outlive {
                engine.keep_for(limit).await?;
            }
            reserved.transfer_to(engine.instance().process).await?;
            // Last: from here on it is this one that whoever reads handoffs is led to.
            if beside {
                engine.take_over()?;
            }
            Ok::<(), Failure>(())
        };
        if let Err(error) = ready.await {
            // An engine that ended in that moment took its keeper along: how it ended says more.
            let because = match tokio::time::timeout(END_LIMIT, engine.wait_exit()).await {
                Ok(end) => fell(end, replica).1,
                Err(_) => error.into(),
            };
            let _ = engine.stop(&CancellationToken::new()).await;
            return Err(because);
        }
        let registry = &replica.shared.registry;
        let epoch = registry.serve_anew(&replica.pool, &replica.name, |status| {
            status.describe(&placed, &reserved);
            status.serve(&engine);
        });
        Ok(Self {
            engine,
            startable: Some(base),
            reserved,
            epoch,
            looks: Mutex::default(),
        })
    }

    /// Adopts the engine that a host before this one has left, where it did. Nothing is prepared for it:
    /// it serves.
    pub(super) async fn adopt(replica: &Replica, host: &Host) -> Option<Self> {
        let handoffs = std::path::absolute(&replica.request.handoff_dir).ok()?;
        let (home, pool, name) = (
            host.home.clone(),
            replica.pool.clone(),
            replica.name.clone(),
        );
        let find = move || engine::find_running(&home, &handoffs, &pool, &name);
        let found = tokio::task::spawn_blocking(find).await;
        let found = found.expect("looking does not panic");
        let instance = found.ok()?.filter(Instance::stays)?;
        let adopted = Self::take_in(replica, host, &instance).await;
        // Then it is started as usual, which says what is in the way.
        let told = |failure: &Failure| {
            let human = format!("the engine at {} was not adopted: {failure}", instance.url);
            replica
                .narrator
                .warn(super::ACTOR, "adopt", &replica.name, human);
        };
        adopted.inspect_err(told).ok()
    }

    async fn take_in(replica: &Replica, host: &Host, instance: &Instance) -> Result<Self, Failure> {
        let mut engine = host.adopt(instance).await?;
        if let Some(limit) = replica.shared.outlive {
            engine.keep_for(limit).await?;
        }
        let reservations = &replica.shared.reservations;
        let process = instance.process;
        let reserved = reservations
            .adopt(&replica.pool, &replica.name, process, Vec::new())
            .await?;
        let registry = &replica.shared.registry;
        let epoch = registry.serve_anew(&replica.pool, &replica.name, |status| {
            status.describe_adopted(instance, &reserved);
            status.serve(&engine);
        });
        let human = format!(
            "adopted the engine at {}, pid {}",
            instance.url, process.pid
        );
        replica
            .narrator
            .say(super::ACTOR, "adopt", &replica.name, human);
        Ok(Self {
            engine,
            startable: None,
            reserved,
            epoch,
            looks: Mutex::default(),
        })
    }

    /// Whether a start of this would give another engine than the one that was adopted, which may keep its
    /// GPUs.
    pub(super) async fn differs(&self, replica: &Replica, startable: &Startable) -> bool {
        let host = &replica.shared.host;
        let Ok(placed) = replica.place_on(host, startable, &self.reserved).await else {
            return true;
        };
        let handoffs = &replica.request.handoff_dir;
        let running = self.engine.instance();
        let difference = host.difference(&placed, &replica.name, handoffs, running);
        // What cannot be compared is not taken for the same.
        difference.map_or(true, |lines| !lines.is_empty())
    }

    /// Ends it; its GPUs are free then.
    pub(super) async fn end(self, hurry: &CancellationToken) -> Result<(), engine::EngineError> {
        self.engine.stop(hurry).await
    }

    /// Lets it run on.
    pub(super) fn leave(self) {
        self.reserved.leave();
    }

    /// Whether starting this would give the same engine.
    pub(super) fn is_like(&self, startable: &Startable) -> bool {
        let own = self.startable.as_ref();
        own.is_some_and(|own| own.is_like(startable))
    }

    /// Resolves when it has ended.
    pub(super) async fn gone(&self) {
        let _ = self.engine.wait_exit().await;
    }

    /// Resolves when it has fallen. Nothing is done about it yet: whoever waits may be interrupted.
    pub(super) async fn falls(&self, settings: &Supervision, replica: &Replica) -> Fall {
        tokio::select! {
            end = self.engine.wait_exit() => Fall::Ended(end),
            said = self.hangs(settings, replica) => Fall::Hung { said },
        }
    }

    /// What a fall was; one that hangs is ended.
    pub(super) async fn account_for(
        &self,
        fall: Fall,
        settings: &Supervision,
        replica: &Replica,
    ) -> (Cause, Because) {
        let said = match fall {
            Fall::Ended(end) => return fell(end, replica),
            Fall::Hung { said } => said,
        };
        let finding = self.engine.finding();
        let cause = Cause::of_hang(finding.as_ref());
        let error = PoolError::Hung {
            pool: replica.pool.clone(),
            replica: replica.name.clone(),
            asked: settings.liveness_failures,
            said,
            finding: finding.map(Box::new),
        };
        let narrator = &replica.narrator;
        narrator.fail(super::ACTOR, "hang", &replica.name, &error);
        // Nothing can be expected of it: no draining, no grace.
        let hurry = CancellationToken::new();
        hurry.cancel();
        let _ = Box::pin(self.engine.stop(&hurry)).await;
        (cause, Failure::from(error).into())
    }

    fn looks(&self) -> MutexGuard<'_, Looks> {
        self.looks.lock().expect("no holder panics")
    }

    /// Whether it answers, and does so itself.
    async fn is_alive(&self, limit: Duration, replica: &Replica) -> Result<(), String> {
        self.engine.ask_alive(limit).await?;
        let shared = &replica.shared;
        let (keeper, listening) = (&shared.host.keeper, &shared.listening);
        self.engine.ask_whose_port(keeper, listening).await
    }

    /// Resolves when it has not answered too often in a row, with what its probe said last.
    async fn hangs(&self, settings: &Supervision, replica: &Replica) -> String {
        loop {
            let next = *self.looks().next.get_or_insert_with(|| {
                let (now, since) = (Instant::now(), replica.shared.since);
                next_look(now, since, settings.liveness_interval)
            });
            tokio::time::sleep_until(next.into()).await;
            let answered = self.is_alive(settings.liveness_timeout, replica).await;
            let missed = self.looks().looked(answered.is_ok());
            match answered {
                Ok(()) => replica.shared.registry.heard(&replica.pool, &replica.name),
                Err(said) if missed >= settings.liveness_failures => return said,
                Err(_) => {}
            }
            // Only of a pool that stops when it is idle does anybody want to know.
            if replica.shared.registry.is_on_demand(&replica.pool)
                && let Some(in_flight) = engine::in_flight(self.engine.instance()).await
                && in_flight > 0.0
            {
                replica.shared.registry.touch(&replica.pool);
            }
        }
    }
}

impl Looks {
    /// Notes an answer, or that there was none; how many were missed in a row.
    fn looked(&mut self, answered: bool) -> u32 {
        self.next = None;
        self.missed = match answered {
            true => 0,
            false => self.missed.saturating_add(1),
        };
        self.missed
    }
}

/// When an engine is asked next: `interval` from now or a little later, at a moment at which others are
/// asked too, so that asking hundreds of them wakes this process a few times a second.
fn next_look(now: Instant, since: Instant, interval: Duration) -> Instant {
    let step = (interval / LOOKS_TOGETHER)
        .max(Duration::from_nanos(1))
        .as_nanos();
    let next = now + interval;
    let over = next.saturating_duration_since(since).as_nanos() % step;
    next + Duration::from_nanos(u64::try_from(step - over).unwrap_or(0))
}

fn fell(end: EngineEnd, replica: &Replica) -> (Cause, Because) {
    match end {
        EngineEnd::Crashed(error) => (Cause::of(&error), Failure::from(error).into()),
        EngineEnd::Stopped => {
            let error = PoolError::StoppedElsewhere {
                pool: replica.pool.clone(),
                replica: replica.name.clone(),
            };
            (Cause::Stopped, Failure::from(error).into())
        }
    }
}

impl ReplicaStatus {
    /// What is known once it is prepared.
    pub(super) fn describe(&mut self, startable: &Startable, reserved: &Reserved) {
        let engine = startable.engine();
        self.engine_version = Some(engine.engine_version.clone());
        self.provider_version = Some(startable.provider_version().to_owned());
        self.mode = Some(engine.provisioning_mode);
        self.model = Some(engine.model.id.clone());
        self.workloads = engine.workloads.iter().map(ToString::to_string).collect();
        self.dialect = Some(engine.dialect.clone());
        self.digest.clone_from(&engine.model.digest);
        self.device_mask.clone_from(&engine.device_mask);
        self.vram_bytes = Some(reserved.bytes()).filter(|bytes| *bytes > 0);
        self.slots.total = engine.slots_total;
    }

    /// What is known of an engine that was adopted.
    fn describe_adopted(&mut self, instance: &Instance, reserved: &Reserved) {
        self.engine_version = Some(instance.engine_version.clone());
        self.provider_version
            .clone_from(&instance.known.provider_version);
        self.workloads.clone_from(&instance.known.workloads);
        self.mode = Some(instance.provisioning_mode);
        self.vram_bytes = Some(reserved.bytes()).filter(|bytes| *bytes > 0);
        if let Some(handoff) = &instance.known.handoff {
            self.observed_version.clone_from(&handoff.observed_version);
            self.model = Some(handoff.model.id.clone());
            self.digest.clone_from(&handoff.model.digest);
            self.dialect.clone_from(&handoff.dialect);
            self.device_mask.clone_from(&handoff.device_mask);
            self.slots.total = handoff.slots_total.unwrap_or(1);
        }
    }

    /// It serves.
    pub(super) fn serve(&mut self, engine: &RunningEngine) {
        let instance = engine.instance();
        self.set(ReplicaState::Ready, format!("answers on {}", instance.url));
        self.health = Health {
            live: true,
            ready: true,
        };
        self.url = Some(instance.url.clone());
        self.pid = Some(instance.process.pid);
        self.started_at = Some(instance.started_at);
        self.heartbeat = Some(Timestamp::now());
        self.log = Some(instance.log.clone());
        self.last_error = None;
    }

    /// Nothing runs: what was known of the engine holds no longer.
    pub(super) fn clear_engine(&mut self) {
        self.health = Health::default();
        self.url = None;
        self.pid = None;
        self.started_at = None;
        self.vram_bytes = None;
        self.device_mask = Vec::new();
        self.slots = super::Slots::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn engines_are_asked_together_and_hardly_later_than_their_interval_says() {
        let (since, interval) = (Instant::now(), Duration::from_secs(5));
        let mut moments = std::collections::BTreeSet::new();
        for milliseconds in 0..5000 {
            let now = since + Duration::from_secs(1000) + Duration::from_millis(milliseconds);
            let next = next_look(now, since, interval);
            let late = next - (now + interval);
            assert!(late <= interval / LOOKS_TOGETHER, "{late:?}");
            moments.insert(next);
        }
        assert!(moments.len() <= 21, "{}", moments.len());
        // However short an interval is, it passes.
        let now = since + Duration::from_millis(7);
        assert!(next_look(now, since, Duration::from_nanos(3)) > now);
    }
}
