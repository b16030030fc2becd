//! Two hosts, one home.

use e2e::{Run, signal_if_there, wait_for};
use rustix::process::Signal;
use serde_json::json;

use crate::stage;

fn builds(runs: &[Run]) -> usize {
    let actions = runs.iter().flat_map(Run::actions);
    actions.filter(|action| action == "cmake-build").count()
}

#[test]
fn two_preparations_at_once_build_once_and_both_succeed() {
    let (machine, _repository, mut pool) = stage();
    // Long enough for both to be there.
    pool["provisioning"]["source"]["build"]["cmake_flags"] = json!(["-DFIXTURE_SLEEP=5"]);
    machine.write_pool(&pool);
    let start = || machine.start(machine.command(&["prepare", "--json", "--log-format=json"]));
    let both = [start(), start()];
    let runs = both.map(|running| running.finish(e2e::RUN_LIMIT).code(0));
    assert_eq!(builds(&runs), 1);
    let waited = runs
        .iter()
        .flat_map(Run::events)
        .find(|event| event["action"] == "wait")
        .expect("one says that it waits");
    let human = waited["human"].as_str().unwrap();
    assert!(human.contains("process "), "it says for whom: {human}");
    let [one, two] = runs;
    assert_eq!(one.json()["command"]["bin"], two.json()["command"]["bin"]);
    machine.store().assert_sound();
    machine.assert_clean();
}

#[test]
fn two_provisions_of_one_pool_at_once_start_one_engine() {
    let (machine, _repository, pool) = stage();
    machine.write_pool(&pool);
    let start = || machine.start(machine.command(&["provision", "--log-format=json"]));
    let mut both = [start(), start()];
    let urls = [both[0].wait_ready(), both[1].wait_ready()];
    assert_eq!(urls[0], urls[1]);
    let list = machine.run(&["ps", "--json"]).code(0).json();
    assert_eq!(list["engines"].as_array().unwrap().len(), 1, "{list}");
    // The one that found it running has ended, the other serves until it is told to end.
    let mut ended = 0;
    wait_for("one of them to end", e2e::RUN_LIMIT, || {
        ended = both.iter_mut().filter_map(e2e::Running::ended).count();
        if ended == 1 { Ok(()) } else { Err(ended) }
    });
    let runs = both.map(|mut running| {
        if running.ended().is_some() {
            running.finish(e2e::RUN_LIMIT).code(0)
        } else {
            running.end(Signal::INT).code(130)
        }
    });
    assert_eq!(builds(&runs), 1);
    machine.store().assert_sound();
    machine.assert_clean();
}

#[test]
fn a_host_that_waits_takes_over_when_the_one_that_builds_is_killed() {
    let (machine, _repository, mut pool) = stage();
    pool["provisioning"]["source"]["build"]["cmake_flags"] = json!(["-DFIXTURE_SLEEP=5"]);
    machine.write_pool(&pool);
    let first = machine.start(machine.command(&["prepare"]));
    let building = wait_for("the build's own program", e2e::RUN_LIMIT, || {
        let mut all = machine.processes();
        let seen = all.clone();
        all.retain(|process| process.command.contains("during-build 5"));
        if all.is_empty() { Err(seen) } else { Ok(all) }
    });
    // It dawdles until the first host is killed, however long the second one takes to come.
    let tell = |signal| {
        for process in &building {
            signal_if_there(process.pid, signal);
        }
    };
    tell(Signal::STOP);
    let mut second = machine.start(machine.command(&["prepare"]));
    second.wait_said("waiting for process");
    first.signal(Signal::KILL);
    tell(Signal::CONT);
    let _ = first.finish(e2e::RUN_LIMIT).code(137);
    let run = second.finish(e2e::RUN_LIMIT).code(0);
    run.says("cmake-build");
    machine.store().assert_sound();
    machine.assert_clean();
}
