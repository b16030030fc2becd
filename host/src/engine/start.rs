//! One start: from a prepared engine to one that is ready and handed off, or to nothing at all.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use engine_provider_api::{Artifact, GpuPolicy, Launch, Pool, PreparedEngine, ProcessLaunch};
use futures_util::future::BoxFuture;
use jiff::Timestamp;
use sha2::{Digest, Sha256};
use tokio_util::sync::CancellationToken;

use super::{
    EngineError, Fingerprint, Handoff, Instance, RunningEngine, State, evidence, evidence_of,
    handoff,
    http::{self, Want},
    instance,
    launch::{self, Places, Rendered},
    logs,
    port::{self, Reserved},
    probe::{NotReady, Wait, until_ready},
    settle::settle,
    stop::{self, Grip},
};
use crate::{
    config::paths::Home,
    narrate::{Actor, Narrator},
    process::{
        Child, Ended, Identity, Keeper, LogFile, Network, Output, ProcessIdentity, Running, Spec,
    },
    store::{Patience, StoreError, hex, lock, remove_tree},
};

/// Longest wait for another process that starts the same instance.
const START_WAIT: Duration = Duration::from_secs(30 * 60);

/// Ports tried when engine after engine finds its port taken.
const PORT_ATTEMPTS: usize = 5;

/// How long the log lines that prove the GPU may take after the engine is ready.
const EVIDENCE_LIMIT: Duration = Duration::from_secs(2);

/// Longest time one question to the ready engine may take.
const ASK_LIMIT: Duration = Duration::from_secs(5);

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
    if let Err(error) = &outcome {
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
struct Start<'a> {
    request: StartRequest<'a>,
    launch: &'a ProcessLaunch,
    handoff_directory: PathBuf,
    handoff: PathBuf,
    key: String,
    /// The engine's own directory: `files/` placed for it, `work/` to write in.
    place: PathBuf,
    host: IpAddr,
}

impl<'a> Start<'a> {
    fn new(request: StartRequest<'a>) -> Result<Self, EngineError> {
        let Launch::Process(launch) = &request.prepared.launch else {
            return Err(EngineError::Cancelled);
        };
        let handoff_directory = std::path::absolute(request.handoff_directory)
            .map_err(|source| StoreError::io("find", request.handoff_directory, source))?;
        let (pool, replica) = (&request.pool.id, request.replica);
        let key = instance::key(&handoff_directory, pool, replica);
        let name = handoff::file_name(&request.prepared.engine, pool, replica)?;
        Ok(Self {
            launch,
            handoff: handoff_directory.join(name),
            place: request.home.state().join("engines").join(&key),
            host: request.address.unwrap_or(Ipv4Addr::LOCALHOST.into()),
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
        self.place_files()?;
        let candidates = port::candidates(
            &self.request.pool.provisioning.ports,
            self.launch.usual_port,
        );
        let mut rest = candidates.as_slice();
        let mut failed = None;
        for _ in 0..PORT_ATTEMPTS {
            let Some((index, reserved)) = port::reserve(self.request.home, self.host, rest)? else {
                break;
            };
            rest = &rest[index + 1..];
            match self.attempt(&reserved, &wanted).await {
                Err(error) if error.is_about_the_port() => {
                    self.tell_port_taken(reserved.port);
                    failed = Some(error);
                }
                started => return Ok(Outcome::Started(Box::new(started?))),
            }
        }
        Err(failed.unwrap_or(EngineError::NoPort {
            host: self.host.to_string(),
            tried: candidates,
            named: !self.request.pool.provisioning.ports.is_empty(),
        }))
    }

    fn requires_gpu(&self) -> bool {
        self.request.pool.gpu == GpuPolicy::Require
    }

    /// A GPU that is required must be proven, and only the provider knows by what.
    fn refuse_without_evidence(&self) -> Result<(), EngineError> {
        let prepared = self.request.prepared;
        if self.requires_gpu() && prepared.gpu_evidence.is_none() {
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

    fn fingerprint(&self) -> Result<Fingerprint, EngineError> {
        let digest = |text: &str| hex(&Sha256::digest(text.as_bytes()))[..16].to_owned();
        let rendered = self.render("{address.port}")?;
        let mut files = BTreeMap::new();
        for file in &self.request.prepared.files {
            let text = self.text_of(file, "{address.port}")?;
            files.insert(file.path.clone(), digest(&text));
        }
        Ok(Fingerprint {
            program: rendered.program.to_string_lossy().into_owned(),
            args: rendered.args,
            env: rendered
                .env
                .iter()
                .map(|(name, value)| (name.clone(), digest(value)))
                .collect(),
            files,
        })
    }

    fn render(&self, port: &str) -> Result<Rendered, EngineError> {
        let rendered = self.with_places(port, |places| launch::render(self.launch, places))?;
        for secret in &rendered.secrets {
            self.request.narrator.secrets().register(secret);
        }
        Ok(rendered)
    }

    fn text_of(
        &self,
        file: &engine_provider_api::PlacedFile,
        port: &str,
    ) -> Result<String, EngineError> {
        self.with_places(port, |places| {
            launch::public(&file.text, places, &mut BTreeSet::new())
        })
    }

    fn with_places<T>(&self, port: &str, act: impl FnOnce(&Places<'_>) -> T) -> T {
        act(&Places {
            artifacts: self.request.artifacts,
            files: &self.place.join("files"),
            home: self.request.home,
            host: &self.host.to_string(),
            port,
            secrets: self.request.secrets,
        })
    }

    /// Makes the engine's directories; what an earlier start has placed is replaced.
    fn place_files(&self) -> Result<(), EngineError> {
        let files = self.place.join("files");
        match empty(&files) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(StoreError::io("remove", &files, error).into());
            }
            _ => {}
        }
        make_directory(&files)?;
        self.make_own(&self.place.join("work"))?;
        for cache in self.render("0")?.caches {
            self.make_own(&self.request.home.cache(&cache))?;
        }
        Ok(())
    }

    fn write_files(&self, port: &str) -> Result<(), EngineError> {
        let files = self.place.join("files");
        for file in &self.request.prepared.files {
            let path = launch::placed_path(&files, &file.path)?;
            make_directory(path.parent().unwrap_or(&files))?;
            fs::write(&path, self.text_of(file, port)?)
                .and_then(|()| fs::set_permissions(&path, fs::Permissions::from_mode(0o644)))
                .map_err(|source| StoreError::io("write", &path, source))?;
        }
        Ok(())
    }

    /// Makes a directory that is the engine's user's. What is there already stays if it is theirs; what
    /// another user could write in so far is made anew: nothing of it is to be trusted.
    fn make_own(&self, path: &Path) -> Result<(), EngineError> {
        use std::os::unix::fs::{MetadataExt, lchown};
        let own = rustix::process::geteuid().as_raw();
        let wanted = self.request.identity.map_or(own, |identity| identity.uid);
        // A link here is the operator's: nobody else can write in the directories above.
        match fs::metadata(path) {
            Ok(found) if found.is_dir() && found.uid() == wanted => return Ok(()),
            _ => remove_tree(path)?,
        }
        make_directory(path)?;
        if let Some(identity) = self.request.identity.filter(|_| wanted != own) {
            lchown(path, Some(identity.uid), Some(identity.gid))
                .map_err(|source| StoreError::io("change the owner of", path, source))?;
        }
        Ok(())
    }

    /// Starts it once, on one port.
    async fn attempt(
        &self,
        reserved: &Reserved,
        wanted: &Fingerprint,
    ) -> Result<RunningEngine, EngineError> {
        let started_at = Timestamp::now();
        let address = SocketAddr::new(self.host, reserved.port);
        let rendered = self.render(&reserved.port.to_string())?;
        self.write_files(&reserved.port.to_string())?;
        let (home, pool) = (self.request.home, &self.request.pool.id);
        let log = logs::begin(home, pool, self.request.replica, started_at)?;
        let spec = self.spec(rendered, &log, address, started_at);
        let command = spec.display();
        let narrator = self.request.narrator;
        let (who, target) = (Actor::EngineProvisioner, command.clone());
        narrator.say(
            who,
            "launch",
            target,
            format!("starting on port {}", reserved.port),
        );

        let running = self.request.keeper.spawn(spec).await?;
        logs::make_latest(&log);
        let engine = RunningEngine {
            instance: self.instance(&running, address, log, started_at, wanted.clone()),
            running,
            diagnoses: self.request.prepared.diagnoses.clone(),
            command,
            home: home.clone(),
            narrator: narrator.clone(),
        };
        self.bring_up(engine, address).await
    }

    fn spec(
        &self,
        rendered: Rendered,
        log: &Path,
        address: SocketAddr,
        started_at: Timestamp,
    ) -> Spec {
        let work = self.place.join("work");
        let mut env = self.request.environment.clone();
        env.extend(rendered.env);
        // Programs that look for a home directory find one that is theirs.
        env.entry("HOME".to_owned())
            .or_insert_with(|| work.to_string_lossy().into_owned());
        let record = instance::record_path(self.request.home, &self.key);
        let url = url_of(address);
        Spec {
            program: rendered.program,
            args: rendered.args,
            env,
            directory: work,
            identity: self.request.identity,
            network: Network::Host,
            output: Output::Together(LogFile {
                path: log.to_owned(),
                limit_bytes: logs::LIMIT_BYTES,
            }),
            child: Child::Engine {
                grace_ms: self.request.pool.stop.grace_ms,
                // The handoff first: nobody is to find it without its engine.
                remove: [&self.handoff, &record]
                    .map(|path| instance::removal(path, &url, started_at))
                    .into(),
            },
        }
    }

    fn instance(
        &self,
        running: &Running,
        address: SocketAddr,
        log: PathBuf,
        started_at: Timestamp,
        command: Fingerprint,
    ) -> Instance {
        let prepared = self.request.prepared;
        Instance {
            pool_id: self.request.pool.id.clone(),
            replica_id: self.request.replica.to_owned(),
            handoff_directory: self.handoff_directory.clone(),
            handoff: self.handoff.clone(),
            engine: prepared.engine.clone(),
            engine_version: prepared.engine_version.clone(),
            provisioning_mode: prepared.provisioning_mode,
            state: State::Starting,
            process: running.process(),
            minder: running.process().parent(),
            boot: instance::boot(),
            address: running.address(),
            host: ProcessIdentity::of_this_process(),
            kept: false,
            url: url_of(address),
            log,
            started_at,
            command,
            stop: prepared.stop.clone(),
            grace_ms: self.request.pool.stop.grace_ms,
        }
    }

    /// From started to handed off; when that fails nothing is left of it.
    async fn bring_up(
        &self,
        mut engine: RunningEngine,
        address: SocketAddr,
    ) -> Result<RunningEngine, EngineError> {
        match self.until_handed_off(&mut engine, address).await {
            Ok(()) => Ok(engine),
            Err(error) => {
                // What cannot be killed is not news any more: the first failure is told.
                let _ = stop::kill(&mut Grip::Own(&engine.running), &engine.instance).await;
                engine.instance.forget(self.request.home);
                Err(error)
            }
        }
    }

    async fn until_handed_off(
        &self,
        engine: &mut RunningEngine,
        address: SocketAddr,
    ) -> Result<(), EngineError> {
        let start = Instant::now();
        engine.instance.save(self.request.home)?;
        let prepared = self.request.prepared;
        self.until_ready(engine, address).await?;
        self.prove_gpu(engine).await?;
        let observed = self.ask_about(address).await;
        let url = &engine.instance.url;
        let (who, narrator) = (Actor::EngineProvisioner, self.request.narrator);
        let words = format!("{} answers on {url}", prepared.engine);
        narrator.done(who, "ready", url.clone(), words, start.elapsed());

        let handoff = Handoff::of(
            prepared,
            &self.request.pool.id,
            self.request.replica,
            url,
            observed,
            engine.instance.started_at,
        );
        engine.instance.state = State::Ready;
        engine.instance.save(self.request.home)?;
        handoff::write(&self.handoff, &handoff)?;
        // Its minder may have cleaned up a moment before this was written.
        if let Some(ended) = engine.running.ended() {
            return Err(died(engine, &ended, true));
        }
        let (path, words) = (
            &self.handoff,
            format!("handed off as {}", self.handoff.display()),
        );
        narrator.say(who, "handoff", path.to_string_lossy(), words);
        Ok(())
    }

    async fn until_ready(
        &self,
        engine: &RunningEngine,
        address: SocketAddr,
    ) -> Result<(), EngineError> {
        let stall = Duration::from_millis(self.request.pool.readiness.stall_timeout_ms);
        let probe = &self.request.prepared.probes.readiness;
        let wait = Wait {
            running: &engine.running,
            address,
            probe,
            stall,
            log: &engine.instance.log,
            keeper: self.request.keeper,
            identity: self.request.identity,
            cancel: self.request.cancel,
        };
        let Err(reason) = until_ready(&wait).await else {
            return Ok(());
        };
        let evidence = || Box::new(what_is_known(engine));
        Err(match reason {
            NotReady::Ended(ended) => died(engine, &ended, false),
            NotReady::Stalled(last_seen) => EngineError::NeverReady {
                stalled: stall,
                last_seen,
                evidence: evidence(),
            },
            NotReady::Status(code) => EngineError::UnexpectedStatus {
                url: format!("{}{}", engine.instance.url, probe.path),
                code,
                evidence: evidence(),
            },
            NotReady::Foreign => EngineError::ForeignSocket {
                port: address.port(),
                evidence: evidence(),
            },
            NotReady::Cancelled => EngineError::Cancelled,
            NotReady::Process(source) => source.into(),
        })
    }

    /// Where the GPU must be used: by the engine's own words, and by the driver's where it has any.
    async fn prove_gpu(&self, engine: &RunningEngine) -> Result<(), EngineError> {
        let Some(wanted) = &self.request.prepared.gpu_evidence else {
            return Ok(());
        };
        let start = Instant::now();
        let judged = loop {
            let judged = evidence::judge(wanted, &super::read_log(&engine.instance.log));
            if judged.is_ok() || start.elapsed() > EVIDENCE_LIMIT {
                break judged;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        };
        let tree = engine.running.process().tree();
        let by_driver = match self.request.driver_memory {
            Some(ask) if judged.is_ok() && self.requires_gpu() => ask(tree).await,
            _ => None,
        };
        let reason = match (judged, by_driver) {
            (Err(reason), _) => reason,
            (Ok(()), Some(0)) => "the driver knows of no memory that it holds".to_owned(),
            (Ok(()), _) => return Ok(()),
        };
        Err(EngineError::NotOnGpu {
            reason,
            evidence: Box::new(what_is_known(engine)),
        })
    }

    /// Asks the ready engine what it is, and whether its metrics are there. Neither is worth a
    /// failure; a missing answer is told.
    async fn ask_about(&self, address: SocketAddr) -> Option<String> {
        let probes = &self.request.prepared.probes;
        let version = async {
            let probe = probes.version.as_ref()?;
            let answer = http::get(address, &probe.path, Want::Body, ASK_LIMIT).await;
            let found = answer.ok().and_then(|answer| {
                let value: serde_json::Value = serde_json::from_slice(&answer.body).ok()?;
                let value = value.pointer(&probe.pointer)?;
                Some(
                    value
                        .as_str()
                        .map_or_else(|| value.to_string(), str::to_owned),
                )
            });
            if found.is_none() {
                self.warn(&probe.path, "does not say which version the engine is");
            }
            found
        };
        let metrics = async {
            let Some(path) = &probes.metrics else { return };
            let answer = http::get(address, path, Want::Status, ASK_LIMIT).await;
            if !answer.is_ok_and(|answer| answer.status == 200) {
                self.warn(path, "has no metrics, although they are switched on");
            }
        };
        tokio::join!(version, metrics).0
    }

    fn warn(&self, target: &str, words: &str) {
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
}

fn url_of(address: SocketAddr) -> String {
    format!("http://{address}")
}

fn died(engine: &RunningEngine, ended: &Ended, ready: bool) -> EngineError {
    EngineError::Died {
        exited: ended.exited,
        ready,
        evidence: Box::new(what_is_known(engine)),
    }
}

fn what_is_known(engine: &RunningEngine) -> super::error::Evidence {
    let (log, command) = (engine.instance.log.clone(), engine.command.clone());
    evidence_of(&engine.diagnoses, command, log)
}

/// Removes a directory with all that is in it; one that is empty stays.
fn empty(path: &Path) -> std::io::Result<()> {
    match fs::read_dir(path)?.next() {
        Some(_) => fs::remove_dir_all(path),
        None => Ok(()),
    }
}

fn make_directory(path: &Path) -> Result<(), EngineError> {
    fs::create_dir_all(path)
        .and_then(|()| fs::set_permissions(path, fs::Permissions::from_mode(0o755)))
        .map_err(|source| StoreError::io("create", path, source).into())
}
