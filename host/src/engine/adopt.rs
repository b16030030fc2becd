//! Looking after an engine that another host has started.
//!
//! A host that ends leaves its kept engines to their keepers. The next one takes them over as they are:
//! same process, same requests in flight. A record is never trusted: the process must be the very one
//! that was written down (pid and start, on this boot), and its keeper must have it.

use std::{path::Path, sync::Mutex, time::Duration};

use tokio_util::sync::CancellationToken;

use super::{
    EngineError, Instance, RunningEngine, State, asking::address_of, leftover,
    listening::OwnSockets, port::Ports, records, settle, side,
};
use crate::{
    config::paths::Home,
    narrate::{Actor, Narrator},
    process::{Keeper, ProcessError, ProcessIdentity},
    store::{Lock, Patience, lock},
};

/// Longest wait for another process that starts, adopts or clears up the same instance.
const LOCK_LIMIT: Duration = Duration::from_secs(30);

/// Takes over the watch over a kept engine, as if this host had started it: it may be asked, stopped,
/// kept again, and its end is told. When this host is gone, its limit runs again.
///
/// Where two engines of the instance live, because a host was killed while it swapped them, only the
/// one whose handoff stands can be adopted; the other one is ended.
pub async fn adopt(
    home: &Home,
    instance: &Instance,
    keeper: &Keeper,
    narrator: &Narrator,
) -> Result<RunningEngine, EngineError> {
    let refuse = |reason: String| EngineError::NotAdopted {
        pool: instance.pool_id.clone(),
        url: instance.url.clone(),
        reason,
        is_attended: false,
    };
    let key = instance.instance_key();
    let _lock = hold(home, &key, instance).await?;
    let sides = records::recorded_sides(home, &key)?;
    let found = sides.iter().find(|side| side.process == instance.process);
    let found = found.ok_or_else(|| refuse("it has ended".to_owned()))?;
    if found.is_attended() && found.host != ProcessIdentity::of_this_process() {
        return Err(EngineError::NotAdopted {
            pool: found.pool_id.clone(),
            url: found.url.clone(),
            reason: format!("the host with pid {} looks after it", found.host.pid),
            is_attended: true,
        });
    }
    if let Some(reason) = unfit(found) {
        return Err(refuse(reason.to_owned()));
    }
    if side::standing(&sides).is_some_and(|standing| standing.process != found.process) {
        return Err(refuse("another engine stands in its place".to_owned()));
    }
    settle::end_rivals(home, found, &sides, narrator).await?;
    let program = Path::new(&found.command.program);
    let running = keeper.adopt(found.address, found.process, program).await;
    let running = running.map_err(|error| match error {
        ProcessError::KeeperGone { .. } => refuse("its keeper has ended, and ends it".to_owned()),
        ProcessError::Keeper { reason, .. } => refuse(reason),
        error => error.into(),
    })?;
    let engine = RunningEngine {
        instance: Instance {
            host: ProcessIdentity::of_this_process(),
            ..found.clone()
        },
        running,
        home: home.clone(),
        ports: Mutex::new(ports_of(home, found)),
        narrator: narrator.clone(),
        sockets: OwnSockets::default(),
    };
    engine.instance.save(home)?;
    if engine.running.ended().is_some() {
        // Its minder may have cleaned up before that was written.
        leftover::settle(home, &engine.instance).await?;
        return Err(refuse("it has ended".to_owned()));
    }
    if !engine.instance.is_handed_off() && engine.instance.known.handoff.is_some() {
        engine.take_over()?;
    }
    let words = format!(
        "looking after the engine of pool {} again, pid {}",
        engine.instance.pool_id, engine.instance.process.pid
    );
    narrator.say(Actor::EngineProvisioner, "adopt", engine.url(), words);
    Ok(engine)
}

/// The port of its URL, kept from other engines again; the host before this one may still hold it.
fn ports_of(home: &Home, instance: &Instance) -> Option<Ports> {
    let address = address_of(&instance.url).filter(|it| it.ip().is_loopback())?;
    Ports::of_running(home, address.port())
}

async fn hold(home: &Home, key: &str, instance: &Instance) -> Result<Lock, EngineError> {
    let doing = format!("adopting the engine of pool {}", instance.pool_id);
    let patience = Patience {
        limit: LOCK_LIMIT,
        cancel: &CancellationToken::new(),
        on_wait: &|_| {},
    };
    Ok(lock(&records::lock_path(home, key), &doing, patience).await?)
}

/// Why an engine that nobody looks after cannot be taken over, where it cannot.
fn unfit(found: &Instance) -> Option<&'static str> {
    if !found.is_alive() {
        return Some("it has ended");
    }
    match (found.state, found.kept) {
        (State::Starting, _) => Some("it has never been ready"),
        (State::Stopping, _) => Some("it is being stopped"),
        (State::Ready, false) => Some("it ends with the host that started it"),
        (State::Ready, true) => None,
    }
}
