//! An engine of this host that is ready: started by it, or adopted.

use std::{
    path::Path,
    sync::{Mutex, MutexGuard},
    time::Duration,
};

use tokio_util::sync::CancellationToken;

use super::{
    EngineError, Finding, Instance, asking, container,
    error::Evidence,
    evidence_of, handoff, leftover,
    listening::{self, Listening, OwnSockets},
    port::Ports,
    stop::{self, Grip, bring_down},
};
use crate::{
    config::paths::Home,
    container::{ExitReason, exit_reason},
    fault::Fault,
    narrate::{Actor, Narrator},
    process::{Ended, Exited, Keeper, MemoryKills, Running},
};

/// An engine that is ready. Dropped, it is ended (TERM, grace, KILL), unless it is kept.
#[derive(Debug)]
pub struct RunningEngine {
    pub(super) instance: Instance,
    pub(super) running: Running,
    pub(super) home: Home,
    /// Its ports, which no other engine of this home gets meanwhile.
    pub(super) ports: Mutex<Option<Ports>>,
    pub(super) narrator: Narrator,
    /// What it was found to listen with.
    pub(super) sockets: OwnSockets,
}

/// How an engine that was ready came to its end without this host asking for it.
#[derive(Debug)]
pub enum EngineEnd {
    /// Somebody else stopped it (`host stop`): all is in order.
    Stopped,
    /// It ended by itself.
    Crashed(EngineError),
}

impl RunningEngine {
    /// Where it answers.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.instance.url
    }

    /// What is known about it.
    #[must_use]
    pub fn instance(&self) -> &Instance {
        &self.instance
    }

    /// Its handoff.
    #[must_use]
    pub fn handoff_path(&self) -> &Path {
        &self.instance.handoff
    }

    /// Its log.
    #[must_use]
    pub fn log_path(&self) -> &Path {
        &self.instance.log
    }

    /// Waits until it ends without this host asking for it. By then its handoff is removed and
    /// nothing of its tree is left. Tells `crash` or `stop`.
    pub async fn wait_exit(&self) -> EngineEnd {
        let ended = match self.running.wait().await {
            Ok(ended) => ended,
            Err(error) => {
                // Its keeper is gone; its minder ends it.
                stop::until_gone(&self.instance).await;
                if let Err(left) = leftover::settle(&self.home, &self.instance).await {
                    return self.crashed(left);
                }
                return self.crashed(error.into());
            }
        };
        // Its minder has done so already, unless the handoff was written in that very moment or a
        // container could not be removed.
        if let Err(left) = leftover::settle(&self.home, &self.instance).await {
            return self.crashed(left);
        }
        if ended.asked_elsewhere {
            self.narrator.say(
                Actor::EngineProvisioner,
                "stop",
                self.instance.url.clone(),
                format!(
                    "engine of pool {} was stopped from elsewhere",
                    self.instance.pool_id
                ),
            );
            return EngineEnd::Stopped;
        }
        self.crashed(self.death(&ended, true))
    }

    /// Drains and ends it. Cancelling `hurry` skips draining and grace.
    pub async fn stop(&self, hurry: &CancellationToken) -> Result<(), EngineError> {
        self.stop_telling(&self.narrator, hurry).await
    }

    /// The same, for whom this narrator tells, who as a rule is not who had it started.
    pub async fn stop_for(
        &self,
        narrator: &Narrator,
        hurry: &CancellationToken,
    ) -> Result<(), EngineError> {
        let narrator = self.narrator.on_behalf_of(narrator);
        self.stop_telling(&narrator, hurry).await
    }

    /// What its provider knows of what its log says now.
    #[must_use]
    pub fn finding(&self) -> Option<Finding> {
        self.evidence().finding
    }

    async fn stop_telling(
        &self,
        narrator: &Narrator,
        hurry: &CancellationToken,
    ) -> Result<(), EngineError> {
        let mut grip = Grip::Own(&self.running);
        let (home, instance) = (&self.home, &self.instance);
        bring_down(&mut grip, home, instance, narrator, hurry).await?;
        // Its successor may need them.
        *self.ports() = None;
        leftover::settle(home, instance).await
    }

    /// Keeps its ports from other engines of this home until it has ended.
    pub(super) fn hold(&self, ports: Ports) {
        *self.ports() = Some(ports);
    }

    fn ports(&self) -> MutexGuard<'_, Option<Ports>> {
        self.ports.lock().expect("no holder panics")
    }

    /// Whether it lives, by its readiness probe: any answer in time but a server error, and a server
    /// error too where that means loading. One that is busy may answer late, so one silence proves
    /// nothing. `Err` says in words what was seen.
    pub async fn ask_alive(&self, limit: Duration) -> Result<(), String> {
        asking::alive(&self.instance, limit).await
    }

    /// Whether it is this engine that has answered, as far as that can be told: one can close its port and
    /// live on, and a stranger's server may take it. The keeper looks at processes of other users. `Err`
    /// says in words what was seen.
    pub async fn ask_whose_port(
        &self,
        keeper: &Keeper,
        listening: &Listening,
    ) -> Result<(), String> {
        listening::is_its_own(&self.instance, &self.sockets, keeper, listening).await
    }

    /// Writes its handoff, in one rename, over that of the engine it has come up beside; from then on
    /// it is the one that stands. Tells `handoff`.
    pub fn take_over(&self) -> Result<(), EngineError> {
        self.hand_off(&self.narrator)
    }

    pub(super) fn hand_off(&self, narrator: &Narrator) -> Result<(), EngineError> {
        let path = &self.instance.handoff;
        match &self.instance.known.handoff {
            Some(handoff) => handoff::write(path, handoff)?,
            // Of an engine that an earlier version has started only the file itself is known.
            None if self.instance.is_handed_off() => {}
            None => {
                return Err(EngineError::Handoff {
                    path: path.clone(),
                    reason: "what it said is not known any more".to_owned(),
                });
            }
        }
        // Its minder may have cleaned up a moment before this was written.
        if let Some(ended) = self.running.ended() {
            self.instance.withdraw();
            return Err(self.death(&ended, true));
        }
        let words = format!("handed off as {}", path.display());
        let who = Actor::EngineProvisioner;
        narrator.say(who, "handoff", path.to_string_lossy(), words);
        Ok(())
    }

    /// Lets it outlive this host for so long: when nobody has adopted it by then, its keeper ends it.
    /// While this host lives its time does not run. Dropping the handle leaves it running. A keeper of
    /// an earlier version keeps it until somebody stops it.
    pub async fn keep_for(&mut self, limit: Duration) -> Result<(), EngineError> {
        // The keeper first: a record must not promise what nobody holds.
        let limit = self.running.keep(Some(limit)).await?;
        self.instance.kept = true;
        let limit_ms = limit.map(|limit| u64::try_from(limit.as_millis()).unwrap_or(u64::MAX));
        self.instance.kept_limit_ms = limit_ms;
        Ok(self.instance.save(&self.home)?)
    }

    /// Lets it outlive this host, until somebody stops it (`--detach`). What is returned describes
    /// it; this handle is no longer needed.
    pub async fn keep(mut self) -> Result<Instance, EngineError> {
        self.running.keep(None).await?;
        self.instance.kept = true;
        self.instance.kept_limit_ms = None;
        self.instance.save(&self.home)?;
        Ok(self.instance.clone())
    }

    fn crashed(&self, error: EngineError) -> EngineEnd {
        let fault: &dyn Fault = &error;
        let target = self.instance.url.clone();
        self.narrator
            .fail(Actor::EngineProvisioner, "crash", target, fault);
        EngineEnd::Crashed(error)
    }

    /// What its end means.
    pub(super) fn death(&self, ended: &Ended, ready: bool) -> EngineError {
        if self.instance.is_external() {
            let url = self.instance.url.clone();
            return EngineError::ExternalGone { url, ready };
        }
        let mut evidence = Box::new(self.evidence());
        let mut exited = ended.exited;
        if let Some(container) = &self.instance.container {
            let answer = read_answer(&container.farewell.answer);
            let code = match ended.exited {
                Exited::Code(code) => Some(code),
                Exited::Signal(_) => None,
            };
            let said = evidence.last_lines.join("\n");
            let reason = exit_reason(code, Some(&answer), &said)
                .map(|reason| reason.naming(container.program.as_deref()));
            let failure = reason
                .as_ref()
                .filter(|_| !ready)
                .and_then(|reason| container::failure(container, reason, &answer, &evidence));
            if let Some(failure) = failure {
                return failure;
            }
            if reason.is_none() {
                exited = of_the_engine(exited);
            }
            evidence.reason = reason;
        } else if self.was_killed_for_memory(ended) {
            evidence.reason = Some(ExitReason::OutOfMemory);
        }
        EngineError::Died {
            exited,
            ready,
            evidence,
        }
    }

    /// Whether the kernel ended it for want of memory: it was killed, by nobody of ours, and the kernel
    /// has counted one more since it was started.
    fn was_killed_for_memory(&self, ended: &Ended) -> bool {
        let kills = self.instance.known.memory_kills.as_ref();
        ended.exited == Exited::Signal(libc::SIGKILL) && kills.is_some_and(MemoryKills::have_risen)
    }

    pub(super) fn evidence(&self) -> Evidence {
        let (known, log) = (&self.instance.known, self.instance.log.clone());
        evidence_of(&known.diagnoses, known.command.clone(), log)
    }
}

/// How the engine inside ended: its runtime's program tells a signal as 128 and its number.
fn of_the_engine(exited: Exited) -> Exited {
    match exited {
        Exited::Code(code @ 129..=159) => Exited::Signal(code - 128),
        other => other,
    }
}

/// What the runtime said about an ended container; empty where it said nothing.
fn read_answer(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

impl Drop for RunningEngine {
    /// Its process is ended by the handle that is dropped with this; a start must not take it for an
    /// engine that stays meanwhile. One that is kept is nobody's from now on, even while this process
    /// lives.
    fn drop(&mut self) {
        if self.running.ended().is_some() {
            return;
        }
        match self.instance.kept {
            false => self.instance.mark_stopping(&self.home),
            true => self.instance.mark_left(&self.home),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_inside_a_container_is_told_as_one() {
        let told = |code| of_the_engine(Exited::Code(code)).to_string();
        assert_eq!(told(137), "signal 9 (KILL)");
        assert_eq!(told(139), "signal 11 (SEGV)");
        assert_eq!(told(1), "exit code 1");
        assert_eq!(told(128), "exit code 128");
        assert_eq!(told(255), "exit code 255");
    }
}
