//! What the fake programs and their tests share: an engine room job, written down, and the room it is done in.

mod room;

use std::{collections::BTreeMap, path::PathBuf};

use engine_host::{
    config::paths::Home,
    engine::StartRequest,
    narrate::Narrator,
    process::{Identity, Keeper},
};
use engine_provider_api::{
    Artifact, ArtifactState, ContainerLaunch, ContainerRuntime, Diagnosis, DiagnosisKind,
    DrainProbe, ExternalLaunch, ExtraPort, Facts, GpuEvidence, GpuPolicy, Image, Launch, Mode,
    Model, Mount, PlacedFile, Pool, PreparedEngine, Probes, ProcessLaunch, Profile, ReadinessProbe,
    Resources, Stop, Template, VersionProbe,
};
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;

pub use room::{Room, free_ports, until, whole};

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
    /// Longest time until it is ready.
    #[serde(default)]
    pub ready_ms: Option<u64>,
    /// Whether a second TERM ends it at once.
    pub second_term: bool,
    /// Least share of buffers on `CUDA0`, where the GPU must be proven.
    pub gpu_percent: Option<u8>,
    /// Who runs it.
    pub uid: Option<u32>,
    /// Whether it outlives its host.
    pub detach: bool,
    /// Where it runs instead of as a process of this machine.
    #[serde(default)]
    pub elsewhere: Option<Elsewhere>,
    /// Ports beside the main one: name and usual port.
    #[serde(default)]
    pub more_ports: Vec<(String, u16)>,
}

/// Where an engine runs that is no process of this machine.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Elsewhere {
    /// In a container.
    Container(Box<Contained>),
    /// Somebody has started it already: its URL.
    External(String),
}

/// A container.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Contained {
    /// What runs it.
    pub runtime: ContainerRuntime,
    /// Variables of the runtime's program.
    pub environment: BTreeMap<String, String>,
    /// Image by digest.
    pub image: String,
    /// User and group inside.
    pub user: Option<String>,
    /// Program inside.
    pub entrypoint: Vec<String>,
    /// What is mounted: source and target.
    pub mounts: Vec<(String, String)>,
    /// A directory or file that the source `{model.path}` stands for.
    pub model: Option<PathBuf>,
}

impl Contained {
    /// Port that the engine listens on inside.
    pub const PORT: u16 = 8080;
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
    /// The machine: its container runtimes.
    pub facts: Facts,
    /// What the runtime's program needs of the environment.
    pub runtime_environment: BTreeMap<String, String>,
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
        pool.readiness.timeout_ms = self.ready_ms;
        let program = Artifact {
            state: ArtifactState::Obtained,
            path: Some(self.program.to_string_lossy().into_owned()),
            ..Artifact::default()
        };
        let mut artifacts = BTreeMap::from([("program".to_owned(), program)]);
        let mut facts = Facts::default();
        let mut runtime_environment = BTreeMap::new();
        if let Some(Elsewhere::Container(contained)) = &self.elsewhere {
            artifacts.extend(contained.artifacts());
            facts.containers.runtimes = vec![contained.runtime.clone()];
            runtime_environment.clone_from(&contained.environment);
        }
        Parts {
            prepared: self.prepared(),
            artifacts,
            pool,
            facts,
            runtime_environment,
            home: Home::at(&self.home),
            environment: BTreeMap::from([("PATH".to_owned(), "/usr/bin:/bin".to_owned())]),
        }
    }

    fn launch(&self) -> Launch {
        let address = ["--host", "{address.host}", "--port", "{address.port}"];
        let address = address.iter().map(|text| Template::new(*text));
        let faults = self.faults.iter().map(|text| Template::new(text.clone()));
        let args = address.chain(faults).collect();
        let env = self.env.iter();
        let env = env.map(|(name, value)| (name.clone(), Template::new(value.clone())));
        let more_ports = self.more_ports.iter().map(|(name, usual_port)| ExtraPort {
            name: name.clone(),
            usual_port: *usual_port,
        });
        match &self.elsewhere {
            None => Launch::Process(ProcessLaunch {
                program: "{program.path}".into(),
                args,
                env: env.collect(),
                usual_port: 18_080,
                more_ports: more_ports.collect(),
            }),
            Some(Elsewhere::External(url)) => Launch::External(ExternalLaunch { url: url.clone() }),
            Some(Elsewhere::Container(contained)) => Launch::Container(ContainerLaunch {
                image: "image".to_owned(),
                entrypoint: contained.entrypoint.clone(),
                args,
                env: env.collect(),
                mounts: contained
                    .mounts
                    .iter()
                    .map(|(source, target)| Mount {
                        source: Template::new(source.clone()),
                        target: target.clone(),
                    })
                    .collect(),
                port: Contained::PORT,
                usual_port: 18_080,
                more_ports: more_ports.collect(),
                user: contained.user.clone(),
                read_only_root: true,
                ..ContainerLaunch::default()
            }),
        }
    }

    fn mode(&self) -> Mode {
        match &self.elsewhere {
            None => Mode::Binary,
            Some(Elsewhere::Container(_)) => Mode::Container,
            Some(Elsewhere::External(_)) => Mode::External,
        }
    }

    fn prepared(&self) -> PreparedEngine {
        let file = |(path, text): &(String, String)| PlacedFile {
            path: path.clone(),
            text: Template::new(text.clone()),
        };
        PreparedEngine {
            requires: Vec::new(),
            engine: "fake".to_owned(),
            engine_version: "1-cpu".to_owned(),
            provisioning_mode: self.mode(),
            launch: self.launch(),
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
            provider_version: "1",
            artifacts: &self.artifacts,
            holds: &[],
            facts: &self.facts,
            pool: &self.pool,
            replica: "r0",
            home: &self.home,
            handoff_directory: &job.handoffs,
            identity: job.uid.map(|uid| Identity { uid, gid: uid }),
            environment: &self.environment,
            runtime_environment: &self.runtime_environment,
            secrets: &|name| (name == "TOKEN").then(|| "hunter2-hunter2".to_owned()),
            address: None,
            driver_memory: None,
            launched: None,
            beside: false,
            keeper,
            narrator,
            cancel,
        }
    }
}

impl Contained {
    fn artifacts(&self) -> BTreeMap<String, Artifact> {
        let image = Image {
            reference: self.image.clone(),
            digest: self.image.split('@').nth(1).unwrap_or_default().to_owned(),
            ..Image::default()
        };
        let obtained = Artifact {
            state: ArtifactState::Obtained,
            ..Artifact::default()
        };
        let mut artifacts = BTreeMap::from([(
            "image".to_owned(),
            Artifact {
                image: Some(image),
                ..obtained.clone()
            },
        )]);
        if let Some(model) = &self.model {
            let path = Some(model.to_string_lossy().into_owned());
            artifacts.insert("model".to_owned(), Artifact { path, ..obtained });
        }
        artifacts
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
        kind: pattern
            .contains("allocate")
            .then_some(DiagnosisKind::Memory),
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
