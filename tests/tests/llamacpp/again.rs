//! Once it was built: ready in no time, and what goes wrong with a real engine.

use std::{
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use e2e::{Pairs, free_port, http_get, provisioned, timed};
use rustix::process::Signal;
use serde_json::json;

use crate::{COMMAND_ONE, built};

/// Longest until a warm provision is ready.
const WARM_LIMIT: Duration = Duration::from_secs(5);

/// How often it is looked how long that is, at most: what else the machine does only adds to it.
const LOOKS: usize = 6;

#[test]
fn a_second_provision_builds_nothing_and_is_ready_in_seconds() {
    let (machine, _turn) = built();
    let before = machine.store().fingerprint();
    let start = Instant::now();
    let mut arguments = COMMAND_ONE.to_vec();
    arguments.push("--log-format=json");
    let running = machine.provision(&arguments[1..]);
    let mut took = vec![start.elapsed()];
    let run = running.end(Signal::INT).code(130);
    let actions = run.actions();
    for action in [
        "git-clone",
        "git-checkout",
        "cmake-configure",
        "cmake-build",
    ] {
        assert!(!actions.iter().any(|seen| seen == action), "{actions:?}");
    }
    let is_over = |took: &[Duration]| took.last().is_some_and(|last| *last >= WARM_LIMIT);
    while is_over(&took) && took.len() < LOOKS {
        took.push(provisioned(machine.command(&COMMAND_ONE)));
    }
    assert!(!is_over(&took), "{took:?}");
    assert_eq!(
        machine.store().fingerprint(),
        before,
        "something was made again"
    );
    machine.store().assert_sound();
    machine.assert_clean();
}

#[test]
fn a_bad_model_file_is_diagnosed() {
    let (machine, _turn) = built();
    let bad = machine.write("bad.gguf", "GGUF, but not really");
    let mut arguments = COMMAND_ONE.to_vec();
    arguments.extend(["--model", "./bad.gguf"]);
    let run = machine.run(&arguments).code(10);
    run.says(bad.file_name().unwrap().to_str().unwrap());
    run.says("before it was ready");
    run.says("model");
    run.says("fix:");
    machine.assert_clean();
}

#[test]
fn an_engine_stopped_with_a_stream_in_flight_ends_soon() {
    let (machine, _turn) = built();
    let mut running = machine.provision(&COMMAND_ONE[1..]);
    let url = running.wait_ready();
    let request = json!({
        "prompt": "rain", "n_predict": 100_000, "ignore_eos": true, "stream": true,
    });
    let target = format!("{url}/completion");
    // A client that reads slowly keeps its stream open until the engine is gone.
    let client = std::thread::spawn(move || e2e::http_post(&target, &request.to_string()));
    e2e::wait_for("the stream to be served", e2e::RUN_LIMIT, || {
        let metrics = http_get(&format!("{url}/metrics")).unwrap().1;
        let busy = metrics.contains("llamacpp:requests_processing 1");
        if busy { Ok(()) } else { Err(metrics) }
    });
    let took = timed(|| {
        let _ = running.end(Signal::INT).code(130);
    });
    assert!(took < Duration::from_secs(20), "{took:?}");
    let _ = client.join().unwrap();
    machine.assert_clean();
}

/// Time from the start of the same engine by hand until its health answers 200.
fn by_hand(program: &str, arguments: &[String], port: u16) -> Duration {
    let start = Instant::now();
    let mut child = Command::new(program)
        .args(arguments)
        .env_clear()
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let url = format!("http://127.0.0.1:{port}/health");
    while !matches!(http_get(&url), Ok((200, _))) {
        assert!(start.elapsed() < Duration::from_secs(30), "it is not ready");
        std::thread::sleep(Duration::from_millis(1));
    }
    let took = start.elapsed();
    rustix::process::kill_process(rustix::process::Pid::from_child(&child), Signal::KILL).unwrap();
    child.wait().unwrap();
    took
}

#[test]
fn a_warm_provision_is_ready_nearly_as_soon_as_the_engine_by_hand() {
    let (machine, _turn) = built();
    let mut prepare = COMMAND_ONE.to_vec();
    prepare[0] = "prepare";
    prepare.push("--json");
    let prepared = machine.run(&prepare).code(0).json();
    let command = &prepared["command"];
    let port = free_port();
    let arguments: Vec<String> = command["args"]
        .as_array()
        .unwrap()
        .iter()
        .map(|word| word.as_str().unwrap())
        .map(|word| word.replace("{address.host}", "127.0.0.1"))
        .map(|word| word.replace("{address.port}", &port.to_string()))
        .collect();
    let program = command["bin"].as_str().unwrap();
    Pairs::assert_at_most(
        "warm provision to ready against llama-server by hand",
        25.0,
        15,
        || provisioned(machine.command(&COMMAND_ONE)),
        || by_hand(program, &arguments, port),
    );
    machine.assert_clean();
}

#[test]
fn a_warm_plan_of_the_real_engine_takes_next_to_nothing() {
    let (machine, _turn) = built();
    let mut plan = COMMAND_ONE.to_vec();
    plan[0] = "plan";
    let _ = machine.run(&plan).code(0);
    Pairs::assert_at_most(
        "warm plan of llama.cpp against `true`",
        30.0,
        15,
        || timed(|| assert!(machine.command(&plan).output().unwrap().status.success())),
        || timed(|| assert!(Command::new("true").status().unwrap().success())),
    );
}
