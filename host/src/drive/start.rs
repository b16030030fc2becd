//! From an engine that can be started to one that answers.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Arc,
};

use engine_provider_api::{Facts, Pool, PreparedEngine};
use futures_util::future::BoxFuture;

use super::{Host, Obtained, Request, again::Made};
use crate::{
    act::Artifacts,
    container::{self, Images},
    engine::{
        self, DriverMemory, EngineError, Instance, Launched, Outcome, RunningEngine, StartRequest,
    },
    fault::Failure,
    narrate::Narrator,
    policy::Policy,
    process::ProcessIdentity,
    store::{Store, Uses},
};

/// What a start needs of an engine that was obtained, and nothing more: its provider's worker may have
/// ended long since. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Startable {
    parts: Arc<Parts>,
}

#[derive(Debug)]
struct Parts {
    engine: PreparedEngine,
    artifacts: Artifacts,
    /// Keeps it and its models from being removed before it runs, and between two of its runs.
    _uses: Uses,
    /// The same for whoever runs it.
    holds: Vec<PathBuf>,
    facts: Facts,
    made: Arc<Made>,
    policy: Policy,
    narrator: Narrator,
    provider_version: String,
}

impl Parts {
    fn narrator_of(&self, replica: &str) -> Narrator {
        self.narrator.with(|context| {
            context.replica_id = Some(replica.to_owned());
            context.engine_version = Some(self.engine.engine_version.clone());
        })
    }
}

/// Whether an engine comes up although another one of its replica serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Beside {
    /// It is the only one.
    Nothing,
    /// On the other side of its instance.
    Another,
}

/// Which engine of a pool is started, and who is told of it.
#[derive(Clone, Copy)]
struct Place<'a> {
    replica: &'a str,
    handoff_directory: &'a Path,
    beside: Beside,
    launched: Option<&'a Launched<'a>>,
}

/// What a start is given beyond what is started.
struct Given<'a> {
    place: Place<'a>,
    narrator: &'a Narrator,
    environment: &'a BTreeMap<String, String>,
    runtime_environment: &'a BTreeMap<String, String>,
    secrets: &'a (dyn Fn(&str) -> Option<String> + Send + Sync),
    driver_memory: Option<&'a DriverMemory<'a>>,
}

impl Obtained {
    /// What a start needs of it. Dropping the rest ends the provider's worker.
    #[must_use]
    pub fn startable(&self) -> Startable {
        self.startable_as(self.engine.clone(), self.artifacts.clone())
    }

    fn startable_as(&self, engine: PreparedEngine, artifacts: Artifacts) -> Startable {
        let uses = self.context.models.uses();
        let uses = uses.and(&self.context.store.uses());
        Startable {
            parts: Arc::new(Parts {
                engine,
                artifacts,
                holds: uses.locks(),
                _uses: uses,
                facts: self.facts.clone(),
                made: Arc::clone(&self.made),
                policy: self.chosen.policy.clone(),
                narrator: self.chosen.narrator.clone(),
                provider_version: self.chosen.info.version.clone(),
            }),
        }
    }
}

impl Startable {
    /// The engine as it is started.
    #[must_use]
    pub fn engine(&self) -> &PreparedEngine {
        &self.parts.engine
    }

    /// What the steps gave.
    #[must_use]
    pub fn artifacts(&self) -> &Artifacts {
        &self.parts.artifacts
    }

    /// The machine as it was planned for.
    #[must_use]
    pub fn facts(&self) -> &Facts {
        &self.parts.facts
    }

    /// The pool, policy and flags applied.
    #[must_use]
    pub fn pool(&self) -> &Pool {
        &self.parts.made.wanted.pool
    }

    /// What it was made of.
    pub(super) fn made(&self) -> &Arc<Made> {
        &self.parts.made
    }

    /// Version of the provider that prepared it.
    #[must_use]
    pub fn provider_version(&self) -> &str {
        &self.parts.provider_version
    }

    /// Whether a start of the other one would give the same engine with the same settings.
    #[must_use]
    pub fn is_like(&self, other: &Self) -> bool {
        let (one, two) = (&*self.parts, &*other.parts);
        one.engine == two.engine
            && one.artifacts == two.artifacts
            && of_each(self.pool()) == of_each(other.pool())
    }

    /// Tells about this pool.
    #[must_use]
    pub fn narrator(&self) -> &Narrator {
        &self.parts.narrator
    }
}

/// A pool as each of its engines has it: without how many there are, and when they are started.
fn of_each(pool: &Pool) -> Pool {
    Pool {
        replicas: 1,
        preload: true,
        ..pool.clone()
    }
}

impl Host {
    /// The whole journey of a pool up to its start: chosen, planned, obtained.
    pub async fn startable(&self, request: &Request) -> Result<Startable, Failure> {
        // Each stage has a future of some size, and whoever supervises holds them in futures of its own:
        // on the heap they cost neither its stack nor its task.
        let chosen = Box::pin(self.choose(request)).await?;
        let planned = Box::pin(self.plan(chosen, request)).await?;
        let obtained = Box::pin(self.obtain(planned, request)).await?;
        Ok(obtained.startable())
    }

    /// Starts one replica and waits until it is ready and handed off, or says that it runs already.
    ///
    /// No runtime is asked beforehand whether it still has the image, which would cost every start:
    /// where it turns out not to, the image is obtained again and the engine started once more.
    pub async fn start(
        &self,
        obtained: &Obtained,
        replica: &str,
        handoff_directory: &Path,
    ) -> Result<Outcome, Failure> {
        let startable = obtained.startable();
        let place = Place {
            replica,
            handoff_directory,
            beside: Beside::Nothing,
            launched: None,
        };
        match self.start_once(&startable, place).await {
            Err(EngineError::ImageGone { image, .. }) => {
                let (engine, artifacts) = self.obtain_again(obtained, &image).await?;
                let startable = obtained.startable_as(engine, artifacts);
                Ok(self.start_once(&startable, place).await?)
            }
            outcome => Ok(outcome?),
        }
    }

    /// Starts one replica as [`Host::start`] does, with no provider at hand. `launched` is told the log of
    /// what runs then.
    ///
    /// [`EngineError::ImageGone`]: its runtime has the image no longer. The engine has to be planned
    /// and obtained anew, which pulls it; nothing was narrated as a failure.
    pub async fn start_again(
        &self,
        startable: &Startable,
        replica: &str,
        handoff_directory: &Path,
        launched: &Launched<'_>,
    ) -> Result<Outcome, EngineError> {
        let place = Place {
            replica,
            handoff_directory,
            beside: Beside::Nothing,
            launched: Some(launched),
        };
        self.start_or_forget(startable, place).await
    }

    /// Starts one replica as [`Host::start_again`] does, whether or not one runs that serves it. The new
    /// one has no handoff until [`engine::RunningEngine::take_over`]; the other one is left alone.
    pub async fn start_beside(
        &self,
        startable: &Startable,
        replica: &str,
        handoff_directory: &Path,
    ) -> Result<Outcome, EngineError> {
        let place = Place {
            replica,
            handoff_directory,
            beside: Beside::Another,
            launched: None,
        };
        self.start_or_forget(startable, place).await
    }

    /// How what would be started differs from an engine that runs: lines with `-` (running) and `+`
    /// (asked for), none where a start would change nothing.
    pub fn difference(
        &self,
        startable: &Startable,
        replica: &str,
        handoff_directory: &Path,
        running: &Instance,
    ) -> Result<Vec<String>, EngineError> {
        let narrator = startable.parts.narrator_of(replica);
        let (environment, own) = self.environments(startable);
        let place = Place {
            replica,
            handoff_directory,
            beside: Beside::Another,
            launched: None,
        };
        let given = Given {
            place,
            narrator: &narrator,
            environment: &environment,
            runtime_environment: &own,
            secrets: &|name| self.environment.get(name).map(str::to_owned),
            driver_memory: None,
        };
        engine::difference(self.start_request(startable, given), running)
    }

    /// Looks after a kept engine that another host has started, as if this one had.
    pub async fn adopt(&self, instance: &Instance) -> Result<RunningEngine, EngineError> {
        let narrator = self.narrator.with(|context| {
            context.pool_id = Some(instance.pool_id.clone());
            context.replica_id = Some(instance.replica_id.clone());
            context.engine = Some(instance.engine.clone());
            context.engine_version = Some(instance.engine_version.clone());
        });
        engine::adopt(&self.home, instance, &self.keeper, &narrator).await
    }

    async fn start_or_forget(
        &self,
        startable: &Startable,
        place: Place<'_>,
    ) -> Result<Outcome, EngineError> {
        let outcome = self.start_once(startable, place).await;
        if let Err(EngineError::ImageGone { image, .. }) = &outcome {
            // What is remembered of it would let the next plan pass it over.
            Images::of(&Store::open(&self.home)).forget(image)?;
        }
        outcome
    }

    async fn start_once(
        &self,
        startable: &Startable,
        place: Place<'_>,
    ) -> Result<Outcome, EngineError> {
        let narrator = startable.parts.narrator_of(place.replica);
        // A start is part of what goes on now, not of when its engine was obtained.
        let narrator = match self.narrator.place() {
            Some(_) => narrator.within(&self.narrator),
            None => narrator,
        };
        narrator.concerns();
        let (environment, own) = self.environments(startable);
        let given = Given {
            place,
            narrator: &narrator,
            environment: &environment,
            runtime_environment: &own,
            secrets: &|name| self.environment.get(name).map(str::to_owned),
            driver_memory: Some(&|tree| self.clone().driver_memory(tree)),
        };
        engine::start(self.start_request(startable, given)).await
    }

    /// What engines may see of the host's environment, and what a container runtime's program needs.
    fn environments(
        &self,
        startable: &Startable,
    ) -> (BTreeMap<String, String>, BTreeMap<String, String>) {
        let seen = &startable.parts.policy.engine_environment.value;
        let seen = self.environment.pick(seen.iter().map(String::as_str));
        (seen, container::environment(&self.environment))
    }

    fn start_request<'a>(&'a self, startable: &'a Startable, given: Given<'a>) -> StartRequest<'a> {
        let parts = &*startable.parts;
        StartRequest {
            prepared: &parts.engine,
            provider_version: &parts.provider_version,
            artifacts: &parts.artifacts,
            holds: &parts.holds,
            facts: &parts.facts,
            pool: startable.pool(),
            replica: given.place.replica,
            home: &self.home,
            handoff_directory: given.place.handoff_directory,
            identity: parts.policy.engine_identity(),
            environment: given.environment,
            runtime_environment: given.runtime_environment,
            secrets: given.secrets,
            address: None,
            driver_memory: given.driver_memory,
            launched: given.place.launched,
            beside: given.place.beside == Beside::Another,
            keeper: &self.keeper,
            narrator: given.narrator,
            cancel: &self.cancel,
        }
    }

    /// Device memory that these processes hold, by the driver's word, where it has one.
    fn driver_memory(self, tree: Vec<ProcessIdentity>) -> BoxFuture<'static, Option<u64>> {
        Box::pin(async move {
            let pids: Vec<i32> = tree.iter().map(|process| process.pid).collect();
            self.collector(None).device_memory(&pids).await
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::drive::{Chosen, Planned, Request};

    fn crosses_threads<T: Send>(_: T) {}

    /// An embedder's runtime moves tasks between threads. Never called: it is enough that it compiles.
    #[expect(dead_code, reason = "the compiler is the test")]
    fn the_whole_journey_may_be_spawned(
        host: &Host,
        request: &Request,
        chosen: Chosen,
        planned: Planned,
        obtained: &Obtained,
        startable: &Startable,
    ) {
        crosses_threads(host.choose(request));
        crosses_threads(host.plan(chosen, request));
        crosses_threads(host.obtain(planned, request));
        crosses_threads(host.start(obtained, "r0", Path::new("/")));
        crosses_threads(host.start_again(startable, "r0", Path::new("/"), &|_| {}));
        crosses_threads(host.start_beside(startable, "r0", Path::new("/")));
        crosses_threads(startable.clone());
    }

    #[expect(dead_code, reason = "the compiler is the test")]
    fn so_may_looking_after_an_engine(host: &Host, instance: &Instance, engine: &RunningEngine) {
        let listening = engine::Listening::default();
        crosses_threads(engine.ask_whose_port(&host.keeper, &listening));
        crosses_threads(host.adopt(instance));
        crosses_threads(engine.wait_exit());
        crosses_threads(engine.stop(&host.cancel));
        crosses_threads(engine.ask_alive(std::time::Duration::ZERO));
        crosses_threads(engine::in_flight(instance));
    }
}
