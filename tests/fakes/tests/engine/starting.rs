//! From a start to an engine that is ready, or to why it is not.

use std::{fs, time::Instant};

use engine_host::{
    engine::{self, EngineError, Handoff, Instance, Outcome},
    fault::{Exit, Fault as _},
    process::ProcessIdentity,
};
use fakes::{free_ports, until};
use tokio_util::sync::CancellationToken;

use crate::room::{LIMIT, Room, status};

#[tokio::test]
async fn a_ready_engine_is_handed_off_and_a_stop_leaves_nothing() {
    let room = Room::new();
    let job = room.job(&["--load-ms", "60"]);
    let engine = room.start(&job).await;
    assert_eq!(status(engine.url(), "/health"), "200");
    let handoff: Handoff = serde_json::from_slice(&fs::read(room.handoff_path()).unwrap()).unwrap();
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
    // From its start it may take a while until it answers at all.
    job.stall_ms = 2_000;
    let error = room.fail(&job).await;
    let words = error.to_string();
    assert!(words.ends_with("is not ready: status 503"), "{words}");
    assert_eq!(error.kind(), "engine-never-ready");
    room.assert_empty().await;
}

/// Its log grows all the time.
#[tokio::test]
async fn an_engine_that_says_without_end_that_it_waits_is_given_up_after_its_time() {
    let room = Room::new();
    let mut job = room.job(&["--never-ready", "--pour-hz", "100"]);
    (job.stall_ms, job.ready_ms) = (3_000, Some(4_000));
    let error = room.fail(&job).await;
    let words = "the engine is not ready after 4 s: status 503";
    assert_eq!(error.to_string(), words);
    assert_eq!(
        (error.kind(), error.exit()),
        ("engine-too-slow", Exit::Engine)
    );
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
    let handoff = fs::read(room.handoff_path()).unwrap();
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
    fs::write(room.handoff_path(), handoff).unwrap();
    let again = room.start(&job).await;
    assert_ne!(again.instance().process, dead.process);
}
