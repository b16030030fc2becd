//! Hosts, keepers and minders that are killed.

use std::{process::Command, time::Duration};

use engine_host::{engine, fault::Fault as _};
use fakes::until;
use rustix::process::Signal;
use tokio_util::sync::CancellationToken;

use crate::room::{Host, Room, gone, pid_in, status};

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
    assert!(room.handoff_path().exists());
    host.child.kill().unwrap();
    host.child.wait().unwrap();
    gone(engine.process).await;
    gone(daemon).await;
    gone(engine.minder.unwrap()).await;
    gone(engine.address.keeper).await;
    room.assert_empty().await;
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
            || match (engine::instances(&room.home), room.handoff_path().exists()) {
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
    job.grace_ms = 5_000;
    let mut host = Host::start(&room, &job);
    assert!(host.line().starts_with("ready http"));
    let dying = engine::instances(&room.home).unwrap().remove(0);
    host.child.kill().unwrap();
    host.child.wait().unwrap();
    assert!(dying.is_alive(), "its grace has begun");
    let next = room.start(&job).await;
    assert_ne!(next.instance().process, dying.process);
    assert!(!dying.is_alive());
    assert!(room.handoff_path().exists());
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
