//! Once it runs: ready, on the GPU where it must be, handed off; or ended again.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    path::PathBuf,
    time::{Duration, Instant},
};

use engine_provider_api::Stop;
use jiff::Timestamp;

use super::{
    EngineError, Fingerprint, Handoff, Instance, InstanceContainer, Known, RunningEngine, State,
    body::Body,
    evidence,
    http::{self, Want},
    instance,
    kind::Kind,
    leftover,
    port::Ports,
    probe::{NotReady, Unreached, Wait, until_ready},
    start::Start,
    stop::{self, Grip},
};
use crate::{
    narrate::{Actor, Narrator, Work},
    process::{Child, MemoryKills, ProcessIdentity, Running, Spec},
    store::human_bytes,
};

/// How long an engine may take until it is ready where its pool does not say: a very large model from a slow
/// disk.
const READY_LIMIT: Duration = Duration::from_secs(6 * 60 * 60);

/// How long the log lines that prove the GPU may take after the engine is ready.
const EVIDENCE_LIMIT: Duration = Duration::from_secs(2);

/// Longest time one question to the ready engine may take.
const ASK_LIMIT: Duration = Duration::from_secs(5);

impl Start<'_> {
    #[expect(
        clippy::too_many_arguments,
        reason = "a record has many parts, all known here"
    )]
    pub(super) fn instance(
        &self,
        running: &Running,
        spec: &Spec,
        ports: Option<&Ports>,
        address: SocketAddr,
        log: PathBuf,
        started_at: Timestamp,
        command: &Fingerprint,
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
            kept_limit_ms: None,
            side: self.side,
            url: self.url_of(address),
            endpoints: self.endpoints(ports),
            container: self.container_of(spec),
            uses: self.results(),
            log,
            started_at,
            command: command.clone(),
            stop: self.stop(),
            grace_ms: self.request.pool.stop.grace_ms,
            known: Known {
                command: self.masked(&spec.display()),
                diagnoses: prepared.diagnoses.clone(),
                probes: prepared.probes.clone(),
                memory_kills: Some(MemoryKills::around(running.process())),
                workloads: prepared.workloads.clone(),
                provider_version: Some(self.request.provider_version.to_owned()),
                handoff: None,
            },
        }
    }

    /// From started to handed off; when that fails nothing is left of it.
    pub(super) async fn bring_up(
        &self,
        mut engine: RunningEngine,
        body: &Body,
        address: SocketAddr,
        narrator: &Narrator,
    ) -> Result<RunningEngine, EngineError> {
        let handed_off = self.until_handed_off(&mut engine, body, address, narrator);
        match handed_off.await {
            Ok(()) => Ok(engine),
            Err(error) => {
                // What cannot be killed is not news any more: the first failure is told.
                let _ = stop::kill(&mut Grip::Own(&engine.running), &engine.instance).await;
                if let Err(left) = leftover::settle(self.request.home, &engine.instance).await {
                    let (who, target) = (Actor::EngineProvisioner, &self.request.pool.id);
                    narrator.fail(who, "stop", target, &left);
                }
                Err(error)
            }
        }
    }

    async fn until_handed_off(
        &self,
        engine: &mut RunningEngine,
        body: &Body,
        address: SocketAddr,
        narrator: &Narrator,
    ) -> Result<(), EngineError> {
        let start = Instant::now();
        engine.instance.save(self.request.home)?;
        let prepared = self.request.prepared;
        let span = narrator.begin(Work::Ready, self.kind.as_str(), &engine.instance.url);
        span.end_with(self.until_ready(engine, body, address).await)?;
        self.prove_gpu(engine, body, narrator).await?;
        let observed = self.ask_about(engine, address).await;
        let url = &engine.instance.url;
        let who = Actor::EngineProvisioner;
        let words = format!("{} answers on {url}", prepared.engine);
        narrator.done(who, "ready", url.clone(), words, start.elapsed());

        let handoff = Handoff::of(prepared, &engine.instance, observed);
        engine.instance.state = State::Ready;
        engine.instance.known.handoff = Some(handoff);
        engine.instance.save(self.request.home)?;
        if self.request.beside {
            // Another one serves until its host says otherwise.
            return Ok(());
        }
        engine.hand_off(narrator)
    }

    async fn until_ready(
        &self,
        engine: &RunningEngine,
        body: &Body,
        address: SocketAddr,
    ) -> Result<(), EngineError> {
        let readiness = &self.request.pool.readiness;
        let stall = Duration::from_millis(readiness.stall_timeout_ms);
        let limit = readiness
            .timeout_ms
            .map_or(READY_LIMIT, Duration::from_millis);
        let probe = &self.request.prepared.probes.readiness;
        let wait = Wait {
            running: &engine.running,
            address,
            probe,
            stall,
            limit,
            log: &engine.instance.log,
            body,
            keeper: self.request.keeper,
            cancel: self.request.cancel,
        };
        let Err(reason) = until_ready(&wait).await else {
            return Ok(());
        };
        let evidence = || Box::new(engine.evidence());
        Err(match reason {
            NotReady::Ended(ended) => engine.death(&ended, false),
            NotReady::Stalled(last_seen) => EngineError::NeverReady {
                stalled: stall,
                last_seen,
                evidence: evidence(),
            },
            NotReady::TooLong(last_seen) => EngineError::TooSlow {
                limit,
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
            NotReady::Unreached(Unreached::NoRoute) => EngineError::NoRoute {
                address,
                evidence: evidence(),
            },
            NotReady::Unreached(how) => EngineError::PortLedElsewhere {
                address,
                how,
                evidence: evidence(),
            },
            NotReady::Cancelled => EngineError::Cancelled,
            NotReady::Process(source) => source.into(),
        })
    }

    /// Where the GPU must be used: by the engine's own words, and by the driver's where it has any. Both are
    /// told.
    async fn prove_gpu(
        &self,
        engine: &RunningEngine,
        body: &Body,
        narrator: &Narrator,
    ) -> Result<(), EngineError> {
        let Some(wanted) = &self.request.prepared.gpu_evidence else {
            return Ok(());
        };
        if engine.instance.is_external() {
            // Neither its log nor its processes are known.
            return Ok(());
        }
        let start = Instant::now();
        let judged = loop {
            let judged = evidence::judge(wanted, &super::read_log(&engine.instance.log));
            if judged.is_ok() || start.elapsed() > EVIDENCE_LIMIT {
                break judged;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        };
        let asked = self.requires_gpu() || wanted.driver_memory;
        let by_driver = match self.request.driver_memory {
            Some(ask) if judged.is_ok() && asked => ask(body.tree()).await,
            _ => None,
        };
        let reason = match (judged, by_driver) {
            (Err(reason), _) => reason,
            (Ok(_), Some(0)) => "the driver knows of no memory that it holds".to_owned(),
            (Ok(_), None) if wanted.driver_memory => {
                "the driver does not say how much memory it holds, and its log does not tell"
                    .to_owned()
            }
            (Ok(said), held) => {
                self.tell_proof(said, held, narrator);
                return Ok(());
            }
        };
        Err(EngineError::NotOnGpu {
            reason,
            evidence: Box::new(engine.evidence()),
        })
    }

    /// Tells by what it is known that the engine is on the GPU: its log, and what it holds by the driver's word.
    fn tell_proof(&self, said: Option<String>, held: Option<u64>, narrator: &Narrator) {
        let held = held.map(|bytes| {
            let held = human_bytes(bytes);
            format!("the driver says that it holds {held}")
        });
        let witnesses: Vec<String> = said.into_iter().chain(held).collect();
        if !witnesses.is_empty() {
            let words = format!("the engine is on the GPU: {}", witnesses.join("; "));
            let (who, target) = (Actor::EngineProvisioner, &self.request.pool.id);
            narrator.say(who, "on-gpu", target, words);
        }
    }

    /// Asks the ready engine what it is, and whether its metrics are there. Neither is worth a
    /// failure; a missing answer is told.
    async fn ask_about(&self, engine: &RunningEngine, at: SocketAddr) -> Option<String> {
        let probes = &self.request.prepared.probes;
        let version = async {
            let probe = probes.version.as_ref()?;
            let answer = http::get(at, &probe.path, Want::Body, ASK_LIMIT).await;
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
            let other = probes.metrics_port.as_deref();
            let address = other.and_then(|port| engine.instance.endpoint(port));
            let address = address.unwrap_or(at);
            let answer = http::get(address, path, Want::Status, ASK_LIMIT).await;
            if !answer.is_ok_and(|answer| answer.status == 200) {
                self.warn(path, "has no metrics, although they are switched on");
            }
        };
        tokio::join!(version, metrics).0
    }

    /// Where the ports beside the main one are reached.
    fn endpoints(&self, ports: Option<&Ports>) -> BTreeMap<String, String> {
        let url = |port| self.url_of(SocketAddr::new(self.host, port));
        let numbers = ports.map(Ports::more_numbers).unwrap_or_default();
        let endpoints = numbers.into_iter();
        endpoints.map(|(name, port)| (name, url(port))).collect()
    }

    /// Paths of the results that it was started with.
    fn results(&self) -> Vec<PathBuf> {
        let paths = self.request.artifacts.values();
        paths
            .filter_map(|artifact| artifact.path.as_ref().map(PathBuf::from))
            .collect()
    }

    fn container_of(&self, spec: &Spec) -> Option<InstanceContainer> {
        let (Kind::Container(contained), Child::Engine { farewell, .. }) =
            (&self.kind, &spec.child)
        else {
            return None;
        };
        Some(InstanceContainer {
            runtime: contained.runtime.name.clone(),
            name: self.label().name(),
            image: contained.image.reference.clone(),
            program: contained.program().map(str::to_owned),
            farewell: *farewell.clone()?,
        })
    }

    /// How it is stopped; an engine of somebody else is neither drained nor told to end.
    fn stop(&self) -> Stop {
        match self.kind {
            Kind::External(_) => Stop::default(),
            _ => self.request.prepared.stop.clone(),
        }
    }
}
