//! What it costs to keep 200 engines up that nobody uses, and to ask how they are.

use std::{
    fs,
    time::{Duration, Instant},
};

use e2e::{
    Built, FileServer, Machine, Pairs, Running, free_port, pace, processor_time, resident_bytes,
    succeeds, timed, wait_for,
};
use rustix::process::Signal;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

/// Pools, of one replica each.
const POOLS: usize = 200;

/// Most bytes that daemon and keeper occupy together.
const MEMORY_LIMIT: u64 = 60_000_000;

/// Most bytes that the keeper's copy for each engine occupies.
const MINDER_LIMIT: u64 = 250_000;

/// Longest time until what bringing them up has taken is given back.
const REST_LIMIT: Duration = Duration::from_secs(15);

/// How long nobody asks for anything: several rounds of asking every engine whether it lives, each of
/// five seconds.
const IDLE: Duration = Duration::from_secs(20);

/// Most processor time that is used meanwhile, in percent of one processor.
const PROCESSOR_LIMIT: f64 = 1.0;

/// How often it is looked how much that is, at most.
const LOOKS: u32 = 8;

/// Longest `host status` may take beyond one of a daemon that has no engine, in milliseconds.
const STATUS_LIMIT: f64 = 20.0;

/// A machine with a daemon of the release build.
struct Stage {
    machine: Machine,
    daemon: Running,
    _server: Option<FileServer>,
}

impl Stage {
    fn serve(machine: Machine, server: Option<FileServer>) -> Self {
        let providers = machine.fixture_provider();
        let format = ["--log-format", "json"];
        let mut arguments = vec!["serve", "--listen", "none", "--provider-path", &providers];
        arguments.extend(format);
        let mut daemon = machine.start(machine.command(&arguments));
        daemon.wait_said("serves on ");
        Self {
            machine,
            daemon,
            _server: server,
        }
    }

    /// Every pool runs the fake engine, each at a port of its own.
    fn of_many() -> Self {
        let program = fs::read(Built::debug().directory.join("fake-engine")).unwrap();
        let digest: String = Sha256::digest(&program)
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        let server = FileServer::start(program);
        let pools: Vec<Value> = (0..POOLS)
            .map(|number| {
                json!({
                    "id": format!("pool-{number:03}"),
                    "engine": "fixture",
                    "gpu": "forbid",
                    "provisioning": {
                        "mode": "binary",
                        "allow_binary_downloads": true,
                        "binary": {
                            "url": server.url("fake-engine"),
                            "checksum": format!("sha256:{digest}"),
                        },
                        "ports": [free_port()],
                    },
                })
            })
            .collect();
        let machine = Machine::with(Built::release());
        machine.write_pools(&pools);
        Self::serve(machine, Some(server))
    }

    /// One pool, which does not run.
    fn of_none() -> Self {
        let machine = Machine::with(Built::release());
        machine.write_pool(&json!({"id": "none", "engine": "fixture", "preload": false}));
        Self::serve(machine, None)
    }

    /// The daemon, its keeper, and the keeper's minders.
    fn own_processes(&self) -> Vec<u32> {
        let all = self.machine.processes();
        let children = |parent: u32| all.iter().filter(move |one| one.parent == parent);
        let keeper = children(self.daemon.pid())
            .find(|one| one.command.starts_with("host keeper"))
            .expect("a daemon with engines has a keeper");
        let minders = children(keeper.pid).map(|one| one.pid);
        let own: Vec<u32> = [self.daemon.pid(), keeper.pid]
            .into_iter()
            .chain(minders)
            .collect();
        assert_eq!(own.len(), 2 + POOLS, "{own:?}");
        own
    }

    fn status(&self) -> Duration {
        timed(|| succeeds(self.machine.command(&["status"])))
    }

    fn end(self) {
        let _ = self.daemon.end(Signal::TERM).code(0);
        self.machine.assert_clean();
    }
}

#[test]
fn two_hundred_pools_that_wait_cost_next_to_nothing() {
    let stage = Stage::of_many();
    let up = timed(|| succeeds(stage.machine.command(&["up"])));
    println!(
        "measured: bringing {POOLS} pools up takes {:.1} s",
        up.as_secs_f64()
    );
    let own = stage.own_processes();
    let (together, minders) = own.split_at(2);
    wait_for(
        "memory to be given back",
        REST_LIMIT,
        || match resident_bytes(together) {
            bytes if bytes <= MEMORY_LIMIT => Ok(()),
            bytes => Err(format!("{bytes} bytes")),
        },
    );
    assert_idle(&own);
    let (bytes, each) = (
        resident_bytes(together),
        resident_bytes(minders) / POOLS as u64,
    );
    println!(
        "measured: daemon and keeper of {POOLS} pools are {:.1} MiB resident, limit 60 MB; each minder {} KiB, limit 250 kB",
        bytes as f64 / f64::from(1 << 20),
        each / 1024,
    );
    assert!(bytes <= MEMORY_LIMIT, "{bytes} bytes");
    assert!(each <= MINDER_LIMIT, "{each} bytes for each engine");
    let none = Stage::of_none();
    Pairs::assert_at_most(
        "`host status` of 200 engines against none",
        STATUS_LIMIT,
        31,
        || stage.status(),
        || none.status(),
    );
    none.end();
    stage.end();
}

/// Uses next to no processor time while nobody asks for anything. What else the machine does only adds to it:
/// one of a few looks has to find that little, at the pace of the machine just then.
fn assert_idle(own: &[u32]) {
    let used = || own.iter().map(|pid| processor_time(*pid)).sum::<Duration>();
    let is_little = |_| {
        let (before, start) = (used(), Instant::now());
        std::thread::sleep(IDLE);
        let percent = (used() - before).as_secs_f64() / start.elapsed().as_secs_f64() * 100.0;
        let pace = pace();
        let limit = PROCESSOR_LIMIT * pace;
        println!(
            "measured: {POOLS} idle pools take {percent:.2} % of a processor, \
             limit {limit:.2} % ({PROCESSOR_LIMIT} % at pace {pace:.2})"
        );
        percent <= limit
    };
    assert!((0..LOOKS).any(is_little), "more than that each time");
}
