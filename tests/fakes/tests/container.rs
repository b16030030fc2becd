//! Promises of the engine room for engines in containers, kept with real podman and real docker.

use std::{
    collections::BTreeMap,
    fs,
    io::{BufRead, BufReader},
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

/// Longest time a stop of an engine that heeds TERM may take here: runtimes are slow on a busy machine.
const STOP_LIMIT: Duration = Duration::from_secs(10);

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

    /// A host of its own process that has started this job, and what it started.
    async fn another_host(&self, job: &Job) -> (Child, Instance) {
        fs::create_dir_all(&self.root).unwrap();
        let path = self.root.join("job.json");
        fs::write(&path, serde_json::to_vec(job).unwrap()).unwrap();
        let mut host = Command::new(env!("CARGO_BIN_EXE_fake-host"))
            .arg(&path)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut output = BufReader::new(host.stdout.take().unwrap());
        let mut said = String::new();
        output.read_line(&mut said).unwrap();
        // It may still have something to say.
        host.stdout = Some(output.into_inner());
        assert!(
            said.starts_with("ready ") || said.starts_with("kept "),
            "{said}"
        );
        let instance = engine::instances(&self.home).unwrap().remove(0);
        (host, instance)
    }

    /// Names of this home's containers, whatever their state.
    fn left(&self) -> Vec<String> {
        self.runtime.left(self.home.root())
    }

    fn handoff(&self) -> PathBuf {
        self.root.join(".runtime/engines/fake.json")
    }

    /// No container, no handoff, no record.
    fn assert_empty(&self) {
        assert_eq!(self.left(), Vec::<String>::new());
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

/// Makes a test for each runtime.
macro_rules! promise {
    ($($name:ident),+ $(,)?) => {
        mod podman {
            $(#[tokio::test]
            async fn $name() {
                super::$name(super::ContainerKind::Podman).await;
            })+
        }
        mod docker {
            $(#[tokio::test]
            async fn $name() {
                super::$name(super::ContainerKind::Docker).await;
            })+
        }
    };
}

promise!(
    it_starts_answers_and_leaves_nothing,
    what_ignores_term_is_killed_after_its_grace,
    an_engine_that_ends_is_told_with_its_code_and_nothing_is_left,
    a_program_that_is_missing_is_told_in_words,
    an_image_that_is_gone_is_told_apart,
    a_name_that_somebody_else_has_is_not_taken_from_them,
    a_port_that_is_taken_at_the_last_moment_is_passed_over,
    secrets_and_caches_reach_the_engine_and_nobody_else,
    a_model_that_the_user_inside_may_not_read_is_refused_before_anything_starts,
    requests_in_flight_are_waited_for,
    whoever_is_killed_no_container_is_left,
    a_start_that_is_cancelled_leaves_nothing,
    a_detached_engine_is_stopped_by_another_host,
);

async fn it_starts_answers_and_leaves_nothing(kind: ContainerKind) {
    let room = Room::new(kind);
    let mut job = room.job(&["--load-ms", "300"]);
    // Longer than a stop may take: its TERM must reach the engine, and its end must be noticed.
    job.grace_ms = 600_000;
    job.more_ports = vec![("grpc".to_owned(), 8081)];
    let engine = room.start(&job).await;
    let handoff: Handoff = serde_json::from_slice(&fs::read(room.handoff()).unwrap()).unwrap();
    assert_eq!(handoff.url, engine.url());
    assert!(handoff.endpoints["grpc"].starts_with("http://127.0.0.1:"));
    assert_eq!(handoff.observed_version.as_deref(), Some("b1-fake"));
    assert_eq!(room.left().len(), 1);
    // The same command finds it running, another one is a conflict.
    match room.try_start(&job).await.unwrap() {
        Outcome::AlreadyRunning(instance) => assert_eq!(instance.url, engine.url()),
        other => panic!("{other:?}"),
    }
    job.faults = vec!["--load-ms".to_owned(), "100".to_owned()];
    let conflict = room.fail(&job).await;
    assert!(
        matches!(conflict, EngineError::Conflict { .. }),
        "{conflict:?}"
    );
    let stopping = Instant::now();
    engine.stop(&CancellationToken::new()).await.unwrap();
    assert!(stopping.elapsed() < STOP_LIMIT, "{:?}", stopping.elapsed());
    let log = fs::read_to_string(engine.log_path()).unwrap();
    assert!(log.contains("TERM, leaving"), "{log}");
    room.assert_empty();
}

async fn what_ignores_term_is_killed_after_its_grace(kind: ContainerKind) {
    let room = Room::new(kind);
    let mut job = room.job(&["--ignore-term"]);
    job.grace_ms = 300;
    let engine = room.start(&job).await;
    engine.stop(&CancellationToken::new()).await.unwrap();
    room.assert_empty();
}

async fn an_engine_that_ends_is_told_with_its_code_and_nothing_is_left(kind: ContainerKind) {
    let room = Room::new(kind);
    let engine = room
        .start(&room.job(&["--exit-after-ms", "1500", "--exit-code", "42"]))
        .await;
    let EngineEnd::Crashed(error) = engine.wait_exit().await else {
        panic!("nobody stopped it");
    };
    assert_eq!(
        error.to_string(),
        "the engine ended while it served with exit code 42"
    );
    room.assert_empty();
    let answer = engine.log_path().with_extension("container.json");
    let answer = fs::read_to_string(answer).unwrap();
    assert!(answer.contains("\"ExitCode\":42"), "{answer}");
}

async fn a_program_that_is_missing_is_told_in_words(kind: ContainerKind) {
    let room = Room::new(kind);
    let mut contained = room.contained();
    contained.entrypoint = vec!["/nothing/here".to_owned()];
    let mut job = room.job(&[]);
    job.elsewhere = Some(Elsewhere::Container(Box::new(contained)));
    let error = room.fail(&job).await;
    assert!(
        whole(&error).contains("the image does not have the program"),
        "{}",
        whole(&error)
    );
    room.assert_empty();
}

async fn an_image_that_is_gone_is_told_apart(kind: ContainerKind) {
    let room = Room::new(kind);
    let mut contained = room.contained();
    let repository = contained.image.split('@').next().unwrap().to_owned();
    contained.image = format!("{repository}@sha256:{}", "0".repeat(64));
    let mut job = room.job(&[]);
    job.elsewhere = Some(Elsewhere::Container(Box::new(contained)));
    match room.fail(&job).await {
        EngineError::ImageGone { image, .. } => assert!(image.ends_with("0000")),
        other => panic!("{}", whole(&other)),
    }
    room.assert_empty();
}

async fn a_name_that_somebody_else_has_is_not_taken_from_them(kind: ContainerKind) {
    let room = Room::new(kind);
    let job = room.job(&[]);
    // Whatever it is called: the name is in the record while it runs.
    let engine = room.start(&job).await;
    let name = engine.instance().container.as_ref().unwrap().name.clone();
    engine.stop(&CancellationToken::new()).await.unwrap();
    let containers = &room.runtime.containers;
    containers.run(&["create", "--name", &name, &room.runtime.image]);
    match room.fail(&job).await {
        EngineError::NameTaken {
            ours: false,
            name: taken,
            ..
        } => assert_eq!(taken, name),
        other => panic!("{}", whole(&other)),
    }
    // It is still there.
    containers.run(&["rm", "--force", &name]);
    room.assert_empty();
}

async fn a_port_that_is_taken_at_the_last_moment_is_passed_over(kind: ContainerKind) {
    let room = Room::new(kind);
    let job = room.job(&[]);
    let first = job.ports[0];
    let taken = async {
        until("the launch", || {
            let heard = room.heard.events();
            match heard.iter().any(|event| event.action == "launch") {
                true => Ok(()),
                false => Err(String::new()),
            }
        })
        .await;
        TcpListener::bind(("127.0.0.1", first)).unwrap()
    };
    let (engine, _listener) = tokio::join!(room.start(&job), taken);
    assert!(
        !engine.url().ends_with(&format!(":{first}")),
        "{}",
        engine.url()
    );
    assert_eq!(room.left().len(), 1);
    engine.stop(&CancellationToken::new()).await.unwrap();
    room.assert_empty();
}

async fn secrets_and_caches_reach_the_engine_and_nobody_else(kind: ContainerKind) {
    let room = Room::new(kind);
    let mut contained = room.contained();
    contained.mounts = vec![
        ("{cache.compiled}".to_owned(), "/cache".to_owned()),
        ("{files}".to_owned(), "/config".to_owned()),
    ];
    let mut job = room.job(&["--record", "/cache/record.json"]);
    job.elsewhere = Some(Elsewhere::Container(Box::new(contained)));
    job.env = BTreeMap::from([("API_KEY".to_owned(), "{secret.TOKEN}".to_owned())]);
    job.files = vec![("a/b.txt".to_owned(), "port {address.port}".to_owned())];
    let engine = room.start(&job).await;
    let record = fs::read_to_string(room.home.cache("compiled").join("record.json")).unwrap();
    let record: serde_json::Value = serde_json::from_str(&record).unwrap();
    assert_eq!(record["env"]["API_KEY"], "hunter2-hunter2");
    assert_eq!(record["uid"], 2000);
    // No process shows it in its arguments, and no file of the home has it.
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let arguments = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let arguments = String::from_utf8_lossy(&arguments).into_owned();
        assert!(!arguments.contains("hunter2-hunter2"), "{arguments}");
    }
    let pool = room.home.state();
    let log = engine.log_path().to_owned();
    let placed = fs::read_dir(pool.join("engines"))
        .unwrap()
        .flatten()
        .next()
        .unwrap();
    let text = fs::read_to_string(placed.path().join("files/a/b.txt")).unwrap();
    assert_eq!(text, format!("port {}", Contained::PORT));
    engine.stop(&CancellationToken::new()).await.unwrap();
    let answer = fs::read_to_string(log.with_extension("container.json")).unwrap();
    assert!(!answer.contains("hunter2"), "{answer}");
    room.assert_empty();
}

async fn a_model_that_the_user_inside_may_not_read_is_refused_before_anything_starts(
    kind: ContainerKind,
) {
    let room = Room::new(kind);
    let model = room.root.join("model.gguf");
    fs::write(&model, "GGUF").unwrap();
    fs::set_permissions(&model, fs::Permissions::from_mode(0o600)).unwrap();
    let mut contained = room.contained();
    contained.model = Some(model.clone());
    contained.mounts = vec![("{model.path}".to_owned(), "/model.gguf".to_owned())];
    let mut job = room.job(&[]);
    job.elsewhere = Some(Elsewhere::Container(Box::new(contained)));
    let error = room.fail(&job).await;
    assert_eq!(
        error.to_string(),
        format!(
            "user id 2000 inside the container may not read `{}` (mode 0600), mounted as /model.gguf",
            model.display()
        )
    );
    assert!(
        error.hints()[0]
            .command
            .as_ref()
            .unwrap()
            .starts_with("chmod o+r ")
    );
    fs::set_permissions(&model, fs::Permissions::from_mode(0o644)).unwrap();
    let engine = room.start(&job).await;
    engine.stop(&CancellationToken::new()).await.unwrap();
    room.assert_empty();
}

async fn requests_in_flight_are_waited_for(kind: ContainerKind) {
    let room = Room::new(kind);
    let engine = room.start(&room.job(&["--busy-ms", "700"])).await;
    let start = Instant::now();
    engine.stop(&CancellationToken::new()).await.unwrap();
    let drained = room
        .heard
        .events()
        .iter()
        .any(|event| event.action == "drain");
    assert!(drained, "{:?} {:?}", start.elapsed(), room.heard.events());
    room.assert_empty();
}

async fn a_start_that_is_cancelled_leaves_nothing(kind: ContainerKind) {
    let room = Room::new(kind);
    let job = room.job(&["--never-ready"]);
    let cancel = async {
        until("a container", || match room.left() {
            left if left.is_empty() => Err("none".to_owned()),
            _ => Ok(()),
        })
        .await;
        room.cancel.cancel();
    };
    let (error, ()) = tokio::join!(room.fail(&job), cancel);
    assert!(matches!(error, EngineError::Cancelled), "{error:?}");
    room.assert_empty();
}

/// Processes of an engine, by what they do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Who {
    Host,
    Keeper,
    Minder,
    Client,
}

async fn whoever_is_killed_no_container_is_left(kind: ContainerKind) {
    use Who::{Client, Host, Keeper as TheKeeper, Minder};
    for victims in [
        &[Host][..],
        &[TheKeeper],
        &[Minder],
        &[Client],
        &[Host, TheKeeper],
        &[Minder, Client],
        &[Host, TheKeeper, Minder, Client],
    ] {
        let room = Room::new(kind);
        let mut job = room.job(&[]);
        job.grace_ms = 500;
        let (mut host, instance) = room.another_host(&job).await;
        let process = |who: Who| match who {
            Host => ProcessIdentity::of(i32::try_from(host.id()).unwrap()).unwrap(),
            TheKeeper => instance.address.keeper,
            Minder => instance.minder.unwrap(),
            Client => instance.process,
        };
        let killed: Vec<ProcessIdentity> = victims.iter().map(|who| process(*who)).collect();
        // Stopped first, so that none sees the others' end before its own.
        for signal in [Signal::STOP, Signal::KILL] {
            for process in &killed {
                process.signal(signal).unwrap();
            }
        }
        if victims.len() == 4 {
            // Nobody is left to do it: the next one who looks does.
            until("the end of all", || match instance.process.is_alive() {
                true => Err("the client lives".to_owned()),
                false => Ok(()),
            })
            .await;
            assert_eq!(room.left().len(), 1, "{victims:?}");
            assert_eq!(engine::instances(&room.home).unwrap(), []);
            engine::clear(&room.home).await.unwrap();
        }
        until(&format!("no container after {victims:?}"), || {
            let records = fs::read_dir(room.home.state().join("instances")).unwrap();
            let records: Vec<_> = records
                .flatten()
                .map(|entry| entry.file_name().into_string().unwrap())
                .filter(|name| name.ends_with(".json"))
                .collect();
            match (room.left(), records) {
                (left, records) if left.is_empty() && records.is_empty() => Ok(()),
                seen => Err(format!("{seen:?}")),
            }
        })
        .await;
        room.assert_empty();
        let _ = host.kill();
        let _ = host.wait();
    }
    // A start clears up as well, record or not.
    for forget in [false, true] {
        let room = Room::new(kind);
        let job = room.job(&[]);
        let (mut host, instance) = room.another_host(&job).await;
        let host_process = ProcessIdentity::of(i32::try_from(host.id()).unwrap()).unwrap();
        let all = [
            host_process,
            instance.address.keeper,
            instance.minder.unwrap(),
            instance.process,
        ];
        for signal in [Signal::STOP, Signal::KILL] {
            for process in all {
                process.signal(signal).unwrap();
            }
        }
        host.wait().unwrap();
        if forget {
            for entry in fs::read_dir(room.home.state().join("instances"))
                .unwrap()
                .flatten()
            {
                fs::remove_file(entry.path()).unwrap();
            }
        }
        let mut job = job;
        job.ports = free_ports(3);
        let engine = room.start(&job).await;
        assert_eq!(room.left().len(), 1);
        engine.stop(&CancellationToken::new()).await.unwrap();
        room.assert_empty();
    }
}

async fn a_detached_engine_is_stopped_by_another_host(kind: ContainerKind) {
    let room = Room::new(kind);
    let mut job = room.job(&[]);
    job.detach = true;
    let (mut host, instance) = room.another_host(&job).await;
    assert!(host.wait().unwrap().success());
    assert_eq!(room.left().len(), 1);
    engine::stop_instance(
        &room.home,
        &instance,
        &room.narrator,
        &CancellationToken::new(),
    )
    .await
    .unwrap();
    room.assert_empty();
}
