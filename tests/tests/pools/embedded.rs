//! The daemon of `examples/`, which embeds the library without any of its features.

use std::time::Duration;

use e2e::{Built, Machine, RUN_LIMIT, Running, http_get, wait_for};
use rustix::process::Signal;
use serde_json::json;

use crate::Stage;

/// Starts the daemon for the pool file of a machine.
fn daemon(machine: &Machine) -> Running {
    let file = machine.work().join("pools.yaml");
    let mut command = machine.command_of(&Built::embedder(), &[file.to_str().unwrap()]);
    // It lies in another directory than the providers.
    command.env("HOST_PROVIDER_PATH", &Built::debug().directory);
    machine.start(command)
}

/// Starts a program that looks at the handoffs of a machine, and at nothing else.
fn consumer(machine: &Machine) -> Running {
    let program = Built::debug().directory.join("fake-consumer");
    let handoffs = machine.work().join(".runtime/engines");
    machine.start(machine.command_of(&program, &[handoffs.to_str().unwrap()]))
}

/// Waits for a line of standard output that begins so, and gives what follows.
#[track_caller]
fn wait_line(program: &mut Running, beginning: &str) -> String {
    wait_for(&format!("`{beginning}`"), RUN_LIMIT, || {
        let said = program.stdout();
        let whole = said.rsplit_once('\n').map_or("", |(lines, _)| lines);
        if let Some(rest) = whole.lines().find_map(|line| line.strip_prefix(beginning)) {
            return Ok(rest.to_owned());
        }
        let ended = program.ended();
        assert!(ended.is_none(), "ended: {said}{}", program.stderr());
        Err(format!("{said}{}", program.stderr()))
    })
}

fn answers(url: &str) {
    let answer = http_get(&format!("{url}/health")).unwrap();
    assert_eq!(answer.0, 200, "{url}: {}", answer.1);
}

/// Everything that was started for a machine ends, without help.
#[track_caller]
fn ends(machine: &Machine) {
    wait_for("every process to end", Duration::from_secs(30), || {
        let left = machine.processes();
        if left.is_empty() { Ok(()) } else { Err(left) }
    });
    machine.assert_clean();
}

#[test]
fn it_leases_what_it_brought_up_reloads_without_a_gap_and_another_process_sees_both() {
    let stage = Stage::new();
    let machine = &stage.machine;
    machine.write_pools(&[stage.pool("chat", &[]), stage.pool("code", &[])]);
    let mut consumer = consumer(machine);
    let mut daemon = daemon(machine);
    let first = wait_line(&mut daemon, "chat serves at ");
    answers(&first);
    answers(&wait_line(&mut daemon, "code serves at "));
    assert_eq!(wait_line(&mut consumer, "bound chat/r0 "), first);
    wait_line(&mut consumer, "bound code/r0 ");

    machine.write_pools(&[stage.pool("chat", &["--load-ms", "200"])]);
    daemon.signal(Signal::HUP);
    let changes = wait_line(&mut daemon, "reloaded: ");
    assert!(
        changes.contains(r#"removed: ["code"], changed: ["chat"]"#),
        "{changes}"
    );
    let second = wait_line(&mut consumer, "changed chat/r0 ");
    assert_ne!(second, first);
    answers(&second);
    wait_line(&mut consumer, "unbound code/r0 ");
    wait_line(&mut daemon, &format!("chat serves at {second}"));

    machine.write("pools.yaml", "pools: [{id: chat}]");
    daemon.signal(Signal::HUP);
    daemon.wait_said("not reloaded: the pools cannot be read: ");
    answers(&second);

    let _ = daemon.end(Signal::TERM).code(0);
    assert_eq!(wait_line(&mut consumer, "unbound chat/r0 "), second);
    let seen = consumer.stdout();
    let of_chat: Vec<&str> = seen.lines().filter(|it| it.contains("chat")).collect();
    assert_eq!(of_chat.len(), 3, "bound, changed, unbound: {seen}");
    let _ = consumer.end(Signal::KILL).code(137);
    ends(machine);
}

#[test]
fn nothing_is_left_of_it_however_it_ends() {
    for (signal, code) in [(Signal::TERM, 0), (Signal::INT, 0), (Signal::KILL, 137)] {
        let stage = Stage::new();
        let machine = &stage.machine;
        // One that serves and one that loads for as long as it is let.
        machine.write_pools(&[
            stage.pool("chat", &[]),
            stage.pool("late", &["--never-ready"]),
        ]);
        let mut daemon = daemon(machine);
        wait_line(&mut daemon, "chat serves at ");
        wait_line(&mut daemon, "late r0 starting");
        println!("{signal:?}");
        let _ = daemon.end(signal).code(code);
        ends(machine);
    }
}

#[test]
fn what_was_left_out_of_the_library_is_refused_by_the_name_of_its_feature() {
    let stage = Stage::new();
    let machine = &stage.machine;
    let mut pool = stage.pool("chat", &[]);
    pool["provisioning"]["model"] = json!({"ref": "s3://bucket/model.gguf"});
    machine.write_pool(&pool);
    let mut daemon = daemon(machine);
    let refused = wait_line(&mut daemon, "chat r0 failed ");
    assert!(
        refused.contains("needs the feature `s3` of `engine-host`"),
        "{refused}"
    );
    let _ = daemon.end(Signal::TERM).code(0);
    ends(machine);
}

#[test]
fn a_whole_daemon_is_shorter_than_a_hundred_lines() {
    let path = e2e::repository_root().join("examples/pool-managerd.rs");
    let lines = std::fs::read_to_string(path).unwrap().lines().count();
    assert!(lines < 100, "{lines}");
}
