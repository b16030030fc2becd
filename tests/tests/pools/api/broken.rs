//! What is in nobody's hands who asks.

use std::fs;

use e2e::{signal_if_there, wait_for};
use rustix::process::Signal;
use serde_json::json;

use super::Client;
use crate::Stage;

#[test]
fn what_the_daemon_itself_cannot_do_is_told_as_internal_and_logged() {
    let stage = Stage::new();
    let machine = &stage.machine;
    let mut pool = stage.pool("chat", &[]);
    pool["supervision"] = json!({"restart": "never"});
    machine.write_pool(&pool);
    let daemon = stage.serve(&[]);
    daemon.wait_state("chat", "ready");
    let client = Client::trusted(&stage, &daemon);
    assert_eq!(client.ask("POST", "/v1/pools/chat/down").status, 200);
    // Without a directory for its socket no keeper can be started, hence no engine.
    let (keepers, aside) = (
        machine.home().join("state/keepers"),
        machine.home().join("state/aside"),
    );
    fs::rename(&keepers, &aside).unwrap();
    fs::write(&keepers, "").unwrap();
    for keeper in machine.processes() {
        if keeper.command.starts_with("host keeper") {
            // One ends by itself when another does.
            signal_if_there(keeper.pid, Signal::KILL);
        }
    }
    wait_for("the keeper to end", e2e::RUN_LIMIT, || {
        let mut left = machine.processes();
        left.retain(|it| it.pid != daemon.running.pid());
        if left.is_empty() { Ok(()) } else { Err(left) }
    });
    let answer = client.ask("POST", "/v1/pools/chat/up");
    let body = answer.refused(500, "INTERNAL");
    assert_eq!(body["pool_id"], "chat", "{body:#}");
    assert_eq!(body["retriable"], false, "{body:#}");
    let message = body["message"].as_str().unwrap();
    let said = "could not start the keeper";
    assert!(message.contains(said), "{message}");
    let command = machine.run(&["up", "chat"]).code(1);
    command.says("did not come up").says(said);

    fs::remove_file(&keepers).unwrap();
    fs::rename(&aside, &keepers).unwrap();
    assert_eq!(client.ask("POST", "/v1/pools/chat/up").status, 200);
    let run = daemon.end(Signal::TERM, 0);
    let events = run.events();
    let told = |event: &&serde_json::Value| {
        let human = event["human"].as_str().unwrap_or_default();
        event["pool_id"] == "chat" && event["level"] != "info" && human.contains(said)
    };
    let event = events.iter().find(told);
    assert!(event.is_some(), "{}", run.stderr);
}
