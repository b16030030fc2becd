//! Promises of the engine room for engines that somebody else has started.

use std::{
    collections::BTreeMap,
    fs,
    io::{BufRead, BufReader},
    net::TcpListener,
    path::PathBuf,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use engine_host::{
    config::paths::Home,
    engine::{self, EngineEnd, EngineError, Handoff, Outcome, RunningEngine},
    narrate::{Capture, Narrator},
    process::{Keeper, KeeperOptions},
};
use fakes::{Elsewhere, Job};
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;

/// Longest time anything here may take: a watcher gives up after ten seconds without an answer.
const LIMIT: Duration = Duration::from_secs(60);

/// An engine of somebody else, and a host that may attach to it.
struct Room {
    _directory: TempDir,
    root: PathBuf,
    home: Home,
    keeper: Keeper,
    narrator: Narrator,
    heard: Capture,
    cancel: CancellationToken,
    port: u16,
    theirs: Option<Child>,
}

impl Room {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().to_owned();
        let home = Home::at(root.join("home"));
        let (narrator, heard) = Narrator::capture();
        let options = KeeperOptions::program(env!("CARGO_BIN_EXE_fake-host"));
        let free = TcpListener::bind("127.0.0.1:0").unwrap();
        Self {
            _directory: directory,
            root,
            keeper: Keeper::new(&home, options),
            home,
            narrator,
            heard,
            cancel: CancellationToken::new(),
            port: free.local_addr().unwrap().port(),
            theirs: None,
        }
    }

    /// Somebody starts an engine, which answers from then on.
    fn somebody_starts_one(&mut self) {
        let mut theirs = Command::new(env!("CARGO_BIN_EXE_fake-engine"))
            .args(["--host", "127.0.0.1", "--port", &self.port.to_string()])
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let mut said = BufReader::new(theirs.stderr.take().unwrap());
        said.read_line(&mut line).unwrap();
        assert!(line.starts_with("listening"), "{line}");
        theirs.stderr = Some(said.into_inner());
        self.theirs = Some(theirs);
    }

    fn job(&self) -> Job {
        Job {
            program: "/nothing".into(),
            home: self.home.root().to_owned(),
            handoffs: self.root.join(".runtime/engines"),
            pool: "default".to_owned(),
            faults: Vec::new(),
            env: BTreeMap::new(),
            ports: Vec::new(),
            files: Vec::new(),
            grace_ms: 2_000,
            stall_ms: 60_000,
            second_term: false,
            gpu_percent: None,
            uid: None,
            detach: false,
            elsewhere: Some(Elsewhere::External(format!(
                "http://127.0.0.1:{}",
                self.port
            ))),
            more_ports: Vec::new(),
        }
    }

    async fn try_start(&self, job: &Job) -> Result<Outcome, EngineError> {
        let parts = job.parts();
        let request = parts.request(job, &self.keeper, &self.narrator, &self.cancel);
        tokio::time::timeout(LIMIT, engine::start(request))
            .await
            .expect("a start comes to an end")
    }

    async fn attach(&self) -> RunningEngine {
        match self.try_start(&self.job()).await {
            Ok(Outcome::Started(engine)) => *engine,
            other => panic!("{other:?}"),
        }
    }

    fn handoff(&self) -> PathBuf {
        self.root.join(".runtime/engines/fake.json")
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        if let Some(theirs) = &mut self.theirs {
            let _ = theirs.kill();
            let _ = theirs.wait();
        }
    }
}

#[tokio::test]
async fn an_engine_is_attached_to_and_let_go_of_untouched() {
    let mut room = Room::new();
    room.somebody_starts_one();
    let engine = room.attach().await;
    let handoff: Handoff = serde_json::from_slice(&fs::read(room.handoff()).unwrap()).unwrap();
    assert_eq!(handoff.url, format!("http://127.0.0.1:{}", room.port));
    assert_eq!(handoff.observed_version.as_deref(), Some("b1-fake"));
    let launch = room.heard.events();
    let launch = launch
        .iter()
        .find(|event| event.action == "launch")
        .unwrap();
    assert!(launch.human.starts_with("attaching to http://127.0.0.1:"));
    match room.try_start(&room.job()).await.unwrap() {
        Outcome::AlreadyRunning(instance) => assert_eq!(instance.url, engine.url()),
        other => panic!("{other:?}"),
    }
    let start = Instant::now();
    engine.stop(&CancellationToken::new()).await.unwrap();
    assert!(
        start.elapsed() < Duration::from_secs(2),
        "nothing is drained"
    );
    assert!(!room.handoff().exists());
    assert_eq!(engine::instances(&room.home).unwrap(), []);
    let theirs = room.theirs.as_mut().unwrap();
    assert_eq!(theirs.try_wait().unwrap(), None, "it runs on");
}

#[tokio::test]
async fn when_it_is_gone_its_handoff_goes_and_its_host_is_told() {
    let mut room = Room::new();
    room.somebody_starts_one();
    let engine = room.attach().await;
    room.theirs.as_mut().unwrap().kill().unwrap();
    let end = tokio::time::timeout(LIMIT, engine.wait_exit()).await;
    match end.expect("a watcher that notices") {
        EngineEnd::Crashed(error) => assert_eq!(
            error.to_string(),
            format!(
                "the engine at http://127.0.0.1:{} has stopped answering",
                room.port
            )
        ),
        EngineEnd::Stopped => panic!("nobody stopped it"),
    }
    assert!(!room.handoff().exists());
}

#[tokio::test]
async fn where_nobody_answers_there_is_nothing_to_attach_to() {
    let room = Room::new();
    let error = room.try_start(&room.job()).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        format!("no engine answers at http://127.0.0.1:{}", room.port)
    );
    assert!(!room.handoff().exists());
    assert_eq!(engine::instances(&room.home).unwrap(), []);
}

#[tokio::test]
async fn a_watcher_outlives_its_host_where_it_is_told_to() {
    let mut room = Room::new();
    room.somebody_starts_one();
    let mut job = room.job();
    job.detach = true;
    let path = room.root.join("job.json");
    fs::write(&path, serde_json::to_vec(&job).unwrap()).unwrap();
    let host = Command::new(env!("CARGO_BIN_EXE_fake-host"))
        .arg(&path)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&host.stdout).into_owned();
    assert!(said.starts_with("kept "), "{said}");
    let instance = engine::instances(&room.home).unwrap().remove(0);
    assert!(room.handoff().exists());
    let hurry = CancellationToken::new();
    engine::stop_instance(&room.home, &instance, &room.narrator, &hurry)
        .await
        .unwrap();
    assert!(!room.handoff().exists());
    let told = room.heard.events();
    let told = told.iter().find(|event| event.action == "stop").unwrap();
    assert_eq!(
        told.human,
        "let go of the engine of pool default, which runs on"
    );
    assert_eq!(room.theirs.as_mut().unwrap().try_wait().unwrap(), None);
}
