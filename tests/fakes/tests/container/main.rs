//! Promises of the engine room for engines in containers, kept with real podman and real docker.

mod room;

use std::{
    collections::BTreeMap,
    fs,
    net::TcpListener,
    os::unix::fs::PermissionsExt,
    sync::Mutex,
    time::{Duration, Instant},
};

use e2e::{ContainerKind, http_get};
use engine_host::{
    engine::{self, EngineEnd, EngineError, Outcome},
    fault::Fault,
    narrate::{Event, Sink},
    process::ProcessIdentity,
};
use fakes::{Contained, Elsewhere, free_ports, until, whole};
use rustix::process::Signal;
use tokio_util::sync::CancellationToken;

use crate::room::Room;

/// Longest time anything here may take.
const LIMIT: Duration = Duration::from_secs(60);

/// Longest time a stop of an engine that heeds TERM may take here: runtimes are slow on a busy machine. A
/// stop that waits for the grace of ten minutes is slower still.
const STOP_LIMIT: Duration = Duration::from_secs(120);

/// Makes a test for each runtime.
macro_rules! promise {
    ($($name:ident),+ $(,)?) => {
        mod podman {
            $(#[tokio::test]
            async fn $name() {
                super::$name(super::ContainerKind::Podman).await;
            })+
        }
        mod docker {
            $(#[tokio::test]
            async fn $name() {
                super::$name(super::ContainerKind::Docker).await;
            })+
        }
    };
}

promise!(
    it_starts_answers_and_leaves_nothing,
    what_ignores_term_is_killed_after_its_grace,
    an_engine_that_ends_is_told_with_its_code_and_nothing_is_left,
    a_program_that_is_missing_is_told_in_words,
    an_image_that_is_gone_is_told_apart,
    a_name_that_somebody_else_has_is_not_taken_from_them,
    a_port_that_is_taken_at_the_last_moment_is_passed_over,
    secrets_and_caches_reach_the_engine_and_nobody_else,
    a_model_that_the_user_inside_may_not_read_is_refused_before_anything_starts,
    requests_in_flight_are_waited_for,
    whoever_is_killed_no_container_is_left,
    a_start_that_is_cancelled_leaves_nothing,
    a_detached_engine_is_stopped_by_another_host,
    the_engine_of_a_killed_host_is_adopted_and_swapped,
);

async fn it_starts_answers_and_leaves_nothing(kind: ContainerKind) {
    let room = Room::new(kind);
    let mut job = room.job(&["--load-ms", "300"]);
    // Longer than a stop may take: its TERM must reach the engine, and its end must be noticed.
    job.grace_ms = 600_000;
    job.more_ports = vec![("grpc".to_owned(), 8081)];
    let engine = room.start(&job).await;
    let handoff = room.handoff().unwrap();
    assert_eq!(handoff.url, engine.url());
    assert!(handoff.endpoints["grpc"].starts_with("http://127.0.0.1:"));
    assert_eq!(handoff.observed_version.as_deref(), Some("b1-fake"));
    assert_eq!(room.left().len(), 1);
    // The same command finds it running, another one is a conflict.
    match room.try_start(&job).await.unwrap() {
        Outcome::AlreadyRunning(instance) => assert_eq!(instance.url, engine.url()),
        other => panic!("{other:?}"),
    }
    job.faults = vec!["--load-ms".to_owned(), "100".to_owned()];
    let conflict = room.fail(&job).await;
    assert!(
        matches!(conflict, EngineError::Conflict { .. }),
        "{conflict:?}"
    );
    let stopping = Instant::now();
    engine.stop(&CancellationToken::new()).await.unwrap();
    assert!(stopping.elapsed() < STOP_LIMIT, "{:?}", stopping.elapsed());
    let log = fs::read_to_string(engine.log_path()).unwrap();
    assert!(log.contains("TERM, leaving"), "{log}");
    room.assert_empty();
}

async fn what_ignores_term_is_killed_after_its_grace(kind: ContainerKind) {
    let room = Room::new(kind);
    let mut job = room.job(&["--ignore-term"]);
    job.grace_ms = 300;
    let engine = room.start(&job).await;
    engine.stop(&CancellationToken::new()).await.unwrap();
    room.assert_empty();
}

async fn an_engine_that_ends_is_told_with_its_code_and_nothing_is_left(kind: ContainerKind) {
    let room = Room::new(kind);
    let engine = room.start(&room.job(&["--exit-code", "42"])).await;
    // It may end before it answers.
    let _ = http_get(&format!("{}/fail/exit", engine.url()));
    let EngineEnd::Crashed(error) = engine.wait_exit().await else {
        panic!("nobody stopped it");
    };
    assert_eq!(
        error.to_string(),
        "the engine ended while it served with exit code 42"
    );
    room.assert_empty();
    let answer = engine.log_path().with_extension("container.json");
    let answer = fs::read_to_string(answer).unwrap();
    assert!(answer.contains("\"ExitCode\":42"), "{answer}");
}

async fn a_program_that_is_missing_is_told_in_words(kind: ContainerKind) {
    let room = Room::new(kind);
    let mut contained = room.contained();
    contained.entrypoint = vec!["/nothing/here".to_owned()];
    let mut job = room.job(&[]);
    job.elsewhere = Some(Elsewhere::Container(Box::new(contained)));
    let error = room.fail(&job).await;
    assert!(
        whole(&error).contains("the image does not have the program"),
        "{}",
        whole(&error)
    );
    room.assert_empty();
}

async fn an_image_that_is_gone_is_told_apart(kind: ContainerKind) {
    let room = Room::new(kind);
    let mut contained = room.contained();
    let repository = contained.image.split('@').next().unwrap().to_owned();
    contained.image = format!("{repository}@sha256:{}", "0".repeat(64));
    let mut job = room.job(&[]);
    job.elsewhere = Some(Elsewhere::Container(Box::new(contained)));
    match room.fail(&job).await {
        EngineError::ImageGone { image, .. } => assert!(image.ends_with("0000")),
        other => panic!("{}", whole(&other)),
    }
    room.assert_empty();
}

async fn a_name_that_somebody_else_has_is_not_taken_from_them(kind: ContainerKind) {
    let room = Room::new(kind);
    let job = room.job(&[]);
    // Whatever it is called: the name is in the record while it runs.
    let engine = room.start(&job).await;
    let name = engine.instance().container.as_ref().unwrap().name.clone();
    engine.stop(&CancellationToken::new()).await.unwrap();
    let containers = &room.runtime.containers;
    containers.run(&["create", "--name", &name, &room.runtime.image]);
    match room.fail(&job).await {
        EngineError::NameTaken {
            ours: false,
            name: taken,
            ..
        } => assert_eq!(taken, name),
        other => panic!("{}", whole(&other)),
    }
    // It is still there.
    containers.run(&["rm", "--force", &name]);
    room.assert_empty();
}

/// Takes a port when a launch is told: its engine's ports have been looked at by then, and nothing is
/// started before whoever hears of it has returned.
struct TakesPort {
    port: u16,
    taken: Mutex<Option<TcpListener>>,
}

impl Sink for TakesPort {
    fn event(&self, event: &Event) {
        if event.action == "launch" {
            let mut taken = self.taken.lock().unwrap();
            taken.get_or_insert_with(|| TcpListener::bind(("127.0.0.1", self.port)).unwrap());
        }
    }
}

async fn a_port_that_is_taken_at_the_last_moment_is_passed_over(kind: ContainerKind) {
    let mut room = Room::new(kind);
    let job = room.job(&[]);
    let first = job.ports[0];
    room.tell(TakesPort {
        port: first,
        taken: Mutex::new(None),
    });
    let engine = room.start(&job).await;
    assert!(
        !engine.url().ends_with(&format!(":{first}")),
        "{}",
        engine.url()
    );
    assert_eq!(room.left().len(), 1);
    engine.stop(&CancellationToken::new()).await.unwrap();
    room.assert_empty();
}

async fn secrets_and_caches_reach_the_engine_and_nobody_else(kind: ContainerKind) {
    let room = Room::new(kind);
    let mut contained = room.contained();
    contained.mounts = vec![
        ("{cache.compiled}".to_owned(), "/cache".to_owned()),
        ("{files}".to_owned(), "/config".to_owned()),
    ];
    let mut job = room.job(&["--record", "/cache/record.json"]);
    job.elsewhere = Some(Elsewhere::Container(Box::new(contained)));
    job.env = BTreeMap::from([("API_KEY".to_owned(), "{secret.TOKEN}".to_owned())]);
    job.files = vec![("a/b.txt".to_owned(), "port {address.port}".to_owned())];
    let engine = room.start(&job).await;
    let record = fs::read_to_string(room.home.cache("compiled.2000").join("record.json")).unwrap();
    let record: serde_json::Value = serde_json::from_str(&record).unwrap();
    assert_eq!(record["env"]["API_KEY"], "hunter2-hunter2");
    assert_eq!(record["uid"], 2000);
    // No process shows it in its arguments, and no file of the home has it.
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let arguments = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let arguments = String::from_utf8_lossy(&arguments).into_owned();
        assert!(!arguments.contains("hunter2-hunter2"), "{arguments}");
    }
    let pool = room.home.state();
    let log = engine.log_path().to_owned();
    let placed = fs::read_dir(pool.join("engines"))
        .unwrap()
        .flatten()
        .next()
        .unwrap();
    let text = fs::read_to_string(placed.path().join("files/a/b.txt")).unwrap();
    assert_eq!(text, format!("port {}", Contained::PORT));
    engine.stop(&CancellationToken::new()).await.unwrap();
    let answer = fs::read_to_string(log.with_extension("container.json")).unwrap();
    assert!(!answer.contains("hunter2"), "{answer}");
    room.assert_empty();
}

async fn a_model_that_the_user_inside_may_not_read_is_refused_before_anything_starts(
    kind: ContainerKind,
) {
    let room = Room::new(kind);
    let model = room.root.join("model.gguf");
    fs::write(&model, "GGUF").unwrap();
    fs::set_permissions(&model, fs::Permissions::from_mode(0o600)).unwrap();
    let mut contained = room.contained();
    contained.model = Some(model.clone());
    contained.mounts = vec![("{model.path}".to_owned(), "/model.gguf".to_owned())];
    let mut job = room.job(&[]);
    job.elsewhere = Some(Elsewhere::Container(Box::new(contained)));
    let error = room.fail(&job).await;
    assert_eq!(
        error.to_string(),
        format!(
            "user id 2000 inside the container may not read `{}` (mode 0600), mounted as /model.gguf",
            model.display()
        )
    );
    assert!(
        error.hints()[0]
            .command
            .as_ref()
            .unwrap()
            .starts_with("chmod o+r ")
    );
    fs::set_permissions(&model, fs::Permissions::from_mode(0o644)).unwrap();
    let engine = room.start(&job).await;
    engine.stop(&CancellationToken::new()).await.unwrap();
    room.assert_empty();
}

async fn requests_in_flight_are_waited_for(kind: ContainerKind) {
    let room = Room::new(kind);
    let engine = room.start(&room.job(&[])).await;
    let ask = |path: &str| http_get(&format!("{}/{path}", engine.url())).unwrap().0;
    assert_eq!(ask("busy"), 200);
    let never = CancellationToken::new();
    let (stopped, ()) = tokio::join!(engine.stop(&never), async {
        room.until_told("a drain", |event| event.action == "drain")
            .await;
        assert_eq!(ask("idle"), 200);
    });
    stopped.unwrap();
    room.assert_empty();
}

async fn a_start_that_is_cancelled_leaves_nothing(kind: ContainerKind) {
    let room = Room::new(kind);
    let job = room.job(&["--never-ready"]);
    let cancel = async {
        until("a container", || match room.left() {
            left if left.is_empty() => Err("none".to_owned()),
            _ => Ok(()),
        })
        .await;
        room.cancel.cancel();
    };
    let (error, ()) = tokio::join!(room.fail(&job), cancel);
    assert!(matches!(error, EngineError::Cancelled), "{error:?}");
    room.assert_empty();
}

/// Processes of an engine, by what they do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Who {
    Host,
    Keeper,
    Minder,
    Client,
}

async fn whoever_is_killed_no_container_is_left(kind: ContainerKind) {
    use Who::{Client, Host, Keeper as TheKeeper, Minder};
    for victims in [
        &[Host][..],
        &[TheKeeper],
        &[Minder],
        &[Client],
        &[Host, TheKeeper],
        &[Minder, Client],
        &[Host, TheKeeper, Minder, Client],
    ] {
        let room = Room::new(kind);
        let mut job = room.job(&[]);
        job.grace_ms = 500;
        let (mut host, instance) = room.another_host(&job).await;
        let process = |who: Who| match who {
            Host => ProcessIdentity::of(i32::try_from(host.id()).unwrap()).unwrap(),
            TheKeeper => instance.address.keeper,
            Minder => instance.minder.unwrap(),
            Client => instance.process,
        };
        let killed: Vec<ProcessIdentity> = victims.iter().map(|who| process(*who)).collect();
        // Stopped first, so that none sees the others' end before its own.
        for signal in [Signal::STOP, Signal::KILL] {
            for process in &killed {
                process.signal(signal).unwrap();
            }
        }
        if victims.len() == 4 {
            // Nobody is left to do it: the next one who looks does.
            until("the end of all", || match instance.process.is_alive() {
                true => Err("the client lives".to_owned()),
                false => Ok(()),
            })
            .await;
            assert_eq!(room.left().len(), 1, "{victims:?}");
            assert_eq!(engine::instances(&room.home).unwrap(), []);
            engine::clear(&room.home).await.unwrap();
        }
        until(&format!("no container after {victims:?}"), || {
            match (room.left(), room.records()) {
                (left, records) if left.is_empty() && records.is_empty() => Ok(()),
                seen => Err(format!("{seen:?}")),
            }
        })
        .await;
        room.assert_empty();
        let _ = host.kill();
        let _ = host.wait();
    }
    // A start clears up as well, record or not.
    for forget in [false, true] {
        let room = Room::new(kind);
        let job = room.job(&[]);
        let (mut host, instance) = room.another_host(&job).await;
        let host_process = ProcessIdentity::of(i32::try_from(host.id()).unwrap()).unwrap();
        let all = [
            host_process,
            instance.address.keeper,
            instance.minder.unwrap(),
            instance.process,
        ];
        for signal in [Signal::STOP, Signal::KILL] {
            for process in all {
                process.signal(signal).unwrap();
            }
        }
        host.wait().unwrap();
        if forget {
            for entry in fs::read_dir(room.home.state().join("instances"))
                .unwrap()
                .flatten()
            {
                fs::remove_file(entry.path()).unwrap();
            }
        }
        let mut job = job;
        job.ports = free_ports(3);
        let engine = room.start(&job).await;
        assert_eq!(room.left().len(), 1);
        engine.stop(&CancellationToken::new()).await.unwrap();
        room.assert_empty();
    }
}

async fn a_detached_engine_is_stopped_by_another_host(kind: ContainerKind) {
    let room = Room::new(kind);
    let mut job = room.job(&[]);
    job.detach = true;
    let (mut host, instance) = room.another_host(&job).await;
    assert!(host.wait().unwrap().success());
    assert_eq!(room.left().len(), 1);
    engine::stop_instance(
        &room.home,
        &instance,
        &room.narrator,
        &CancellationToken::new(),
    )
    .await
    .unwrap();
    room.assert_empty();
}

async fn the_engine_of_a_killed_host_is_adopted_and_swapped(kind: ContainerKind) {
    let room = Room::new(kind);
    let (mut host, left) = room
        .another_host_that(&["keep", "60000"], &room.job(&[]))
        .await;
    host.kill().unwrap();
    host.wait().unwrap();
    let old = engine::adopt(&room.home, &left, &room.keeper, &room.narrator);
    let old = old.await.unwrap();
    old.ask_alive(LIMIT).await.unwrap();

    let job = room.job(&["--load-ms", "1"]);
    let new = room.start_beside(&job).await;
    assert_eq!(room.left().len(), 2);
    new.take_over().unwrap();
    old.stop(&CancellationToken::new()).await.unwrap();
    let handoff = room.handoff().unwrap();
    assert_eq!(handoff.url, new.url());
    assert_eq!(room.left().len(), 1);

    let name = &new.instance().container.as_ref().unwrap().name;
    room.runtime.containers.run(&["kill", name]);
    let EngineEnd::Crashed(error) = new.wait_exit().await else {
        panic!("nobody stopped it")
    };
    assert!(error.to_string().contains("signal 9 (KILL)"), "{error}");
    room.assert_empty();
}
