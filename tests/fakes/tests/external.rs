//! Promises of the engine room for engines that somebody else has started.

use std::{
    io::{BufRead, BufReader},
    ops::Deref,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use engine_host::engine::{self, EngineEnd, Outcome, RunningEngine};
use fakes::{Elsewhere, Job, free_ports};
use tokio_util::sync::CancellationToken;

/// Longest time anything here may take: a watcher gives up after ten seconds without an answer.
const LIMIT: Duration = Duration::from_secs(60);

/// An engine of somebody else, and a host that may attach to it.
struct Room {
    room: fakes::Room,
    port: u16,
    theirs: Option<Child>,
}

impl Deref for Room {
    type Target = fakes::Room;

    fn deref(&self) -> &fakes::Room {
        &self.room
    }
}

impl Room {
    fn new() -> Self {
        Self {
            room: fakes::Room::new(env!("CARGO_BIN_EXE_fake-host"), "/nothing"),
            port: free_ports(1)[0],
            theirs: None,
        }
    }

    /// Somebody starts an engine, which answers from then on.
    fn somebody_starts_one(&mut self, faults: &[&str]) {
        let mut theirs = Command::new(env!("CARGO_BIN_EXE_fake-engine"))
            .args(["--host", "127.0.0.1", "--port", &self.port.to_string()])
            .args(faults)
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
        let url = format!("http://127.0.0.1:{}", self.port);
        Job {
            ports: Vec::new(),
            stall_ms: 60_000,
            elsewhere: Some(Elsewhere::External(url)),
            ..self.room.job(&[])
        }
    }

    async fn attach(&self) -> RunningEngine {
        self.start(&self.job()).await
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
    room.somebody_starts_one(&["--busy-ms", "600000"]);
    let engine = room.attach().await;
    let handoff = room.handoff().unwrap();
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
    let (_, metrics) = e2e::http_get(&format!("{}/metrics", engine.url())).unwrap();
    assert!(
        metrics.contains("fake:requests_processing 1"),
        "it is busy: {metrics}"
    );
    let start = Instant::now();
    engine.stop(&CancellationToken::new()).await.unwrap();
    // Requests of an engine of this host would be waited for for ten seconds.
    let took = start.elapsed();
    assert!(took < Duration::from_secs(8), "something drains: {took:?}");
    assert!(!room.handoff_path().exists());
    assert_eq!(engine::instances(&room.home).unwrap(), []);
    let theirs = room.theirs.as_mut().unwrap();
    assert_eq!(theirs.try_wait().unwrap(), None, "it runs on");
}

#[tokio::test]
async fn when_it_is_gone_its_handoff_goes_and_its_host_is_told() {
    let mut room = Room::new();
    room.somebody_starts_one(&[]);
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
    assert!(!room.handoff_path().exists());
}

#[tokio::test]
async fn where_nobody_answers_there_is_nothing_to_attach_to() {
    let room = Room::new();
    let error = room.try_start(&room.job()).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        format!("no engine answers at http://127.0.0.1:{}", room.port)
    );
    assert!(!room.handoff_path().exists());
    assert_eq!(engine::instances(&room.home).unwrap(), []);
}

#[tokio::test]
async fn a_watcher_outlives_its_host_where_it_is_told_to() {
    let mut room = Room::new();
    room.somebody_starts_one(&[]);
    let mut job = room.job();
    job.detach = true;
    let path = room.write_job("job", &job);
    let host = Command::new(env!("CARGO_BIN_EXE_fake-host"))
        .arg(&path)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&host.stdout).into_owned();
    assert!(said.starts_with("kept "), "{said}");
    let instance = engine::instances(&room.home).unwrap().remove(0);
    assert!(room.handoff_path().exists());
    let hurry = CancellationToken::new();
    engine::stop_instance(&room.home, &instance, &room.narrator, &hurry)
        .await
        .unwrap();
    assert!(!room.handoff_path().exists());
    let told = room.heard.events();
    let told = told.iter().find(|event| event.action == "stop").unwrap();
    assert_eq!(
        told.human,
        "let go of the engine of pool default, which runs on"
    );
    assert_eq!(room.theirs.as_mut().unwrap().try_wait().unwrap(), None);
}
