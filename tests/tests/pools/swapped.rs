//! Engines that change hands: reloaded, adopted, drained, hung; and hosts that end at any instant.

use std::{
    fs,
    io::{BufRead, BufReader, Write},
    net::TcpListener,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use e2e::{Machine, RUN_LIMIT, assert_ends, http_get, signal_if_there, wait_for};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::{Daemon, Stage, pid};

/// The URL that whoever looks for the pool finds.
fn handed(machine: &Machine) -> String {
    machine.handoff()["url"].as_str().unwrap().to_owned()
}

/// Follows the handoff like a client until told to end, and gives the URLs that answered, in order.
///
/// # Panics
///
/// When there is no handoff, or nothing answers where the newest one leads.
fn follow(machine: &Machine, end: &AtomicBool) -> Vec<String> {
    let mut seen: Vec<String> = Vec::new();
    loop {
        let last = end.load(Ordering::SeqCst);
        let url = handed(machine);
        match http_get(&format!("{url}/health")) {
            Ok((200, _)) => {
                if seen.last() != Some(&url) {
                    seen.push(url);
                }
            }
            // Its successor was handed over between the two questions.
            other => assert_ne!(handed(machine), url, "{other:?}"),
        }
        if last {
            return seen;
        }
    }
}

/// Lets an engine that serves fail in this way, which is to be told as `cause`, and waits for the next one.
fn restarted(daemon: &Daemon<'_>, how: &str, cause: &str) {
    let first = daemon.wait_state("chat", "ready");
    let url = first["url"].as_str().unwrap();
    let _ = http_get(&format!("{url}/fail/{how}"));
    daemon.wait_replica("chat", "another one", |it| {
        it["state"] == "ready" && it["pid"] != first["pid"]
    });
    let said = daemon.running.stderr();
    assert!(said.contains(&format!("({cause})")), "{said}");
}

#[test]
fn a_reload_hands_over_without_a_gap_and_the_same_file_moves_nothing() {
    let stage = Stage::new();
    let machine = &stage.machine;
    machine.write_pool(&stage.pool("chat", &[]));
    let daemon = stage.serve(&[]);
    let old = daemon.wait_state("chat", "ready");
    let _ = machine.run(&["reload", "chat"]).code(0);
    assert_eq!(daemon.wait_state("chat", "ready")["pid"], old["pid"]);

    machine.write_pool(&stage.pool("chat", &["--load-ms", "300"]));
    let end = AtomicBool::new(false);
    let (seen, run) = thread::scope(|scope| {
        let client = scope.spawn(|| follow(machine, &end));
        let run = machine.run(&["reload", "chat"]);
        end.store(true, Ordering::SeqCst);
        (client.join().expect("the pool answers all the time"), run)
    });
    let _ = run.code(0);
    let new = daemon.wait_state("chat", "ready");
    assert_ne!(new["pid"], old["pid"]);
    assert_eq!(
        [&json!(seen[0]), &json!(seen[1])],
        [&old["url"], &new["url"]]
    );
    assert_eq!(seen.len(), 2, "{seen:?}");
    assert_eq!(json!(handed(machine)), new["url"]);
    assert_eq!(new["restarts"], 0, "{new:#}");
    let _ = daemon.end(Signal::TERM, 0);
}

#[test]
fn a_reload_whose_engine_dies_leaves_the_old_one_serving() {
    let stage = Stage::new();
    let machine = &stage.machine;
    machine.write_pool(&stage.pool("chat", &[]));
    let daemon = stage.serve(&[]);
    let old = daemon.wait_state("chat", "ready");
    let handoff = machine.handoff();
    let dies = ["--exit-after-ms", "1", "--exit-code", "7"];
    machine.write_pool(&stage.pool("chat", &dies));
    let run = machine.run(&["reload", "chat"]).code(10);
    run.says("serves on").says("exit code 7");
    let kept = daemon.wait_state("chat", "ready");
    assert_eq!((&kept["pid"], &kept["url"]), (&old["pid"], &old["url"]));
    assert_eq!(machine.handoff(), handoff);
    assert_eq!(
        http_get(&format!("{}/health", handed(machine))).unwrap().0,
        200
    );
    let _ = daemon.end(Signal::TERM, 0);
}

#[test]
fn an_engine_that_falls_while_its_successor_loads_is_followed_by_it() {
    let stage = Stage::new();
    let machine = &stage.machine;
    machine.write_pool(&stage.pool("chat", &[]));
    let daemon = stage.serve(&[]);
    let old = daemon.wait_state("chat", "ready");
    let loaded = machine.root().join("loaded");
    let flags = ["--load-until", loaded.to_str().unwrap()];
    machine.write_pool(&stage.pool("chat", &flags));
    let before = starts(&daemon);
    thread::scope(|scope| {
        let reload = scope.spawn(|| machine.run(&["reload", "chat"]));
        wait_start_after(&daemon, before);
        crate::kill(pid(&old));
        // Nobody is sent to it any more.
        daemon.wait_replica("chat", "a replica that waits", |it| {
            it["state"] == "starting" && it["url"].is_null()
        });
        fs::write(&loaded, "").unwrap();
        let _ = reload.join().unwrap().code(0);
    });
    let new = daemon.wait_state("chat", "ready");
    assert_eq!(
        (&new["restarts"], handed(machine)),
        (&json!(0), new["url"].as_str().unwrap().to_owned())
    );
    let _ = daemon.end(Signal::TERM, 0);
}

#[test]
fn an_engine_that_falls_while_its_successor_fails_is_started_again() {
    let stage = Stage::new();
    let machine = &stage.machine;
    machine.write_pool(&stage.pool("chat", &[]));
    let daemon = stage.serve(&[]);
    let old = daemon.wait_state("chat", "ready");
    let loads = [
        "--load-ms",
        "600000",
        "--exit-after-ms",
        "4000",
        "--exit-code",
        "7",
    ];
    machine.write_pool(&stage.pool("chat", &loads));
    let before = starts(&daemon);
    let run = thread::scope(|scope| {
        let reload = scope.spawn(|| machine.run(&["reload", "chat"]));
        wait_start_after(&daemon, before);
        crate::kill(pid(&old));
        reload.join().unwrap()
    });
    run.code(10)
        .says("has fallen meanwhile and is started again");
    let again = daemon.wait_state("chat", "ready");
    assert!(!report(&again).contains("--exit-after-ms"), "{again:#}");
    let _ = daemon.end(Signal::TERM, 0);
}

/// A pool that has one port and no other.
fn with_one_port(stage: &Stage, port: u16, flags: &[&str]) {
    let mut pool = stage.pool("chat", flags);
    pool["provisioning"]["ports"] = json!([port]);
    stage.machine.write_pool(&pool);
}

#[test]
fn a_reload_with_one_port_drains_the_old_engine_and_the_new_one_takes_its_place() {
    let stage = Stage::new();
    let machine = &stage.machine;
    let port = e2e::free_port();
    with_one_port(&stage, port, &[]);
    let daemon = stage.serve(&[]);
    let old = daemon.wait_state("chat", "ready");
    with_one_port(&stage, port, &["--load-ms", "100"]);
    let _ = machine.run(&["reload", "chat"]).code(0);
    let new = daemon.wait_state("chat", "ready");
    assert_ne!(new["pid"], old["pid"]);
    assert_eq!(new["url"], old["url"]);
    assert_eq!(new["restarts"], 0, "{new:#}");
    assert_eq!(json!(handed(machine)), new["url"]);
    assert!(!fs::exists(format!("/proc/{}", pid(&old))).unwrap());
    let _ = daemon.end(Signal::TERM, 0);
}

#[test]
fn a_reload_with_one_port_that_fails_brings_back_what_ran_before_and_says_so() {
    let stage = Stage::new();
    let machine = &stage.machine;
    let port = e2e::free_port();
    with_one_port(&stage, port, &[]);
    let daemon = stage.serve(&[]);
    let old = daemon.wait_state("chat", "ready");
    let dies = ["--exit-after-ms", "1", "--exit-code", "7"];
    with_one_port(&stage, port, &dies);
    let run = machine.run(&["reload", "chat"]).code(10);
    run.says("was started again and serves").says("exit code 7");
    let back = daemon.wait_state("chat", "ready");
    assert_ne!(back["pid"], old["pid"]);
    assert_eq!(back["url"], old["url"]);
    let answer = http_get(&format!("{}/report", handed(machine))).unwrap();
    assert_eq!(answer.0, 200);
    assert!(!answer.1.contains("--exit-after-ms"), "{}", answer.1);
    // What came back is watched over like any other.
    crate::kill(pid(&back));
    daemon.wait_replica("chat", "another engine", |it| {
        it["state"] == "ready" && it["pid"] != back["pid"]
    });
    let _ = daemon.end(Signal::TERM, 0);
}

/// Flags of an engine that takes longer to load than any test may take.
const NEVER_LOADED: [&str; 2] = ["--load-ms", "600000"];

/// How often a daemon has begun a start so far; one that finds its port taken and goes on with the next counts
/// twice.
fn starts(daemon: &Daemon<'_>) -> usize {
    let said = daemon.running.stderr();
    said.matches("\"starting on port ").count()
}

/// Waits until a daemon has begun another start than these.
fn wait_start_after(daemon: &Daemon<'_>, before: usize) {
    wait_for("a start", RUN_LIMIT, || match starts(daemon) > before {
        true => Ok(()),
        false => Err(daemon.running.stderr()),
    });
}

/// Takes the pool down while its reload waits for an engine that loads; what whoever reloads hears.
fn taken_down_meanwhile(stage: &Stage, daemon: &Daemon<'_>) -> String {
    let machine = &stage.machine;
    let before = starts(daemon);
    let reload = thread::scope(|scope| {
        let reload = scope.spawn(|| machine.run(&["reload", "chat"]));
        wait_start_after(daemon, before);
        let start = Instant::now();
        machine.run(&["down", "chat"]).code(0).prints("stopped");
        assert!(start.elapsed() < RUN_LIMIT / 2, "{:?}", start.elapsed());
        reload.join().expect("a reload that is given up ends")
    });
    let reload = reload.code(12);
    assert!(machine.handoffs().is_empty());
    assert_eq!(daemon.status("chat")["replicas"][0]["state"], "stopped");
    reload.stderr
}

#[test]
fn a_pool_that_is_taken_down_while_it_is_reloaded_does_not_wait_for_the_new_engine() {
    let given_up = "the reload of pool chat was given up: the pool is taken down";
    let stage = Stage::new();
    let machine = &stage.machine;
    machine.write_pool(&stage.pool("chat", &[]));
    let daemon = stage.serve(&[]);
    let beside = daemon.wait_state("chat", "ready");
    machine.write_pool(&stage.pool("chat", &NEVER_LOADED));
    let told = taken_down_meanwhile(&stage, &daemon);
    assert!(told.contains(given_up), "{told}");
    assert!(!fs::exists(format!("/proc/{}", pid(&beside))).unwrap());
    // It comes up as the file has it now; what was given up is not remembered as a failure.
    machine.write_pool(&stage.pool("chat", &[]));
    let _ = machine.run(&["up", "chat"]).code(0);
    let again = daemon.wait_state("chat", "ready");
    assert_eq!(again["restarts"], 0, "{again:#}");
    let run = daemon.end(Signal::TERM, 0);
    assert!(
        !run.stderr.contains("is started again in"),
        "{}",
        run.stderr
    );

    let stage = Stage::new();
    let port = e2e::free_port();
    with_one_port(&stage, port, &[]);
    let daemon = stage.serve(&[]);
    daemon.wait_state("chat", "ready");
    with_one_port(&stage, port, &NEVER_LOADED);
    let told = taken_down_meanwhile(&stage, &daemon);
    assert!(told.contains(given_up), "{told}");
    let run = daemon.end(Signal::TERM, 0);
    assert!(
        !run.stderr.contains("is started again in"),
        "{}",
        run.stderr
    );
}

#[test]
fn one_that_was_adopted_and_is_being_swapped_is_taken_down_at_once() {
    let stage = Stage::new();
    let machine = &stage.machine;
    machine.write_pool(&stage.pool("chat", &[]));
    let daemon = stage.serve(&[]);
    daemon.wait_state("chat", "ready");
    let _ = daemon.running.end(Signal::KILL).code(137);
    machine.write_pool(&stage.pool("chat", &NEVER_LOADED));
    let next = stage.serve(&[]);
    wait_start_after(&next, 0);
    let start = Instant::now();
    machine.run(&["down", "chat"]).code(0).prints("stopped");
    assert!(start.elapsed() < RUN_LIMIT / 2, "{:?}", start.elapsed());
    let _ = next.end(Signal::TERM, 0);
}

/// What the engine of a replica says of itself.
fn report(replica: &Value) -> String {
    let url = replica["url"].as_str().unwrap();
    http_get(&format!("{url}/report")).unwrap().1
}

#[test]
fn a_reload_that_fails_half_way_takes_back_what_has_moved() {
    let stage = Stage::new();
    let machine = &stage.machine;
    let blocked = machine.root().join("blocked");
    let pool = |flags: &[&str]| {
        // Between the first replica's swap and the second one's lies the end of an engine.
        let mut pool = stage.pool("chat", &[&["--ignore-term"][..], flags].concat());
        pool["replicas"] = json!(2);
        pool["stop"] = json!({"grace": "2s"});
        pool
    };
    machine.write_pool(&pool(&[]));
    let daemon = stage.serve(&[]);
    let replica = |number: usize| daemon.status("chat")["replicas"][number].clone();
    daemon.wait_state("chat", "ready");
    let ready = || match replica(1) {
        it if it["state"] == "ready" => Ok(it),
        it => Err(it),
    };
    let second = wait_for("the second replica", RUN_LIMIT, ready);
    let first = replica(0);
    machine.write_pool(&pool(&["--exit-if", blocked.to_str().unwrap()]));
    let run = thread::scope(|scope| {
        let run = scope.spawn(|| machine.run(&["reload", "chat"]));
        daemon.wait_replica("chat", "the first one's successor", |it| {
            it["pid"] != first["pid"]
        });
        fs::write(&blocked, "").unwrap();
        run.join().unwrap()
    });
    let run = run.code(10);
    run.says("r1: the engine that ran before serves on");
    run.says("r0: what ran before was started again and serves");
    assert_eq!(replica(1)["pid"], second["pid"]);
    for number in 0..2 {
        let replica = replica(number);
        assert_eq!(replica["state"], "ready", "{replica:#}");
        assert!(!report(&replica).contains("--exit-if"), "{replica:#}");
    }
    // Nor has one ended that is wanted no more, where the others could not be reloaded.
    let mut one = pool(&["--exit-if", blocked.to_str().unwrap()]);
    one["replicas"] = json!(1);
    machine.write_pool(&one);
    machine.run(&["reload"]).code(10).says("serves on");
    assert_eq!(replica(1)["pid"], second["pid"]);
    let _ = daemon.end(Signal::TERM, 0);
}

#[test]
fn what_is_reloaded_while_an_engine_comes_up_again_runs_in_the_end() {
    let stage = Stage::new();
    let machine = &stage.machine;
    let loaded = machine.write("loaded", "");
    let flags = ["--load-until", loaded.to_str().unwrap()];
    machine.write_pool(&stage.pool("chat", &flags));
    let daemon = stage.serve(&[]);
    let first = daemon.wait_state("chat", "ready");
    fs::remove_file(&loaded).unwrap();
    // Unless it was found to answer no more and ended for that already.
    signal_if_there(pid(&first).try_into().unwrap(), Signal::KILL);
    daemon.wait_state("chat", "starting");
    machine.write_pool(&stage.pool("chat", &["--load-ms", "10"]));
    let run = thread::scope(|scope| {
        let run = scope.spawn(|| machine.run(&["reload"]));
        // Time for it to come before the engine is up; that it waits for this shows nowhere.
        thread::sleep(Duration::from_secs(1));
        fs::write(&loaded, "").unwrap();
        run.join().expect("a reload ends")
    });
    run.code(0).prints("changed  chat");
    let new = daemon.wait_state("chat", "ready");
    let said = report(&new);
    assert!(
        said.contains("\"10\"") && !said.contains("--load-until"),
        "{said}"
    );
    machine.run(&["reload"]).code(0).prints("nothing differs");
    let _ = daemon.end(Signal::TERM, 0);
}

#[test]
fn another_number_of_replicas_and_when_they_start_move_none_that_runs() {
    let stage = Stage::new();
    let machine = &stage.machine;
    let pool = |replicas: u32, preload: bool| {
        let mut pool = stage.pool("chat", &[]);
        pool["replicas"] = json!(replicas);
        pool["preload"] = json!(preload);
        pool
    };
    machine.write_pool(&pool(1, true));
    let daemon = stage.serve(&[]);
    let first = daemon.wait_state("chat", "ready");
    for (replicas, preload) in [(2, true), (1, true), (1, false), (1, true)] {
        machine.write_pool(&pool(replicas, preload));
        machine.run(&["reload"]).code(0).prints("changed  chat");
        let status = daemon.status("chat");
        let all = status["replicas"].as_array().unwrap();
        assert_eq!(all.len(), replicas as usize, "{status:#}");
        assert_eq!(all[0]["pid"], first["pid"], "{status:#}");
        assert_eq!(all[0]["state"], "ready", "{status:#}");
    }
    let _ = daemon.end(Signal::TERM, 0);
}

#[test]
fn engines_outlive_a_killed_daemon_and_are_adopted_by_the_next() {
    let stage = Stage::new();
    let machine = &stage.machine;
    machine.write_pool(&stage.pool("chat", &[]));
    let daemon = stage.serve(&[]);
    let old = daemon.wait_state("chat", "ready");
    let capable = daemon.get("/v1/capabilities")["pools"][0].clone();
    assert_ne!(capable["workloads"], json!([]), "{capable:#}");
    let _ = daemon.running.end(Signal::KILL).code(137);
    assert_eq!(
        http_get(&format!("{}/health", handed(machine))).unwrap().0,
        200
    );
    let next = stage.serve(&[]);
    let adopted = next.wait_state("chat", "ready");
    assert_eq!(
        (&adopted["pid"], &adopted["restarts"]),
        (&old["pid"], &json!(0))
    );
    assert_eq!(adopted["provider_version"], old["provider_version"]);
    assert_eq!(next.get("/v1/capabilities")["pools"][0], capable);
    // Before what was adopted has been compared, or after: it is the same.
    let _ = machine.run(&["reload", "chat"]).code(0);
    let list = machine.run(&["status", "--json"]).code(0).json();
    let shown = &list["pools"][0]["replicas"][0];
    assert_eq!(
        (&shown["pid"], &shown["state"]),
        (&old["pid"], &json!("ready"))
    );

    // Another one takes over while it serves.
    let third = stage.serve(&["--replace"]);
    let run = next.running.finish(RUN_LIMIT).code(0);
    assert!(
        run.actions().contains(&"adopt".to_owned()),
        "{}",
        run.stderr
    );
    assert!(
        !run.actions().contains(&"launch".to_owned()),
        "{}",
        run.stderr
    );
    assert_eq!(third.wait_state("chat", "ready")["pid"], old["pid"]);
    let _ = third.end(Signal::TERM, 0);
}

#[test]
fn without_a_next_daemon_engines_end_at_the_orphan_limit() {
    let stage = Stage::new();
    stage.machine.write_pool(&stage.pool("chat", &[]));
    let daemon = stage.serve(&["--orphan-limit", "1s"]);
    daemon.wait_state("chat", "ready");
    let _ = daemon.running.end(Signal::KILL).code(137);
    assert_ends(&stage.machine, "the engines to end");
}

#[test]
fn a_drained_pool_is_stopped_until_it_is_asked_for() {
    let stage = Stage::new();
    let machine = &stage.machine;
    machine.write_pool(&stage.pool("chat", &[]));
    let daemon = stage.serve(&[]);
    let first = daemon.wait_state("chat", "ready");
    machine.run(&["drain", "chat"]).code(0).prints("stopped");
    assert!(machine.handoffs().is_empty());
    assert_eq!(daemon.status("chat")["replicas"][0]["state"], "stopped");
    machine.run(&["up", "chat"]).code(0).prints("ready");
    let again = daemon.wait_state("chat", "ready");
    assert_ne!(again["pid"], first["pid"]);
    assert_eq!(json!(handed(machine)), again["url"]);
    let _ = daemon.end(Signal::TERM, 0);
}

#[test]
fn a_pool_on_demand_starts_when_asked_and_stops_when_idle() {
    let stage = Stage::new();
    let machine = &stage.machine;
    let mut pool = stage.pool("draw", &[]);
    pool["preload"] = json!(false);
    pool["supervision"]["idle_stop"] = json!("300ms");
    machine.write_pools(&[stage.pool("chat", &[]), pool]);
    let daemon = stage.serve(&[]);
    // What is not asked for would have come up beside it.
    daemon.wait_state("chat", "ready");
    let resting = daemon.status("draw");
    assert_eq!(resting["want"], "on-demand", "{resting:#}");
    assert_eq!(machine.handoffs().len(), 1);
    let _ = machine.run(&["up", "draw"]).code(0);
    daemon.wait_state("draw", "stopped");
    let run = daemon.end(Signal::TERM, 0);
    assert!(
        run.stderr.contains("pool draw was idle for 300 ms"),
        "{}",
        run.stderr
    );
}

#[test]
fn one_that_hangs_is_killed_and_started_again() {
    let stage = Stage::new();
    let mut pool = stage.pool("chat", &["--ignore-term"]);
    let liveness = json!({"interval": "50ms", "timeout": "200ms", "failures": 3});
    pool["supervision"]["liveness"] = liveness;
    stage.machine.write_pool(&pool);
    let daemon = stage.serve(&[]);
    restarted(&daemon, "hang", "liveness");
    let _ = daemon.end(Signal::TERM, 0);
}

#[test]
fn one_that_a_stranger_answers_for_is_killed_and_started_again() {
    let stage = Stage::new();
    let mut pool = stage.pool("chat", &[]);
    // Of its own: no other test's engine comes before the stranger, or takes what is left.
    pool["provisioning"]["ports"] = json!([e2e::free_port(), e2e::free_port()]);
    // Time enough for the stranger to come before silence is noticed.
    let liveness = json!({"interval": "1s", "timeout": "1s", "failures": 3});
    pool["supervision"]["liveness"] = liveness;
    stage.machine.write_pool(&pool);
    let daemon = stage.serve(&[]);
    let first = daemon.wait_state("chat", "ready");
    let heard = first["heartbeat"].clone();
    // From now on it is known what it listens with.
    daemon.wait_replica("chat", "an answer", |it| it["heartbeat"] != heard);
    let url = handed(&stage.machine);
    let _ = http_get(&format!("{url}/fail/deaf"));
    let address = url.strip_prefix("http://").unwrap().to_owned();
    let stranger = wait_for("the port", RUN_LIMIT, || {
        TcpListener::bind(&address).map_err(|error| error.to_string())
    });
    thread::spawn(move || {
        for stream in stranger.incoming().flatten() {
            let _ = BufReader::new(&stream).read_line(&mut String::new());
            let _ = (&stream).write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
        }
    });
    let again = daemon.wait_replica("chat", "another one", |it| {
        it["state"] == "ready" && it["pid"] != first["pid"]
    });
    assert_ne!(again["url"], first["url"]);
    assert_eq!(again["restarts_by"], json!({"liveness": 1}), "{again:#}");
    let run = daemon.end(Signal::TERM, 0);
    run.says("is another process's now");
}

#[test]
fn one_that_ends_well_is_started_again_too() {
    let stage = Stage::new();
    let pool = stage.pool("chat", &["--exit-code", "0"]);
    stage.machine.write_pool(&pool);
    let daemon = stage.serve(&[]);
    restarted(&daemon, "exit", "exit");
    let _ = daemon.end(Signal::TERM, 0);
}

#[test]
fn one_that_ignores_term_is_killed_after_its_grace() {
    let stage = Stage::new();
    let mut pool = stage.pool("chat", &["--ignore-term"]);
    pool["stop"] = json!({"grace": "300ms"});
    stage.machine.write_pool(&pool);
    let daemon = stage.serve(&[]);
    let engine = daemon.wait_state("chat", "ready");
    let run = daemon.end(Signal::TERM, 0);
    assert!(!fs::exists(format!("/proc/{}", pid(&engine))).unwrap());
    let events = run.events();
    let stopped = events.iter().find(|it| it["action"] == "stop").unwrap();
    let took = stopped["duration_ms"].as_u64().unwrap();
    // Five seconds are what it would have of itself.
    assert!((300..5000).contains(&took), "{stopped:#}");
}

#[test]
fn whatever_ends_a_host_and_whenever_no_engine_is_left() {
    let provision = ["provision"].as_slice();
    let limit = ["--orphan-limit", "500ms"];
    let serve = ["serve", "--listen", "none", limit[0], limit[1]];
    thread::scope(|scope| {
        for signal in [Signal::TERM, Signal::INT, Signal::KILL] {
            scope.spawn(move || e2e::end_rounds(provision, signal, 0..10));
            scope.spawn(move || e2e::end_rounds(&serve, signal, 0..10));
        }
    });
}
