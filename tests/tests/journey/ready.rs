//! The happy path: ready, handed off, answering, and gone without a trace.

use std::{fs, os::unix::fs::PermissionsExt};

use e2e::{Machine, fixture_pool, http_get};
use rustix::process::Signal;

use crate::stage;

#[test]
fn one_command_takes_a_pool_to_an_engine_that_answers_and_ctrl_c_leaves_nothing() {
    let (machine, repository, pool) = stage();
    machine.write_pool(&pool);
    let mut running = machine.provision(&[]);
    let url = running.wait_ready();
    let port = &pool["provisioning"]["ports"][0];
    assert_eq!(url, format!("http://127.0.0.1:{port}"));
    assert_eq!(http_get(&format!("{url}/health")).unwrap().0, 200);
    assert_eq!(
        http_get(&format!("{url}/completion")).unwrap().1,
        "hello from GGUF\n"
    );

    let path = machine.work().join(".runtime/engines/fixture.json");
    assert_eq!(machine.handoffs(), std::slice::from_ref(&path));
    let mode = fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o640);
    let mut handoff = machine.handoff();
    let started = handoff["started_at"].take();
    assert!(started.as_str().unwrap().ends_with('Z'), "{started}");
    let model = handoff["model"]["path"].take();
    assert!(
        fs::read(model.as_str().unwrap())
            .unwrap()
            .starts_with(b"GGUF")
    );
    let digest = handoff["model"]["digest"].take();
    assert!(digest.as_str().unwrap().starts_with("sha256:"), "{digest}");
    let expected = serde_json::json!({
        "schema": 1,
        "engine": "fixture",
        "engine_version": format!("{}-cpu", &repository.commit[..12]),
        "provisioning_mode": "source",
        "url": url,
        "pool_id": "default",
        "replica_id": "r0",
        "model": {"id": "builtin:haiku", "path": null, "digest": null},
        "flags": [],
        "observed_version": "fixture-1",
        "device_mask": [],
        "slots_total": 1,
        "dialect": "openai",
        "started_at": null,
    });
    assert_eq!(handoff, expected);

    let run = running.end(Signal::INT).code(130);
    assert!(!run.stderr.contains("failed"), "{}", run.stderr);
    assert!(!run.stderr.contains("error"), "{}", run.stderr);
    assert!(http_get(&url).is_err(), "the engine still answers");
    machine.assert_clean();
    machine.store().assert_sound();
    assert_eq!(machine.store().work(), Vec::<String>::new());
}

#[test]
fn term_ends_it_like_ctrl_c_with_its_own_code() {
    let (machine, _repository, pool) = stage();
    machine.write_pool(&pool);
    let running = machine.provision(&[]);
    let _ = running.end(Signal::TERM).code(143);
    machine.assert_clean();
}

#[test]
fn ctrl_c_of_a_terminal_reaches_the_whole_group_and_still_the_engine_is_stopped_in_order() {
    use std::os::unix::process::CommandExt;

    let (machine, _repository, pool) = stage();
    machine.write_pool(&pool);
    let mut command = machine.command(&["provision"]);
    command.process_group(0);
    let mut running = machine.start(command);
    running.wait_ready();
    running.signal_group(Signal::INT);
    let run = running.finish(e2e::RUN_LIMIT).code(130);
    run.says("stopped");
    machine.assert_clean();
}

#[test]
fn events_tell_the_journey_in_order_with_their_context() {
    let (machine, _repository, pool) = stage();
    machine.write_pool(&pool);
    let running = machine.provision(&["--log-format=json", "--correlation-id", "order-7"]);
    let run = running.end(Signal::INT).code(130);
    let actions = run.actions();
    // What must come after what; the model comes along beside the engine.
    for chain in [
        &[
            "start",
            "preflight",
            "git-clone",
            "git-checkout",
            "cmake-configure",
            "cmake-build",
            "complete",
            "launch",
            "ready",
            "handoff",
            "stop",
        ][..],
        &["resolve", "ensure", "verified", "complete"],
    ] {
        let mut rest = actions.iter();
        for action in chain {
            assert!(
                rest.any(|seen| seen == action),
                "`{action}` missing or out of order in {actions:?}"
            );
        }
    }
    let events = run.events();
    let job = events[0]["job_id"].clone();
    for event in &events {
        for field in ["time", "level", "actor", "target", "human"] {
            assert!(event[field].is_string(), "{field} in {event}");
        }
        assert_eq!(event["job_id"], job);
        assert_eq!(event["correlation_id"], "order-7");
        assert_eq!(event["pool_id"], "default");
        assert_eq!(event["engine"], "fixture");
        assert_eq!(event["policy_label"], "default");
    }
    // Nothing but events on standard error: a log collector reads every line.
    for line in run.stderr.lines() {
        assert!(line.starts_with('{'), "{line}");
    }
    machine.assert_clean();
}

#[test]
fn two_pools_have_two_handoffs_and_replicas_have_their_own() {
    let (machine, repository, first) = stage();
    let mut second = fixture_pool(&repository);
    second["id"] = "chat".into();
    second["replicas"] = 2.into();
    second["provisioning"]["ports"] = serde_json::json!([]);
    machine.write_pools(&[first, second]);
    let one = machine.provision(&["--pool", "default"]);
    let two = machine.provision(&["--pool", "chat"]);
    let names = || {
        let mut names: Vec<String> = machine
            .handoffs()
            .iter()
            .map(|path| path.file_name().unwrap().to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    };
    e2e::wait_for("the second replica", e2e::RUN_LIMIT, || {
        if names().len() == 3 {
            Ok(())
        } else {
            Err(names())
        }
    });
    assert_eq!(
        names(),
        [
            "fixture.chat.r0.json",
            "fixture.chat.r1.json",
            "fixture.json"
        ]
    );
    let _ = two.end(Signal::INT).code(130);
    assert_eq!(names(), ["fixture.json"], "each removes its own");
    let _ = one.end(Signal::INT).code(130);
    machine.assert_clean();
}

#[test]
fn a_handoff_directory_of_ones_own_is_used() {
    let (machine, _repository, pool) = stage();
    machine.write_pool(&pool);
    let running = machine.provision(&["--handoff-dir", "elsewhere"]);
    assert!(machine.work().join("elsewhere/fixture.json").is_file());
    assert_eq!(machine.handoffs(), Vec::<std::path::PathBuf>::new());
    let _ = running.end(Signal::INT).code(130);
    assert!(!machine.work().join("elsewhere/fixture.json").exists());
    machine.assert_clean();
}

#[test]
fn prepare_does_all_the_work_and_starts_nothing() {
    let (machine, repository, pool) = stage();
    machine.write_pool(&pool);
    let prepared = machine.run(&["prepare", "--json"]).code(0).json();
    let version = format!("{}-cpu", &repository.commit[..12]);
    assert_eq!(prepared["engine_version"], version);
    let command = &prepared["command"];
    let program = command["bin"].as_str().unwrap();
    assert!(std::path::Path::new(program).is_file(), "{program}");
    assert!(program.starts_with(machine.home().to_str().unwrap()));
    assert!(command["env"].is_object() && command["args"].is_array());
    machine.assert_clean();
    // What was shown as prepared is what a plan now shows as there.
    let plan = machine.run(&["plan", "--json"]).code(0).json();
    assert_eq!(plan["run"]["command"]["bin"], command["bin"]);
    for step in plan["steps"].as_array().unwrap() {
        let state = step["state"].as_str().unwrap();
        assert!(["cached", "run"].contains(&state), "{step}");
    }
}

#[test]
fn the_home_is_where_host_home_says_and_nowhere_else() {
    let machine = Machine::new();
    let repository = e2e::Repository::create(machine.root());
    machine.write_pool(&fixture_pool(&repository));
    let before = machine.names_in_root();
    let _ = machine.run(&["prepare"]).code(0);
    let mut after = machine.names_in_root();
    after.retain(|name| !before.contains(name));
    assert_eq!(after, ["home"]);
}
