//! A daemon's real engine, while everything that stands behind it is killed.

use e2e::{Daemon, Machine, Process, share};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::{
    first::haiku,
    machine,
    modes::{pool, release},
};

/// Kills of each kind, in an order that seeds decide.
const ROUNDS: u64 = 12;

/// Who is killed.
#[derive(Debug, Clone, Copy)]
enum Victim {
    Engine,
    Minder,
    Keeper,
    Daemon,
}

impl Victim {
    /// Each in turn, from one that a seed decides.
    fn of(seed: u64) -> Self {
        let all = [Self::Engine, Self::Minder, Self::Keeper, Self::Daemon];
        let first = (share(seed / 4) * 4.0) as usize;
        all[(first + (seed % 4) as usize) % 4]
    }
}

fn parent(all: &[Process], pid: u32) -> u32 {
    let found = all.iter().find(|it| it.pid == pid);
    found
        .unwrap_or_else(|| panic!("no {pid} in {all:#?}"))
        .parent
}

fn pid(replica: &Value) -> u32 {
    u32::try_from(replica["pid"].as_u64().unwrap()).unwrap()
}

fn url(replica: &Value) -> &str {
    replica["url"].as_str().unwrap()
}

/// A request that is in flight when it happens; what comes of it is open.
fn stream(replica: &Value) -> std::thread::JoinHandle<std::io::Result<(u16, String)>> {
    let target = format!("{}/completion", url(replica));
    let request = json!({"prompt": "rain", "n_predict": 256, "stream": true});
    std::thread::spawn(move || e2e::http_post(&target, &request.to_string()))
}

/// Kills it, and gives the daemon that serves then.
fn kill<'a>(victim: Victim, daemon: Daemon<'a>, machine: &'a Machine, engine: u32) -> Daemon<'a> {
    let all = machine.processes();
    let minder = parent(&all, engine);
    match victim {
        Victim::Engine => e2e::signal(engine, Signal::KILL),
        Victim::Minder => e2e::signal(minder, Signal::KILL),
        Victim::Keeper => e2e::signal(parent(&all, minder), Signal::KILL),
        Victim::Daemon => {
            let _ = daemon.running.end(Signal::KILL).code(137);
            return Daemon::start(machine, &[]);
        }
    }
    daemon
}

#[test]
fn a_daemon_s_engine_streams_the_same_haiku_whatever_is_killed() {
    let machine = machine();
    let (_server, settings) = release(&machine);
    let mut pool = pool("binary", settings);
    pool["supervision"] = json!({
        "backoff": {"initial": "50ms", "max": "400ms"},
        "breaker": {"failures": 0},
    });
    machine.write_pool(&pool);
    let mut daemon = Daemon::start(&machine, &[]);
    let mut replica = daemon.wait_state("default", "ready");
    assert_eq!(haiku(url(&replica)), crate::expected_haiku());
    for seed in 0..ROUNDS {
        let victim = Victim::of(seed);
        println!("seed {seed}: KILL of the {victim:?} of {}", pid(&replica));
        let client = stream(&replica);
        daemon = kill(victim, daemon, &machine, pid(&replica));
        let before = pid(&replica);
        let survives = matches!(victim, Victim::Daemon);
        replica = daemon.wait_replica("default", "an engine", |it| {
            it["state"] == "ready" && (it["pid"] == before) == survives
        });
        assert_eq!(haiku(url(&replica)), crate::expected_haiku());
        let answer = client.join().unwrap();
        if survives {
            // Who serves does not notice that the daemon went.
            assert_eq!(answer.unwrap().0, 200);
        }
        assert_eq!(machine.handoff()["url"], replica["url"]);
    }
    let _ = daemon.end(Signal::TERM, 0);
    machine.store().assert_sound();
}
