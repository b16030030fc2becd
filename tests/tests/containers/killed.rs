//! KILL of the host, its keeper, the runtime's program, at any instant.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Stdio,
    time::{Duration, Instant},
};

use e2e::{ContainerKind, Daemon, Process, Registry, http_get, wait_for};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::{Stage, stage::ORPHAN_LIMIT, under_both};

/// Rounds per runtime.
const ROUNDS: u64 = 6;

fn assert_recovers(stage: &Stage) {
    let mut next = stage.machine.provision(&[]);
    let url = next.wait_ready();
    assert_eq!(http_get(&format!("{url}/health")).unwrap().0, 200);
    let _ = next.end(Signal::INT).code(130);
    stage.assert_clean();
    assert_eq!(stage.machine.store().work(), Vec::<String>::new());
}

/// Processes of the machine whose command line has this in it.
fn find(stage: &Stage, what: &str) -> Vec<Process> {
    let mut all = stage.machine.processes();
    all.retain(|process| process.command.contains(what));
    all
}

fn wait_answers_no_more(url: &str) {
    wait_for("the engine to end", ORPHAN_LIMIT, || {
        match http_get(&format!("{url}/health")) {
            Err(_) => Ok(()),
            Ok(answer) => Err(answer),
        }
    });
}

/// A stage whose pull takes a while.
fn large(kind: ContainerKind) -> Stage {
    Stage::with(kind, Registry::open(), Stage::image().ballast(24 << 20))
}

under_both! {
    fn killed_at_any_instant_no_container_is_left_and_the_next_run_succeeds(kind) {
        let stage = large(kind);
        stage.write();
        let start = Instant::now();
        let running = stage.machine.provision(&[]);
        let whole = start.elapsed();
        let _ = running.end(Signal::INT).code(130);
        stage.assert_clean();
        for seed in 0..ROUNDS {
            let stage = large(kind);
            stage.write();
            let after = whole.mul_f64(e2e::share(seed) * 1.2);
            println!("{} seed {seed}: KILL after {} ms", kind.name(), after.as_millis());
            let killed = stage.machine.start(stage.machine.command(&["provision"]));
            // The instant is what is tested: no condition stands for it.
            std::thread::sleep(after);
            killed.signal(Signal::KILL);
            let _ = killed.finish(ORPHAN_LIMIT).code(137);
            stage.assert_clean();
            assert_recovers(&stage);
        }
    }

    fn a_killed_host_takes_its_container_with_it(kind) {
        let stage = Stage::new(kind);
        stage.write();
        let mut running = stage.machine.provision(&[]);
        let url = running.wait_ready();
        let _ = running.end(Signal::KILL).code(137);
        wait_answers_no_more(&url);
        stage.assert_clean();
        assert_recovers(&stage);
    }

    fn a_killed_client_is_a_crash_and_its_container_goes_too(kind) {
        let stage = Stage::new(kind);
        stage.write();
        let mut running = stage.machine.provision(&[]);
        let url = running.wait_ready();
        let client = find(&stage, &format!("{} run ", kind.name()));
        let client = client.first().unwrap_or_else(|| panic!("{:#?}", stage.machine.processes()));
        e2e::signal(client.pid, Signal::KILL);
        let _ = running.finish(e2e::RUN_LIMIT).code(10);
        wait_answers_no_more(&url);
        stage.assert_clean();
        assert_recovers(&stage);
    }

    fn an_end_while_the_container_is_being_made_leaves_nothing(kind) {
        let stage = Stage::new(kind);
        stage.write();
        let _ = stage.machine.provision(&[]).end(Signal::INT).code(130);
        // Podman forgets the network of a container whose start it cannot finish.
        for after in (0..100).step_by(10).map(Duration::from_millis) {
            let started = stage.machine.start(stage.machine.command(&["provision"]));
            wait_for("the client", e2e::RUN_LIMIT, || {
                let clients = find(&stage, &format!("{} run ", kind.name()));
                if clients.is_empty() { Err(stage.machine.processes()) } else { Ok(()) }
            });
            // The instant is what is tested: no condition stands for it.
            std::thread::sleep(after);
            let _ = started.end(Signal::KILL).code(137);
            stage.assert_clean();
        }
        assert_recovers(&stage);
    }

    fn a_killed_keeper_ends_the_container_and_the_command_says_so(kind) {
        let stage = Stage::new(kind);
        stage.write();
        let mut running = stage.machine.provision(&[]);
        let url = running.wait_ready();
        for keeper in find(&stage, "host keeper") {
            if keeper.parent == running.pid() {
                e2e::signal(keeper.pid, Signal::KILL);
            }
        }
        // It is no fault of the engine's.
        let run = running.finish(e2e::RUN_LIMIT).code(1);
        run.says("the keeper of this run has ended with signal 9 (KILL)");
        wait_answers_no_more(&url);
        stage.assert_clean();
        assert_recovers(&stage);
    }

    fn host_and_keeper_and_minder_killed_at_once_the_next_run_removes_the_container(kind) {
        let stage = Stage::new(kind);
        stage.write();
        let running = stage.machine.provision(&[]);
        // In one go, so that none of them can do anything about the others.
        let mut doomed: Vec<u32> = find(&stage, "host keeper").iter().map(|one| one.pid).collect();
        doomed.push(running.pid());
        for pid in &doomed {
            e2e::signal(*pid, Signal::STOP);
        }
        for pid in &doomed {
            e2e::signal(*pid, Signal::KILL);
        }
        let _ = running.finish(e2e::RUN_LIMIT).code(137);
        // Nobody is there to remove it now: that is what the next run is for.
        assert_recovers(&stage);
    }

    fn a_host_killed_while_it_pulls_leaves_nothing_that_hinders_the_next(kind) {
        let stage = large(kind);
        stage.write();
        let running = stage.machine.start(stage.machine.command(&["provision"]));
        wait_for("the pull", e2e::RUN_LIMIT, || {
            let pulls = find(&stage, &format!("{} pull ", kind.name()));
            if pulls.is_empty() { Err(stage.machine.processes()) } else { Ok(()) }
        });
        let _ = running.end(Signal::KILL).code(137);
        stage.assert_clean();
        assert_recovers(&stage);
    }

    fn ctrl_c_while_it_pulls_ends_in_time_and_leaves_nothing(kind) {
        let stage = large(kind);
        stage.write();
        let running = stage.machine.start(stage.machine.command(&["provision"]));
        wait_for("the pull", e2e::RUN_LIMIT, || {
            let pulls = find(&stage, &format!("{} pull ", kind.name()));
            if pulls.is_empty() { Err(stage.machine.processes()) } else { Ok(()) }
        });
        let start = Instant::now();
        let _ = running.end(Signal::INT).code(130);
        assert!(start.elapsed() < Duration::from_secs(15), "{:?}", start.elapsed());
        stage.assert_clean();
        assert_eq!(stage.machine.store().work(), Vec::<String>::new());
        assert_recovers(&stage);
    }

    fn a_killed_daemon_s_container_serves_on_and_is_the_next_daemon_s(kind) {
        let stage = Stage::new(kind);
        stage.write();
        let id = |name: &str| {
            let inspect = ["container", "inspect", "--format", "{{.Id}}", name];
            stage.containers.run(&inspect)
        };
        let daemon = Daemon::start(&stage.machine, &[]);
        let first = daemon.wait_state("default", "ready");
        let name = stage.name();
        let made = id(&name);
        let _ = daemon.running.end(Signal::KILL).code(137);
        let url = first["url"].as_str().unwrap();
        assert_eq!(http_get(&format!("{url}/health")).unwrap().0, 200);
        let next = Daemon::start(&stage.machine, &[]);
        let adopted = next.wait_state("default", "ready");
        for what in ["url", "pid", "started_at", "restarts"] {
            assert_eq!(adopted[what], first[what], "{what}");
        }
        assert_eq!((stage.name(), id(&name)), (name, made), "the same container");
        // It is watched: were its port another's, it would be started again.
        next.wait_replica("default", "two answers", |it| it["heartbeat"] != adopted["heartbeat"]);
        stage.machine.run(&["down", "default"]).code(0).prints("stopped");
        assert_eq!(stage.left(), Vec::<String>::new(), "it went with the pool");
        assert!(http_get(&format!("{url}/health")).is_err());
        let _ = next.end(Signal::TERM, 0);
        stage.assert_clean();
    }

    fn a_detached_container_outlives_its_host_and_dies_with_its_handoff(kind) {
        let stage = Stage::new(kind);
        stage.write();
        let run = stage.machine.run(&["provision", "--detach", "--json"]).code(0);
        let url = run.json()["url"].as_str().unwrap().to_owned();
        assert_eq!(http_get(&format!("{url}/health")).unwrap().0, 200);
        stage.containers.run(&["kill", &stage.name()]);
        stage.assert_clean();
        assert_recovers(&stage);
    }
}

/// Where podman's storage lists its containers, some of which podman itself may not know.
fn storage_list(stage: &Stage) -> PathBuf {
    let storage = stage
        .containers
        .run(&["info", "--format", "{{.Store.GraphRoot}}"]);
    Path::new(storage.trim()).join("overlay-containers/containers.json")
}

/// Kills podman at the instant at which its storage has a container of this name, of which it knows
/// nothing itself yet.
fn leave_half_made(stage: &Stage, name: &str) {
    let listed = storage_list(stage);
    let has_it = || fs::read_to_string(&listed).is_ok_and(|text| text.contains(name));
    let image = stage.reference();
    let mut create = stage
        .containers
        .command(&["create", "--name", name, &image]);
    let mut podman = create.stdout(Stdio::null()).spawn().unwrap();
    let start = Instant::now();
    while !has_it() && podman.try_wait().unwrap().is_none() && start.elapsed() < e2e::RUN_LIMIT {}
    podman.kill().unwrap();
    podman.wait().unwrap();
    assert_eq!(stage.containers.half_made(), [name]);
}

/// Has podman's storage forget a container that podman itself still knows: so podman leaves one when it is
/// killed while it removes it.
fn remove_by_half(stage: &Stage, name: &str) {
    let listed = storage_list(stage);
    let text = fs::read_to_string(&listed).unwrap();
    let mut all: Vec<Value> = serde_json::from_str(&text).unwrap();
    let count = all.len();
    all.retain(|one| one["names"] != json!([name]));
    assert_eq!(all.len(), count - 1, "{text}");
    fs::write(&listed, json!(all).to_string()).unwrap();
    let inspect = ["container", "inspect", name];
    let said = stage.containers.command(&inspect).output().unwrap().stderr;
    let said = String::from_utf8_lossy(&said).into_owned();
    assert!(said.contains("container not known"), "{said}");
}

/// The next run does what the killed one was about to do, though the name is taken by what no list of
/// containers shows.
#[test]
fn what_a_killed_podman_made_by_half_is_removed_by_the_next_run() {
    let stage = Stage::new(ContainerKind::Podman);
    stage.write();
    let mut running = stage.machine.provision(&[]);
    running.wait_ready();
    let name = stage.name();
    let _ = running.end(Signal::INT).code(130);
    stage.assert_clean();
    leave_half_made(&stage, &name);
    assert_recovers(&stage);
}

#[test]
fn what_a_killed_podman_removed_by_half_is_removed_by_the_next_run() {
    let stage = Stage::new(ContainerKind::Podman);
    stage.write();
    let _ = stage.machine.run(&["provision", "--detach"]).code(0);
    let name = stage.name();
    // Nobody is left to see to it: its record alone says that it was there.
    let minders = find(&stage, "host keeper");
    for signal in [Signal::STOP, Signal::KILL] {
        for minder in &minders {
            e2e::signal(minder.pid, signal);
        }
    }
    stage.containers.run(&["stop", "--time", "0", &name]);
    remove_by_half(&stage, &name);
    assert_recovers(&stage);
}
