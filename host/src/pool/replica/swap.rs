//! Another engine in place of the one that serves: beside it where both fit, else after it. On any
//! failure the one that ran before serves, still or again.

use std::{pin::pin, time::Instant};

use futures_util::future::join;
use tokio_util::sync::CancellationToken;

use super::{Replica, task::Swapped};
use crate::{
    drive::{Host, Startable},
    fault::{Because, Failure, Fault as _},
    narrate::{Actor, Narrator},
    pool::{
        Cause, ReplicaState,
        serving::{Fall, Serving},
        turn::Turn,
    },
};

/// Kind of [`crate::engine::EngineError::NoPort`].
const NO_PORT: &str = "no-port";

/// A swap that did not come about, or whose engine did not last until its predecessor was gone.
pub(super) struct Unswapped {
    pub(super) told: Swapped,
    pub(super) left: Left,
}

/// What a swap has left.
pub(super) enum Left {
    /// An engine that serves.
    Serving,
    /// None; why the last one fell, or did not come up.
    Lost(Cause, Because),
    /// None; it was given up before the next one came up.
    Nothing,
}

impl Unswapped {
    fn failed(serving: &str, source: Because, left: Left) -> Self {
        let serving = serving.to_owned();
        let told = Swapped::Failed { serving, source };
        Self { told, left }
    }

    fn given_up(left: Left) -> Self {
        let told = Swapped::GivenUp;
        Self { told, left }
    }
}

impl Replica {
    /// Holds an engine that was adopted against what the pool file has, and swaps it where that is
    /// something else. Where this fails the engine serves on.
    pub(super) async fn compare(
        &mut self,
        serving: &mut Serving,
        prepared: Result<Startable, Failure>,
        turn: &Turn,
    ) -> Left {
        let (failed, left) = match prepared {
            Ok(startable) if serving.differs(self, &startable).await => {
                match self.swap(serving, startable, turn).await {
                    Err(Unswapped { told, left }) => match told {
                        Swapped::Failed { source, .. } => (Some(source), left),
                        Swapped::Same | Swapped::Done { .. } | Swapped::GivenUp => (None, left),
                    },
                    Ok(_) => (None, Left::Serving),
                }
            }
            Ok(startable) => {
                serving.startable = Some(startable.clone());
                self.starts_from(startable);
                (None, Left::Serving)
            }
            Err(failure) => (Some(failure.into()), Left::Serving),
        };
        if let Some(error) = failed {
            let human = format!("what runs is not what the pool file has: {error}");
            let narrator = &self.narrator;
            narrator.warn(Actor::PoolManager, "adopt", &self.name, human);
        }
        left
    }

    /// Runs another engine in place of this one.
    pub(super) async fn swap(
        &mut self,
        serving: &mut Serving,
        startable: Startable,
        turn: &Turn,
    ) -> Result<Swapped, Unswapped> {
        let same = match &serving.startable {
            Some(_) => serving.is_like(&startable),
            // Adopted, and not compared yet.
            None => !serving.differs(self, &startable).await,
        };
        if same {
            if serving.startable.is_none() {
                serving.startable = Some(startable.clone());
                self.starts_from(startable);
            }
            return Ok(Swapped::Same);
        }
        if turn.is_given_up() {
            return Err(Unswapped::given_up(Left::Serving));
        }
        let mut host = self.shared.host.clone();
        host.cancel = turn.given_up().clone();
        if self.fits_beside(&startable).await {
            let (started, fallen) = self.start_beside(serving, &host, &startable).await;
            match (started, fallen) {
                (Ok(new), _) => {
                    let old = std::mem::replace(serving, new);
                    let before = old.startable.clone();
                    let narrator = startable.narrator().clone();
                    self.starts_from(startable);
                    self.schedule.ready(Instant::now());
                    return match self.retire(old, serving, &narrator, turn).await {
                        None => Ok(Swapped::Done { before }),
                        Some((cause, because)) => Err(Unswapped {
                            told: Swapped::Done { before },
                            left: Left::Lost(cause, because),
                        }),
                    };
                }
                (Err(_), None) if turn.is_given_up() => {
                    return Err(Unswapped::given_up(Left::Serving));
                }
                // Its one port is taken by the engine that serves: they can only follow each other.
                (Err(source), _) if source.kind() == NO_PORT => {}
                (Err(source), None) => {
                    let words = "the engine that ran before serves on";
                    return Err(Unswapped::failed(words, source, Left::Serving));
                }
                (Err(source), Some((cause, because))) => {
                    let words =
                        "the engine that ran before has fallen meanwhile and is started again";
                    let lost = Left::Lost(cause, because);
                    return Err(Unswapped::failed(words, source, lost));
                }
            }
        }
        self.follow(serving, startable, &host, turn).await
    }

    /// Starts an engine beside the one that serves, and watches over that one; how it has fallen meanwhile,
    /// where it has.
    async fn start_beside(
        &self,
        serving: &Serving,
        host: &Host,
        startable: &Startable,
    ) -> (Result<Serving, Because>, Option<(Cause, Because)>) {
        let settings = &self.supervision;
        let mut coming = pin!(Serving::start(self, host, startable, true));
        let fall = tokio::select! {
            started = &mut coming => return (started, None),
            fall = serving.falls(settings, self) => fall,
        };
        self.show(|status| {
            status.clear_engine();
            status.set(ReplicaState::Starting, "loads what was reloaded");
        });
        let accounting = serving.account_for(fall, settings, self);
        let (started, fallen) = join(coming, accounting).await;
        (started, Some(fallen))
    }

    /// Stops this engine and starts another one in its place, or this one again.
    async fn follow(
        &mut self,
        serving: &mut Serving,
        startable: Startable,
        host: &Host,
        turn: &Turn,
    ) -> Result<Swapped, Unswapped> {
        // Of one that was adopted and not compared yet only the pool file tells how it is started.
        let before = serving.startable.clone();
        self.make_way(serving, startable.narrator(), turn).await?;
        self.show(|status| status.set(ReplicaState::Starting, "loads what was reloaded"));
        let source = match Serving::start(self, host, &startable, false).await {
            Ok(new) => {
                *serving = new;
                self.starts_from(startable);
                self.schedule.ready(Instant::now());
                return Ok(Swapped::Done { before });
            }
            Err(_) if turn.is_given_up() => return Err(Unswapped::given_up(Left::Nothing)),
            Err(source) => source,
        };
        let Some(before) = before else {
            let words = "the engine that ran before was an earlier daemon's and cannot be started \
                         again; what the pool file has is tried on";
            let lost = Left::Lost(Cause::Start, source.clone());
            return Err(Unswapped::failed(words, source, lost));
        };
        self.show(|status| status.set(ReplicaState::Starting, "loads what ran before"));
        match Serving::start(self, host, &before, false).await {
            Ok(again) => {
                *serving = again;
                self.schedule.ready(Instant::now());
                let words = "the engine that ran before was started again and serves";
                Err(Unswapped::failed(words, source, Left::Serving))
            }
            Err(_) if turn.is_given_up() => Err(Unswapped::given_up(Left::Nothing)),
            // Whether that passes decides about the next start: it is the old one that is tried.
            Err(lost) => {
                self.starts_from(before);
                self.is_stale = true;
                let words = "the engine that ran before did not come up again; it is tried on";
                let lost = Left::Lost(Cause::Start, lost);
                Err(Unswapped::failed(words, source, lost))
            }
        }
    }

    /// Stops this engine once its leases have run out. Given up before, it serves on; later, nothing does.
    async fn make_way(
        &self,
        serving: &Serving,
        narrator: &Narrator,
        turn: &Turn,
    ) -> Result<(), Unswapped> {
        self.show(|status| {
            status.set(ReplicaState::Draining, "makes room for its successor");
            status.health.ready = false;
        });
        let registry = &self.shared.registry;
        let deadline = self.supervision.drain_deadline;
        tokio::select! {
            _ = registry.unleased(&self.pool, &self.name, None, deadline) => {}
            // Nobody's request is served any more.
            () = serving.gone() => {}
            () = turn.given_up().cancelled() => {
                self.show(|status| status.serve(&serving.engine));
                return Err(Unswapped::given_up(Left::Serving));
            }
        }
        let hurry = CancellationToken::new();
        let _ = serving.engine.stop_for(narrator, &hurry).await;
        match turn.is_given_up() {
            true => Err(Unswapped::given_up(Left::Nothing)),
            false => Ok(()),
        }
    }

    /// Ends an engine whose successor serves, once its leases have run out, or at once where that one falls:
    /// it is started again sooner. How it has fallen, where it has.
    async fn retire(
        &self,
        old: Serving,
        new: &Serving,
        narrator: &Narrator,
        turn: &Turn,
    ) -> Option<(Cause, Because)> {
        let settings = &self.supervision;
        let registry = &self.shared.registry;
        let deadline = settings.drain_deadline;
        let epoch = Some(old.epoch);
        let mut unleased = pin!(registry.unleased(&self.pool, &self.name, epoch, deadline));
        let fall: Option<Fall> = tokio::select! {
            _ = &mut unleased => None,
            () = old.gone() => None,
            fall = new.falls(settings, self) => Some(fall),
            () = turn.given_up().cancelled() => {
                // What is to come ends the successor too: it takes nothing new.
                self.show(|status| {
                    status.set(ReplicaState::Draining, "waits for what its predecessor serves");
                    status.health.ready = false;
                });
                tokio::select! {
                    _ = unleased => {}
                    () = turn.hurry().cancelled() => {}
                }
                None
            }
        };
        let hurry = CancellationToken::new();
        if let Err(error) = old.engine.stop_for(narrator, &hurry).await {
            self.narrator
                .fail(Actor::PoolManager, "stop", &self.name, &error);
        }
        match fall {
            None => None,
            Some(fall) => Some(new.account_for(fall, settings, self).await),
        }
    }
}
