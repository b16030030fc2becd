//! Bringing an engine down: drain, TERM, grace, KILL, wait.
//!
//! The same steps for an engine of this host and for one that another host or a detached keeper
//! has; they differ only in how it is held ([`Grip`]). Once TERM is asked of a keeper, KILL follows
//! by itself, even if whoever asked is gone by then.

use std::time::{Duration, Instant};

use rustix::process::Signal;
use tokio_util::sync::CancellationToken;

use super::{EngineError, Instance, State, asking, leftover};
use crate::{
    config::paths::Home,
    narrate::{Actor, Narrator},
    process::{Control, Running},
};

/// Longest time requests in flight are waited for before TERM.
pub(super) const DRAIN_LIMIT: Duration = Duration::from_secs(10);

/// Pause between two looks at what is in flight.
const DRAIN_INTERVAL: Duration = Duration::from_millis(100);

/// Time after which an engine that ends at once on a second TERM gets one.
const SECOND_TERM_AFTER: Duration = Duration::from_secs(1);

/// Longest time between KILL and the end of everything, minder's clean-up included.
const KILL_LIMIT: Duration = Duration::from_secs(15);

/// How an engine is held.
pub(super) enum Grip<'a> {
    /// As this host's own child, started or adopted by it.
    Own(&'a Running),
    /// Through the keeper of another host.
    Keeper(Control),
    /// By its process alone: its keeper does not answer or is of another version.
    Direct,
}

/// Ends an engine that any host of this home has started. Cancelling `hurry` skips draining and
/// grace. Returns once nothing of it is left.
pub async fn stop_instance(
    home: &Home,
    instance: &Instance,
    narrator: &Narrator,
    hurry: &CancellationToken,
) -> Result<(), EngineError> {
    let mut grip = Grip::find(home, instance).await;
    let stopped = bring_down(&mut grip, home, instance, narrator, hurry).await;
    stopped?;
    // Already done by its minder, unless that was killed.
    leftover::settle(home, instance).await
}

/// Ends an engine that others have begun to end and then let be: TERM, grace, KILL.
pub(super) async fn finish(home: &Home, instance: &Instance) -> Result<(), EngineError> {
    let mut grip = Grip::find(home, instance).await;
    end(&mut grip, instance, &CancellationToken::new()).await?;
    leftover::settle(home, instance).await
}

/// Kills an engine with its whole tree and waits until nothing of it is left.
pub(super) async fn kill(grip: &mut Grip<'_>, instance: &Instance) -> Result<(), EngineError> {
    grip.kill(instance).await;
    if grip
        .gone_within(instance, kill_limit(instance), &CancellationToken::new())
        .await?
    {
        return Ok(());
    }
    let tree = instance.process.tree();
    let left = tree.iter().chain(&instance.minder);
    Err(EngineError::Survivors {
        pids: left.map(|process| process.pid).collect(),
    })
}

/// Waits until nothing of an engine is left whose minder ends it by itself, because its keeper is
/// gone: TERM, grace, KILL. Gives up when that takes too long; then it may be left.
pub(super) async fn until_gone(instance: &Instance) {
    let limit = Duration::from_millis(instance.grace_ms) + kill_limit(instance);
    let _ = tokio::time::timeout(limit, nothing_left(instance)).await;
}

/// How long an engine may take to disappear once it is killed: a container's removal is waited for.
fn kill_limit(instance: &Instance) -> Duration {
    let farewell = instance.container.as_ref().map(|it| it.farewell.limit());
    KILL_LIMIT + farewell.unwrap_or_default()
}

/// Ends an engine, however it is held, and tells so.
pub(super) async fn bring_down(
    grip: &mut Grip<'_>,
    home: &Home,
    instance: &Instance,
    narrator: &Narrator,
    hurry: &CancellationToken,
) -> Result<(), EngineError> {
    let start = Instant::now();
    instance.mark_stopping(home);
    // First of all: nobody is to send it anything new.
    instance.withdraw();
    let ended = async {
        if instance.state != State::Starting {
            drain(instance, narrator, hurry).await;
        }
        end(grip, instance, hurry).await
    };
    let ended = ended.await;
    let target = instance.url.clone();
    match &ended {
        Ok(()) => narrator.done(
            Actor::EngineProvisioner,
            "stop",
            target,
            match instance.is_external() {
                true => format!(
                    "let go of the engine of pool {}, which runs on",
                    instance.pool_id
                ),
                false => format!("engine of pool {} stopped", instance.pool_id),
            },
            start.elapsed(),
        ),
        Err(error) => narrator.fail(Actor::EngineProvisioner, "stop", target, error),
    }
    ended
}

async fn drain(instance: &Instance, narrator: &Narrator, hurry: &CancellationToken) {
    let start = Instant::now();
    let mut told = false;
    while start.elapsed() < DRAIN_LIMIT && !hurry.is_cancelled() && instance.is_alive() {
        // One that does not say how busy it is cannot be waited for.
        let Some(in_flight) = asking::in_flight(instance).await else {
            return;
        };
        if in_flight <= 0.0 {
            return;
        }
        if !std::mem::replace(&mut told, true) {
            narrator.say(
                Actor::EngineProvisioner,
                "drain",
                instance.url.clone(),
                format!(
                    "waiting up to {} s for {in_flight} requests in flight",
                    DRAIN_LIMIT.as_secs()
                ),
            );
        }
        tokio::select! {
            () = tokio::time::sleep(DRAIN_INTERVAL) => {}
            () = hurry.cancelled() => {}
        }
    }
}

async fn end(
    grip: &mut Grip<'_>,
    instance: &Instance,
    hurry: &CancellationToken,
) -> Result<(), EngineError> {
    let grace = Duration::from_millis(instance.grace_ms);
    grip.begin_end(instance).await;
    let first_wait = if instance.stop.second_term_ends_at_once {
        SECOND_TERM_AFTER.min(grace / 2)
    } else {
        grace
    };
    if grip.gone_within(instance, first_wait, hurry).await? {
        return Ok(());
    }
    if instance.stop.second_term_ends_at_once && !hurry.is_cancelled() {
        grip.term(instance).await;
        let rest = grace.saturating_sub(first_wait);
        if grip.gone_within(instance, rest, hurry).await? {
            return Ok(());
        }
    }
    kill(grip, instance).await
}

impl Grip<'_> {
    /// How an engine of any host is held best.
    async fn find(home: &Home, instance: &Instance) -> Self {
        match Control::connect(home, instance.address).await {
            Ok(control) => Self::Keeper(control),
            Err(_) => Self::Direct,
        }
    }

    /// TERM, with KILL after the grace, as far as a keeper is there to see to it.
    async fn begin_end(&mut self, instance: &Instance) {
        let seen_to = match self {
            Self::Own(running) => {
                running.end();
                true
            }
            Self::Keeper(control) => control.end().await.is_ok(),
            Self::Direct => false,
        };
        if !seen_to {
            let _ = instance.process.signal(Signal::TERM);
        }
    }

    async fn term(&mut self, instance: &Instance) {
        let seen_to = match self {
            Self::Own(running) => {
                running.signal(Signal::TERM);
                true
            }
            Self::Keeper(control) => control.signal(Signal::TERM).await.is_ok(),
            Self::Direct => false,
        };
        if !seen_to {
            let _ = instance.process.signal(Signal::TERM);
        }
    }

    /// KILL for the whole tree; by this process where the keeper is gone.
    async fn kill(&mut self, instance: &Instance) {
        let seen_to = match self {
            Self::Own(running) => {
                running.kill_tree();
                instance.address.keeper.is_alive()
            }
            Self::Keeper(control) => control.kill_tree().await.is_ok(),
            Self::Direct => false,
        };
        if !seen_to {
            for process in instance.process.tree() {
                let _ = process.signal(Signal::KILL);
            }
        }
    }

    /// Whether everything is gone within this time; `hurry` ends the wait early.
    async fn gone_within(
        &mut self,
        instance: &Instance,
        limit: Duration,
        hurry: &CancellationToken,
    ) -> Result<bool, EngineError> {
        let gone = async {
            let ended = match self {
                Self::Own(running) => running.wait().await.ok(),
                Self::Keeper(control) => control.wait().await,
                Self::Direct => None,
            };
            match ended {
                Some(ended) => ended.survivors,
                // Without a keeper nobody tells.
                None => {
                    nothing_left(instance).await;
                    Vec::new()
                }
            }
        };
        tokio::select! {
            biased;
            gone = tokio::time::timeout(limit, gone) => match gone {
                Err(_) => Ok(false),
                Ok(pids) if pids.is_empty() => Ok(true),
                Ok(pids) => Err(EngineError::Survivors { pids }),
            },
            () = hurry.cancelled() => Ok(false),
        }
    }
}

async fn nothing_left(instance: &Instance) {
    while instance.is_there() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
