//! Engines that run already: probed and handed off, never started nor stopped.

use std::{
    process::{Child, Command, Stdio},
    time::Duration,
};

use e2e::{Built, Machine, free_port, http_get, wait_for};
use rustix::process::Signal;
use serde_json::{Value, json};

/// A fake engine that somebody else started.
struct Theirs {
    child: Child,
    url: String,
}

impl Theirs {
    fn start(more: &[&str]) -> Self {
        let port = free_port().to_string();
        let child = Command::new(Built::debug().directory.join("fake-engine"))
            .args(["--host", "127.0.0.1", "--port", &port])
            .args(more)
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        Self {
            child,
            url: format!("http://127.0.0.1:{port}"),
        }
    }

    fn pool(&self) -> Value {
        json!({
            "id": "default",
            "engine": "fixture",
            "gpu": "forbid",
            "provisioning": {"external": {"url": self.url}},
        })
    }

    fn end(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    #[track_caller]
    fn assert_untouched(&mut self) {
        assert_eq!(self.child.try_wait().unwrap(), None, "it was ended");
        assert_eq!(http_get(&format!("{}/health", self.url)).unwrap().0, 200);
    }
}

impl Drop for Theirs {
    fn drop(&mut self) {
        self.end();
    }
}

#[test]
fn a_running_engine_is_handed_off_and_ctrl_c_does_not_touch_it() {
    let mut theirs = Theirs::start(&["--load-ms", "500"]);
    let machine = Machine::new();
    machine.write_pool(&theirs.pool());
    let mut running = machine.provision(&[]);
    assert_eq!(running.wait_ready(), theirs.url);
    let handoff = machine.handoff();
    assert_eq!(handoff["provisioning_mode"], "external");
    assert_eq!(handoff["url"], theirs.url);
    assert_eq!(handoff["observed_version"], "b1-fake");
    let _ = running.end(Signal::INT).code(130);
    machine.assert_clean();
    theirs.assert_untouched();
}

#[test]
fn an_attached_engine_is_listed_and_a_stop_lets_go_of_it() {
    let mut theirs = Theirs::start(&[]);
    let machine = Machine::new();
    machine.write_pool(&theirs.pool());
    let _ = machine.run(&["provision", "--detach"]).code(0);
    let list = machine.run(&["ps", "--json"]).code(0).json();
    assert_eq!(list["engines"][0]["url"], theirs.url, "{list}");
    assert_eq!(machine.handoffs().len(), 1);
    let _ = machine.run(&["stop", "default"]).code(0);
    machine.assert_clean();
    theirs.assert_untouched();
}

#[test]
fn the_handoff_goes_when_the_engine_goes() {
    let mut theirs = Theirs::start(&[]);
    let machine = Machine::new();
    machine.write_pool(&theirs.pool());
    let _ = machine.run(&["provision", "--detach"]).code(0);
    theirs.end();
    wait_for("the handoff to go", Duration::from_secs(60), || {
        let left = machine.handoffs();
        if left.is_empty() { Ok(()) } else { Err(left) }
    });
    machine.assert_clean();
}

#[test]
fn nobody_at_the_address_is_said_and_nothing_is_left() {
    let mut theirs = Theirs::start(&[]);
    theirs.end();
    let machine = Machine::new();
    let mut pool = theirs.pool();
    pool["readiness"] = json!({"stall_timeout": "1s"});
    machine.write_pool(&pool);
    let run = machine.run(&["provision"]).code(10);
    run.says(theirs.url.strip_prefix("http://").unwrap());
    machine.assert_clean();
}

#[test]
fn a_killed_host_leaves_the_engine_alone() {
    let mut theirs = Theirs::start(&[]);
    let machine = Machine::new();
    machine.write_pool(&theirs.pool());
    let running = machine.provision(&[]);
    let _ = running.end(Signal::KILL).code(137);
    machine.assert_clean();
    theirs.assert_untouched();
}
