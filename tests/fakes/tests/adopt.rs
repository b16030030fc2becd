//! Engines that outlive their host and are looked after by the next one, and two of them side by side.

use std::{
    fs,
    io::{BufRead, BufReader, Write as _},
    net::{TcpListener, TcpStream},
    ops::Deref,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use engine_host::{
    engine::{self, EngineEnd, EngineError, Instance, Listening, Outcome, RunningEngine},
    fault::{Exit, Fault},
    pool::Cause,
    process::ProcessIdentity,
};
use fakes::Job;
use rustix::process::Signal;
use tokio_util::sync::CancellationToken;

/// Longest time anything here may take.
const LIMIT: Duration = Duration::from_secs(30);

/// How long engines are kept that nobody comes for, where a test waits for that.
const SHORT_STAY_MS: u64 = 300;

/// How long they are kept where a test comes for them.
const LONG_STAY_MS: u64 = 60_000;

/// A home, a keeper and an ear, for one test.
struct Room(fakes::Room);

impl Deref for Room {
    type Target = fakes::Room;

    fn deref(&self) -> &fakes::Room {
        &self.0
    }
}

impl Room {
    fn new() -> Self {
        Self(fakes::Room::new(
            env!("CARGO_BIN_EXE_fake-host"),
            env!("CARGO_BIN_EXE_fake-engine"),
        ))
    }

    fn handed_off(&self) -> Option<String> {
        self.handoff().map(|handoff| handoff.url)
    }

    async fn adopt(&self, instance: &Instance) -> Result<RunningEngine, EngineError> {
        let adopted = engine::adopt(&self.home, instance, &self.keeper, &self.narrator);
        tokio::time::timeout(LIMIT, adopted).await.expect("in time")
    }

    fn running(&self) -> Option<Instance> {
        engine::find_running(&self.home, &self.handoffs(), "default", "r0").unwrap()
    }

    /// Nothing is left of any engine: no handoff, no record, no process.
    fn assert_empty(&self) {
        assert_eq!(self.handed_off(), None, "a handoff is left");
        assert_eq!(engine::instances(&self.home).unwrap(), []);
        assert_eq!(self.records(), Vec::<String>::new());
    }

    /// An engine whose host has been killed.
    fn orphan(&self, job: &Job, stay_ms: u64) -> Instance {
        let path = self.write("job", job);
        let stay = stay_ms.to_string();
        Host::start(&["keep", &stay, &path]).kill("kept ");
        engine::instances(&self.home).unwrap().remove(0)
    }

    fn write(&self, name: &str, job: &Job) -> String {
        self.write_job(name, job).to_string_lossy().into_owned()
    }
}

/// Another host.
struct Host {
    child: Child,
    said: String,
}

impl Host {
    /// Starts it and reads its first line.
    fn start(arguments: &[&str]) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_fake-host"))
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = String::new();
        BufReader::new(child.stdout.take().unwrap())
            .read_line(&mut said)
            .unwrap();
        Self { child, said }
    }

    /// Kills it; what it had said after this word.
    fn kill(mut self, word: &str) -> String {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        let said = self.said.trim().strip_prefix(word);
        said.unwrap_or_else(|| panic!("it said {:?}", self.said))
            .to_owned()
    }
}

impl Drop for Host {
    /// A test that fails leaves no host behind.
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < LIMIT, "{what}: never");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

async fn gone(process: ProcessIdentity) {
    until("the end of a process", || !process.is_alive()).await;
}

/// Whether each thread of a process has stopped: one does so only when it comes to look at the signal.
fn stands_still(process: ProcessIdentity) -> bool {
    let threads = fs::read_dir(format!("/proc/{}/task", process.pid)).unwrap();
    threads.flatten().all(|thread| {
        let stat = fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
        stat.rsplit_once(") ")
            .is_some_and(|(_, rest)| rest.starts_with('T'))
    })
}

fn not_adopted(error: &EngineError) -> &str {
    match error {
        EngineError::NotAdopted { reason, .. } => reason,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn the_engine_of_a_killed_host_serves_on_and_the_next_host_hears_how_it_ends() {
    let room = Room::new();
    let job = room.job(&["--print-line", "ggml: failed to allocate 9 MiB"]);
    let left = room.orphan(&job, LONG_STAY_MS);
    assert!(left.kept && left.is_alive() && !left.host.is_alive());
    let handoff = room.handoff();

    let engine = room.adopt(&left).await.unwrap();
    assert_eq!(engine.instance().process, left.process, "it is the same");
    assert_eq!(room.handoff(), handoff, "its handoff stays as it is");
    let this = ProcessIdentity::of_this_process();
    assert_eq!(room.running().unwrap().host, this);
    engine.ask_alive(LIMIT).await.unwrap();

    left.process.signal(Signal::ABORT).unwrap();
    let EngineEnd::Crashed(error) = engine.wait_exit().await else {
        panic!("nobody stopped it")
    };
    assert_eq!(
        error.to_string(),
        "the engine ended while it served with signal 6 (ABRT)"
    );
    // What only its provider knew is known.
    let details = error.details();
    assert_eq!(details[0].text, "memory has no room for another 9 MiB");
    assert!(details.iter().any(|it| it.text.contains("fake-engine")));
    room.assert_empty();
    assert_eq!(room.heard.actions(), ["adopt", "crash"]);
    gone(left.address.keeper).await;
}

#[tokio::test]
async fn an_adopted_engine_is_stopped_like_any_other() {
    let room = Room::new();
    let left = room.orphan(&room.job(&[]), LONG_STAY_MS);
    let engine = room.adopt(&left).await.unwrap();
    engine.stop(&room.cancel).await.unwrap();
    assert!(!left.process.is_alive());
    room.assert_empty();
    gone(left.address.keeper).await;
}

/// What it listened with nobody has seen who looks after it now.
#[tokio::test]
async fn a_stranger_that_took_the_port_before_an_engine_was_adopted_is_told_from_it() {
    let room = Room::new();
    let left = room.orphan(&room.job(&[]), LONG_STAY_MS);
    let engine = room.adopt(&left).await.unwrap();
    let before = Listening::default();
    let whose = engine.ask_whose_port(&room.keeper, &before).await;
    whose.expect("it listens itself");
    drop(engine);

    let address = left.url.strip_prefix("http://").unwrap();
    let mut stream = TcpStream::connect(address).unwrap();
    write!(stream, "GET /fail/deaf HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    let mut taken = None;
    until("the port to be free", || {
        taken = TcpListener::bind(address).ok();
        taken.is_some()
    })
    .await;
    assert!(left.process.is_alive());
    let engine = room.adopt(&left).await.unwrap();
    // Nobody has looked at what listens since.
    let now = Listening::default();
    let said = engine.ask_whose_port(&room.keeper, &now).await.unwrap_err();
    assert!(said.contains("is another process's now"), "{said}");
    engine.stop(&room.cancel).await.unwrap();
    room.assert_empty();
}

#[tokio::test]
async fn a_kept_engine_is_found_by_a_start_until_its_time_is_over() {
    let room = Room::new();
    let job = room.job(&[]);
    let left = room.orphan(&job, LONG_STAY_MS);
    let found = room.try_start(&job).await.unwrap();
    assert!(matches!(found, Outcome::AlreadyRunning(it) if it.process == left.process));
    // Adopted and left again, this time for a short while.
    let mut engine = room.adopt(&left).await.unwrap();
    let stay = Duration::from_millis(SHORT_STAY_MS);
    engine.keep_for(stay).await.unwrap();
    drop(engine);
    gone(left.process).await;
    gone(left.address.keeper).await;
    room.assert_empty();
}

#[tokio::test]
async fn what_was_detached_is_adopted_too_and_left_again() {
    let room = Room::new();
    let mut job = room.job(&[]);
    job.detach = true;
    let mut host = Host::start(&[&room.write("job", &job)]);
    host.child.wait().unwrap();
    let left = room.running().unwrap();
    let engine = room.adopt(&left).await.unwrap();
    let kept = engine.keep().await.unwrap();
    assert_eq!((kept.kept, kept.kept_limit_ms), (true, None));
    let again = room.adopt(&kept).await.unwrap();
    again.stop(&room.cancel).await.unwrap();
    room.assert_empty();
}

#[tokio::test]
async fn what_is_another_host_s_or_has_ended_is_not_adopted() {
    let room = Room::new();
    for arguments in [&["keep", "60000"][..], &[]] {
        let path = room.write("job", &room.job(&[]));
        let host = Host::start(&[arguments, &[path.as_str()]].concat());
        let found = room.running().unwrap();
        let error = room.adopt(&found).await.unwrap_err();
        assert!(not_adopted(&error).ends_with("looks after it"), "{error}");
        assert_eq!(error.exit(), Exit::Conflict, "trying again would not help");
        host.kill("");
        engine::stop_instance(&room.home, &found, &room.narrator, &room.cancel)
            .await
            .unwrap();
        let error = room.adopt(&found).await.unwrap_err();
        assert_eq!(not_adopted(&error), "it has ended");
        assert_eq!(error.exit(), Exit::Unavailable, "a start would do");
    }
    room.assert_empty();
}

#[tokio::test]
async fn a_process_that_only_has_the_pid_of_an_engine_is_not_adopted() {
    let room = Room::new();
    let left = room.orphan(&room.job(&[]), LONG_STAY_MS);
    let mut namesake = left.clone();
    namesake.process.start_time_ticks += 1;
    let error = room.adopt(&namesake).await.unwrap_err();
    assert_eq!(not_adopted(&error), "it has ended");
    assert!(left.process.is_alive(), "and it is left alone");
    let engine = room.adopt(&left).await.unwrap();
    engine.stop(&room.cancel).await.unwrap();
}

#[tokio::test]
async fn a_new_engine_comes_up_beside_the_one_that_serves_and_takes_over() {
    let room = Room::new();
    let mut old = room.start(&room.job(&["--load-ms", "1"])).await;
    // There and back: each side comes to its turn.
    for round in 2..5 {
        let load = round.to_string();
        let job = room.job(&["--load-ms", &load, "--file", "{files}/x"]);
        let new = room.start_beside(&job).await;
        assert_ne!(new.instance().side, old.instance().side);
        assert_eq!(room.handed_off().as_deref(), Some(old.url()));
        assert_eq!(room.running().unwrap().url, old.url());
        assert_eq!(engine::instances(&room.home).unwrap().len(), 2);

        new.take_over().unwrap();
        assert_eq!(room.handed_off().as_deref(), Some(new.url()));
        assert_eq!(room.running().unwrap().url, new.url());
        old.stop(&room.cancel).await.unwrap();
        assert_eq!(room.handed_off().as_deref(), Some(new.url()), "it stays");

        // Whichever side it is on, it is known by its command.
        let again = room.try_start(&job).await.unwrap();
        assert!(matches!(again, Outcome::AlreadyRunning(it) if it.url == new.url()));
        old = new;
    }
    old.stop(&room.cancel).await.unwrap();
    room.assert_empty();
}

#[tokio::test]
async fn one_that_fails_beside_another_leaves_that_one_serving() {
    let room = Room::new();
    let old = room.start(&room.job(&[])).await;
    let bad = room.job(&["--never-ready", "--exit-after-ms", "20"]);
    let error = room.try_start_beside(&bad).await.unwrap_err();
    assert_eq!(error.kind(), "engine-died");
    assert_eq!(room.handed_off().as_deref(), Some(old.url()));
    old.ask_alive(LIMIT).await.unwrap();
    assert_eq!(engine::instances(&room.home).unwrap().len(), 1);
    // The one that was there may hand itself off again.
    let new = room.start_beside(&room.job(&["--load-ms", "1"])).await;
    new.take_over().unwrap();
    old.take_over().unwrap();
    new.stop(&room.cancel).await.unwrap();
    assert_eq!(room.handed_off().as_deref(), Some(old.url()));
    old.stop(&room.cancel).await.unwrap();
    room.assert_empty();
}

#[tokio::test]
async fn there_is_no_room_for_a_third() {
    let room = Room::new();
    let one = room.start(&room.job(&[])).await;
    let two = room.start_beside(&room.job(&[])).await;
    let error = room.try_start_beside(&room.job(&[])).await.unwrap_err();
    assert_eq!(error.kind(), "both-sides");
    for engine in [one, two] {
        engine.stop(&room.cancel).await.unwrap();
    }
    room.assert_empty();
}

#[tokio::test]
async fn a_host_killed_while_it_swaps_leaves_the_one_whose_handoff_stands() {
    for takes_over in [false, true] {
        for adopts in [false, true] {
            let room = Room::new();
            let (old, new) = (room.job(&[]), room.job(&["--load-ms", "1"]));
            let (one, other) = (room.write("old", &old), room.write("new", &new));
            let how = if takes_over { "take-over" } else { "leave" };
            let stay = LONG_STAY_MS.to_string();
            let said = Host::start(&["swap", &stay, how, &one, &other]).kill("kept ");
            let (old_url, new_url) = said.split_once(' ').unwrap();
            let (stands, job) = match takes_over {
                false => (old_url, old),
                true => (new_url, new),
            };
            let both = engine::instances(&room.home).unwrap();
            assert_eq!(both.len(), 2, "{said}");
            let standing = both.iter().find(|it| it.url == stands).unwrap();
            let rival = both.iter().find(|it| it.url != stands).unwrap();
            if adopts {
                let error = room.adopt(rival).await.unwrap_err();
                assert_eq!(not_adopted(&error), "another engine stands in its place");
                let engine = room.adopt(standing).await.unwrap();
                assert_eq!(engine.url(), stands);
            } else {
                let found = room.try_start(&job).await.unwrap();
                assert!(matches!(found, Outcome::AlreadyRunning(it) if it.url == stands));
            }
            assert!(!rival.process.is_alive(), "{takes_over} {adopts}");
            assert!(standing.process.is_alive());
            assert_eq!(room.handed_off().as_deref(), Some(stands));
            let left = room.running().unwrap();
            engine::stop_instance(&room.home, &left, &room.narrator, &room.cancel)
                .await
                .unwrap();
            room.assert_empty();
        }
    }
}

#[tokio::test]
async fn one_that_is_killed_for_its_memory_is_told_from_one_that_is_killed() {
    for by_the_kernel in [false, true] {
        let room = Room::new();
        let left = room.orphan(&room.job(&[]), LONG_STAY_MS);
        // As if the kernel counted here.
        let counter = room.root.join("memory.events");
        fs::write(&counter, "oom_kill 1\n").unwrap();
        let record = fs::read_dir(room.home.state().join("instances"))
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .find(|path| path.extension().is_some_and(|it| it == "json"))
            .unwrap();
        let mut document: serde_json::Value =
            serde_json::from_slice(&fs::read(&record).unwrap()).unwrap();
        document["known"]["memory_kills"] = serde_json::json!({"counter": counter, "count": 1});
        fs::write(&record, document.to_string()).unwrap();

        let engine = room.adopt(&left).await.unwrap();
        if by_the_kernel {
            fs::write(&counter, "oom_kill 2\n").unwrap();
        }
        left.process.signal(Signal::KILL).unwrap();
        let EngineEnd::Crashed(error) = engine.wait_exit().await else {
            panic!("nobody stopped it")
        };
        let expected = match by_the_kernel {
            true => Cause::OutOfMemory,
            false => Cause::Exit,
        };
        assert_eq!(Cause::of(&error), expected, "{error}");
    }
}

#[tokio::test]
async fn one_that_hangs_does_not_answer_and_one_that_loads_or_is_busy_does() {
    let room = Room::new();
    let engine = room.start(&room.job(&["--busy-ms", "60000"])).await;
    engine.ask_alive(LIMIT).await.unwrap();
    assert_eq!(engine::in_flight(engine.instance()).await, Some(1.0));
    let process = engine.instance().process;
    process.signal(Signal::STOP).unwrap();
    until("an engine that stands still", || stands_still(process)).await;
    let limit = Duration::from_millis(200);
    let error = engine.ask_alive(limit).await.unwrap_err();
    assert_eq!(error, "/health has not answered for 200ms");
    process.signal(Signal::CONT).unwrap();
    engine.ask_alive(LIMIT).await.unwrap();
    let hurry = CancellationToken::new();
    hurry.cancel();
    engine.stop(&hurry).await.unwrap();
    room.assert_empty();
}
