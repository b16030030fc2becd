//! When engines that fell are tried again, and when that is given up.

use std::fs;

use e2e::{Built, RUN_LIMIT, children_of, wait_for};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::{Stage, kill, pid};

#[test]
fn one_that_never_comes_up_backs_off_then_opens_the_breaker_and_is_tried_once() {
    let stage = Stage::new();
    let mut pool = stage.pool("chat", &["--exit-after-ms", "1", "--exit-code", "7"]);
    pool["supervision"]["breaker"] = json!({"failures": 3, "open": "500ms"});
    stage.machine.write_pool(&pool);
    let daemon = stage.serve(&[]);
    let broken = daemon.wait_state("chat", "broken");
    assert_eq!(broken["breaker"], "open", "{broken:#}");
    let error = broken["last_error"]["message"].as_str().unwrap();
    assert!(error.contains("exit code 7"), "{error}");
    assert!(broken["next_start"].is_string(), "{broken:#}");
    let log = broken["log"]
        .as_str()
        .expect("the log of what did not come up");
    assert!(fs::exists(log).unwrap(), "{log}");
    // Two more starts than before the breaker: the trial, and another one.
    daemon.wait_replica("chat", "trials", |it| it["restarts"].as_u64() >= Some(4));
    let up = stage.machine.run(&["up", "chat"]).code(10);
    up.says("did not come up").says("exit code 7");
    let _ = daemon.end(Signal::TERM, 0);
}

#[test]
fn one_that_is_tried_while_somebody_writes_the_pool_file_comes_up_once_it_is_whole() {
    let stage = Stage::new();
    let blocked = stage.machine.write("blocked", "");
    let flags = ["--exit-if", blocked.to_str().unwrap(), "--exit-code", "7"];
    let mut pool = stage.pool("chat", &flags);
    pool["supervision"]["breaker"] = json!({"failures": 1000});
    pool["supervision"]["backoff"] = json!({"initial": "50ms", "max": "50ms"});
    stage.machine.write_pool(&pool);
    let daemon = stage.serve(&[]);
    let is_tried = |it: &Value| {
        let error = it["last_error"]["message"].as_str();
        error.is_some_and(|error| error.contains("exit code 7"))
    };
    daemon.wait_replica("chat", "a try of the engine", is_tried);
    for half in ["", "pools: [{id: chat, eng"] {
        stage.machine.write("pools.yaml", half);
        // By itself it tries what it has tried, whatever the file says by now.
        let tries = |it: &Value| it["restarts"].as_u64().unwrap();
        let before = tries(&daemon.status("chat")["replicas"][0]);
        daemon.wait_replica("chat", "more tries", |it| {
            tries(it) > before + 2 && is_tried(it)
        });
        let _ = stage.machine.run(&["up", "chat"]).code(10);
        let tried = daemon.wait_replica("chat", "a try", |it| {
            let error = it["last_error"]["message"].as_str();
            error.is_some_and(|error| error.contains("`pools.yaml` has an error"))
        });
        assert_ne!(tried["state"], "failed", "{tried:#}");
        stage.machine.write_pool(&pool);
        daemon.wait_replica("chat", "a try of the engine", is_tried);
    }
    fs::remove_file(&blocked).unwrap();
    daemon.wait_state("chat", "ready");
    let _ = daemon.end(Signal::TERM, 0);
}

#[test]
fn restart_never_leaves_it_down_until_somebody_starts_it() {
    let stage = Stage::new();
    let mut pool = stage.pool("chat", &["--exit-after-ms", "300"]);
    pool["supervision"] = json!({"restart": "never"});
    stage.machine.write_pool(&pool);
    let daemon = stage.serve(&[]);
    let failed = daemon.wait_state("chat", "failed");
    assert_eq!(failed["restarts"], 0, "{failed:#}");
    let _ = stage.machine.run(&["up", "chat", "--no-wait"]).code(0);
    daemon.wait_replica("chat", "another start", |it| it["restarts"] == 1);
    let _ = daemon.end(Signal::TERM, 0);
}

#[test]
fn the_breaker_tries_once_opens_again_on_a_failure_and_closes_on_a_stable_run() {
    let stage = Stage::new();
    let blocked = stage.machine.root().join("blocked");
    let flags = ["--exit-if", blocked.to_str().unwrap(), "--exit-code", "7"];
    let mut pool = stage.pool("chat", &flags);
    // Long enough for each time that it is open to be seen.
    pool["supervision"]["breaker"] = json!({"failures": 2, "open": "3s"});
    pool["supervision"]["backoff"] =
        json!({"initial": "50ms", "max": "50ms", "stable_after": "1s"});
    stage.machine.write_pool(&pool);
    fs::write(&blocked, "").unwrap();
    let daemon = stage.serve(&[]);
    let broken = daemon.wait_state("chat", "broken");
    assert_eq!(broken["breaker"], "open", "{broken:#}");
    assert_eq!(broken["restarts_by"], json!({"start": 1}), "{broken:#}");
    // The trial fails: no second one follows before the pause is over.
    for trials in 2..4 {
        let open = daemon.wait_replica("chat", "a trial", |it| {
            it["state"] == "broken" && it["restarts"] == trials
        });
        assert_eq!(open["breaker"], "open", "{open:#}");
        assert!(open["next_start"].is_string(), "{open:#}");
    }
    fs::remove_file(&blocked).unwrap();
    let on_trial = daemon.wait_state("chat", "ready");
    assert_eq!(on_trial["breaker"], "half-open", "{on_trial:#}");
    assert!(on_trial["last_error"].is_null(), "{on_trial:#}");
    daemon.wait_replica("chat", "a closed breaker", |it| it["breaker"] == "closed");
    // From here on a failure is a first one.
    kill(pid(&on_trial));
    let again = daemon.wait_replica("chat", "another engine", |it| {
        it["state"] == "ready" && it["pid"] != on_trial["pid"]
    });
    assert_eq!(again["breaker"], "closed", "{again:#}");
    let said = daemon.running.stderr();
    let trials = said.matches("one start is tried in 3 s").count();
    assert!(trials >= 3, "{said}");
    wait_for("the breaker to be told", RUN_LIMIT, || {
        let (_, page) = e2e::http_get(&format!("{}/metrics", daemon.url)).unwrap();
        let sample =
            "engine_host_replica_breaker_state{pool=\"chat\",replica=\"r0\",state=\"closed\"} 1";
        if page.contains(sample) {
            Ok(())
        } else {
            Err(page)
        }
    });
    let _ = daemon.end(Signal::TERM, 0);
}

#[test]
fn a_breaker_is_closed_by_whoever_brings_the_pool_up() {
    let stage = Stage::new();
    let blocked = stage.machine.root().join("blocked");
    let flags = ["--exit-if", blocked.to_str().unwrap(), "--exit-code", "7"];
    let mut pool = stage.pool("chat", &flags);
    pool["supervision"]["breaker"] = json!({"failures": 1, "open": "10m"});
    stage.machine.write_pool(&pool);
    fs::write(&blocked, "").unwrap();
    let daemon = stage.serve(&[]);
    let broken = daemon.wait_state("chat", "broken");
    assert_eq!(broken["breaker"], "open", "{broken:#}");
    fs::remove_file(&blocked).unwrap();
    let _ = stage.machine.run(&["up", "chat"]).code(0);
    let up = daemon.wait_state("chat", "ready");
    assert_eq!(up["breaker"], "closed", "{up:#}");
    let _ = daemon.end(Signal::TERM, 0);
}

#[test]
fn a_killed_provider_is_a_failure_that_passes() {
    let stage = Stage::new();
    let directory = stage.machine.work().join("providers");
    fs::create_dir_all(&directory).unwrap();
    let built = &Built::debug().directory;
    fs::copy(
        built.join("libfixture_provider_hostile.so"),
        directory.join("libengine_provider_hostile.so"),
    )
    .unwrap();
    let mut pool = stage.pool("chat", &[]);
    pool["engine"] = json!("hostile");
    pool["provisioning"] = json!({});
    pool["options"] = json!({"behaviour": "plan:hang"});
    stage.machine.write_pool(&pool);
    let daemon = stage.serve(&["--provider-path", "providers"]);
    let mut killed = Vec::new();
    while killed.len() < 3 {
        let worker = wait_for("another worker", RUN_LIMIT, || {
            let all = children_of(daemon.running.pid());
            let is_next = |one: &&e2e::Process| {
                one.command.contains("provider-worker") && !killed.contains(&one.pid)
            };
            all.iter().find(is_next).map(|one| one.pid).ok_or(all)
        });
        e2e::signal(worker, Signal::KILL);
        killed.push(worker);
    }
    let tried = daemon.wait_replica("chat", "more starts", |it| {
        it["restarts"].as_u64() >= Some(2)
    });
    assert_ne!(tried["state"], "failed", "{tried:#}");
    let _ = daemon.end(Signal::TERM, 0);
}
