//! What ends when something else ends: trees, daemons, minders, keepers, and what they leave to be done.

use super::*;

#[tokio::test]
async fn what_an_engine_leaves_elsewhere_is_removed_by_whoever_is_left() {
    for kill_the_minder in [false, true] {
        let (_keep, path) = place();
        let keeper = keeper_at(&path);
        let shell_words = |script: String| vec!["-c".to_owned(), script];
        let elsewhere = path.join("elsewhere");
        let farewell = Farewell {
            program: "/bin/sh".into(),
            env: BTreeMap::from([("PATH".to_owned(), "/usr/bin:/bin".to_owned())]),
            ask: shell_words(format!("cat {}", elsewhere.display())),
            mark: "ours".to_owned(),
            nothing: "no such file".to_owned(),
            part: None,
            made: None,
            answer: path.join("answer"),
            remove: shell_words(format!("rm {}", elsewhere.display())),
            limit_ms: 5_000,
        };
        let record = path.join("record");
        fs::write(&record, "{}").unwrap();
        let spec = Spec {
            child: Child::Engine {
                grace_ms: 200,
                withdraw: Vec::new(),
                farewell: Some(Box::new(farewell)),
                remove: vec![Removal {
                    path: record.clone(),
                    says: BTreeMap::new(),
                }],
                holds: Vec::new(),
            },
            ..shell(
                &path,
                "echo ours > elsewhere; echo $$ > pid; exec sleep 1000",
            )
        };
        let running = keeper.spawn(spec).await.unwrap();
        pid_in(&path.join("pid")).await;
        if kill_the_minder {
            let minder = running.process().parent().unwrap();
            minder.signal(rustix::process::Signal::KILL).unwrap();
        } else {
            running.kill_tree();
        }
        running.wait().await.unwrap();
        assert!(!elsewhere.exists(), "killed: {kill_the_minder}");
        assert!(!record.exists(), "killed: {kill_the_minder}");
        assert_eq!(fs::read_to_string(path.join("answer")).unwrap(), "ours\n");
    }
}

#[tokio::test]
async fn a_child_that_is_half_way_through_making_something_is_not_interrupted() {
    let (_keep, path) = place();
    let keeper = keeper_at(&path);
    let shell_words = |script: &str| vec!["-c".to_owned(), script.to_owned()];
    let made = path.join("made");
    let farewell = Farewell {
        program: "/bin/sh".into(),
        env: BTreeMap::from([("PATH".to_owned(), "/usr/bin:/bin".to_owned())]),
        ask: shell_words("echo nothing of ours"),
        mark: "home-4711".to_owned(),
        nothing: "no such file".to_owned(),
        part: None,
        made: Some(made.clone()),
        answer: path.join("answer"),
        remove: shell_words("exit 1"),
        limit_ms: 5_000,
    };
    let spec = Spec {
        child: Child::Engine {
            grace_ms: 10_000,
            withdraw: Vec::new(),
            farewell: Some(Box::new(farewell)),
            remove: Vec::new(),
            holds: Vec::new(),
        },
        ..shell(
            &path,
            ": > made; echo $$ > pid; sleep 0.5; echo whole > thing; echo 1 > made; exec sleep 1000",
        )
    };
    let running = keeper.spawn(spec).await.unwrap();
    pid_in(&path.join("pid")).await;
    running.kill_tree();
    let exited = running.wait().await.unwrap();
    assert_eq!(exited.exited, Exited::Signal(libc::SIGKILL));
    assert_eq!(fs::read_to_string(path.join("thing")).unwrap(), "whole\n");
    assert!(!made.exists(), "the next child would find it");
}

#[tokio::test]
async fn cancelling_ends_the_whole_tree_daemons_included() {
    let (_keep, path) = place();
    let script = "(setsid sh -c 'trap \"\" TERM; echo $$ > daemon; while :; do sleep 1; done' &) ; \
                  echo $$ > first; trap '' TERM INT; while :; do sleep 1; done";
    let keeper = keeper_at(&path);
    let cancel = CancellationToken::new();
    let (first, daemon) = (path.join("first"), path.join("daemon"));
    let (ended, pids) = tokio::join!(keeper.run(shell(&path, script), &cancel), async {
        let pids = [pid_in(&first).await, pid_in(&daemon).await];
        cancel.cancel();
        pids
    });
    assert!(
        matches!(ended, Err(ProcessError::Cancelled { .. })),
        "{ended:?}"
    );
    // Not "soon": once the run has returned, nothing is left.
    assert!(pids.iter().all(|process| !process.is_alive()), "{pids:?}");
}

#[tokio::test]
async fn a_daemon_left_behind_by_a_step_ends_with_it() {
    let (_keep, path) = place();
    let script = "setsid sh -c 'echo $$ > daemon; while :; do sleep 1; done' & \
                  while [ ! -e go ]; do sleep 0.01; done; exit 0";
    let keeper = keeper_at(&path);
    let running = keeper.spawn(shell(&path, script)).await.unwrap();
    let daemon = pid_in(&path.join("daemon")).await;
    fs::write(path.join("go"), "").unwrap();
    let ended = running.wait().await.unwrap();
    assert_eq!(ended.exited, Exited::Code(0));
    assert!(!daemon.is_alive());
}

#[tokio::test]
async fn dropping_a_step_kills_it_and_its_neighbour_lives() {
    let (_keep, path) = place();
    let other = path.join("other");
    fs::create_dir(&other).unwrap();
    let keeper = keeper_at(&path);
    let script = "sleep 1000 & echo $! > pid; wait";
    let dropped = keeper.spawn(shell(&path, script)).await.unwrap();
    let neighbour = keeper.spawn(shell(&other, script)).await.unwrap();
    let below = pid_in(&path.join("pid")).await;
    let below_neighbour = pid_in(&other.join("pid")).await;
    drop(dropped);
    gone(below).await;
    assert!(neighbour.process().is_alive() && below_neighbour.is_alive());
}

#[tokio::test]
async fn a_killed_minder_s_whole_tree_ends_and_no_neighbour_s_process_does() {
    let (_keep, path) = place();
    let other = path.join("other");
    fs::create_dir(&other).unwrap();
    let keeper = keeper_at(&path);
    // Like make: new processes all the time, and each must come to its own end.
    let busy = "while [ ! -e enough ]; do /bin/true & a=$!; /bin/true & wait $! || exit 8; wait $a || exit 9; done";
    let neighbour = keeper.spawn(shell(&other, busy)).await.unwrap();
    let script =
        "rm -f daemon; setsid sh -c 'sh -c \"sleep 1000\" & echo $! > daemon; wait' & wait";
    for _ in 0..20 {
        let running = keeper.spawn(shell(&path, script)).await.unwrap();
        let daemon = pid_in(&path.join("daemon")).await;
        let minder = running.process().parent().unwrap();
        minder.signal(rustix::process::Signal::KILL).unwrap();
        let ended = running.wait().await.unwrap();
        assert_eq!(ended.exited, Exited::Signal(9));
        // Not "soon": once its end is told, nothing is left.
        assert!(!daemon.is_alive() && !running.process().is_alive());
        fs::remove_file(path.join("daemon")).unwrap();
    }
    fs::write(other.join("enough"), "").unwrap();
    assert_eq!(neighbour.wait().await.unwrap().exited, Exited::Code(0));
}

#[tokio::test]
async fn when_the_keeper_is_killed_everything_ends_and_the_host_is_told() {
    let (_keep, path) = place();
    let script = "setsid sleep 1000 & echo $! > daemon; while :; do sleep 1; done";
    let keeper = keeper_at(&path);
    let running = keeper.spawn(shell(&path, script)).await.unwrap();
    let daemon = pid_in(&path.join("daemon")).await;
    let process = keeper.process().unwrap();
    process.signal(rustix::process::Signal::KILL).unwrap();
    let error = running.wait().await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "the keeper of this run has ended with signal 9 (KILL)"
    );
    gone(running.process()).await;
    gone(daemon).await;
    // The next command gets another one.
    let none = CancellationToken::new();
    let again = keeper.run(shell(&path, "true"), &none).await.unwrap();
    assert!(again.success());
    assert_ne!(keeper.process().unwrap(), process);
}

#[tokio::test]
async fn an_engine_that_ignores_term_is_killed_after_its_grace_and_its_files_go() {
    let (_keep, path) = place();
    let [own, other] = ["own.json", "other.json"].map(|name| path.join(name));
    fs::write(&own, r#"{"url": "a"}"#).unwrap();
    fs::write(&other, r#"{"url": "b"}"#).unwrap();
    let removal = |path: &Path| Removal {
        path: path.to_owned(),
        says: BTreeMap::from([("url".to_owned(), "a".into())]),
    };
    let spec = Spec {
        child: Child::Engine {
            grace_ms: 2_000,
            withdraw: Vec::new(),
            farewell: None,
            remove: vec![removal(&own), removal(&other)],
            holds: Vec::new(),
        },
        // A shell that waits for a child of its own heeds a signal at once, not after the command.
        ..shell(
            &path,
            "trap 'echo got TERM' TERM; echo ready; while :; do sleep 1 & wait $!; done",
        )
    };
    let keeper = keeper_at(&path);
    let running = keeper.spawn(spec).await.unwrap();
    let log = path.join("log");
    until("ready", || match fs::read_to_string(&log) {
        Ok(text) if text.contains("ready") => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .await;
    let start = Instant::now();
    running.end();
    let ended = running.wait().await.unwrap();
    assert_eq!(ended.exited, Exited::Signal(9));
    assert!(start.elapsed() >= Duration::from_secs(2));
    assert!(fs::read_to_string(&log).unwrap().contains("got TERM"));
    assert!(!own.exists(), "its file goes with it");
    assert!(other.exists(), "what somebody else has put there stays");
}

#[tokio::test]
async fn a_keeper_ends_when_its_host_lets_go() {
    let (_keep, path) = place();
    let keeper = keeper_at(&path);
    keeper
        .run(shell(&path, "true"), &CancellationToken::new())
        .await
        .unwrap();
    let process = keeper.process().unwrap();
    drop(keeper);
    gone(process).await;
    assert_eq!(fs::read_dir(path.join("state/keepers")).unwrap().count(), 0);
}

/// The host is killed while its keeper writes to it: the keeper learns it by that error alone.
#[tokio::test]
async fn a_keeper_that_finds_its_host_gone_while_it_answers_ends() {
    let (_keep, path) = place();
    let (near, far) = std::os::unix::net::UnixStream::pair().unwrap();
    // Open to be read by the keeper, closed to be written: what a host leaves in its last moment.
    near.shutdown(std::net::Shutdown::Read).unwrap();
    (&near)
        .write_all(b"{\"id\":1,\"ask\":\"hello\",\"version\":1}\n")
        .unwrap();
    let mut keeper = testing::start_at(&path, far);
    until("the end of the keeper", || match keeper.try_wait() {
        Ok(None) => Err("it runs".to_owned()),
        ended => ended.map_err(|error| error.to_string()),
    })
    .await;
    drop(near);
}
