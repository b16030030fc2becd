//! What nobody asks for: containers that a runtime could not remove when their engines ended are removed
//! later.
//!
//! A pool that is started again removes what is in its way itself, or says why it cannot. One that stays
//! down would keep its container for good.

use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::{ACTOR, LastError, Registry};
use crate::{
    config::paths::Home,
    engine::{self, EngineError, Instance},
    fault::Fault as _,
    narrate::Narrator,
};

/// Pause between two looks while nothing is left.
const INTERVAL: Duration = Duration::from_secs(60);

/// Pause after a removal that has failed; it doubles with each that follows.
const FIRST_PAUSE: Duration = Duration::from_secs(5);

/// Longest pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(10 * 60);

/// Looks after one home.
pub(super) struct Upkeep {
    home: Home,
    registry: Registry,
    narrator: Narrator,
    /// Looks in a row after which something was left.
    failures: u32,
}

impl Upkeep {
    pub(super) fn new(home: Home, registry: Registry, narrator: Narrator) -> Self {
        Self {
            home,
            registry,
            narrator,
            failures: 0,
        }
    }

    /// Until the manager ends.
    pub(super) async fn run(mut self, end: CancellationToken) {
        let mut pause = FIRST_PAUSE;
        loop {
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = end.cancelled() => return,
            }
            // A removal that is cut off is begun again by the next host.
            tokio::select! {
                next = self.look() => pause = next,
                () = end.cancelled() => return,
            }
        }
    }

    /// Removes what can be removed, and says so; how long to wait before the next look.
    async fn look(&mut self) -> Duration {
        let home = self.home.clone();
        let left = tokio::task::spawn_blocking(move || !engine::left(&home).is_empty());
        let mut failed = false;
        if left.await.unwrap_or(false) {
            // On the heap: as a rule there is nothing to do.
            for (instance, cleared) in Box::pin(engine::clear_each(&self.home)).await {
                failed |= cleared.is_err();
                self.tell(&instance, cleared);
            }
        }
        if !failed {
            self.failures = 0;
            return INTERVAL;
        }
        let doubled = 1_u32.checked_shl(self.failures).unwrap_or(u32::MAX);
        self.failures = self.failures.saturating_add(1);
        FIRST_PAUSE.saturating_mul(doubled).min(LONGEST_PAUSE)
    }

    fn tell(&self, instance: &Instance, cleared: Result<(), EngineError>) {
        let pool = &instance.pool_id;
        let narrator = self.narrator.with(|context| {
            context.pool_id = Some(pool.clone());
            context.replica_id = Some(instance.replica_id.clone());
        });
        match cleared {
            Err(error) => {
                narrator.fail(ACTOR, "clean-up", pool, &error);
                let kept = LastError::of(&error).masked(narrator.secrets());
                self.registry.fail(pool, Some(kept));
            }
            Ok(()) => {
                let container = instance.container.as_ref();
                let name = container.map_or("", |it| it.name.as_str());
                let human = format!("removed the container `{name}` that an engine had left");
                narrator.say(ACTOR, "clean-up", pool, human);
                self.forget(pool);
            }
        }
    }

    /// Takes back what this has said of a pool, not what others have.
    fn forget(&self, pool: &str) {
        let left = EngineError::ContainerLeft {
            runtime: String::new(),
            name: String::new(),
            said: String::new(),
        };
        let said = self.registry.status(pool).ok();
        let said = said.and_then(|status| status.last_error);
        if said.is_some_and(|error| error.kind == left.kind()) {
            self.registry.fail(pool, None);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::{
        engine::{InstanceContainer, testing},
        pool::Want,
        process::{Farewell, ProcessIdentity},
    };

    /// The record of a dead engine whose container can be removed once a file is there.
    fn dead(root: &std::path::Path) -> Instance {
        let mut process = ProcessIdentity::of_this_process();
        process.start_time_ticks += 1;
        let shell = |script: &str| vec!["-c".to_owned(), script.to_owned()];
        let busy = "test -e free || { echo 'Error: device or resource busy' >&2; exit 125; }";
        let remove = format!("cd {} && {busy}", root.display());
        Instance {
            container: Some(InstanceContainer {
                runtime: "podman".to_owned(),
                name: "chat-r0".to_owned(),
                image: "toy".to_owned(),
                program: None,
                farewell: Farewell {
                    program: "/bin/sh".into(),
                    env: std::collections::BTreeMap::new(),
                    ask: shell("echo home-4711"),
                    mark: "home-4711".to_owned(),
                    nothing: "no such container".to_owned(),
                    part: None,
                    made: None,
                    answer: root.join("answer"),
                    remove: shell(&remove),
                    limit_ms: 10_000,
                },
            }),
            ..testing::instance(root, process)
        }
    }

    #[tokio::test]
    async fn a_container_that_could_not_be_removed_is_tried_again_more_and_more_seldom() {
        let root = tempfile::tempdir().unwrap();
        let home = Home::at(root.path());
        let dead = dead(root.path());
        let record = testing::write_down(&dead, &home);
        let registry = Registry::default();
        registry.declare("chat", "toy", Want::Down, &["r0".to_owned()]);
        let (narrator, heard) = Narrator::capture();
        let mut upkeep = Upkeep::new(home.clone(), registry.clone(), narrator);
        for seconds in [5, 10, 20] {
            assert_eq!(upkeep.look().await, Duration::from_secs(seconds));
            assert_eq!(engine::left(&home), std::slice::from_ref(&dead));
            let error = registry.status("chat").unwrap().last_error.unwrap();
            assert_eq!(error.kind, "container-left");
            let said = "could not remove the container `chat-r0` of an engine that has ended: \
                        Error: device or resource busy";
            assert!(error.message.contains(said), "{}", error.message);
            let fix = error.fixes[0].command.as_deref();
            assert_eq!(fix, Some("podman rm --force chat-r0"));
        }
        fs::write(root.path().join("free"), "").unwrap();
        assert_eq!(upkeep.look().await, INTERVAL);
        assert!(engine::left(&home).is_empty() && !record.exists());
        assert_eq!(registry.status("chat").unwrap().last_error, None);
        let events = heard.events();
        assert_eq!(events.len(), 4, "{events:#?}");
        let last = events.last().unwrap();
        assert!(
            last.human.contains("removed the container `chat-r0`"),
            "{last:#?}"
        );
        assert_eq!(last.context.pool_id.as_deref(), Some("chat"));
        assert_eq!(upkeep.look().await, INTERVAL);
        assert_eq!(heard.events().len(), 4);
    }

    #[tokio::test]
    async fn pauses_have_an_end_and_so_has_the_upkeep() {
        let root = tempfile::tempdir().unwrap();
        let home = Home::at(root.path());
        testing::write_down(&dead(root.path()), &home);
        let mut upkeep = Upkeep::new(home, Registry::default(), Narrator::silent());
        upkeep.failures = 40;
        assert_eq!(upkeep.look().await, LONGEST_PAUSE);
        let end = CancellationToken::new();
        end.cancel();
        upkeep.run(end).await;
    }
}
