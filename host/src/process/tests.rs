//! Promises of the room, on real processes.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use tempfile::TempDir;
use tokio_util::sync::CancellationToken;

use super::{testing::keeper_at, *};

/// Longest time anything here may take.
const LIMIT: Duration = Duration::from_secs(20);

fn shell(directory: &Path, script: &str) -> Spec {
    Spec {
        program: "/bin/sh".into(),
        args: vec!["-c".into(), script.into()],
        env: BTreeMap::from([("PATH".to_owned(), "/usr/bin:/bin".to_owned())]),
        directory: directory.to_owned(),
        identity: None,
        network: Network::Host,
        privileges: Privileges::Fixed,
        output: Output::Together(LogFile {
            path: directory.join("log"),
            limit_bytes: 1 << 20,
        }),
        child: Child::Step,
    }
}

fn place() -> (TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().to_owned();
    (directory, path)
}

async fn run(script: &str) -> (Exited, String) {
    let (_keep, path) = place();
    let keeper = keeper_at(&path);
    let exited = keeper
        .run(shell(&path, script), &CancellationToken::new())
        .await
        .unwrap();
    (exited, fs::read_to_string(path.join("log")).unwrap())
}

/// Waits until a condition holds; says what was seen last when it never does.
async fn until<T: std::fmt::Debug>(what: &str, mut look: impl FnMut() -> Result<T, String>) -> T {
    let start = Instant::now();
    loop {
        match look() {
            Ok(value) => return value,
            Err(seen) if start.elapsed() > LIMIT => panic!("{what}: last seen: {seen}"),
            Err(_) => tokio::time::sleep(Duration::from_millis(5)).await,
        }
    }
}

async fn pid_in(path: &Path) -> ProcessIdentity {
    until("a pid file", || {
        let text = fs::read_to_string(path).map_err(|error| error.to_string())?;
        let pid = text.trim().parse().map_err(|_| format!("{text:?}"))?;
        ProcessIdentity::of(pid).ok_or_else(|| format!("{pid} is gone"))
    })
    .await
}

async fn gone(process: ProcessIdentity) {
    until("the end of a process", || match process.is_alive() {
        true => Err(format!("{process:?} is alive")),
        false => Ok(()),
    })
    .await;
}

#[tokio::test]
async fn a_command_gets_exactly_what_is_named() {
    let (exited, log) = run(
        "env | grep -v '^PWD=\\|^SHLVL=\\|^_='; cat; umask; ulimit -c; ls /proc/self/fd | wc -l; \
             grep NoNewPrivs /proc/self/status; echo problem >&2; exit 3",
    )
    .await;
    assert_eq!(exited, Exited::Code(3));
    assert_eq!(
        log,
        "PATH=/usr/bin:/bin\n0022\n0\n4\nNoNewPrivs:\t1\nproblem\n"
    );
}

#[tokio::test]
async fn no_signal_is_ignored_or_blocked_in_what_is_started() {
    let (_keep, path) = place();
    // Not through a shell: it would clean up by itself.
    let spec = Spec {
        program: "/bin/grep".into(),
        args: ["-E", "SigIgn|SigBlk", "/proc/self/status"]
            .map(String::from)
            .to_vec(),
        ..shell(&path, "")
    };
    let keeper = keeper_at(&path);
    keeper.run(spec, &CancellationToken::new()).await.unwrap();
    let log = fs::read_to_string(path.join("log")).unwrap();
    for line in log.lines() {
        let set = u64::from_str_radix(line.split_whitespace().nth(1).unwrap(), 16).unwrap();
        // 32 and 33 are the C library's own; nobody can give them back.
        assert_eq!(set & !(0b11 << 31), 0, "{log}");
    }
    assert_eq!(log.lines().count(), 2);
}

#[tokio::test]
async fn set_uid_helpers_work_only_where_they_are_asked_for() {
    let (_keep, path) = place();
    let keeper = keeper_at(&path);
    for (privileges, told) in [(Privileges::Fixed, "1"), (Privileges::Usual, "0")] {
        let spec = Spec {
            privileges,
            ..shell(&path, "grep NoNewPrivs /proc/self/status")
        };
        keeper.run(spec, &CancellationToken::new()).await.unwrap();
        let log = fs::read_to_string(path.join("log")).unwrap();
        assert_eq!(log, format!("NoNewPrivs:\t{told}\n"));
    }
}

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
async fn output_can_be_kept_apart() {
    let (_keep, path) = place();
    let log = |name: &str| LogFile {
        path: path.join(name),
        limit_bytes: 1000,
    };
    let spec = Spec {
        output: Output::Apart {
            stdout: log("out"),
            stderr: log("err"),
        },
        ..shell(&path, "echo a; echo b >&2")
    };
    let keeper = keeper_at(&path);
    keeper.run(spec, &CancellationToken::new()).await.unwrap();
    assert_eq!(fs::read_to_string(path.join("out")).unwrap(), "a\n");
    assert_eq!(fs::read_to_string(path.join("err")).unwrap(), "b\n");
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
async fn a_command_without_network_can_make_no_socket_but_a_unix_one() {
    let (_keep, path) = place();
    let script = "python3 -c '
import socket
for family in (socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK, socket.AF_UNIX):
    try:
        socket.socket(family, socket.SOCK_DGRAM)
        print(family.name, \"made\")
    except OSError as error:
        print(family.name, error.errno)
'";
    let spec = Spec {
        network: Network::None,
        ..shell(&path, script)
    };
    let keeper = keeper_at(&path);
    keeper.run(spec, &CancellationToken::new()).await.unwrap();
    let log = fs::read_to_string(path.join("log")).unwrap();
    assert_eq!(
        log,
        "AF_INET 13\nAF_INET6 13\nAF_NETLINK 13\nAF_UNIX made\n"
    );
}

#[tokio::test]
async fn another_user_is_entered_without_root_s_groups_and_dies_with_the_minder() {
    if !rustix::process::geteuid().is_root() {
        // Becoming somebody else takes root; `identity_refused` covers the rest of us.
        return;
    }
    let (_keep, path) = place();
    let spec = Spec {
        identity: Some(Identity {
            uid: 65534,
            gid: 65534,
        }),
        ..shell(&path, "id -u; id -g; id -G; exec sleep 1000")
    };
    let keeper = keeper_at(&path);
    let running = keeper.spawn(spec).await.unwrap();
    let log = path.join("log");
    until("three lines", || {
        let text = fs::read_to_string(&log).unwrap_or_default();
        if text == "65534\n65534\n65534\n" {
            Ok(())
        } else {
            Err(text)
        }
    })
    .await;
    let minder = parent_of(running.process().pid);
    minder.signal(rustix::process::Signal::KILL).unwrap();
    let ended = running.wait().await.unwrap();
    assert_eq!(ended.exited, Exited::Signal(9));
    gone(running.process()).await;
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

fn parent_of(pid: i32) -> ProcessIdentity {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let after = stat.rsplit_once(')').unwrap().1;
    let parent = after.split_whitespace().nth(1).unwrap().parse().unwrap();
    ProcessIdentity::of(parent).unwrap()
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
async fn the_keeper_and_its_minders_carry_nothing_of_the_operator_s_environment() {
    let (_keep, path) = place();
    let keeper = keeper_at(&path);
    let running = keeper.spawn(shell(&path, "exec sleep 1000")).await.unwrap();
    let minder = running.process().parent().unwrap();
    for process in [keeper.process().unwrap(), minder] {
        let environment = fs::read(format!("/proc/{}/environ", process.pid)).unwrap();
        assert_eq!(String::from_utf8_lossy(&environment), "");
    }
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
            grace_ms: 200,
            withdraw: Vec::new(),
            farewell: None,
            remove: vec![removal(&own), removal(&other)],
        },
        ..shell(
            &path,
            "trap 'echo got TERM' TERM; echo ready; while :; do sleep 0.05; done",
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
    assert!(start.elapsed() >= Duration::from_millis(200));
    assert!(fs::read_to_string(&log).unwrap().contains("got TERM"));
    assert!(!own.exists(), "its file goes with it");
    assert!(other.exists(), "what somebody else has put there stays");
}

#[tokio::test]
async fn others_may_end_what_a_keeper_has_but_start_nothing() {
    use std::{
        io::{BufRead, BufReader, Write},
        os::unix::{fs::PermissionsExt, net::UnixStream},
    };
    let (_keep, path) = place();
    let spec = Spec {
        child: Child::Engine {
            grace_ms: 10_000,
            withdraw: Vec::new(),
            farewell: None,
            remove: Vec::new(),
        },
        ..shell(&path, "exec sleep 1000")
    };
    let keeper = keeper_at(&path);
    let running = keeper.spawn(spec.clone()).await.unwrap();
    let directory = path.join("state/keepers");
    let socket = directory.join(format!("{}.sock", keeper.process().unwrap().pid));
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&directory), mode(&socket)), (0o700, 0o600));

    let mut stream = UnixStream::connect(&socket).unwrap();
    let spawn = serde_json::json!({"id": 1, "ask": "spawn", "spec": spec});
    write!(
        stream,
        "no JSON\n{{\"ask\": \"dance\", \"id\": 7}}\n{spawn}\n"
    )
    .unwrap();
    let mut answer = String::new();
    BufReader::new(&stream).read_line(&mut answer).unwrap();
    assert_eq!(
        answer.trim(),
        r#"{"tell":"refused","id":1,"reason":"only its host may"}"#
    );

    let mut control = Control::connect(&crate::config::paths::Home::at(&path), running.address())
        .await
        .unwrap();
    assert!(control.end().await.unwrap());
    let told = control.wait().await.unwrap();
    assert_eq!(told.exited, Exited::Signal(15));
    assert_eq!(running.wait().await.unwrap(), told);
    assert!(told.asked_elsewhere);
    assert!(!control.end().await.unwrap(), "it has ended");
}

#[tokio::test]
async fn what_cannot_be_started_says_why() {
    let (_keep, path) = place();
    fs::write(path.join("text"), "not a program").unwrap();
    fs::write(path.join("orphan"), "#!/no/such/interpreter\n").unwrap();
    fs::write(path.join("closed"), "#!/bin/sh\n").unwrap();
    for name in ["text", "orphan"] {
        use std::os::unix::fs::PermissionsExt;
        fs::set_permissions(path.join(name), fs::Permissions::from_mode(0o755)).unwrap();
    }
    let keeper = keeper_at(&path);
    let mut words = Vec::new();
    for program in ["missing", "text", "orphan", "closed"] {
        let spec = Spec {
            program: path.join(program),
            args: vec![],
            ..shell(&path, "")
        };
        words.push(why(&keeper, spec).await);
    }
    words.push(
        why(
            &keeper,
            Spec {
                directory: path.join("nowhere"),
                ..shell(&path, "")
            },
        )
        .await,
    );
    let log = LogFile {
        path: path.join("nowhere/log"),
        limit_bytes: 10,
    };
    words.push(
        why(
            &keeper,
            Spec {
                output: Output::Together(log),
                ..shell(&path, "")
            },
        )
        .await,
    );
    let shown = words.join("\n").replace(&*path.to_string_lossy(), "DIR");
    let own = rustix::process::geteuid().as_raw();
    assert_eq!(
        shown,
        format!(
            "there is no file `DIR/missing`\n\
             `DIR/text` is not a program for this machine\n\
             the interpreter or loader of `DIR/orphan` is missing\n\
             user id {own} may not run `DIR/closed`\n\
             there is no directory `DIR/nowhere`\n\
             could not create the log `DIR/nowhere/log`: No such file or directory (os error 2)"
        )
    );
}

async fn why(keeper: &Keeper, spec: Spec) -> String {
    match keeper.spawn(spec).await.unwrap_err() {
        ProcessError::Start { reason, .. } => reason.to_string(),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_thousand_commands_leave_neither_descriptors_nor_zombies() {
    let (_keep, path) = place();
    let keeper = keeper_at(&path);
    let none = CancellationToken::new();
    let spec = Spec {
        program: "/bin/true".into(),
        args: vec![],
        ..shell(&path, "")
    };
    keeper.run(spec.clone(), &none).await.unwrap();
    let process = keeper.process().unwrap();
    let open = || {
        fs::read_dir(format!("/proc/{}/fd", process.pid))
            .unwrap()
            .count()
    };
    let before = open();
    for _ in 0..250 {
        let one = || keeper.run(spec.clone(), &none);
        let (a, b, c, d) = tokio::join!(one(), one(), one(), one());
        for exited in [a, b, c, d] {
            assert!(exited.unwrap().success());
        }
    }
    until("no minder left", || {
        let left = descendants(process.pid);
        if left.is_empty() {
            Ok(())
        } else {
            Err(format!("{left:?}"))
        }
    })
    .await;
    until("as few descriptors as after the first", || {
        let after = open();
        if after <= before {
            Ok(())
        } else {
            Err(format!("{after}, {before} before"))
        }
    })
    .await;
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

fn question(script: &str, limit: Duration) -> Question {
    Question {
        program: "/bin/sh".into(),
        args: vec!["-c".into(), script.into()],
        env: BTreeMap::from([("PATH".to_owned(), "/usr/bin:/bin".to_owned())]),
        identity: None,
        limit,
    }
}

#[tokio::test]
async fn a_question_is_answered_with_both_streams_and_the_exit() {
    let answer = ask(&question("echo a; echo b >&2; exit 7", LIMIT))
        .await
        .unwrap();
    assert_eq!(answer.exited, Exited::Code(7));
    assert_eq!(
        (answer.stdout.as_str(), answer.stderr.as_str()),
        ("a\n", "b\n")
    );
}

#[tokio::test]
async fn a_question_is_bounded_in_output_and_time() {
    let flood = ask(&question("head -c 3000000 /dev/zero", LIMIT))
        .await
        .unwrap();
    assert_eq!(flood.stdout.len(), OUTPUT_LIMIT);
    let (_keep, path) = place();
    let script = format!("sleep 1000 & echo $! > {}/pid; wait", path.display());
    let error = ask(&question(&script, Duration::from_millis(300)))
        .await
        .unwrap_err();
    assert_eq!(error.to_string(), "`/bin/sh` did not answer within 300 ms");
    let text = fs::read_to_string(path.join("pid")).unwrap();
    let pid: i32 = text.trim().parse().unwrap();
    if let Some(left) = ProcessIdentity::of(pid) {
        gone(left).await;
    }
}

#[tokio::test]
async fn a_question_whose_program_leaves_a_daemon_is_still_answered_promptly() {
    let start = Instant::now();
    let answer = ask(&question("sleep 1000 & echo done", LIMIT))
        .await
        .unwrap();
    assert_eq!(answer.stdout, "done\n");
    assert!(start.elapsed() < LIMIT / 2);
}

#[tokio::test]
async fn a_missing_program_is_a_typed_answer() {
    let error = ask(&Question {
        program: "/no/such/program".into(),
        ..question("", LIMIT)
    })
    .await
    .unwrap_err();
    let ProcessError::Start { reason, .. } = &error else {
        panic!("{error:?}")
    };
    assert!(matches!(reason, StartFailure::ProgramMissing { .. }));
}
