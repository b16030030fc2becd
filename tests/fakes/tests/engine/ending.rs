//! How engines end: by themselves, by their host, from elsewhere.

use std::{
    fs,
    time::{Duration, Instant},
};

use engine_host::engine::{self, EngineEnd, Handoff};
use fakes::until;
use tokio_util::sync::CancellationToken;

use crate::room::{Host, LIMIT, Room, gone, pid_in, status};

#[tokio::test]
async fn a_crash_while_serving_is_told_and_removes_the_handoff() {
    let room = Room::new();
    let engine = room
        .start(&room.job(&["--exit-after-ms", "400", "--exit-code", "9"]))
        .await;
    assert!(room.handoff_path().exists());
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
        let handoff = room.handoff_path();
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
    let mut other: Handoff =
        serde_json::from_slice(&fs::read(room.handoff_path()).unwrap()).unwrap();
    other.url = "http://127.0.0.1:1".to_owned();
    let text = serde_json::to_vec(&other).unwrap();
    fs::write(room.handoff_path(), &text).unwrap();
    engine.stop(&CancellationToken::new()).await.unwrap();
    assert_eq!(fs::read(room.handoff_path()).unwrap(), text);
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
async fn an_engine_that_somebody_stops_is_waited_for_and_started_anew() {
    let room = Room::new();
    let job = room.job(&["--busy-ms", "700"]);
    let mut host = Host::start(&room, &job);
    assert!(host.line().starts_with("ready http"));
    let old = engine::instances(&room.home).unwrap().remove(0);
    let never = CancellationToken::new();
    let stop = engine::stop_instance(&room.home, &old, &room.narrator, &never);
    let (stopped, next) = tokio::join!(stop, async {
        until("a drained engine", || match room.handoff_path().exists() {
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
        engine_host::cli::logs::run(
            &room.home,
            Some("default"),
            true,
            2,
            &engine_host::narrate::Secrets::default(),
            &mut out,
        ),
    )
    .await
    .expect("it ends with its engine")
    .unwrap();
    let text = String::from_utf8(out).unwrap();
    assert!(text.starts_with("flood 49:"), "{text}");
    assert!(matches!(engine.wait_exit().await, EngineEnd::Crashed(_)));
}
