//! An engine of this host that is ready.

use std::path::{Path, PathBuf};

use engine_provider_api::Diagnosis;
use tokio_util::sync::CancellationToken;

use super::{
    EngineError, Instance, container,
    error::Evidence,
    evidence_of, leftover,
    stop::{self, Grip, bring_down},
};
use crate::{
    config::paths::Home,
    container::exit_reason,
    fault::Fault,
    narrate::{Actor, Narrator},
    process::{Ended, Exited, Running},
};

/// An engine that is ready. Dropped, it is ended (TERM, grace, KILL), unless it is kept.
#[derive(Debug)]
pub struct RunningEngine {
    pub(super) instance: Instance,
    pub(super) running: Running,
    pub(super) diagnoses: Vec<Diagnosis>,
    pub(super) command: String,
    pub(super) home: Home,
    pub(super) narrator: Narrator,
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
        let mut grip = Grip::Own(&self.running);
        let (home, instance) = (&self.home, &self.instance);
        bring_down(&mut grip, home, instance, &self.narrator, hurry).await?;
        leftover::settle(home, instance).await
    }

    /// Lets it outlive this host, until somebody stops it (`--detach`). What is returned describes
    /// it; this handle is no longer needed.
    pub async fn keep(mut self) -> Result<Instance, EngineError> {
        self.running.keep().await?;
        self.instance.kept = true;
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
        if let Some(container) = &self.instance.container {
            let answer = read_answer(&container.farewell.answer);
            let code = match ended.exited {
                Exited::Code(code) => Some(code),
                Exited::Signal(_) => None,
            };
            let said = evidence.last_lines.join("\n");
            let reason = exit_reason(code, Some(&answer), &said);
            let failure = reason
                .as_ref()
                .filter(|_| !ready)
                .and_then(|reason| container::failure(container, reason, &answer, &evidence));
            if let Some(failure) = failure {
                return failure;
            }
            evidence.reason = reason;
        }
        EngineError::Died {
            exited: ended.exited,
            ready,
            evidence,
        }
    }

    pub(super) fn evidence(&self) -> Evidence {
        let log: PathBuf = self.instance.log.clone();
        evidence_of(&self.diagnoses, self.command.clone(), log)
    }
}

/// What the runtime said about an ended container; empty where it said nothing.
fn read_answer(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

impl Drop for RunningEngine {
    /// Its process is ended by the handle that is dropped with this; a start must not take it for an
    /// engine that stays meanwhile.
    fn drop(&mut self) {
        if !self.instance.kept && self.running.ended().is_none() {
            self.instance.mark_stopping(&self.home);
        }
    }
}
