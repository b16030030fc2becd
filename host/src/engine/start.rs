//! One start: from a prepared engine to one that is ready and handed off, or to nothing at all.
//!
//! The sequence is the same for every kind of engine: the instance's lock, what ran before, the
//! directories, the ports, one attempt after the other. The exact command is made in `command`, what
//! it finds on disk in `files`, and what happens once it runs in `bring_up`.

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    sync::Mutex,
    time::Duration,
};

use engine_provider_api::{Artifact, Facts, GpuPolicy, Launch, Pool, PreparedEngine};
use futures_util::future::BoxFuture;
use jiff::Timestamp;
use tokio_util::sync::CancellationToken;

use super::{
    EngineError, Fingerprint, Instance, RunningEngine, Side,
    body::Body,
    handoff, instance,
    kind::Kind,
    listening::OwnSockets,
    logs,
    port::{self, Ports},
    records,
    settle::{make_room, settle},
};
use crate::{
    config::paths::Home,
    narrate::{Actor, Narrator, Waits, Work},
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

/// Is told of the log of an engine that has been launched.
pub type Launched<'a> = dyn Fn(&Path) + Send + Sync + 'a;

/// What is started, and with what.
#[derive(Clone, Copy)]
pub struct StartRequest<'a> {
    /// What the provider prepared.
    pub prepared: &'a PreparedEngine,
    /// Version of that provider, for whoever adopts the engine.
    pub provider_version: &'a str,
    /// Results by step.
    pub artifacts: &'a BTreeMap<String, Artifact>,
    /// Lock files of the models among them, shared for as long as the engine is there.
    pub holds: &'a [PathBuf],
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
    /// Is told when it runs, long before it is ready; with each attempt anew.
    pub launched: Option<&'a Launched<'a>>,
    /// Whether it comes up although another one of the same instance runs, on its other side. It has
    /// no handoff then until [`RunningEngine::take_over`].
    pub beside: bool,
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
    let outcome = run(request).await;
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

async fn run(request: StartRequest<'_>) -> Result<Outcome, EngineError> {
    let usual = Start::new(request, Side::First)?;
    let _lock = usual.lock().await?;
    let wanted = usual.fingerprint()?;
    let StartRequest {
        home,
        narrator,
        cancel,
        ..
    } = request;
    let start = match settle(home, &usual.key, narrator, cancel).await? {
        None => usual,
        Some(running) if !request.beside => return usual.compare(running, &wanted),
        Some(running) => {
            let side = running.side.other();
            make_room(home, &usual.key, side, narrator, cancel).await?;
            Start::new(request, side)?
        }
    };
    let started = start.run(&wanted).await?;
    Ok(Outcome::Started(Box::new(started)))
}

/// How what this request would start differs from an engine that runs: lines with `-` (running) and
/// `+` (asked for), none where they are the same.
pub fn difference(
    request: StartRequest<'_>,
    running: &Instance,
) -> Result<Vec<String>, EngineError> {
    let wanted = Start::new(request, Side::First)?.fingerprint()?;
    Ok(running.command.difference(&wanted))
}

/// Refuses an engine on a GPU that is required and could not be proven: only the provider knows by
/// what. Of an engine that somebody else has started nothing can be proven.
pub fn refuse_without_evidence(prepared: &PreparedEngine, pool: &Pool) -> Result<(), EngineError> {
    let ours = !matches!(prepared.launch, Launch::External(_));
    if ours && pool.gpu == GpuPolicy::Require && prepared.gpu_evidence.is_none() {
        return Err(EngineError::NoGpuEvidence {
            engine: prepared.engine.clone(),
        });
    }
    Ok(())
}

/// A start with the names that follow from its request.
pub(super) struct Start<'a> {
    pub(super) request: StartRequest<'a>,
    pub(super) kind: Kind<'a>,
    pub(super) handoff_directory: PathBuf,
    pub(super) handoff: PathBuf,
    pub(super) side: Side,
    /// Name of its side of the instance in file names.
    pub(super) key: String,
    /// The engine's own directory: `files/` placed for it, `work/` to write in.
    pub(super) place: PathBuf,
    pub(super) files: PathBuf,
    /// Address of this machine that it answers on.
    pub(super) host: IpAddr,
    pub(super) host_text: String,
}

impl<'a> Start<'a> {
    fn new(request: StartRequest<'a>, side: Side) -> Result<Self, EngineError> {
        let handoff_directory = std::path::absolute(request.handoff_directory)
            .map_err(|source| StoreError::io("find", request.handoff_directory, source))?;
        let (pool, replica) = (&request.pool.id, request.replica);
        let key = side.key(&instance::key(&handoff_directory, pool, replica));
        let name = handoff::file_name(&request.prepared.engine, pool, replica)?;
        let place = place_of(request.home, &key);
        let host = request.address.unwrap_or(Ipv4Addr::LOCALHOST.into());
        Ok(Self {
            kind: Kind::of(&request)?,
            handoff: handoff_directory.join(name),
            files: place.join("files"),
            place,
            host,
            host_text: host.to_string(),
            handoff_directory,
            side,
            key,
            request,
        })
    }

    /// Starts it, where nothing of an earlier one is left on its side.
    async fn run(&self, wanted: &Fingerprint) -> Result<RunningEngine, EngineError> {
        refuse_without_evidence(self.request.prepared, self.request.pool)?;
        handoff::check(&self.handoff)?;
        self.make_places()?;
        let span =
            self.request
                .narrator
                .begin(Work::Launch, self.kind.as_str(), self.request.replica);
        let launched = self.launch(wanted, span.narrator()).await;
        span.end_with(launched)
    }

    async fn launch(
        &self,
        wanted: &Fingerprint,
        narrator: &Narrator,
    ) -> Result<RunningEngine, EngineError> {
        match &self.kind {
            Kind::External(external) => {
                let address = external.address().await?;
                self.warn_beyond_loopback(address);
                self.attempt(None, address, wanted, narrator).await
            }
            _ => self.on_a_free_port(wanted, narrator).await,
        }
    }

    /// Attempts until one has its ports. Somebody may take one between the look and the start.
    async fn on_a_free_port(
        &self,
        wanted: &Fingerprint,
        narrator: &Narrator,
    ) -> Result<RunningEngine, EngineError> {
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
            let attempt = self.attempt(Some(&ports), address, wanted, narrator);
            match attempt.await {
                Err(error) if error.is_about_the_port() => {
                    if ports.is_another_one(address, &error) {
                        self.tell_other_port(&error);
                    } else {
                        self.tell_port_given_up(address.port(), &error);
                        rest = &rest[index + 1..];
                    }
                    failed = Some(error);
                }
                // What an earlier run had left under its name is removed by now.
                Err(EngineError::NameTaken { ours: true, .. }) if !cleared => cleared = true,
                Ok(engine) => {
                    engine.hold(ports);
                    return Ok(engine);
                }
                Err(error) => return Err(error),
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

    async fn lock(&self) -> Result<crate::store::Lock, EngineError> {
        let pool = &self.request.pool.id;
        let path = records::lock_path(self.request.home, &self.key);
        let waits = Waits::new(self.request.narrator, "engine");
        let tell = |who: &str| {
            let words = format!("waiting for {who}");
            let narrator = self.request.narrator;
            narrator.say(Actor::EngineProvisioner, "launch", pool.clone(), words);
            waits.begin(pool);
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
        narrator: &Narrator,
    ) -> Result<RunningEngine, EngineError> {
        let started_at = Timestamp::now();
        if let Some(ports) = ports {
            self.write_files(ports)?;
        }
        let (home, pool) = (self.request.home, &self.request.pool.id);
        let log = logs::begin(home, pool, self.request.replica, started_at)?;
        let spec = self.spec(ports, address, &log, started_at)?;
        let words = match &self.kind {
            Kind::External(external) => format!("attaching to {}", external.url),
            _ => format!("starting on port {}", address.port()),
        };
        narrator.say(Actor::EngineProvisioner, "launch", spec.display(), words);

        let running = self.request.keeper.spawn(spec.clone()).await?;
        logs::make_latest(&log);
        if let Some(launched) = self.request.launched {
            launched(&log);
        }
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
            home: home.clone(),
            ports: Mutex::default(),
            // The start is over before the engine is.
            narrator: self.request.narrator.clone(),
            sockets: OwnSockets::default(),
        };
        self.bring_up(engine, &body, address, narrator).await
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

    fn tell_other_port(&self, error: &EngineError) {
        let found = error
            .evidence()
            .and_then(|evidence| evidence.finding.as_ref());
        let meaning = found.map_or("a port was taken", |finding| &finding.meaning);
        let words = format!("{meaning}: trying again with other ones");
        let narrator = self.request.narrator;
        let pool = self.request.pool.id.clone();
        narrator.warn(Actor::EngineProvisioner, "launch", pool, words);
    }

    fn tell_port_given_up(&self, port: u16, error: &EngineError) {
        let words = match error {
            EngineError::PortLedElsewhere { .. } => {
                format!("trying the next port, since {error}")
            }
            _ => format!("port {port} was taken meanwhile, trying the next one"),
        };
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

/// Directory of an engine that is called `key` in file names.
pub(super) fn place_of(home: &Home, key: &str) -> PathBuf {
    home.state().join("engines").join(key)
}
