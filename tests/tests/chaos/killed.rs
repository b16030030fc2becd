//! KILL of the host, its keeper, its worker, its engine.

use std::time::Duration;

use e2e::{Machine, Process, Running, http_get, wait_for};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::stage;

/// Longest time until nothing is left of what was killed.
const ORPHAN_LIMIT: Duration = Duration::from_secs(10);

fn engine_pid(machine: &Machine) -> u32 {
    let list = machine.run(&["ps", "--json"]).code(0).json();
    let pid = list["engines"][0]["pid"].as_u64();
    u32::try_from(pid.unwrap_or_else(|| panic!("no engine: {list}"))).unwrap()
}

/// The keeper of a host: its minders are copies of it, and its children.
fn keeper_of(machine: &Machine, running: &Running) -> Process {
    let all = machine.processes();
    let keepers: Vec<&Process> = all
        .iter()
        .filter(|process| process.command.starts_with("host keeper"))
        .collect();
    let found = keepers
        .iter()
        .find(|keeper| keeper.parent == running.pid())
        .or_else(|| {
            let is_minder = |one: &Process| keepers.iter().any(|other| other.pid == one.parent);
            keepers.iter().find(|keeper| !is_minder(keeper))
        });
    (*found.unwrap_or_else(|| panic!("no keeper: {all:#?}"))).clone()
}

/// A host in the middle of a build that takes longer than any test.
fn building(machine: &Machine, mut pool: Value) -> Running {
    pool["provisioning"]["source"]["build"]["cmake_flags"] = json!(["-DFIXTURE_SLEEP=600"]);
    machine.write_pool(&pool);
    let running = machine.start(machine.command(&["provision"]));
    wait_for("the build's own program", e2e::RUN_LIMIT, || {
        let all = machine.processes();
        let dawdles = |process: &Process| process.command.contains("during-build 600");
        if all.iter().any(dawdles) {
            Ok(())
        } else {
            Err(all)
        }
    });
    running
}

/// Asserts that the pool can be provisioned again, and answers.
fn assert_recovers(machine: &Machine) {
    let mut next = machine.provision(&[]);
    let url = next.wait_ready();
    assert_eq!(http_get(&format!("{url}/health")).unwrap().0, 200);
    let _ = next.end(Signal::INT).code(130);
    machine.store().assert_sound();
    machine.assert_clean();
}

#[test]
fn killed_at_any_instant_nothing_is_left_and_the_next_run_succeeds() {
    e2e::kill_rounds(0..20);
}

#[test]
fn a_killed_host_takes_its_engine_and_handoff_with_it() {
    let (machine, _repository, pool) = stage();
    machine.write_pool(&pool);
    let mut running = machine.provision(&[]);
    let url = running.wait_ready();
    let _ = running.end(Signal::KILL).code(137);
    wait_for("the engine to end", ORPHAN_LIMIT, || {
        match http_get(&format!("{url}/health")) {
            Err(_) => Ok(()),
            Ok(answer) => Err(answer),
        }
    });
    machine.assert_clean();
    assert_recovers(&machine);
}

#[test]
fn a_host_killed_while_it_builds_takes_the_build_with_it() {
    let (machine, _repository, pool) = stage();
    let running = building(&machine, pool.clone());
    let _ = running.end(Signal::KILL).code(137);
    machine.assert_clean();
    machine.store().assert_sound();
    machine.write_pool(&pool);
    assert_recovers(&machine);
}

#[test]
fn a_killed_keeper_ends_the_engine_and_the_command_says_so() {
    let (machine, _repository, pool) = stage();
    machine.write_pool(&pool);
    let running = machine.provision(&[]);
    let keeper = keeper_of(&machine, &running);
    e2e::signal(keeper.pid, Signal::KILL);
    running.finish(e2e::RUN_LIMIT).code(1).says("error:");
    machine.assert_clean();
    assert_recovers(&machine);
}

#[test]
fn a_keeper_killed_while_it_builds_ends_the_build_and_the_command_says_so() {
    let (machine, _repository, pool) = stage();
    let running = building(&machine, pool.clone());
    let keeper = keeper_of(&machine, &running);
    e2e::signal(keeper.pid, Signal::KILL);
    running.finish(e2e::RUN_LIMIT).code(1).says("error:");
    machine.store().assert_sound();
    machine.assert_clean();
    machine.write_pool(&pool);
    assert_recovers(&machine);
}

#[test]
fn a_killed_worker_is_an_error_that_says_so_and_leaves_no_process() {
    let machine = Machine::new();
    machine.write_pools(&[json!({
        "id": "a", "engine": "hostile", "gpu": "forbid", "options": {"behaviour": "plan:hang"},
    })]);
    let arguments = ["provision", "--provider-path", &machine.hostile_provider()];
    let running = machine.start(machine.command(&arguments));
    let worker = wait_for("the worker", e2e::RUN_LIMIT, || {
        let all = e2e::children_of(running.pid());
        let is_worker = |one: &&e2e::Process| one.command.contains("worker");
        all.iter().find(is_worker).cloned().ok_or(all)
    });
    e2e::signal(worker.pid, Signal::KILL);
    let run = running.finish(e2e::RUN_LIMIT).code(6);
    run.says("signal 9 (KILL)");
    machine.assert_untouched();
}

#[test]
fn a_detached_engine_outlives_its_host_and_can_be_stopped() {
    let (machine, _repository, pool) = stage();
    machine.write_pool(&pool);
    let run = machine.run(&["provision", "--detach", "--json"]).code(0);
    let url = run.json()["url"].as_str().unwrap().to_owned();
    assert_eq!(http_get(&format!("{url}/health")).unwrap().0, 200);
    // Another host comes and is killed: what it did not start stays.
    let other = machine.start(machine.command(&["logs", "--follow"]));
    let _ = other.end(Signal::KILL).code(137);
    assert_eq!(http_get(&format!("{url}/health")).unwrap().0, 200);
    assert_eq!(machine.handoffs().len(), 1);
    let _ = machine.run(&["stop", "--all"]).code(0);
    machine.assert_clean();
}

#[test]
fn a_detached_engine_that_dies_leaves_no_handoff() {
    let (machine, _repository, pool) = stage();
    machine.write_pool(&pool);
    let _ = machine.run(&["provision", "--detach"]).code(0);
    e2e::signal(engine_pid(&machine), Signal::KILL);
    machine.assert_clean();
    let list = machine.run(&["ps", "--json"]).code(0).json();
    assert_eq!(list["engines"], json!([]));
    assert_recovers(&machine);
}

#[test]
fn a_detached_engine_whose_keeper_is_killed_goes_with_it() {
    let (machine, _repository, pool) = stage();
    machine.write_pool(&pool);
    let detached = machine.start(machine.command(&["provision", "--detach"]));
    let pid = detached.pid();
    let _ = detached.finish(e2e::RUN_LIMIT).code(0);
    let all = machine.processes();
    let keepers: Vec<&Process> = all
        .iter()
        .filter(|process| process.command.starts_with("host keeper"))
        .collect();
    let is_minder = |one: &Process| keepers.iter().any(|other| other.pid == one.parent);
    let keeper = keepers.iter().find(|keeper| !is_minder(keeper));
    let keeper = keeper.unwrap_or_else(|| panic!("no keeper of {pid}: {all:#?}"));
    e2e::signal(keeper.pid, Signal::KILL);
    machine.assert_clean();
    assert_recovers(&machine);
}
