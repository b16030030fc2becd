//! One start: from a prepared engine to one that is ready and handed off, or to nothing at all.
//!
//! The sequence is the same for every kind of engine: the instance's lock, what ran before, the
//! directories, the ports, one attempt after the other. The exact command is made in `command`, what
//! it finds on disk in `files`, and what happens once it runs in `bring_up`.

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    time::Duration,
};

use engine_provider_api::{Artifact, Facts, GpuPolicy, Pool, PreparedEngine};
use futures_util::future::BoxFuture;
use jiff::Timestamp;
use tokio_util::sync::CancellationToken;

use super::{
    EngineError, Fingerprint, Instance, RunningEngine,
    body::Body,
    handoff, instance,
    kind::Kind,
    logs,
    port::{self, Ports},
    settle::settle,
};
use crate::{
    config::paths::Home,
    narrate::{Actor, Narrator},
    process::{Identity, Keeper, ProcessIdentity},
    store::{Patience, StoreError, lock},
};

/// Longest wait for another process that starts the same instance.
const START_WAIT: Duration = Duration::from_secs(30 * 60);

/// Ports tried when engine after engine finds its port taken.
const PORT_ATTEMPTS: usize = 5;

/// Bytes of device memory that these processes hold, by the driver's word; `None` where it gives
/// none.
pub type DriverMemory<'a> =
    dyn Fn(Vec<ProcessIdentity>) -> BoxFuture<'static, Option<u64>> + Send + Sync + 'a;

/// What is started, and with what.
#[derive(Clone, Copy)]
pub struct StartRequest<'a> {
    /// What the provider prepared.
    pub prepared: &'a PreparedEngine,
    /// Results by step.
    pub artifacts: &'a BTreeMap<String, Artifact>,
    /// The machine as it was planned for: its container runtimes and devices.
    pub facts: &'a Facts,
    /// The pool.
    pub pool: &'a Pool,
    /// Replica, for example `r0`.
    pub replica: &'a str,
    /// Where state and logs go.
    pub home: &'a Home,
    /// Where the handoff goes; made absolute here.
    pub handoff_directory: &'a Path,
    /// Who runs the engine; `None`: as this process.
    pub identity: Option<Identity>,
    /// Variables of the host's environment that policy lets engines see.
    pub environment: &'a BTreeMap<String, String>,
    /// Variables that a container runtime's program needs
    /// ([`crate::container::environment`]).
    pub runtime_environment: &'a BTreeMap<String, String>,
    /// Secrets by name, from the host's environment.
    pub secrets: &'a (dyn Fn(&str) -> Option<String> + Send + Sync),
    /// Address the engine listens on; `None`: 127.0.0.1.
    pub address: Option<IpAddr>,
    /// Asks the driver how much memory the engine holds; a second proof where the pool requires a
    /// GPU.
    pub driver_memory: Option<&'a DriverMemory<'a>>,
    /// Starts and watches it.
    pub keeper: &'a Keeper,
    /// Is told launch, ready, handoff and failures.
    pub narrator: &'a Narrator,
    /// Ends the start; nothing is left of it then.
    pub cancel: &'a CancellationToken,
}

/// What came of a start.
#[derive(Debug)]
pub enum Outcome {
    /// It is ready.
    Started(Box<RunningEngine>),
    /// It ran already, with the same command.
    AlreadyRunning(Box<Instance>),
}

/// Starts an engine and waits until it is ready and handed off. On any failure nothing is left of
/// it, neither process nor record nor handoff; its log stays.
pub async fn start(request: StartRequest<'_>) -> Result<Outcome, EngineError> {
    let outcome = Start::new(request)?.run().await;
    // One that is gone is obtained again: no failure yet.
    let failure = outcome.as_ref().err();
    if let Some(error) = failure.filter(|error| !matches!(error, EngineError::ImageGone { .. })) {
        let action = match error {
            EngineError::Died { .. } => "crash",
            _ => "launch",
        };
        let target = request.pool.id.clone();
        request
            .narrator
            .fail(Actor::EngineProvisioner, action, target, error);
    }
    outcome
}

/// A start with the names that follow from its request.
pub(super) struct Start<'a> {
    pub(super) request: StartRequest<'a>,
    pub(super) kind: Kind<'a>,
    pub(super) handoff_directory: PathBuf,
    pub(super) handoff: PathBuf,
    pub(super) key: String,
    /// The engine's own directory: `files/` placed for it, `work/` to write in.
    pub(super) place: PathBuf,
    pub(super) files: PathBuf,
    /// Address of this machine that it answers on.
    pub(super) host: IpAddr,
    pub(super) host_text: String,
}

impl<'a> Start<'a> {
    fn new(request: StartRequest<'a>) -> Result<Self, EngineError> {
        let handoff_directory = std::path::absolute(request.handoff_directory)
            .map_err(|source| StoreError::io("find", request.handoff_directory, source))?;
        let (pool, replica) = (&request.pool.id, request.replica);
        let key = instance::key(&handoff_directory, pool, replica);
        let name = handoff::file_name(&request.prepared.engine, pool, replica)?;
        let place = request.home.state().join("engines").join(&key);
        let host = request.address.unwrap_or(Ipv4Addr::LOCALHOST.into());
        Ok(Self {
            kind: Kind::of(&request)?,
            handoff: handoff_directory.join(name),
            files: place.join("files"),
            place,
            host,
            host_text: host.to_string(),
            handoff_directory,
            key,
            request,
        })
    }

    async fn run(&self) -> Result<Outcome, EngineError> {
        let _lock = self.lock().await?;
        let wanted = self.fingerprint()?;
        let StartRequest {
            home,
            narrator,
            cancel,
            ..
        } = self.request;
        if let Some(running) = settle(home, &self.key, narrator, cancel).await? {
            return self.compare(running, &wanted);
        }
        self.refuse_without_evidence()?;
        handoff::check(&self.handoff)?;
        self.make_places()?;
        let started = match &self.kind {
            Kind::External(external) => {
                self.warn_beyond_loopback(external.address().await?);
                self.attempt(None, external.address().await?, &wanted).await
            }
            _ => self.on_a_free_port(&wanted).await,
        };
        Ok(Outcome::Started(Box::new(started?)))
    }

    /// Attempts until one has its ports. Somebody may take one between the look and the start.
    async fn on_a_free_port(&self, wanted: &Fingerprint) -> Result<RunningEngine, EngineError> {
        let pool_ports = &self.request.pool.provisioning.ports;
        let candidates = port::candidates(pool_ports, self.kind.usual_port());
        let mut rest = candidates.as_slice();
        let mut failed = None;
        let mut cleared = false;
        let home = self.request.home;
        for _ in 0..PORT_ATTEMPTS {
            let Some((index, main)) = port::reserve(home, self.host, rest)? else {
                break;
            };
            let address = SocketAddr::new(self.host, main.port);
            let ports = Ports::reserve(home, self.host, main, self.kind.more_ports())?;
            match self.attempt(Some(&ports), address, wanted).await {
                Err(error) if error.is_about_the_port() => {
                    self.tell_port_taken(address.port());
                    rest = &rest[index + 1..];
                    failed = Some(error);
                }
                // What an earlier run had left under its name is removed by now.
                Err(EngineError::NameTaken { ours: true, .. }) if !cleared => cleared = true,
                started => return started,
            }
        }
        Err(failed.unwrap_or(EngineError::NoPort {
            host: self.host_text.clone(),
            tried: candidates,
            named: !pool_ports.is_empty(),
        }))
    }

    pub(super) fn requires_gpu(&self) -> bool {
        self.request.pool.gpu == GpuPolicy::Require
    }

    /// A GPU that is required must be proven, and only the provider knows by what. Of an engine that
    /// somebody else has started nothing can be proven.
    fn refuse_without_evidence(&self) -> Result<(), EngineError> {
        let prepared = self.request.prepared;
        let ours = !matches!(self.kind, Kind::External(_));
        if ours && self.requires_gpu() && prepared.gpu_evidence.is_none() {
            return Err(EngineError::NoGpuEvidence {
                engine: prepared.engine.clone(),
            });
        }
        Ok(())
    }

    async fn lock(&self) -> Result<crate::store::Lock, EngineError> {
        let pool = &self.request.pool.id;
        let path = instance::lock_path(self.request.home, &self.key);
        let tell = |holder: Option<&crate::store::Holder>| {
            let who = holder.map_or_else(|| "another process".to_owned(), ToString::to_string);
            let words = format!("waiting for {who}");
            let narrator = self.request.narrator;
            narrator.say(Actor::EngineProvisioner, "launch", pool.clone(), words);
        };
        let patience = Patience {
            limit: START_WAIT,
            cancel: self.request.cancel,
            on_wait: &tell,
        };
        Ok(lock(
            &path,
            &format!("starting the engine of pool {pool}"),
            patience,
        )
        .await?)
    }

    fn compare(&self, running: Instance, wanted: &Fingerprint) -> Result<Outcome, EngineError> {
        let difference = running.command.difference(wanted);
        if difference.is_empty() {
            return Ok(Outcome::AlreadyRunning(Box::new(running)));
        }
        Err(EngineError::Conflict {
            pool: running.pool_id,
            url: running.url,
            difference,
        })
    }

    /// Starts it once, on these ports; an engine of somebody else has none of ours.
    async fn attempt(
        &self,
        ports: Option<&Ports>,
        address: SocketAddr,
        wanted: &Fingerprint,
    ) -> Result<RunningEngine, EngineError> {
        let started_at = Timestamp::now();
        if let Some(ports) = ports {
            self.write_files(ports)?;
        }
        let (home, pool) = (self.request.home, &self.request.pool.id);
        let log = logs::begin(home, pool, self.request.replica, started_at)?;
        let spec = self.spec(ports, address, &log, started_at)?;
        let command = spec.display();
        let narrator = self.request.narrator;
        let words = match &self.kind {
            Kind::External(external) => format!("attaching to {}", external.url),
            _ => format!("starting on port {}", address.port()),
        };
        narrator.say(Actor::EngineProvisioner, "launch", command.clone(), words);

        let running = self.request.keeper.spawn(spec.clone()).await?;
        logs::make_latest(&log);
        let body = Body::of(
            &self.kind,
            &running,
            self.request.identity,
            self.label().name(),
            self.request.runtime_environment,
        );
        let engine = RunningEngine {
            instance: self.instance(&running, &spec, ports, address, log, started_at, wanted),
            running,
            diagnoses: self.request.prepared.diagnoses.clone(),
            command,
            home: home.clone(),
            narrator: narrator.clone(),
        };
        self.bring_up(engine, &body, address).await
    }

    /// Where it answers.
    pub(super) fn url_of(&self, address: SocketAddr) -> String {
        match &self.kind {
            Kind::External(external) => external.url.clone(),
            _ => format!("http://{address}"),
        }
    }

    pub(super) fn warn(&self, target: &str, words: &str) {
        let human = format!("{target} {words}");
        self.request
            .narrator
            .warn(Actor::EngineProvisioner, "ready", target, human);
    }

    fn tell_port_taken(&self, port: u16) {
        let words = format!("port {port} was taken meanwhile, trying the next one");
        let narrator = self.request.narrator;
        narrator.warn(Actor::EngineProvisioner, "launch", port.to_string(), words);
    }

    fn warn_beyond_loopback(&self, address: SocketAddr) {
        if !address.ip().is_loopback() {
            let human = format!(
                "{address} is not this machine: what is sent to the engine goes through the network in \
                 the clear"
            );
            let narrator = self.request.narrator;
            narrator.warn(
                Actor::EngineProvisioner,
                "launch",
                address.to_string(),
                human,
            );
        }
    }
}
