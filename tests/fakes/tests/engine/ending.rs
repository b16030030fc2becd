//! How engines end: by themselves, by their host, from elsewhere.

use std::{
    cell::Cell,
    fs,
    path::Path,
    time::{Duration, Instant},
};

use engine_host::{
    engine::{self, EngineEnd, Handoff},
    narrate::Secrets,
};
use fakes::until;
use tokio_util::sync::CancellationToken;

use crate::room::{Host, LIMIT, Room, fail, gone, pid_in, status};

/// How long an engine that is drained is watched: one that was told to end would be gone by then.
const WATCHED: Duration = Duration::from_millis(500);

#[tokio::test]
async fn a_crash_while_serving_is_told_and_removes_the_handoff() {
    let room = Room::new();
    let engine = room.start(&room.job(&["--exit-code", "9"])).await;
    assert!(room.handoff_path().exists());
    fail(engine.url(), "exit");
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
    let engine = room.start(&room.job(&[])).await;
    assert_eq!(status(engine.url(), "/busy"), "200");
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
        room.until_told("a drain", |event| event.action == "drain")
            .await;
        tokio::time::sleep(WATCHED).await;
        assert!(engine.instance().process.is_alive(), "it drains");
        assert_eq!(status(engine.url(), "/idle"), "200");
    });
    stopped.unwrap();
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
    let mut job = room.job(&["--busy-ms", "600000", "--ignore-term"]);
    job.grace_ms = 60_000;
    let engine = room.start(&job).await;
    let hurry = CancellationToken::new();
    hurry.cancel();
    let start = Instant::now();
    engine.stop(&hurry).await.unwrap();
    // Requests would be waited for for ten seconds, and then its grace.
    let took = start.elapsed();
    assert!(took < Duration::from_secs(9), "{took:?}");
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
    let job = room.job(&[]);
    let mut host = Host::start(&room, &job);
    assert!(host.line().starts_with("ready http"));
    let old = engine::instances(&room.home).unwrap().remove(0);
    assert_eq!(status(&old.url, "/busy"), "200");
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
        let (next, ()) = tokio::join!(room.start(&job), async {
            let waits = format!("waiting for the engine on {} to end", old.url);
            room.until_told("a start that waits", |event| event.human == waits)
                .await;
            assert!(old.is_alive(), "it drains");
            assert_eq!(status(&old.url, "/idle"), "200");
        });
        next
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
    let engine = room.start(&room.job(&["--flood", "50"])).await;
    // It may be ready before its keeper has carried its last words into the log.
    until("all that it says", || last_words(engine.log_path())).await;
    let printed = room.root.join("printed");
    let mut out = fs::File::create(&printed).unwrap();
    let (secrets, pool) = (Secrets::default(), Some("default"));
    let following = engine_host::cli::logs::run(&room.home, pool, true, 2, &secrets, &mut out);
    let ends = Cell::new(false);
    let followed = async {
        let followed = tokio::time::timeout(LIMIT, following).await;
        followed.expect("it ends with its engine").unwrap();
        assert!(ends.get(), "it ends before its engine");
    };
    let ending = async {
        until("the last lines", || last_words(&printed)).await;
        ends.set(true);
        fail(engine.url(), "exit");
    };
    tokio::join!(followed, ending);
    let text = fs::read_to_string(&printed).unwrap();
    assert!(text.starts_with("flood 49:"), "{text}");
    assert!(matches!(engine.wait_exit().await, EngineEnd::Crashed(_)));
}

/// Whether a text ends with what the engine says last before it is ready; `Err` with the text otherwise.
fn last_words(path: &Path) -> Result<(), String> {
    let text = fs::read_to_string(path).map_err(|error| error.to_string())?;
    let last = text.lines().last().unwrap_or_default();
    match last.starts_with("listening on ") && text.ends_with('\n') {
        true => Ok(()),
        false => Err(text),
    }
}
