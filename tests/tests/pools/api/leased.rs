//! Leases of those who are in another process.

use std::{
    thread,
    time::{Duration, Instant},
};

use e2e::{RUN_LIMIT, wait_for};
use rustix::process::Signal;
use serde_json::Value;

use super::Client;
use crate::{Daemon, Stage};

/// Longer than any test waits for what ought to happen at once.
const LONG: &str = "600000";

#[track_caller]
fn take(client: &Client, ttl_ms: &str) -> Value {
    let answer = client.ask("POST", &format!("/v1/pools/chat/leases?ttl_ms={ttl_ms}"));
    assert_eq!(answer.status, 201, "{answer:?}");
    answer.json()
}

fn path(lease: &Value) -> String {
    format!(
        "/v1/pools/chat/leases/{}",
        lease["lease_id"].as_str().unwrap()
    )
}

/// Free slots and leases.
fn slots(daemon: &Daemon<'_>) -> (u64, u64) {
    let status = daemon.status("chat");
    let number = |value: &Value| value.as_u64().unwrap();
    (number(&status["slots"]["free"]), number(&status["leases"]))
}

#[test]
fn a_lease_takes_a_slot_until_it_is_given_back() {
    let stage = Stage::new();
    stage.machine.write_pool(&stage.pool("chat", &[]));
    let daemon = stage.serve(&[]);
    let ready = daemon.wait_state("chat", "ready");
    let client = Client::trusted(&stage, &daemon);
    let lease = take(&client, LONG);
    assert_eq!(lease["url"], ready["url"], "{lease:#}");
    assert_eq!(lease["replica_id"], "r0");
    let holder = lease["held_by"].as_str().unwrap();
    assert!(
        holder.starts_with("token:") && holder.len() == 12,
        "{holder}"
    );
    assert_eq!(slots(&daemon), (0, 1));
    let busy = client.ask("POST", "/v1/pools/chat/leases");
    busy.refused(503, "POOL_UNREADY");
    let list = client.ask("GET", "/v1/pools/chat/leases").json();
    assert_eq!(list["leases"][0], lease, "{list:#}");
    assert_eq!(client.ask("DELETE", &path(&lease)).status, 204);
    assert_eq!(slots(&daemon), (1, 0));
    client
        .ask("DELETE", &path(&lease))
        .refused(404, "INVALID_PARAMS");
    let _ = daemon.end(Signal::TERM, 0);
}

#[test]
fn a_client_that_dies_leaks_nothing() {
    let stage = Stage::new();
    stage.machine.write_pool(&stage.pool("chat", &[]));
    let daemon = stage.serve(&[]);
    daemon.wait_state("chat", "ready");
    let client = Client::local(&stage);
    let lease = take(&client, "300");
    // As long as it is renewed, it holds.
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(1) {
        let renewed = client.ask("POST", &format!("{}/renew", path(&lease)));
        if renewed.status != 200 {
            // A machine that stood still for so long has let it expire.
            break;
        }
        thread::sleep(Duration::from_millis(20));
    }
    wait_for("the lease to expire", RUN_LIMIT, || match slots(&daemon) {
        (1, 0) => Ok(()),
        other => Err(other),
    });
    let late = client.ask("POST", &format!("{}/renew", path(&lease)));
    late.refused(404, "INVALID_PARAMS");
    let run = daemon.end(Signal::TERM, 0);
    let actions = run.events();
    let expired = actions.iter().find(|it| it["action"] == "lease-expired");
    let expired = expired.unwrap_or_else(|| panic!("{}", run.stderr));
    assert_eq!(expired["pool_id"], "chat", "{expired:#}");
}

#[test]
fn a_pool_that_drains_leases_nothing_more_and_waits_for_what_is_leased() {
    let stage = Stage::new();
    let mut pool = stage.pool("chat", &[]);
    pool["supervision"]["drain_deadline"] = serde_json::json!("120s");
    stage.machine.write_pool(&pool);
    let daemon = stage.serve(&[]);
    daemon.wait_state("chat", "ready");
    let client = Client::trusted(&stage, &daemon);
    let lease = take(&client, LONG);
    thread::scope(|scope| {
        let drain = scope.spawn(|| client.ask("POST", "/v1/pools/chat/drain"));
        daemon.wait_state("chat", "draining");
        let refused = client.ask("POST", "/v1/pools/chat/leases");
        let refused = refused.refused(503, "POOL_UNREADY");
        let message = refused["message"].as_str().unwrap();
        assert!(message.contains("draining"), "{message}");
        // A request that takes long may go on.
        let renewed = client.ask("POST", &format!("{}/renew", path(&lease)));
        assert_eq!(renewed.status, 200, "{renewed:?}");
        assert!(!drain.is_finished());
        assert_eq!(client.ask("DELETE", &path(&lease)).status, 204);
        let drained = drain.join().unwrap();
        assert_eq!(drained.status, 200, "{drained:?}");
        assert_eq!(drained.json()["replicas"][0]["state"], "stopped");
    });
    let down = client.ask("POST", "/v1/pools/chat/leases");
    down.refused(503, "POOL_UNAVAILABLE");
    let _ = daemon.end(Signal::TERM, 0);
}

#[test]
fn a_drain_does_not_wait_for_a_lease_beyond_its_deadline() {
    let stage = Stage::new();
    stage.machine.write_pool(&stage.pool("chat", &[]));
    let daemon = stage.serve(&[]);
    daemon.wait_state("chat", "ready");
    let client = Client::local(&stage);
    let lease = take(&client, LONG);
    let start = Instant::now();
    let drained = client.ask("POST", "/v1/pools/chat/drain?deadline_ms=500");
    assert_eq!(drained.status, 200, "{drained:?}");
    assert!(start.elapsed() >= Duration::from_millis(500));
    // Its engine is gone: it is of no use any more.
    let late = client.ask("POST", &format!("{}/renew", path(&lease)));
    late.refused(404, "INVALID_PARAMS");
    assert_eq!(slots(&daemon), (0, 0));
    let up = client.ask("POST", "/v1/pools/chat/up");
    assert_eq!(up.status, 200, "{up:?}");
    assert_eq!(slots(&daemon), (1, 0));
    let _ = daemon.end(Signal::TERM, 0);
}

#[test]
fn a_pool_that_waits_for_demand_comes_up_for_a_lease() {
    let stage = super::resting();
    let daemon = stage.serve(&[]);
    let client = Client::local(&stage);
    let take = || client.ask("POST", "/v1/pools/rest/leases");
    take().refused(503, "POOL_UNREADY");
    let lease = wait_for("a lease", RUN_LIMIT, || match take() {
        answer if answer.status == 201 => Ok(answer.json()),
        answer => Err(answer.refused(503, "POOL_UNREADY")),
    });
    let url = lease["url"].as_str().unwrap();
    let health = e2e::http_get(&format!("{url}/health")).unwrap();
    assert_eq!(health.0, 200, "{health:?}");
    let _ = daemon.end(Signal::TERM, 0);
}
