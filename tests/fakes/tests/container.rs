//! Promises of the engine room for engines in containers, kept with real podman and real docker.

use std::{
    collections::BTreeMap,
    fs,
    io::{BufRead, BufReader, Write},
    net::TcpListener,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{
        OnceLock,
        atomic::{AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use e2e::{ContainerKind, Containers, Image, Registry};
use engine_host::{
    config::paths::Home,
    engine::{self, EngineEnd, EngineError, Handoff, Instance, Outcome, RunningEngine},
    fault::Fault,
    narrate::{Capture, Narrator},
    process::{Keeper, KeeperOptions, ProcessIdentity},
};
use engine_provider_api::ContainerRuntime;
use fakes::{Contained, Elsewhere, Job};
use rustix::process::Signal;
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;

/// Longest time anything here may take.
const LIMIT: Duration = Duration::from_secs(60);

/// A runtime that has the fake engine's image.
struct Runtime {
    containers: Containers,
    image: String,
    facts: ContainerRuntime,
    _place: TempDir,
}

// One for all tests of this process; what tests leave is told apart by labels.
fn runtime(kind: ContainerKind) -> &'static Runtime {
    static PODMAN: OnceLock<Runtime> = OnceLock::new();
    static DOCKER: OnceLock<Runtime> = OnceLock::new();
    let which = match kind {
        ContainerKind::Podman => &PODMAN,
        ContainerKind::Docker => &DOCKER,
    };
    which.get_or_init(|| Runtime::with_image(kind))
}

impl Runtime {
    fn with_image(kind: ContainerKind) -> Self {
        let place = tempfile::tempdir().unwrap();
        let containers = Containers::new(kind, place.path());
        let registry = Registry::open();
        containers.trust(&registry);
        let digest = registry.push("engine", "1", &Image::engine());
        let image = format!("{}/engine@{digest}", registry.address());
        containers.run(&["pull", "--quiet", &image]);
        let path = which(kind.name());
        Self {
            facts: ContainerRuntime {
                name: kind.name().to_owned(),
                path: path.to_string_lossy().into_owned(),
                init: true,
                ..ContainerRuntime::default()
            },
            containers,
            image,
            _place: place,
        }
    }

    fn environment(&self) -> BTreeMap<String, String> {
        let mut environment = self.containers.environment().clone();
        environment.insert("PATH".to_owned(), std::env::var("PATH").unwrap());
        environment.insert("HOME".to_owned(), "/root".to_owned());
        environment
    }

    /// Names of the containers of one home, whatever their state.
    fn left(&self, home: &Path) -> Vec<String> {
        let label = format!("engine-host.home={}", home.display());
        self.containers.labelled(&label)
    }
}

fn which(name: &str) -> PathBuf {
    let path = std::env::var_os("PATH").unwrap();
    let mut found = std::env::split_paths(&path).map(|directory| directory.join(name));
    found.find(|path| path.is_file()).expect(name)
}

/// A home, a keeper and an ear, for one test.
struct Room {
    _directory: TempDir,
    runtime: &'static Runtime,
    root: PathBuf,
    home: Home,
    keeper: Keeper,
    narrator: Narrator,
    heard: Capture,
    cancel: CancellationToken,
}

impl Room {
    fn new(kind: ContainerKind) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().to_owned();
        let home = Home::at(root.join("home"));
        let (narrator, heard) = Narrator::capture();
        let options = KeeperOptions::program(env!("CARGO_BIN_EXE_fake-host"));
        Self {
            _directory: directory,
            runtime: runtime(kind),
            root,
            keeper: Keeper::new(&home, options),
            home,
            narrator,
            heard,
            cancel: CancellationToken::new(),
        }
    }

    fn job(&self, faults: &[&str]) -> Job {
        Job {
            program: "/nothing".into(),
            home: self.home.root().to_owned(),
            handoffs: self.root.join(".runtime/engines"),
            pool: "default".to_owned(),
            faults: faults.iter().map(|text| (*text).to_owned()).collect(),
            env: BTreeMap::new(),
            ports: free_ports(3),
            files: Vec::new(),
            grace_ms: 5_000,
            stall_ms: 20_000,
            second_term: false,
            gpu_percent: None,
            uid: None,
            detach: false,
            elsewhere: Some(Elsewhere::Container(Box::new(self.contained()))),
            more_ports: Vec::new(),
        }
    }

    fn contained(&self) -> Contained {
        Contained {
            runtime: self.runtime.facts.clone(),
            environment: self.runtime.environment(),
            image: self.runtime.image.clone(),
            user: Some("2000:0".to_owned()),
            ..Contained::default()
        }
    }

    async fn try_start(&self, job: &Job) -> Result<Outcome, EngineError> {
        let parts = job.parts();
        let request = parts.request(job, &self.keeper, &self.narrator, &self.cancel);
        tokio::time::timeout(LIMIT, engine::start(request))
            .await
            .expect("a start comes to an end")
    }

    async fn start(&self, job: &Job) -> RunningEngine {
        match self.try_start(job).await {
            Ok(Outcome::Started(engine)) => *engine,
            Err(error) => panic!("{}", whole(&error)),
            other => panic!("{other:?}"),
        }
    }

    async fn fail(&self, job: &Job) -> EngineError {
        match self.try_start(job).await {
            Err(error) => error,
            Ok(started) => panic!("{started:?}"),
        }
    }

    fn handoff(&self) -> PathBuf {
        self.root.join(".runtime/engines/fake.json")
    }

    /// No container, no handoff, no record.
    fn assert_empty(&self) {
        assert_eq!(self.runtime.left(self.home.root()), Vec::<String>::new());
        assert!(!self.handoff().exists(), "a handoff is left");
        let records = fs::read_dir(self.home.state().join("instances")).unwrap();
        for entry in records.flatten() {
            let name = entry.file_name().into_string().unwrap();
            assert!(name.ends_with(".lock"), "{name} is left");
        }
    }
}

/// An error with all that it says.
fn whole(error: &EngineError) -> String {
    let details: Vec<String> = error
        .details()
        .iter()
        .map(|detail| format!("{detail:?}"))
        .collect();
    format!("{error}\n{}", details.join("\n"))
}

/// Ports that are free now, never the same twice in this process.
fn free_ports(count: usize) -> Vec<u16> {
    const RANGE: u32 = 12_000;
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let start = std::process::id().wrapping_mul(977);
    std::iter::repeat_with(|| {
        let number = start.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed)) % RANGE;
        20_000 + u16::try_from(number).unwrap()
    })
    .filter(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok())
    .take(count)
    .collect()
}

async fn until<T>(what: &str, mut look: impl FnMut() -> Result<T, String>) -> T {
    let start = Instant::now();
    loop {
        match look() {
            Ok(value) => return value,
            Err(seen) if start.elapsed() > LIMIT => panic!("{what}: last seen: {seen}"),
            Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    }
}

async fn starts_answers_and_leaves_nothing(kind: ContainerKind) {
    let room = Room::new(kind);
    let mut job = room.job(&["--load-ms", "300"]);
    job.more_ports = vec![("grpc".to_owned(), 8081)];
    let engine = room.start(&job).await;
    let handoff: Handoff = serde_json::from_slice(&fs::read(room.handoff()).unwrap()).unwrap();
    assert_eq!(handoff.url, engine.url());
    assert!(handoff.endpoints["grpc"].starts_with("http://127.0.0.1:"));
    assert_eq!(handoff.observed_version.as_deref(), Some("b1-fake"));
    assert_eq!(room.runtime.left(room.home.root()).len(), 1);
    // The same command finds it running.
    match room.try_start(&job).await.unwrap() {
        Outcome::AlreadyRunning(instance) => assert_eq!(instance.url, engine.url()),
        other => panic!("{other:?}"),
    }
    engine.stop(&CancellationToken::new()).await.unwrap();
    let log = fs::read_to_string(engine.log_path()).unwrap();
    assert!(log.contains("TERM, leaving"), "{log}");
    room.assert_empty();
}

#[tokio::test]
async fn podman_starts_answers_and_leaves_nothing() {
    starts_answers_and_leaves_nothing(ContainerKind::Podman).await;
}

#[tokio::test]
async fn docker_starts_answers_and_leaves_nothing() {
    starts_answers_and_leaves_nothing(ContainerKind::Docker).await;
}
