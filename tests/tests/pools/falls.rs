//! Engines that fall in every way there is: told apart, counted, started again after growing pauses.

use std::{ops::RangeInclusive, thread, time::Duration};

use e2e::{MemoryGroup, RUN_LIMIT, http_get, wait_for};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::{Daemon, Stage, kill, pid};

/// Makes the engine of a replica fail in one way; it may end before it answers.
fn fail(replica: &Value, how: &str) {
    let url = replica["url"].as_str().unwrap();
    let _ = http_get(&format!("{url}/fail/{how}"));
}

/// What Prometheus would read of restarts for one reason.
fn counted(daemon: &Daemon<'_>, pool: &str, reason: &str) -> Option<String> {
    let (_, page) = http_get(&format!("{}/metrics", daemon.url)).unwrap();
    let sample = format!("engine_host_restarts_total{{pool=\"{pool}\",reason=\"{reason}\"}} ");
    let line = page.lines().find_map(|line| line.strip_prefix(&*sample))?;
    Some(line.to_owned())
}

/// Waits for the engine that comes after this one, and asserts that status, metric and event say of the
/// one before that it fell for this reason, and for no other.
#[track_caller]
fn comes_back(daemon: &Daemon<'_>, pool: &str, before: &Value, reason: &str) -> Value {
    let again = daemon.wait_replica(pool, "another engine", |it| {
        it["state"] == "ready" && it["pid"] != before["pid"]
    });
    assert_eq!(again["restarts_by"], json!({reason: 1}), "{again:#}");
    assert_eq!(again["restarts"], 1, "{again:#}");
    assert_eq!(counted(daemon, pool, reason).as_deref(), Some("1"));
    let said = daemon.running.stderr();
    let events = said
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok());
    let restarts = events.filter(|it: &Value| it["pool_id"] == pool && it["cause"].is_string());
    let causes: Vec<Value> = restarts.map(|it| it["cause"].clone()).collect();
    assert_eq!(causes, [reason], "{said}");
    again
}

#[test]
fn every_way_to_fall_is_told_apart_in_status_metric_and_event() {
    let stage = Stage::new();
    let printed = ["--print-line", "CUDA error: an illegal memory access"];
    let ways = [
        ("ends", "exit", "exit", &["--exit-code", "7"][..]),
        ("ends-well", "exit", "exit", &["--exit-code", "0"]),
        ("crashes", "exit", "exit", &["--signal", "6"]),
        ("gpu", "exit", "gpu-error", &printed),
        ("hangs", "hang", "liveness", &[]),
        ("deaf", "deaf", "liveness", &[]),
    ];
    // They share a range of ports: none gets that of the one that has closed its own and lives on.
    let pools = ways.map(|(pool, _, _, flags)| stage.pool(pool, flags));
    stage.machine.write_pools(&pools);
    let daemon = stage.serve(&[]);
    let first = ways.map(|(pool, ..)| daemon.wait_state(pool, "ready"));
    // One that hangs answers nobody, not even who asked for it.
    thread::scope(|scope| {
        for (replica, (_, how, ..)) in first.iter().zip(ways) {
            scope.spawn(move || fail(replica, how));
        }
    });
    for ((pool, _, reason, _), before) in ways.iter().zip(&first) {
        let again = comes_back(&daemon, pool, before, reason);
        assert!(again["last_error"].is_null(), "{again:#}");
        assert_ne!(
            again["log"], before["log"],
            "each start has a log of its own"
        );
    }
    let run = daemon.end(Signal::TERM, 0);
    run.says("ABRT").says("exit code 7");
    run.says("did not answer 3 times in a row");
}

#[test]
fn one_that_the_kernel_kills_for_its_memory_is_told_from_one_that_was_killed() {
    let stage = Stage::new();
    let mut pool = stage.pool("chat", &[]);
    pool["preload"] = json!(false);
    stage.machine.write_pools(&[stage.pool("other", &[]), pool]);
    let group = MemoryGroup::limited_to(256 << 20);
    let daemon = stage.serve_in(&group);
    let other = daemon.wait_state("other", "ready");
    let _ = stage.machine.run(&["up", "chat"]).code(0);
    let first = daemon.wait_state("chat", "ready");
    assert!(group.has(pid(&first)), "it runs where its daemon does");
    kill(pid(&other));
    comes_back(&daemon, "other", &other, "exit");
    fail(&first, "fill/1024");
    comes_back(&daemon, "chat", &first, "oom");
    let _ = daemon.end(Signal::TERM, 0);
}

/// The pauses before restarts that were announced so far, in milliseconds.
fn pauses(daemon: &Daemon<'_>) -> Vec<u64> {
    let said = daemon.running.stderr();
    let pause = |line: &str| {
        let (_, rest) = line.split_once("is started again in ")?;
        rest.split_once(" ms")?.0.parse().ok()
    };
    said.lines().filter_map(pause).collect()
}

#[test]
fn pauses_grow_up_to_the_longest_and_a_stable_run_begins_anew() {
    /// Longer than a test may take from a start that it sees to the next fall.
    const STABLE: Duration = Duration::from_secs(6);
    let stage = Stage::new();
    let mut pool = stage.pool("chat", &["--exit-if"]);
    let blocked = stage.machine.root().join("blocked");
    let flags = pool["provisioning"]["flags"].as_array_mut().unwrap();
    flags.push(json!(blocked));
    pool["supervision"]["backoff"] =
        json!({"initial": "50ms", "max": "400ms", "stable_after": "6s"});
    stage.machine.write_pool(&pool);
    let daemon = stage.serve(&[]);
    let first = daemon.wait_state("chat", "ready");
    std::fs::write(&blocked, "").unwrap();
    kill(pid(&first));
    wait_for("five falls", RUN_LIMIT, || {
        let pauses = pauses(&daemon);
        if pauses.len() >= 5 {
            Ok(())
        } else {
            Err(pauses)
        }
    });
    std::fs::remove_file(&blocked).unwrap();
    let second = daemon.wait_state("chat", "ready");
    // That this much time passes is what is tested.
    thread::sleep(STABLE + Duration::from_secs(1));
    let before = pauses(&daemon).len();
    kill(pid(&second));
    daemon.wait_replica("chat", "a third engine", |it| {
        it["state"] == "ready" && it["pid"] != second["pid"]
    });
    let seen = pauses(&daemon);
    // Each is drawn from the upper half of what it doubles to.
    let expected: [RangeInclusive<u64>; 5] = [25..=50, 50..=100, 100..=200, 200..=400, 200..=400];
    for (pause, range) in seen.iter().zip(&expected) {
        assert!(range.contains(pause), "{seen:?}");
    }
    assert!(expected[0].contains(&seen[before]), "{before}: {seen:?}");
    let _ = daemon.end(Signal::TERM, 0);
}
