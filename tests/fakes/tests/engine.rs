//! Promises of the engine room, kept with an engine that breaks its own.

use std::{
    collections::BTreeMap,
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::TcpListener,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicU32, Ordering},
    time::{Duration, Instant},
};

use engine_host::{
    config::paths::Home,
    engine::{self, EngineEnd, EngineError, Handoff, Instance, Outcome, RunningEngine},
    fault::{Exit, Fault},
    narrate::{Capture, Narrator},
    process::{Keeper, KeeperOptions, ProcessIdentity},
};
use fakes::{Job, Parts};
use rustix::process::Signal;
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;

/// Longest time anything here may take.
const LIMIT: Duration = Duration::from_secs(30);

/// A home, a keeper and an ear, for one test.
struct Room {
    _directory: TempDir,
    root: PathBuf,
    home: Home,
    keeper: Keeper,
    narrator: Narrator,
    heard: Capture,
    cancel: CancellationToken,
}

impl Room {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().to_owned();
        let home = Home::at(root.join("home"));
        let (narrator, heard) = Narrator::capture();
        let keeper = Keeper::new(
            &home,
            KeeperOptions::program(env!("CARGO_BIN_EXE_fake-host")),
        );
        Self {
            _directory: directory,
            root,
            home,
            keeper,
            narrator,
            heard,
            cancel: CancellationToken::new(),
        }
    }

    fn job(&self, faults: &[&str]) -> Job {
        Job {
            program: env!("CARGO_BIN_EXE_fake-engine").into(),
            home: self.home.root().to_owned(),
            handoffs: self.root.join(".runtime/engines"),
            pool: "default".to_owned(),
            faults: faults.iter().map(|text| (*text).to_owned()).collect(),
            env: BTreeMap::new(),
            ports: free_ports(3),
            files: Vec::new(),
            grace_ms: 2_000,
            stall_ms: 20_000,
            second_term: false,
            gpu_percent: None,
            uid: None,
            detach: false,
            elsewhere: None,
            more_ports: Vec::new(),
        }
    }

    /// A job of an unprivileged user, in a place that it can enter.
    fn job_of_another_user(&self) -> Job {
        use std::os::unix::fs::PermissionsExt;
        for directory in [&self.root, &self.root.join("home")] {
            fs::create_dir_all(directory).unwrap();
            fs::set_permissions(directory, fs::Permissions::from_mode(0o755)).unwrap();
        }
        // The build directory may be closed to others.
        let program = self.root.join("fake-engine");
        fs::copy(env!("CARGO_BIN_EXE_fake-engine"), &program).unwrap();
        let mut job = self.job(&[]);
        job.program = program;
        job.uid = Some(65_534);
        job
    }

    async fn try_start(&self, job: &Job) -> Result<Outcome, EngineError> {
        let parts = job.parts();
        self.start_parts(job, &parts).await
    }

    async fn start_parts(&self, job: &Job, parts: &Parts) -> Result<Outcome, EngineError> {
        let request = parts.request(job, &self.keeper, &self.narrator, &self.cancel);
        tokio::time::timeout(LIMIT, engine::start(request))
            .await
            .expect("a start comes to an end")
    }

    async fn start(&self, job: &Job) -> RunningEngine {
        match self.try_start(job).await {
            Ok(Outcome::Started(engine)) => *engine,
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

    /// Nothing is left of any engine: no handoff, no record, no process, no lock.
    async fn assert_empty(&self) {
        assert!(!self.handoff().exists(), "a handoff is left");
        assert_eq!(engine::instances(&self.home).unwrap(), []);
        let records = fs::read_dir(self.home.state().join("instances")).unwrap();
        for entry in records.flatten() {
            let name = entry.file_name().into_string().unwrap();
            assert!(name.ends_with(".lock"), "{name} is left");
            // A program that another test starts in this process holds a copy until its exec.
            until("a free lock", || {
                match engine_host::store::try_lock(&entry.path(), "a test").unwrap() {
                    Some(_) => Ok(()),
                    None => Err(format!("{name} is held")),
                }
            })
            .await;
        }
        if let Some(keeper) = self.keeper.process() {
            until(
                "an idle keeper",
                || match engine_host::process::descendants(keeper.pid) {
                    left if left.is_empty() => Ok(()),
                    left => Err(format!("{left:?}")),
                },
            )
            .await;
        }
    }
}

/// Ports that are free now, never the same twice in this process, and outside the range from which
/// the kernel takes ports for outgoing connections (32768 and above).
fn free_ports(count: usize) -> Vec<u16> {
    const RANGE: u32 = 12_000;
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let start = std::process::id().wrapping_mul(401);
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
            Err(_) => tokio::time::sleep(Duration::from_millis(5)).await,
        }
    }
}

async fn gone(process: ProcessIdentity) {
    until("the end of a process", || {
        if process.is_alive() {
            Err(format!("{process:?} is alive"))
        } else {
            Ok(())
        }
    })
    .await;
}

async fn pid_in(path: &Path) -> ProcessIdentity {
    until("a pid", || {
        let text = fs::read_to_string(path).map_err(|error| error.to_string())?;
        let pid = text.trim().parse().map_err(|_| format!("{text:?}"))?;
        ProcessIdentity::of(pid).ok_or_else(|| format!("{pid} is gone"))
    })
    .await
}

fn status(url: &str, path: &str) -> String {
    let address = url.strip_prefix("http://").unwrap();
    let mut stream = std::net::TcpStream::connect(address).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text.split(' ').nth(1).unwrap().to_owned()
}

#[tokio::test]
async fn a_ready_engine_is_handed_off_and_a_stop_leaves_nothing() {
    let room = Room::new();
    let job = room.job(&["--load-ms", "60"]);
    let engine = room.start(&job).await;
    assert_eq!(status(engine.url(), "/health"), "200");
    let handoff: Handoff = serde_json::from_slice(&fs::read(room.handoff()).unwrap()).unwrap();
    assert_eq!(handoff.url, format!("http://127.0.0.1:{}", job.ports[0]));
    assert_eq!(handoff.engine_version, "1-cpu");
    assert_eq!(handoff.observed_version.as_deref(), Some("b1-fake"));
    assert_eq!(handoff.model.path.as_deref(), Some("/models/toy.gguf"));
    assert_eq!((handoff.schema, handoff.slots_total), (1, Some(1)));

    let mut listed = Vec::new();
    engine_host::cli::ps::run(&room.home, true, &mut listed).unwrap();
    let listed: serde_json::Value = serde_json::from_slice(&listed).unwrap();
    assert_eq!(listed["engines"][0]["state"], "ready");
    assert_eq!(listed["engines"][0]["url"], handoff.url.as_str());

    engine.stop(&CancellationToken::new()).await.unwrap();
    room.assert_empty().await;
    assert!(engine.log_path().exists(), "the log stays");
    assert_eq!(room.heard.actions(), ["launch", "ready", "handoff", "stop"]);
}

#[tokio::test]
async fn an_engine_gets_an_empty_environment_plus_what_is_named() {
    let room = Room::new();
    let record = room.root.join("record");
    let mut job = room.job(&[
        "--record",
        record.to_str().unwrap(),
        "--file",
        "{files}/m/config",
    ]);
    job.env.insert("TOKEN".into(), "{secret.TOKEN}".into());
    job.env.insert("CACHE".into(), "{cache.torch}".into());
    job.files
        .push(("m/config".into(), "port={address.port}".into()));
    let engine = room.start(&job).await;
    let seen: serde_json::Value = serde_json::from_slice(&fs::read(record).unwrap()).unwrap();
    let directory = seen["directory"].as_str().unwrap();
    assert_eq!(
        seen["env"],
        serde_json::json!({
            "PATH": "/usr/bin:/bin", "TOKEN": "hunter2-hunter2", "HOME": directory,
            "CACHE": room.home.cache("torch"),
        })
    );
    let file = seen["args"]
        .as_array()
        .unwrap()
        .last()
        .unwrap()
        .as_str()
        .unwrap();
    let text = fs::read_to_string(file).unwrap();
    assert_eq!(text, format!("port={}", job.ports[0]));
    // Told by nobody, the log of events included.
    room.narrator.say(
        engine_host::narrate::Actor::EngineProvisioner,
        "test",
        "hunter2-hunter2",
        "x",
    );
    let told = room.heard.events().pop().unwrap();
    assert_eq!(told.target, "***");
    drop(engine);
}

#[tokio::test]
async fn a_secret_in_an_argument_is_refused_before_anything_starts() {
    let room = Room::new();
    let error = room
        .fail(&room.job(&["--print-line", "{secret.TOKEN}"]))
        .await;
    assert_eq!(
        (error.exit(), error.kind()),
        (Exit::Refused, "secret-in-argument")
    );
    assert!(room.keeper.process().is_none(), "no keeper was needed");
}

#[tokio::test]
async fn a_crash_before_ready_is_diagnosed_and_leaves_nothing() {
    let room = Room::new();
    let job = room.job(&[
        "--never-ready",
        "--print-line",
        "ggml: failed to allocate 4096 MiB",
        "--exit-after-ms",
        "50",
        "--exit-code",
        "3",
    ]);
    let error = room.fail(&job).await;
    assert_eq!(
        error.to_string(),
        "the engine ended before it was ready with exit code 3"
    );
    let details = error.details();
    assert_eq!(details[0].text, "memory has no room for another 4096 MiB");
    assert!(
        details[1].text.contains("ggml: failed to allocate"),
        "{details:?}"
    );
    assert_eq!(error.hints()[0].text, "use a smaller model");
    assert_eq!(error.exit(), Exit::Engine);
    room.assert_empty().await;
    assert_eq!(room.heard.actions(), ["launch", "crash"]);
}

#[tokio::test]
async fn a_crash_by_signal_without_diagnosis_shows_the_last_lines() {
    let room = Room::new();
    let job = room.job(&[
        "--never-ready",
        "--print-line",
        "last words",
        "--exit-after-ms",
        "30",
        "--signal",
        "6",
    ]);
    let error = room.fail(&job).await;
    assert_eq!(
        error.to_string(),
        "the engine ended before it was ready with signal 6 (ABRT)"
    );
    assert!(error.details()[0].text.contains("last words"));
}

#[tokio::test]
async fn an_engine_that_makes_no_progress_is_given_up_and_killed() {
    let room = Room::new();
    let mut job = room.job(&["--never-ready", "--ignore-term"]);
    job.stall_ms = 300;
    let error = room.fail(&job).await;
    let words = error.to_string();
    assert!(words.ends_with("is not ready: status 503"), "{words}");
    assert_eq!(error.kind(), "engine-never-ready");
    room.assert_empty().await;
}

#[tokio::test]
async fn a_status_that_means_neither_ready_nor_loading_ends_the_start_at_once() {
    let room = Room::new();
    let start = Instant::now();
    let error = room.fail(&room.job(&["--status", "500"])).await;
    assert_eq!(error.kind(), "engine-unexpected-status");
    assert!(start.elapsed() < LIMIT / 2);
    room.assert_empty().await;
}

#[tokio::test]
async fn an_answer_from_somebody_else_s_socket_is_not_believed() {
    let room = Room::new();
    let path = room.root.join("tell-port");
    let told = std::os::unix::net::UnixListener::bind(&path).unwrap();
    // This test's own process takes the port and answers just like an engine.
    std::thread::spawn(move || {
        for socket in told.incoming().flatten() {
            let mut port = String::new();
            BufReader::new(socket).read_to_string(&mut port).unwrap();
            let listener = TcpListener::bind(format!("127.0.0.1:{port}")).unwrap();
            std::thread::spawn(move || {
                for stream in listener.incoming().flatten() {
                    let _ = BufReader::new(&stream).read_line(&mut String::new());
                    let _ = (&stream).write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
                }
            });
        }
    });
    let mut job = room.job(&["--foreign-socket", path.to_str().unwrap()]);
    job.ports.truncate(1);
    let error = room.fail(&job).await;
    assert_eq!(error.kind(), "foreign-socket", "{error:?}");
    room.assert_empty().await;
}

#[tokio::test]
async fn a_taken_port_is_passed_over_before_and_after_the_start() {
    let room = Room::new();
    let marker = room.root.join("failed-once");
    let job = room.job(&["--fail-once", marker.to_str().unwrap()]);
    let _taken = TcpListener::bind(("127.0.0.1", job.ports[0])).unwrap();
    let engine = room.start(&job).await;
    // The first is taken, the second fails in the engine's own words, the third serves.
    assert_eq!(engine.url(), format!("http://127.0.0.1:{}", job.ports[2]));
    assert!(marker.exists());
    let warned = room.heard.events().into_iter().any(|event| {
        event.human
            == format!(
                "port {} was taken meanwhile, trying the next one",
                job.ports[1]
            )
    });
    assert!(warned);
}

#[tokio::test]
async fn no_free_port_names_those_that_were_tried() {
    let room = Room::new();
    let mut job = room.job(&[]);
    job.ports.truncate(1);
    let _taken = TcpListener::bind(("127.0.0.1", job.ports[0])).unwrap();
    let error = room.fail(&job).await;
    assert_eq!(error.exit(), Exit::Unavailable);
    let words = format!(
        "no port is free for the engine on 127.0.0.1: {} was tried",
        job.ports[0]
    );
    assert_eq!(error.to_string(), words);
}

#[tokio::test]
async fn cancelling_a_start_leaves_nothing() {
    let room = Room::new();
    let job = room.job(&["--never-ready", "--ignore-term"]);
    let (error, ()) = tokio::join!(room.fail(&job), async {
        until("a starting engine", || {
            match engine::instances(&room.home).unwrap().first() {
                Some(instance) => Ok(instance.process),
                None => Err("no record".to_owned()),
            }
        })
        .await;
        room.cancel.cancel();
    });
    assert!(matches!(error, EngineError::Cancelled), "{error:?}");
    room.assert_empty().await;
}

#[tokio::test]
async fn a_crash_while_serving_is_told_and_removes_the_handoff() {
    let room = Room::new();
    let engine = room
        .start(&room.job(&["--exit-after-ms", "400", "--exit-code", "9"]))
        .await;
    assert!(room.handoff().exists());
    let EngineEnd::Crashed(error) = engine.wait_exit().await else {
        panic!("nobody stopped it")
    };
    assert_eq!(
        error.to_string(),
        "the engine ended while it served with exit code 9"
    );
    room.assert_empty().await;
    assert_eq!(
        room.heard.actions(),
        ["launch", "ready", "handoff", "crash"]
    );
}

#[tokio::test]
async fn a_stop_kills_what_ignores_term_and_its_daemons() {
    let room = Room::new();
    let daemon = room.root.join("daemon");
    let mut job = room.job(&["--ignore-term", "--fork", daemon.to_str().unwrap()]);
    job.grace_ms = 200;
    let engine = room.start(&job).await;
    let daemon = pid_in(&daemon).await;
    let start = Instant::now();
    engine.stop(&CancellationToken::new()).await.unwrap();
    assert!(start.elapsed() >= Duration::from_millis(200));
    assert!(!daemon.is_alive() && !engine.instance().process.is_alive());
    room.assert_empty().await;
}

#[tokio::test]
async fn a_stop_waits_for_requests_in_flight_and_takes_the_handoff_away_first() {
    let room = Room::new();
    let engine = room.start(&room.job(&["--busy-ms", "1200"])).await;
    let start = Instant::now();
    let never = CancellationToken::new();
    let (stopped, ()) = tokio::join!(engine.stop(&never), async {
        let handoff = room.handoff();
        until("no handoff", || {
            if handoff.exists() {
                Err("it is there".into())
            } else {
                Ok(())
            }
        })
        .await;
        assert!(engine.instance().process.is_alive(), "it drains");
    });
    stopped.unwrap();
    assert!(
        start.elapsed() >= Duration::from_millis(500),
        "{:?}",
        start.elapsed()
    );
    assert!(room.heard.actions().contains(&"drain".to_owned()));
    assert!(
        fs::read_to_string(engine.log_path())
            .unwrap()
            .contains("TERM, leaving")
    );
}

#[tokio::test]
async fn a_handoff_that_somebody_else_has_written_meanwhile_survives_the_stop() {
    let room = Room::new();
    let engine = room.start(&room.job(&[])).await;
    let mut other: Handoff = serde_json::from_slice(&fs::read(room.handoff()).unwrap()).unwrap();
    other.url = "http://127.0.0.1:1".to_owned();
    let text = serde_json::to_vec(&other).unwrap();
    fs::write(room.handoff(), &text).unwrap();
    engine.stop(&CancellationToken::new()).await.unwrap();
    assert_eq!(fs::read(room.handoff()).unwrap(), text);
}

#[tokio::test]
async fn whoever_is_in_a_hurry_does_not_wait_for_requests() {
    let room = Room::new();
    let engine = room
        .start(&room.job(&["--busy-ms", "600000", "--ignore-term"]))
        .await;
    let hurry = CancellationToken::new();
    hurry.cancel();
    let start = Instant::now();
    engine.stop(&hurry).await.unwrap();
    assert!(start.elapsed() < Duration::from_secs(2));
    room.assert_empty().await;
}

#[tokio::test]
async fn an_engine_that_ends_at_once_on_a_second_term_gets_one() {
    let room = Room::new();
    let mut job = room.job(&["--second-term"]);
    job.second_term = true;
    job.grace_ms = 20_000;
    let engine = room.start(&job).await;
    let start = Instant::now();
    engine.stop(&CancellationToken::new()).await.unwrap();
    assert!(start.elapsed() < Duration::from_secs(10));
    let log = fs::read_to_string(engine.log_path()).unwrap();
    assert!(log.contains("second TERM, leaving at once"), "{log}");
}

#[tokio::test]
async fn buffers_on_the_gpu_are_believed_and_others_are_not() {
    let room = Room::new();
    let mut job = room.job(&["--print-line", "CUDA0 buffer size = 900 MiB"]);
    job.gpu_percent = Some(90);
    let engine = room.start(&job).await;
    engine.stop(&CancellationToken::new()).await.unwrap();
    let parts = job.parts();
    let mut request = parts.request(&job, &room.keeper, &room.narrator, &room.cancel);
    request.driver_memory = Some(&|tree| {
        assert!(!tree.is_empty() && tree.iter().all(|process| process.is_alive()));
        Box::pin(async { Some(0) })
    });
    let error = engine::start(request).await.unwrap_err();
    assert!(
        error.to_string().contains("the driver knows of no memory"),
        "{error}"
    );
    // A driver that has no word, or knows of memory, is no hindrance.
    for word in [None, Some(1 << 30)] {
        let answers: Box<engine::DriverMemory> = Box::new(move |_| Box::pin(async move { word }));
        let mut request = parts.request(&job, &room.keeper, &room.narrator, &room.cancel);
        request.driver_memory = Some(&*answers);
        let Ok(Outcome::Started(engine)) = engine::start(request).await else {
            panic!("{word:?} is no disproof")
        };
        engine.stop(&CancellationToken::new()).await.unwrap();
    }

    job.faults = vec!["--print-line".into(), "CPU buffer size = 900 MiB".into()];
    let error = room.fail(&job).await;
    assert_eq!(error.kind(), "not-on-gpu");
    room.assert_empty().await;
}

#[tokio::test]
async fn a_required_gpu_that_cannot_be_proven_is_refused_before_anything_starts() {
    let room = Room::new();
    let mut job = room.job(&[]);
    job.gpu_percent = Some(90);
    let mut parts = job.parts();
    parts.prepared.gpu_evidence = None;
    let error = room.start_parts(&job, &parts).await.unwrap_err();
    assert_eq!(
        (error.kind(), error.exit()),
        ("no-gpu-evidence", Exit::Provider)
    );
    assert!(room.keeper.process().is_none(), "no keeper was needed");
}

#[tokio::test]
async fn the_same_command_is_not_started_twice_and_another_is_a_conflict() {
    let room = Room::new();
    let mut job = room.job(&["--load-ms", "50"]);
    let (one, two) = tokio::join!(room.try_start(&job), room.try_start(&job));
    let (engine, running) = match (one.unwrap(), two.unwrap()) {
        (Outcome::Started(engine), Outcome::AlreadyRunning(running))
        | (Outcome::AlreadyRunning(running), Outcome::Started(engine)) => (engine, running),
        both => panic!("{both:?}"),
    };
    assert_eq!(running.url, engine.url());
    job.faults[1] = "60".to_owned();
    let error = room.fail(&job).await;
    assert_eq!(error.exit(), Exit::Conflict);
    assert_eq!(error.details()[1].text, "- --load-ms 50\n+ --load-ms 60");
    // Another pool is another instance.
    job.pool = "other".to_owned();
    job.ports = free_ports(1);
    let other = room.start(&job).await;
    assert!(other.handoff_path().ends_with("fake.other.r0.json"));
}

#[tokio::test]
async fn a_stale_record_and_its_handoff_do_not_hinder_a_start() {
    let room = Room::new();
    let job = room.job(&[]);
    let engine = room.start(&job).await;
    let mut dead: Instance = engine.instance().clone();
    let handoff = fs::read(room.handoff()).unwrap();
    let record = fs::read_dir(room.home.state().join("instances"))
        .unwrap()
        .flatten()
        .map(|entry| entry.path())
        .find(|path| {
            path.extension()
                .is_some_and(|extension| extension == "json")
        })
        .unwrap();
    engine.stop(&CancellationToken::new()).await.unwrap();
    // As after a power failure: everything is written, nothing runs, the pid is somebody else's.
    dead.process = ProcessIdentity::of_this_process();
    dead.process.start_time_ticks += 1;
    fs::write(&record, serde_json::to_vec(&dead).unwrap()).unwrap();
    fs::write(room.handoff(), handoff).unwrap();
    let again = room.start(&job).await;
    assert_ne!(again.instance().process, dead.process);
}

#[tokio::test]
async fn another_user_s_engine_is_recognised_by_its_socket() {
    if !rustix::process::geteuid().is_root() {
        // Becoming somebody else takes root.
        return;
    }
    let room = Room::new();
    let job = room.job_of_another_user();
    let engine = room.start(&job).await;
    let status = fs::read_to_string(format!("/proc/{}/status", engine.instance().process.pid));
    assert!(status.unwrap().contains("Uid:\t65534\t65534\t65534\t65534"));
}

#[tokio::test]
async fn what_another_user_could_write_is_not_inherited() {
    use std::os::unix::fs::MetadataExt;
    if !rustix::process::geteuid().is_root() {
        // Becoming somebody else takes root.
        return;
    }
    let room = Room::new();
    let mut job = room.job_of_another_user();
    let record = room.root.join("record");
    job.env.insert("CACHE".into(), "{cache.torch}".into());
    let engine = room.start(&job).await;
    let places = [
        fs::read_link(format!("/proc/{}/cwd", engine.instance().process.pid)).unwrap(),
        room.home.cache("torch"),
    ];
    for place in &places {
        assert_eq!(fs::metadata(place).unwrap().uid(), 65_534);
        fs::write(place.join("sitecustomize.py"), "evil").unwrap();
    }
    engine.stop(&CancellationToken::new()).await.unwrap();
    // The same user finds what it left.
    let engine = room.start(&job).await;
    assert!(
        places
            .iter()
            .all(|place| place.join("sitecustomize.py").exists())
    );
    engine.stop(&CancellationToken::new()).await.unwrap();
    // Now as this user, root.
    job.uid = None;
    job.faults = vec!["--record".into(), record.to_str().unwrap().into()];
    let _engine = room.start(&job).await;
    for place in &places {
        assert_eq!(fs::metadata(place).unwrap().uid(), 0);
        assert_eq!(fs::read_dir(place).unwrap().count(), 0, "{place:?}");
    }
}

#[tokio::test]
async fn a_root_that_may_not_look_into_other_processes_asks_a_helper_of_their_user() {
    if !rustix::process::geteuid().is_root() {
        // Becoming somebody else takes root.
        return;
    }
    let room = Room::new();
    let mut host = Host::start_by(
        &room,
        &room.job_of_another_user(),
        &["setpriv", "--bounding-set=-sys_ptrace", "--inh-caps=-all"],
    );
    let line = host.line();
    assert!(line.starts_with("ready http"), "{line}");
}

/// A host in a process of its own.
struct Host {
    child: Child,
    lines: BufReader<std::process::ChildStdout>,
}

impl Host {
    fn start(room: &Room, job: &Job) -> Self {
        Self::start_by(room, job, &[])
    }

    /// Starts it by another program, for example with fewer privileges.
    fn start_by(room: &Room, job: &Job, by: &[&str]) -> Self {
        let path = room.root.join("job.json");
        fs::write(&path, serde_json::to_vec(job).unwrap()).unwrap();
        let words = [by, &[env!("CARGO_BIN_EXE_fake-host")]].concat();
        let mut child = Command::new(words[0])
            .args(&words[1..])
            .arg(path)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        Self { child, lines }
    }

    /// Its next line; empty once it says nothing more.
    fn line(&mut self) -> String {
        let mut line = String::new();
        self.lines.read_line(&mut line).unwrap();
        line.trim().to_owned()
    }
}

#[tokio::test]
async fn a_killed_host_takes_its_engine_and_the_handoff_with_it() {
    let room = Room::new();
    let daemon = room.root.join("daemon");
    let mut job = room.job(&["--ignore-term", "--fork", daemon.to_str().unwrap()]);
    job.grace_ms = 200;
    let mut host = Host::start(&room, &job);
    assert!(host.line().starts_with("ready http"));
    let engine = engine::instances(&room.home).unwrap().remove(0);
    let daemon = pid_in(&daemon).await;
    assert!(room.handoff().exists());
    host.child.kill().unwrap();
    host.child.wait().unwrap();
    gone(engine.process).await;
    gone(daemon).await;
    gone(engine.minder.unwrap()).await;
    gone(engine.address.keeper).await;
    room.assert_empty().await;
}

impl Drop for Host {
    /// A test that fails leaves no host behind.
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[tokio::test]
async fn a_host_killed_at_any_instant_leaves_nothing_and_the_next_start_succeeds() {
    let room = Room::new();
    let mut job = room.job(&["--load-ms", "30"]);
    job.grace_ms = 300;
    for seed in 0..20 {
        let mut host = Host::start(&room, &job);
        // From before the keeper is born to long after the handoff.
        std::thread::sleep(Duration::from_millis(seed * 7));
        host.child.kill().unwrap();
        host.child.wait().unwrap();
        until(
            &format!("nothing of a host killed after {} ms", seed * 7),
            || match (engine::instances(&room.home), room.handoff().exists()) {
                (Ok(left), false) if left.is_empty() => Ok(()),
                left => Err(format!("{left:?}")),
            },
        )
        .await;
    }
    let engine = room.start(&job).await;
    assert_eq!(status(engine.url(), "/health"), "200");
    engine.stop(&CancellationToken::new()).await.unwrap();
    room.assert_empty().await;
}

#[tokio::test]
async fn an_engine_that_outlives_its_killed_host_for_its_grace_is_not_taken_for_running() {
    let room = Room::new();
    let mut job = room.job(&["--ignore-term"]);
    job.grace_ms = 1_000;
    let mut host = Host::start(&room, &job);
    assert!(host.line().starts_with("ready http"));
    let dying = engine::instances(&room.home).unwrap().remove(0);
    host.child.kill().unwrap();
    host.child.wait().unwrap();
    assert!(dying.is_alive(), "its grace has begun");
    let next = room.start(&job).await;
    assert_ne!(next.instance().process, dying.process);
    assert!(!dying.is_alive());
    assert!(room.handoff().exists());
}

#[tokio::test]
async fn an_engine_whose_host_was_killed_before_it_was_ready_is_not_taken_for_running() {
    let room = Room::new();
    let mut job = room.job(&["--load-ms", "400", "--ignore-term"]);
    job.grace_ms = 1_000;
    let mut host = Host::start(&room, &job);
    let dying = until("a starting engine", || {
        let found = engine::instances(&room.home).unwrap();
        found.into_iter().next().ok_or("no record".to_owned())
    })
    .await;
    host.child.kill().unwrap();
    host.child.wait().unwrap();
    let next = room.start(&job).await;
    assert_ne!(next.instance().process, dying.process);
}

#[tokio::test]
async fn an_engine_that_somebody_stops_is_waited_for_and_started_anew() {
    let room = Room::new();
    let job = room.job(&["--busy-ms", "700"]);
    let mut host = Host::start(&room, &job);
    assert!(host.line().starts_with("ready http"));
    let old = engine::instances(&room.home).unwrap().remove(0);
    let never = CancellationToken::new();
    let stop = engine::stop_instance(&room.home, &old, &room.narrator, &never);
    let (stopped, next) = tokio::join!(stop, async {
        until("a drained engine", || match room.handoff().exists() {
            true => Err("its handoff is there".to_owned()),
            false => Ok(()),
        })
        .await;
        let seen = engine::instances(&room.home).unwrap().remove(0);
        assert_eq!(seen.state.as_str(), "stopping");
        room.start(&job).await
    });
    stopped.unwrap();
    assert_ne!(next.instance().process, old.process);
    assert_eq!(host.line(), "end stopped");
}

#[tokio::test]
async fn when_the_keeper_is_killed_during_a_start_nothing_is_left_and_the_next_one_succeeds() {
    let room = Room::new();
    let mut job = room.job(&["--never-ready", "--ignore-term"]);
    job.grace_ms = 5_000;
    let (error, engine) = tokio::join!(room.fail(&job), async {
        let found = until("a starting engine", || {
            let found = engine::instances(&room.home).unwrap();
            found.into_iter().next().ok_or("no record".to_owned())
        })
        .await;
        found.address.keeper.signal(Signal::KILL).unwrap();
        found
    });
    assert_eq!(error.kind(), "keeper-gone", "{error:?}");
    // Not after its grace: once the start has failed, all is gone.
    assert!(!engine.is_alive() && !engine.minder.unwrap().is_alive());
    room.assert_empty().await;
    job.faults.clear();
    let again = room.start(&job).await;
    assert_eq!(status(again.url(), "/health"), "200");
}

#[tokio::test]
async fn a_killed_host_takes_its_step_with_it_at_once_daemons_included() {
    let room = Room::new();
    let script = "(setsid sh -c 'trap \"\" TERM HUP; echo $$ > daemon; while :; do sleep 1; done' &); \
                  trap '' TERM HUP; echo $$ > first; while :; do sleep 1; done";
    let mut host = Command::new(env!("CARGO_BIN_EXE_fake-host"))
        .arg("step")
        .arg(&room.root)
        .arg(script)
        .spawn()
        .unwrap();
    let first = pid_in(&room.root.join("first")).await;
    let daemon = pid_in(&room.root.join("daemon")).await;
    host.kill().unwrap();
    host.wait().unwrap();
    gone(first).await;
    gone(daemon).await;
}

#[tokio::test]
async fn a_detached_engine_outlives_its_host_and_is_stopped_from_elsewhere() {
    let room = Room::new();
    let mut job = room.job(&[]);
    job.detach = true;
    let mut host = Host::start(&room, &job);
    let url = host.line().strip_prefix("kept ").unwrap().to_owned();
    // Nothing it leaves behind holds its output open: this would not end otherwise.
    assert_eq!(host.line(), "");
    assert!(host.child.wait().unwrap().success());
    assert_eq!(status(&url, "/health"), "200");
    let listed = engine::instances(&room.home).unwrap().remove(0);
    assert!(listed.kept && !listed.host.is_alive());

    // The same command finds it; a stop ends it, its keeper and its files.
    let mut again = Host::start(&room, &job);
    assert_eq!(again.line(), format!("runs {url}"));
    again.child.wait().unwrap();
    let mut said = Vec::new();
    let pools = ["default".to_owned()];
    let which = engine_host::cli::stop::Which::Pools(&pools);
    let never = CancellationToken::new();
    let form = engine_host::cli::config::Form::Human;
    engine_host::cli::stop::run(&room.home, which, &room.narrator, &never, form, &mut said)
        .await
        .unwrap();
    assert_eq!(
        String::from_utf8(said).unwrap(),
        format!("stopped default r0 ({url})\n")
    );
    gone(listed.process).await;
    gone(listed.address.keeper).await;
    room.assert_empty().await;
    assert_eq!(
        fs::read_dir(room.home.state().join("keepers"))
            .unwrap()
            .count(),
        0
    );
}

#[tokio::test]
async fn an_engine_stopped_from_elsewhere_ends_its_host_cleanly() {
    let room = Room::new();
    let mut host = Host::start(&room, &room.job(&[]));
    assert!(host.line().starts_with("ready http"));
    let engine = engine::instances(&room.home).unwrap().remove(0);
    let never = CancellationToken::new();
    engine::stop_instance(&room.home, &engine, &room.narrator, &never)
        .await
        .unwrap();
    assert_eq!(host.line(), "end stopped");
    assert!(host.child.wait().unwrap().success());
    room.assert_empty().await;
}

#[tokio::test]
async fn an_engine_whose_keeper_was_killed_ends_and_is_not_believed() {
    let room = Room::new();
    let mut job = room.job(&["--ignore-term"]);
    job.grace_ms = 100;
    let mut host = Host::start(&room, &job);
    assert!(host.line().starts_with("ready http"));
    let engine = engine::instances(&room.home).unwrap().remove(0);
    engine.address.keeper.signal(Signal::KILL).unwrap();
    assert!(
        host.line()
            .starts_with("end crashed: the engine cannot be run")
    );
    gone(engine.process).await;
    gone(engine.minder.unwrap()).await;
    room.assert_empty().await;
}

#[tokio::test]
async fn without_a_minder_a_stop_still_ends_the_engine_and_clears_its_files() {
    let room = Room::new();
    let mut job = room.job(&["--ignore-term"]);
    job.detach = true;
    job.grace_ms = 200;
    let mut host = Host::start(&room, &job);
    assert!(host.line().starts_with("kept http"));
    host.child.wait().unwrap();
    let mut engine = engine::instances(&room.home).unwrap().remove(0);
    // A keeper of another version: whoever stops must do without it.
    engine.address.keeper.pid = 1;
    let never = CancellationToken::new();
    engine::stop_instance(&room.home, &engine, &room.narrator, &never)
        .await
        .unwrap();
    gone(engine.process).await;
    room.assert_empty().await;
}

#[tokio::test]
async fn a_log_is_followed_until_its_engine_is_gone() {
    let room = Room::new();
    let job = room.job(&["--flood", "50", "--exit-after-ms", "700"]);
    let engine = room.start(&job).await;
    let mut out = Vec::new();
    tokio::time::timeout(
        LIMIT,
        engine_host::cli::logs::run(&room.home, Some("default"), true, 2, &mut out),
    )
    .await
    .expect("it ends with its engine")
    .unwrap();
    let text = String::from_utf8(out).unwrap();
    assert!(text.starts_with("flood 49:"), "{text}");
    assert!(matches!(engine.wait_exit().await, EngineEnd::Crashed(_)));
}

#[tokio::test]
async fn every_port_is_reserved_filled_in_and_handed_off() {
    let room = Room::new();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let usual = taken.local_addr().unwrap().port();
    let record = room.root.join("record");
    let mut job = room.job(&["--record", record.to_str().unwrap()]);
    job.env = BTreeMap::from([("GRPC".to_owned(), "{port.grpc}".to_owned())]);
    job.files = vec![("ports".to_owned(), "{address.port} {port.grpc}".to_owned())];
    job.more_ports = vec![("grpc".to_owned(), usual)];
    let engine = room.start(&job).await;
    let handoff: Handoff = serde_json::from_slice(&fs::read(room.handoff()).unwrap()).unwrap();
    let record: serde_json::Value = serde_json::from_slice(&fs::read(&record).unwrap()).unwrap();
    let port = record["env"]["GRPC"].as_str().unwrap();
    assert_ne!(port, usual.to_string(), "that one is taken");
    assert_eq!(
        handoff.endpoints["grpc"],
        format!("http://127.0.0.1:{port}")
    );
    // The same command, whatever ports it would get now.
    match room.try_start(&job).await.unwrap() {
        Outcome::AlreadyRunning(_) => {}
        other => panic!("{other:?}"),
    }
    engine.stop(&CancellationToken::new()).await.unwrap();
    room.assert_empty().await;
}

#[tokio::test]
async fn where_the_driver_must_know_of_the_engine_its_silence_is_no_proof() {
    let room = Room::new();
    let mut job = room.job(&["--print-line", "running on cuda"]);
    job.gpu_percent = Some(90);
    let mut parts = job.parts();
    parts.prepared.gpu_evidence = Some(engine_provider_api::GpuEvidence {
        proofs: vec!["running on cuda".to_owned()],
        driver_memory: true,
        ..engine_provider_api::GpuEvidence::default()
    });
    let error = room.start_parts(&job, &parts).await.unwrap_err();
    assert!(matches!(error, EngineError::NotOnGpu { .. }), "{error:?}");
    room.assert_empty().await;
}
