//! Leases over the API: how long a drain waits for them, and what is told to whoever gets none.

use std::{
    fs,
    io::{Read as _, Write as _},
    net::TcpStream,
    thread,
    time::{Duration, Instant},
};

use e2e::{RUN_LIMIT, wait_for};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::{Daemon, Stage, pid};

/// What an API answered.
struct Answer {
    head: String,
    body: Value,
}

impl Answer {
    /// Seconds of its `Retry-After`.
    fn retry_after(&self) -> Option<u64> {
        let head = self.head.to_ascii_lowercase();
        let (_, rest) = head.split_once("retry-after: ")?;
        rest.split("\r\n").next()?.parse().ok()
    }
}

/// Asks with the daemon's own token.
fn ask(stage: &Stage, daemon: &Daemon<'_>, method: &str, path: &str) -> Answer {
    let token = fs::read_to_string(stage.machine.home().join("state/api-token")).unwrap();
    let address = daemon.url.strip_prefix("http://").unwrap();
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(RUN_LIMIT)).unwrap();
    let request = format!(
        "{method} {path} HTTP/1.1\r\nHost: {address}\r\nContent-Length: 0\r\n\
         Authorization: Bearer {}\r\nConnection: close\r\n\r\n",
        token.trim()
    );
    stream.write_all(request.as_bytes()).unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    Answer {
        head: head.to_owned(),
        body: serde_json::from_str(body).unwrap_or_default(),
    }
}

const LEASES: &str = "/v1/pools/chat/leases";

fn lease(stage: &Stage, daemon: &Daemon<'_>) -> Answer {
    ask(stage, daemon, "POST", LEASES)
}

#[test]
fn a_drain_waits_for_leases_and_for_one_that_is_kept_until_its_deadline() {
    let stage = Stage::new();
    let machine = &stage.machine;
    machine.write_pool(&stage.pool("chat", &[]));
    let daemon = stage.serve(&[]);
    daemon.wait_state("chat", "ready");
    let kept = lease(&stage, &daemon);
    assert!(kept.head.starts_with("HTTP/1.1 201"), "{}", kept.head);
    let start = Instant::now();
    machine
        .run(&["drain", "chat", "--deadline", "700ms"])
        .code(0)
        .prints("stopped");
    assert!(start.elapsed() >= Duration::from_millis(700));
    assert!(machine.handoffs().is_empty());

    let _ = machine.run(&["up", "chat"]).code(0);
    let held = lease(&stage, &daemon);
    let id = held.body["lease_id"].as_str().unwrap();
    thread::scope(|scope| {
        let drain = scope.spawn(|| machine.run(&["drain", "chat", "--deadline", "10m"]));
        daemon.wait_state("chat", "draining");
        let refused = lease(&stage, &daemon);
        assert!(refused.head.starts_with("HTTP/1.1 503"), "{}", refused.head);
        assert_eq!(refused.body["code"], "POOL_UNREADY", "{:#}", refused.body);
        // What it serves is served on.
        assert!(daemon.status("chat")["replicas"][0]["pid"].is_u64());
        let released = ask(&stage, &daemon, "DELETE", &format!("{LEASES}/{id}"));
        assert!(released.head.starts_with("HTTP/1.1 2"), "{}", released.head);
        let run = drain.join().expect("a drain whose leases are back ends");
        run.code(0).prints("stopped");
    });
    let run = daemon.end(Signal::TERM, 0);
    run.says("1 lease was still held when the time to drain was over");
}

/// A pool whose engine ends at once as long as a file is there, which it is.
fn blocked(stage: &Stage) -> Value {
    let file = stage.machine.root().join("blocked");
    fs::write(&file, "").unwrap();
    stage.pool("chat", &["--exit-if", file.to_str().unwrap()])
}

#[test]
fn whoever_asks_while_the_breaker_is_open_hears_when_it_is_worth_asking_again() {
    let stage = Stage::new();
    let mut pool = blocked(&stage);
    pool["supervision"]["breaker"] = json!({"failures": 2, "open": "10m"});
    stage.machine.write_pool(&pool);
    let daemon = stage.serve(&[]);
    daemon.wait_state("chat", "broken");
    let refused = lease(&stage, &daemon);
    assert!(refused.head.starts_with("HTTP/1.1 503"), "{}", refused.head);
    let body = &refused.body;
    assert_eq!(body["code"], "POOL_UNAVAILABLE", "{body:#}");
    assert_eq!(body["retriable"], true, "{body:#}");
    let pause = refused.retry_after().unwrap();
    assert!((400..=600).contains(&pause), "{}", refused.head);
    let _ = daemon.end(Signal::TERM, 0);
}

#[test]
fn asking_for_a_pool_on_demand_starts_it_and_does_not_hurry_it_after_a_fall() {
    let stage = Stage::new();
    let mut pool = blocked(&stage);
    pool["preload"] = json!(false);
    pool["supervision"]["backoff"] = json!({"initial": "10m", "max": "10m"});
    stage.machine.write_pool(&pool);
    let daemon = stage.serve(&[]);
    for _ in 0..3 {
        let refused = lease(&stage, &daemon);
        assert_eq!(refused.body["code"], "POOL_UNREADY", "{:#}", refused.body);
        daemon.wait_state("chat", "backing-off");
    }
    let refused = lease(&stage, &daemon);
    assert!(refused.retry_after() > Some(200), "{}", refused.head);
    let starts = daemon
        .running
        .stderr()
        .matches("\"starting on port ")
        .count();
    assert_eq!(starts, 1, "{}", daemon.running.stderr());
    fs::remove_file(stage.machine.root().join("blocked")).unwrap();
    let _ = stage.machine.run(&["up", "chat"]).code(0);
    let answer = wait_for("a lease", RUN_LIMIT, || {
        let answer = lease(&stage, &daemon);
        match answer.head.starts_with("HTTP/1.1 201") {
            true => Ok(answer),
            false => Err(answer.body),
        }
    });
    assert_eq!(answer.body["pool_id"], "chat", "{:#}", answer.body);
    let _ = daemon.end(Signal::TERM, 0);
}

/// Reloads the pool with something else, and waits for its new engine; the reload goes on while the old one has
/// leases.
fn succeeded<'scope>(
    scope: &'scope thread::Scope<'scope, '_>,
    stage: &'scope Stage,
    daemon: &Daemon<'_>,
    old: &Value,
) -> (thread::ScopedJoinHandle<'scope, e2e::Run>, Value) {
    let other = stage.pool("chat", &["--load-ms", "10"]);
    stage.machine.write_pool(&other);
    let reload = scope.spawn(|| stage.machine.run(&["reload", "chat"]));
    let new = daemon.wait_replica("chat", "the successor", |it| {
        it["state"] == "ready" && it["pid"] != old["pid"]
    });
    (reload, new)
}

/// Whether a process is there.
fn is_there(pid: i32) -> bool {
    fs::exists(format!("/proc/{pid}")).unwrap()
}

#[test]
fn what_is_leased_of_an_engine_is_served_by_it_although_its_successor_has_taken_over() {
    let stage = Stage::new();
    stage.machine.write_pool(&stage.pool("chat", &[]));
    let daemon = stage.serve(&[]);
    let old = daemon.wait_state("chat", "ready");
    let held = lease(&stage, &daemon);
    assert_eq!(held.body["url"], old["url"]);
    thread::scope(|scope| {
        let (reload, new) = succeeded(scope, &stage, &daemon, &old);
        assert_eq!(
            (&new["leases"], &new["slots"]["free"]),
            (&json!(1), &json!(1))
        );
        assert!(is_there(pid(&old)) && !reload.is_finished());
        let id = held.body["lease_id"].as_str().unwrap();
        let _ = ask(&stage, &daemon, "DELETE", &format!("{LEASES}/{id}"));
        let _ = reload.join().unwrap().code(0);
    });
    assert!(!is_there(pid(&old)));
    let _ = daemon.end(Signal::TERM, 0);
}

#[test]
fn a_successor_that_falls_while_its_predecessor_has_leases_is_started_again() {
    let stage = Stage::new();
    stage.machine.write_pool(&stage.pool("chat", &[]));
    let daemon = stage.serve(&[]);
    let old = daemon.wait_state("chat", "ready");
    let _held = lease(&stage, &daemon);
    thread::scope(|scope| {
        let (reload, new) = succeeded(scope, &stage, &daemon, &old);
        crate::kill(pid(&new));
        daemon.wait_replica("chat", "another start", |it| {
            it["state"] == "ready" && it["pid"] != new["pid"] && it["restarts"] == 1
        });
        let _ = reload.join().unwrap().code(0);
    });
    let _ = daemon.end(Signal::TERM, 0);
}

#[test]
fn a_pool_that_leaves_the_file_and_is_leased_holds_up_no_other_and_may_come_back() {
    let stage = Stage::new();
    let machine = &stage.machine;
    let mut pools = [stage.pool("chat", &[]), stage.pool("code", &[])];
    pools[0]["supervision"]["drain_deadline"] = json!("10m");
    machine.write_pools(&pools[..1]);
    let daemon = stage.serve(&[]);
    let old = daemon.wait_state("chat", "ready");
    let held = lease(&stage, &daemon);
    let read_again = |times: usize| {
        daemon.running.signal(Signal::HUP);
        wait_for("the file to be read", RUN_LIMIT, || {
            let said = daemon.running.stderr();
            match said.matches("pool file read again").count() == times {
                true => Ok(()),
                false => Err(said),
            }
        });
    };
    machine.write_pools(&pools[1..]);
    read_again(1);
    // Before the lease runs out.
    daemon.wait_state("code", "ready");
    assert!(is_there(pid(&old)));
    machine.write_pools(&pools);
    read_again(2);
    let id = held.body["lease_id"].as_str().unwrap();
    let _ = ask(&stage, &daemon, "DELETE", &format!("{LEASES}/{id}"));
    daemon.wait_replica("chat", "an engine of the pool that came back", |it| {
        it["state"] == "ready" && it["pid"] != old["pid"]
    });
    let _ = daemon.end(Signal::TERM, 0);
}

#[test]
fn a_daemon_that_is_told_to_end_twice_waits_for_no_lease() {
    let stage = Stage::new();
    stage.machine.write_pool(&stage.pool("chat", &[]));
    let daemon = stage.serve(&[]);
    daemon.wait_state("chat", "ready");
    let _held = lease(&stage, &daemon);
    daemon.running.signal(Signal::TERM);
    daemon.wait_state("chat", "draining");
    let start = Instant::now();
    let run = daemon.end(Signal::TERM, 0);
    run.says("1 lease was still held");
    assert!(start.elapsed() < RUN_LIMIT / 2, "{:?}", start.elapsed());
}
