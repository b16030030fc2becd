//! Promises of the room, on real processes.

mod ends;
mod questions;
mod stay;
mod surroundings;

use std::{
    collections::BTreeMap,
    fs,
    io::Write as _,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use tempfile::TempDir;
use tokio_util::sync::CancellationToken;

use super::{testing::keeper_at, *};
use crate::act::tests::program;

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

fn parent_of(pid: i32) -> ProcessIdentity {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let after = stat.rsplit_once(')').unwrap().1;
    let parent = after.split_whitespace().nth(1).unwrap().parse().unwrap();
    ProcessIdentity::of(parent).unwrap()
}

async fn gone(process: ProcessIdentity) {
    until("the end of a process", || match process.is_alive() {
        true => Err(format!("{process:?} is alive")),
        false => Ok(()),
    })
    .await;
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
            holds: Vec::new(),
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
    program(&path.join("text"), "not a program");
    program(&path.join("orphan"), "#!/no/such/interpreter\n");
    fs::write(path.join("closed"), "#!/bin/sh\n").unwrap();
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
