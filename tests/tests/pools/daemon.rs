//! The daemon and the commands that talk to it.

use std::time::Duration;

use e2e::wait_for;
use rustix::process::Signal;
use serde_json::json;

use crate::{Stage, pid};

#[test]
fn pools_come_up_are_listed_and_end_with_the_daemon() {
    let stage = Stage::new();
    stage
        .machine
        .write_pools(&[stage.pool("chat", &[]), stage.pool("code", &[])]);
    let daemon = stage.serve(&[]);
    for pool in ["chat", "code"] {
        let replica = daemon.wait_state(pool, "ready");
        let url = replica["url"].as_str().unwrap();
        assert_eq!(e2e::http_get(&format!("{url}/health")).unwrap().0, 200);
        assert!(
            replica["heartbeat"].is_string() && replica["log"].is_string(),
            "{replica}"
        );
    }
    let table = stage.machine.run(&["status"]).code(0);
    table.prints("chat  r0").prints("code  r0").prints("ready");
    assert_eq!(stage.machine.handoffs().len(), 2);
    let run = daemon.end(Signal::TERM, 0);
    assert!(run.stderr.contains("\"action\":\"stop\""), "{}", run.stderr);
}

#[test]
fn up_starts_a_daemon_and_down_ends_it() {
    let stage = Stage::new();
    let machine = &stage.machine;
    machine.write_pool(&stage.pool("chat", &[]));
    machine.run(&["status"]).code(11).says("no daemon runs");
    let table = machine.run(&["up", "chat"]).code(0);
    table.prints("chat").prints("ready");
    // What the daemon does meanwhile is told here.
    table.says("chat/r0").says("launch");
    // Again: it is up.
    machine.run(&["up"]).code(0).prints("ready");
    let status = machine.run(&["status", "--json"]).code(0).json();
    assert_eq!(status["pools"][0]["health"]["ready"], true, "{status:#}");
    machine.run(&["logs", "chat"]).code(0).prints("");
    machine.run(&["down", "chat"]).code(0).prints("stopped");
    assert!(machine.handoffs().is_empty());
    machine
        .run(&["up", "chta"])
        .code(11)
        .says("there is no pool `chta`; there are: chat");
    let _ = machine.run(&["up", "chat"]).code(0);
    let status = machine.run(&["status", "--json"]).code(0).json();
    let engine = pid(&status["pools"][0]["replicas"][0]);
    machine
        .run(&["down", "--daemon"])
        .code(0)
        .prints("has ended");
    assert!(!std::fs::exists(format!("/proc/{engine}")).unwrap());
    machine.run(&["status"]).code(11).says("no daemon runs");
    machine.assert_clean();
}

#[test]
fn what_is_wrong_with_the_pools_is_said_by_up_itself() {
    let stage = Stage::new();
    let machine = &stage.machine;
    let nothing = machine.run(&["up"]).code(2);
    nothing.says("there is no pool file and no `--provider`");
    nothing.says("up --provider llamacpp");
    machine.write("pools.yaml", "pools: []\n");
    let empty = machine.run(&["up"]).code(3);
    empty.says("error: `pools.yaml` has an error");
    machine.write_pool(&stage.pool("chat", &[]));
    let other = machine.run(&["up", "--provider", "vllm"]).code(11);
    other.says("`pools.yaml` has no pool of engine `vllm`");
    machine.assert_clean();
}

#[test]
fn why_a_pool_was_not_brought_up_or_reloaded_is_in_the_daemon_s_own_log() {
    const WHY: &str = "no provider `nosuch` found";
    let stage = Stage::new();
    let of_nobody = |id: &str| {
        let mut pool = stage.pool(id, &[]);
        pool["engine"] = json!("nosuch");
        pool
    };
    let machine = &stage.machine;
    machine.write_pools(&[stage.pool("chat", &[]), of_nobody("lost")]);
    let daemon = stage.serve(&[]);
    daemon.wait_state("lost", "failed");
    let ready = daemon.wait_state("chat", "ready");
    machine.write_pools(&[of_nobody("chat"), of_nobody("lost")]);
    machine.run(&["reload"]).code(10).says(WHY).says("serve on");
    assert_eq!(daemon.status("chat")["replicas"][0]["pid"], ready["pid"]);
    let run = daemon.end(Signal::TERM, 0);
    run.says(&format!("is not tried again by itself (start): {WHY}"));
    let events = run.events();
    let told = |it: &&serde_json::Value| it["action"] == "reload" && it["level"] == "error";
    let reload = events
        .iter()
        .find(told)
        .unwrap_or_else(|| panic!("{}", run.stderr));
    assert_eq!(reload["pool_id"], "chat", "{reload:#}");
    assert!(
        reload["human"].as_str().unwrap().contains(WHY),
        "{reload:#}"
    );
}

#[test]
fn without_a_pool_file_the_default_pool_of_a_provider_is_brought_up() {
    let stage = Stage::new();
    let machine = &stage.machine;
    // That of this provider lacks a repository, which only it can have said.
    let run = machine.run(&["up", "--provider", "fixture"]).code(3);
    run.says("a source build needs the URL of a repository");
    machine.run(&["status"]).code(0).prints("default");
    let _ = machine.run(&["up"]).code(3);
    let other = machine.run(&["up", "--provider", "llamacpp"]).code(3);
    other.says("a daemon runs already, with its own pool file and flags");
    let _ = machine.run(&["down", "--daemon"]).code(0);
}

#[test]
fn what_a_changed_pool_file_cannot_be_carried_out_for_is_told_and_the_command_fails() {
    let stage = Stage::new();
    let machine = &stage.machine;
    machine.write_pools(&[stage.pool("chat", &[]), stage.pool("code", &[])]);
    let daemon = stage.serve(&[]);
    daemon.wait_state("chat", "ready");
    let kept = daemon.wait_state("code", "ready");
    let dies = stage.pool("chat", &["--exit-after-ms", "1", "--exit-code", "7"]);
    machine.write_pools(&[dies, stage.pool("code", &[])]);
    let run = machine.run(&["reload"]).code(10);
    run.prints("changed  chat").prints("failed   chat");
    run.says("exit code 7").says("serves on");
    assert_eq!(daemon.status("code")["replicas"][0]["pid"], kept["pid"]);
    let _ = daemon.end(Signal::TERM, 0);
}

#[test]
fn a_pool_that_no_longer_waits_for_demand_is_started_once_the_file_says_so() {
    let stage = Stage::new();
    let mut resting = stage.pool("chat", &[]);
    resting["preload"] = json!(false);
    stage.machine.write_pool(&resting);
    let daemon = stage.serve(&[]);
    assert_eq!(daemon.status("chat")["want"], "on-demand");
    stage.machine.write_pool(&stage.pool("chat", &[]));
    daemon.running.signal(Signal::HUP);
    daemon.wait_state("chat", "ready");
    // Who has taken one down that is to run has done so on purpose.
    let _ = stage.machine.run(&["down", "chat"]).code(0);
    let other = stage.pool("chat", &["--load-ms", "10"]);
    stage.machine.write_pool(&other);
    let _ = stage.machine.run(&["reload"]).code(0);
    assert_eq!(daemon.status("chat")["replicas"][0]["state"], "stopped");
    let _ = daemon.end(Signal::TERM, 0);
}

#[test]
fn a_daemon_that_ends_when_idle_does_not_wait_for_what_has_failed() {
    let stage = Stage::new();
    let mut pool = stage.pool("chat", &["--exit-after-ms", "1"]);
    pool["supervision"] = json!({"restart": "never"});
    stage.machine.write_pool(&pool);
    let daemon = stage.serve(&["--idle-exit", "2s"]);
    let run = daemon.running.finish(e2e::RUN_LIMIT).code(0);
    run.says("is not tried again by itself");
    stage.machine.assert_clean();
}

#[test]
fn engines_that_are_kept_at_term_are_taken_over_by_the_next_daemon() {
    let stage = Stage::new();
    stage.machine.write_pool(&stage.pool("chat", &[]));
    let daemon = stage.serve(&["--on-term", "keep"]);
    let first = daemon.wait_state("chat", "ready");
    let _ = daemon.running.end(Signal::TERM).code(0);
    let next = stage.serve(&[]);
    let adopted = next.wait_state("chat", "ready");
    assert_eq!(adopted["pid"], first["pid"]);
    let _ = next.end(Signal::TERM, 0);
}

#[test]
fn an_engine_that_was_stopped_from_elsewhere_stays_down_until_it_is_asked_for() {
    let stage = Stage::new();
    let machine = &stage.machine;
    machine.write_pool(&stage.pool("chat", &[]));
    let daemon = stage.serve(&[]);
    let first = daemon.wait_state("chat", "ready");
    let _ = machine.run(&["stop", "chat"]).code(0);
    let failed = daemon.wait_state("chat", "failed");
    assert_eq!(failed["last_error"]["kind"], "stopped-elsewhere");
    assert_eq!(failed["restarts"], 0, "{failed:#}");
    machine.run(&["status"]).code(0).prints("host up chat");
    let _ = machine.run(&["up", "chat"]).code(0);
    let again = daemon.wait_state("chat", "ready");
    assert_ne!(again["pid"], first["pid"]);
    assert_eq!(again["restarts_by"], json!({"stopped": 1}), "{again:#}");
    // What failed before somebody brought it up again is not counted any more.
    let _ = machine.run(&["restart", "chat"]).code(0);
    let anew = daemon.wait_state("chat", "ready");
    assert_ne!(anew["pid"], again["pid"]);
    assert_eq!(anew["restarts"], 0, "{anew:#}");
    let _ = daemon.end(Signal::TERM, 0);
}

#[test]
fn a_watched_status_follows_what_happens_until_it_is_interrupted() {
    let stage = Stage::new();
    let machine = &stage.machine;
    machine.write_pool(&stage.pool("chat", &[]));
    let daemon = stage.serve(&[]);
    daemon.wait_state("chat", "ready");
    let watch = machine.start(machine.command(&["status", "--watch"]));
    let shows = |state: &str| {
        wait_for(state, e2e::RUN_LIMIT, || {
            let shown = watch.stdout();
            let last = shown.lines().rev().find(|it| it.starts_with("chat"));
            match last {
                Some(row) if row.contains(state) => Ok(()),
                _ => Err(shown),
            }
        });
    };
    shows("ready");
    let _ = machine.run(&["down", "chat"]).code(0);
    shows("stopped");
    let _ = watch.end(Signal::INT).code(130);
    let _ = daemon.end(Signal::TERM, 0);
}

#[test]
fn an_engine_that_is_killed_comes_back_and_is_counted() {
    let stage = Stage::new();
    stage.machine.write_pool(&stage.pool("chat", &[]));
    let daemon = stage.serve(&[]);
    let first = daemon.wait_state("chat", "ready");
    crate::kill(pid(&first));
    let again = daemon.wait_replica("chat", "another engine", |replica| {
        replica["state"] == "ready" && replica["pid"] != first["pid"]
    });
    assert_eq!(again["restarts"], 1, "{again:#}");
    assert!(again["last_error"].is_null(), "{again:#}");
    assert_eq!(stage.machine.handoffs().len(), 1);
    let _ = daemon.end(Signal::TERM, 0);
}

#[test]
fn two_daemons_do_not_serve_one_home() {
    let stage = Stage::new();
    stage.machine.write_pool(&stage.pool("chat", &[]));
    let daemon = stage.serve(&[]);
    daemon.wait_state("chat", "ready");
    let second = stage.machine.run(&["serve", "--listen", "none"]).code(12);
    second.says("a daemon serves").says("host status");
    let _ = daemon.end(Signal::INT, 130);
}

#[test]
fn a_pool_file_that_changed_is_applied_on_hup_and_nothing_else_moves() {
    let stage = Stage::new();
    let (chat, code) = (stage.pool("chat", &[]), stage.pool("code", &[]));
    stage.machine.write_pools(&[chat.clone(), code]);
    let daemon = stage.serve(&[]);
    let kept = daemon.wait_state("chat", "ready");
    daemon.wait_state("code", "ready");
    stage
        .machine
        .write_pools(&[chat.clone(), stage.pool("draw", &[])]);
    daemon.running.signal(Signal::HUP);
    wait_for("the new pool", Duration::from_secs(60), || {
        let list = stage.machine.run(&["status", "--json"]).code(0).json();
        let names: Vec<String> = list["pools"]
            .as_array()
            .unwrap()
            .iter()
            .map(|it| it["pool_id"].as_str().unwrap().to_owned())
            .collect();
        if names == ["chat", "draw"] {
            Ok(())
        } else {
            Err(list)
        }
    });
    daemon.wait_state("draw", "ready");
    assert_eq!(daemon.status("chat")["replicas"][0]["pid"], kept["pid"]);
    // One that does not hold changes nothing.
    stage.machine.write("pools.yaml", "pools: [{id: chat}]");
    stage.machine.run(&["reload"]).code(3).says("engine");
    assert_eq!(daemon.status("chat")["replicas"][0]["pid"], kept["pid"]);
    let _ = daemon.end(Signal::TERM, 0);
}
