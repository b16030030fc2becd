//! Another version of a pool in place of the one that runs: all of its replicas or none.

use super::{Refused, Supervisor};
use crate::{
    drive::Startable,
    fault::Because,
    narrate::{Actor, Narrator},
    pool::{
        Caller,
        replica::{Order, ReplicaTask, Swapped},
        turn::Turn,
    },
};

impl Supervisor {
    /// Swaps the engines for what the pool file has now.
    pub(super) async fn reload(
        &mut self,
        caller: &Caller,
        narrator: &Narrator,
        turn: &Turn,
    ) -> Result<(), Refused> {
        const WHAT: &str = "the reload";
        let serving = || "the engines that ran before serve on".to_owned();
        if self.replicas.is_empty() {
            return Err(Refused::Down);
        }
        let mut host = self.shared.host.clone();
        host.narrator = narrator.clone();
        host.cancel = turn.given_up().clone();
        let startable: Startable = match host.startable(&self.request()).await {
            Ok(startable) => startable,
            Err(_) if turn.is_given_up() => return Err(Refused::superseded(WHAT, turn)),
            Err(failure) => {
                let source = Because::from(failure);
                let pool = &self.configured.id;
                narrator.fail(Actor::PoolManager, "reload", pool, source.fault());
                self.keep(&source);
                return Err(Refused::NotReloaded {
                    serving: serving(),
                    source,
                });
            }
        };
        let names = self.configured.replica_names();
        let wanted = |task: &&ReplicaTask| names.iter().any(|name| name == task.name());
        let mut moved = Vec::new();
        for task in self.replicas.iter().filter(wanted) {
            let supervision = Box::new(self.configured.supervision.clone());
            task.order(Order::Supervise(supervision));
            // One after the other: the pool serves all the time.
            match task.swap(startable.clone(), turn.clone()).await {
                _ if turn.is_given_up() => return Err(Refused::superseded(WHAT, turn)),
                Swapped::Same => {}
                Swapped::Done { before } => moved.push((task, before)),
                Swapped::GivenUp => return Err(Refused::superseded(WHAT, turn)),
                Swapped::Failed { serving, source } => {
                    let serving = move_back(task.name(), serving, moved, turn).await;
                    self.keep(&source);
                    return Err(Refused::NotReloaded { serving, source });
                }
            }
        }
        self.up(caller, turn).await
    }
}

/// Gives the replicas that have moved what they had before, since one could not: either all of a pool is
/// reloaded or nothing. What serves then, in words.
async fn move_back(
    failed: &str,
    serving: String,
    moved: Vec<(&ReplicaTask, Option<Startable>)>,
    turn: &Turn,
) -> String {
    if moved.is_empty() {
        return serving;
    }
    let mut words = vec![format!("{failed}: {serving}")];
    for (task, before) in moved.into_iter().rev() {
        let swapped = match before {
            Some(before) => Some(task.swap(before, turn.clone()).await),
            None => None,
        };
        let serves = match swapped {
            Some(Swapped::Same | Swapped::Done { .. }) => {
                "what ran before was started again and serves".to_owned()
            }
            Some(Swapped::Failed { source, .. }) => {
                format!(
                    "runs what the pool file has, since what ran before did not come up: {source}"
                )
            }
            Some(Swapped::GivenUp) => "was given up".to_owned(),
            None => "runs what the pool file has, since what ran before is not known".to_owned(),
        };
        words.push(format!("{}: {serves}", task.name()));
    }
    words.join("; ")
}
