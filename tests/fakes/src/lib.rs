//! What the fake programs and their tests share: an engine room job, written down.

use std::{collections::BTreeMap, path::PathBuf};

use engine_host::{
    config::paths::Home,
    engine::StartRequest,
    narrate::Narrator,
    process::{Identity, Keeper},
};
use engine_provider_api::{
    Artifact, ArtifactState, Diagnosis, DrainProbe, GpuEvidence, GpuPolicy, Launch, Mode, Model,
    PlacedFile, Pool, PreparedEngine, Probes, ProcessLaunch, Profile, ReadinessProbe, Resources,
    Stop, Template, VersionProbe,
};
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;

/// A start of the fake engine.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Job {
    /// The fake engine.
    pub program: PathBuf,
    /// Root of the home.
    pub home: PathBuf,
    /// Where the handoff goes.
    pub handoffs: PathBuf,
    /// Pool.
    pub pool: String,
    /// Faults, as on the fake engine's command line; placeholders are filled in.
    pub faults: Vec<String>,
    /// Environment of the launch, with placeholders.
    pub env: BTreeMap<String, String>,
    /// Ports of the pool.
    pub ports: Vec<u16>,
    /// Files placed for it.
    pub files: Vec<(String, String)>,
    /// Time between TERM and KILL.
    pub grace_ms: u64,
    /// Longest silence.
    pub stall_ms: u64,
    /// Whether a second TERM ends it at once.
    pub second_term: bool,
    /// Least share of buffers on `CUDA0`, where the GPU must be proven.
    pub gpu_percent: Option<u8>,
    /// Who runs it.
    pub uid: Option<u32>,
    /// Whether it outlives its host.
    pub detach: bool,
}

/// What a start borrows from.
#[derive(Debug)]
pub struct Parts {
    /// What was prepared.
    pub prepared: PreparedEngine,
    /// Where its program is.
    pub artifacts: BTreeMap<String, Artifact>,
    /// Its pool.
    pub pool: Pool,
    /// Its home.
    pub home: Home,
    /// What the host's environment lends it.
    pub environment: BTreeMap<String, String>,
}

impl Job {
    /// Everything a start borrows.
    ///
    /// # Panics
    ///
    /// When the smallest pool document is none any more.
    #[must_use]
    pub fn parts(&self) -> Parts {
        let mut pool: Pool = serde_json::from_value(serde_json::json!({
            "id": self.pool, "engine": "fake",
        }))
        .expect("everything else has a default");
        pool.gpu = match self.gpu_percent {
            Some(_) => GpuPolicy::Require,
            None => GpuPolicy::Forbid,
        };
        pool.provisioning.ports.clone_from(&self.ports);
        pool.stop.grace_ms = self.grace_ms;
        pool.readiness.stall_timeout_ms = self.stall_ms;
        let program = Artifact {
            state: ArtifactState::Obtained,
            path: Some(self.program.to_string_lossy().into_owned()),
            ..Artifact::default()
        };
        Parts {
            prepared: self.prepared(),
            artifacts: BTreeMap::from([("program".to_owned(), program)]),
            pool,
            home: Home::at(&self.home),
            environment: BTreeMap::from([("PATH".to_owned(), "/usr/bin:/bin".to_owned())]),
        }
    }

    fn prepared(&self) -> PreparedEngine {
        let address = ["--host", "{address.host}", "--port", "{address.port}"];
        let address = address.iter().map(|text| Template::new(*text));
        let faults = self.faults.iter().map(|text| Template::new(text.clone()));
        let file = |(path, text): &(String, String)| PlacedFile {
            path: path.clone(),
            text: Template::new(text.clone()),
        };
        PreparedEngine {
            requires: Vec::new(),
            engine: "fake".to_owned(),
            engine_version: "1-cpu".to_owned(),
            provisioning_mode: Mode::Binary,
            launch: Launch::Process(ProcessLaunch {
                program: "{program.path}".into(),
                args: address.chain(faults).collect(),
                env: self
                    .env
                    .iter()
                    .map(|(name, value)| (name.clone(), Template::new(value.clone())))
                    .collect(),
                usual_port: 18_080,
                more_ports: Vec::new(),
            }),
            files: self.files.iter().map(file).collect(),
            probes: probes(),
            stop: Stop {
                drain: Some(DrainProbe {
                    path: "/metrics".to_owned(),
                    gauge: "fake:requests_processing".to_owned(),
                    port: None,
                }),
                second_term_ends_at_once: self.second_term,
            },
            resources: Resources::default(),
            model: Model {
                id: "toy".to_owned(),
                path: Some("/models/toy.gguf".to_owned()),
                digest: None,
            },
            flags: vec!["--parallel".to_owned(), "1".to_owned()],
            slots_total: 1,
            workloads: vec!["completion".to_owned()],
            profile: Profile::Deterministic,
            diagnoses: diagnoses(),
            gpu_evidence: self.gpu_percent.map(gpu_evidence),
            dialect: "openai".to_owned(),
            device_mask: Vec::new(),
            build_record: BTreeMap::new(),
            warnings: Vec::new(),
        }
    }
}

impl Parts {
    /// The request for a start.
    #[must_use]
    pub fn request<'a>(
        &'a self,
        job: &'a Job,
        keeper: &'a Keeper,
        narrator: &'a Narrator,
        cancel: &'a CancellationToken,
    ) -> StartRequest<'a> {
        StartRequest {
            prepared: &self.prepared,
            artifacts: &self.artifacts,
            pool: &self.pool,
            replica: "r0",
            home: &self.home,
            handoff_directory: &job.handoffs,
            identity: job.uid.map(|uid| Identity { uid, gid: uid }),
            environment: &self.environment,
            secrets: &|name| (name == "TOKEN").then(|| "hunter2-hunter2".to_owned()),
            address: None,
            driver_memory: None,
            keeper,
            narrator,
            cancel,
        }
    }
}

fn probes() -> Probes {
    Probes {
        readiness: ReadinessProbe {
            path: "/health".to_owned(),
            ok: vec![200],
            loading: vec![503],
        },
        version: Some(VersionProbe {
            path: "/props".to_owned(),
            pointer: "/build_info".to_owned(),
        }),
        metrics: Some("/metrics".to_owned()),
        metrics_port: None,
    }
}

fn diagnoses() -> Vec<Diagnosis> {
    let entry = |pattern: &str, meaning: &str, fix: &str, port_taken| Diagnosis {
        pattern: pattern.to_owned(),
        meaning: meaning.to_owned(),
        fix: fix.to_owned(),
        port_taken,
    };
    vec![
        entry(
            r"couldn't bind HTTP server socket, port: (?P<port>\d+)",
            "port $port is taken",
            "name other `ports`",
            true,
        ),
        entry(
            r"failed to allocate (?P<mib>\d+) MiB",
            "memory has no room for another $mib MiB",
            "use a smaller model",
            false,
        ),
    ]
}

fn gpu_evidence(least_percent: u8) -> GpuEvidence {
    GpuEvidence {
        devices: vec!["CUDA0".to_owned()],
        buffers: vec![r"(?P<device>\S+) buffer size = (?P<mib>[0-9.]+) MiB".to_owned()],
        least_percent,
        ..GpuEvidence::default()
    }
}
