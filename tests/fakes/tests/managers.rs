//! Promises of the pool manager to a program that embeds it: several in one process, and futures that
//! nobody waits for to the end.

use std::{
    fs,
    future::Future,
    path::{Path, PathBuf},
    time::Duration,
};

use e2e::{Built, FileServer, Machine, sha256};
use engine_host::{
    config::{environment::Environment, paths::Home},
    drive::Host,
    fault::Fault as _,
    narrate::Narrator,
    pool::{ConfigChanges, Ending, PoolError, PoolManager, PoolStatus, Want},
    process::{Keeper, KeeperOptions},
};
use serde_json::{Value, json};
use tokio::sync::broadcast::error::RecvError;

/// Longest time anything here may take.
const LIMIT: Duration = Duration::from_secs(60);

const GIB: u64 = 1 << 30;

/// A home in which managers of this process run fake engines.
struct Place {
    machine: Machine,
    _server: FileServer,
    binary: Value,
    environment: Environment,
}

impl Place {
    fn new() -> Self {
        let built = &Built::debug().directory;
        let program = fs::read(built.join("fake-engine")).unwrap();
        let checksum = format!("sha256:{}", sha256(&program));
        let server = FileServer::start(program);
        let machine = Machine::new();
        let path = std::env::var_os("PATH").unwrap_or_default();
        let environment = Environment::from_pairs([("PATH", path)])
            .with("HOME", machine.root())
            .with("HOST_PROVIDER_PATH", built);
        Self {
            binary: json!({"url": server.url("fake-engine"), "checksum": checksum}),
            _server: server,
            machine,
            environment,
        }
    }

    /// Gives it two cards of 24 GiB, half of them free, by a driver's library that is a fake one.
    fn with_cards(mut self) -> Self {
        let library = e2e::fake_driver(self.machine.root());
        let directory = library.parent().expect("it lies in one of its own");
        self.environment = self.environment.with("LD_LIBRARY_PATH", directory);
        self
    }

    fn pool(&self, id: &str, flags: &[&str]) -> Value {
        json!({
            "id": id,
            "engine": "fixture",
            "gpu": "forbid",
            "supervision": {"liveness": {"interval": "100ms"}, "drain_deadline": "60s"},
            "provisioning": {
                "mode": "binary",
                "allow_binary_downloads": true,
                "binary": self.binary,
                "flags": flags,
            },
        })
    }

    /// A pool that takes so much of a GPU.
    fn on_gpu(&self, id: &str, vram_bytes: u64) -> Value {
        let mut pool = self.pool(id, &["--print-line", "sees device 0"]);
        pool["gpu"] = json!("require");
        pool["options"] = json!({"vram_bytes": vram_bytes});
        pool
    }

    fn write(&self, name: &str, pools: &[Value]) -> PathBuf {
        self.machine
            .write(name, &json!({ "pools": pools }).to_string())
    }

    /// A manager of its own for these pools. Its helpers are the built program: this one is a test.
    fn manager(&self, file: &str, pools: &[Value]) -> PoolManager {
        let home = Home::at(self.machine.home());
        let program = Built::debug().host();
        let host = Host {
            keeper: Keeper::new(&home, KeeperOptions::program(&program)),
            program,
            ..Host::new(home, self.environment.clone(), Narrator::silent())
        };
        PoolManager::builder(host)
            .pools(self.write(file, pools))
            .handoffs(self.machine.work().join(".runtime/engines"))
            .build()
            .unwrap()
    }

    /// Ends these managers, and asserts that nothing is left of what any of this home has started.
    async fn end(self, managers: impl IntoIterator<Item = PoolManager>) {
        for manager in managers {
            let ending = manager.shutdown(Ending::Stop);
            tokio::time::timeout(LIMIT, ending).await.expect("it ends");
            // Its keeper ends with the last handle.
            drop(manager);
        }
        tokio::task::spawn_blocking(move || self.machine.assert_clean())
            .await
            .unwrap();
    }
}

/// Waits until the status of a pool satisfies a condition, and gives it.
async fn until(
    manager: &PoolManager,
    pool: &str,
    what: &str,
    holds: impl Fn(&PoolStatus) -> bool,
) -> PoolStatus {
    let mut changes = manager.subscribe();
    let looking = async {
        loop {
            match manager.status(pool) {
                Ok(status) if holds(&status) => return status,
                _ => {}
            }
            // Whatever it was: the status is looked at.
            let _ = changes.recv().await;
        }
    };
    match tokio::time::timeout(LIMIT, looking).await {
        Ok(status) => status,
        Err(_) => panic!("no {what}: {:#?}", manager.status(pool)),
    }
}

/// Begins something and lets it fall as soon as something else has come about.
async fn given_up<T>(work: impl Future<Output = T>, when: impl Future) {
    tokio::select! {
        biased;
        _ = work => panic!("it was done before it could be given up"),
        _ = when => {}
    }
}

fn pid(status: &PoolStatus) -> i32 {
    status.replicas[0].pid.expect("an engine")
}

fn is_gone(pid: i32) -> bool {
    !Path::new(&format!("/proc/{pid}")).exists()
}

fn mask(status: &PoolStatus) -> &[String] {
    &status.replicas[0].device_mask
}

#[tokio::test(flavor = "multi_thread")]
async fn managers_of_one_process_keep_their_own_pools_and_end_alone() {
    let place = Place::new();
    let one = place.manager("one.yaml", &[place.pool("chat", &[])]);
    let other = place.manager("other.yaml", &[place.pool("code", &[])]);
    let (chat, code) = tokio::join!(one.up("chat"), other.up("code"));
    let (chat, code) = (chat.unwrap(), code.unwrap());
    assert_ne!(chat.replicas[0].url, code.replicas[0].url);
    assert!(matches!(
        one.lease("code"),
        Err(PoolError::NoSuchPool { pools, .. }) if pools == ["chat"]
    ));
    assert_eq!(place.machine.handoffs().len(), 2);
    one.shutdown(Ending::Stop).await;
    assert!(is_gone(pid(&chat)));
    let lease = other.lease("code").unwrap();
    assert_eq!(Some(lease.url()), code.replicas[0].url.as_deref());
    drop(lease);
    assert_eq!(pid(&other.status("code").unwrap()), pid(&code));
    assert!(matches!(
        one.up("chat").await,
        Err(PoolError::NoSuchPool { .. })
    ));
    place.end([one, other]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn managers_of_one_process_do_not_promise_the_same_device_memory() {
    let place = Place::new().with_cards();
    let pools = |names: &[&str]| -> Vec<Value> {
        let pool = |name: &&str| place.on_gpu(name, 10 * GIB);
        names.iter().map(pool).collect()
    };
    let one = place.manager("one.yaml", &pools(&["chat", "draw"]));
    let other = place.manager("other.yaml", &pools(&["code", "hear", "talk"]));
    let (chat, code) = tokio::join!(one.up("chat"), other.up("code"));
    let (chat, code) = (chat.unwrap(), code.unwrap());
    assert_eq!((mask(&chat).len(), mask(&code).len()), (1, 1));
    assert_ne!(
        mask(&chat),
        mask(&code),
        "both start, with room for one on each"
    );
    let (draw, hear) = tokio::join!(one.up("draw"), other.up("hear"));
    assert_ne!(mask(&draw.unwrap()), mask(&hear.unwrap()));
    // The driver says that 12 GiB are free of each card; of 24 that there are 20 are promised.
    match other.up("talk").await {
        Err(PoolError::NotUp { source, .. }) => assert_eq!(source.kind(), "no-device-memory"),
        other => panic!("{other:?}"),
    }
    one.down("chat").await.unwrap();
    let talk = other.up("talk").await.unwrap();
    assert_eq!(mask(&talk), mask(&chat));
    place.end([one, other]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_that_nobody_waits_for_goes_on() {
    let place = Place::new();
    let loaded = place.machine.root().join("loaded");
    let flags = ["--load-until", loaded.to_str().unwrap()];
    let manager = place.manager("pools.yaml", &[place.pool("chat", &flags)]);
    let starts = until(&manager, "chat", "engine that loads", |it| {
        it.replicas.iter().any(|it| it.state.as_str() == "starting")
    });
    given_up(manager.up("chat"), starts).await;
    fs::write(&loaded, "").unwrap();
    let ready = until(&manager, "chat", "ready pool", |it| it.health.ready).await;
    // Asked for again there is nothing to do.
    assert_eq!(pid(&manager.up("chat").await.unwrap()), pid(&ready));
    assert_eq!(place.machine.handoffs().len(), 1);
    place.end([manager]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reload_that_nobody_waits_for_goes_on() {
    let place = Place::new();
    let manager = place.manager("pools.yaml", &[place.pool("chat", &[])]);
    let old = pid(&manager.up("chat").await.unwrap());
    let loaded = place.machine.root().join("loaded");
    let flags = ["--load-until", loaded.to_str().unwrap()];
    place.write("pools.yaml", &[place.pool("chat", &flags)]);
    let loads = async {
        let is_new = |it: &e2e::Process| it.command.contains("--load-until");
        while !place.machine.processes().iter().any(is_new) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let loads = async {
        let loads = tokio::time::timeout(LIMIT, loads).await;
        loads.expect("it loads");
    };
    given_up(manager.reload("chat"), loads).await;
    fs::write(&loaded, "").unwrap();
    let new = until(&manager, "chat", "another engine", |it| {
        it.health.ready && it.replicas[0].pid != Some(old)
    });
    let new = pid(&new.await);
    assert_eq!(pid(&manager.reload("chat").await.unwrap()), new);
    assert!(is_gone(old));
    assert_eq!(place.machine.handoffs().len(), 1);
    place.end([manager]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drain_that_nobody_waits_for_goes_on_and_the_pool_comes_up_again() {
    let place = Place::new();
    let manager = place.manager("pools.yaml", &[place.pool("chat", &[])]);
    let old = pid(&manager.up("chat").await.unwrap());
    let lease = manager.lease("chat").unwrap();
    let drains = until(&manager, "chat", "draining pool", |it| {
        it.want == Want::Draining
    });
    given_up(manager.drain("chat", None), drains).await;
    assert!(matches!(
        manager.lease("chat"),
        Err(PoolError::Draining { .. })
    ));
    assert!(!is_gone(old), "a lease is held");
    let up = tokio::spawn({
        let manager = manager.clone();
        async move { manager.up("chat").await }
    });
    drop(lease);
    let status = tokio::time::timeout(LIMIT, up).await.expect("it comes up");
    let status = status.unwrap().unwrap();
    assert!(status.health.ready && status.leases == 0, "{status:#?}");
    assert!(is_gone(old) && pid(&status) != old);
    place.end([manager]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pool_file_is_applied_to_its_end_though_nobody_waits() {
    let place = Place::new();
    let first = [place.pool("chat", &[]), place.pool("code", &[])];
    let manager = place.manager("pools.yaml", &first);
    manager.up_all().await;
    let kept = pid(&manager.status("chat").unwrap());
    // What it holds up is the first thing that applying waits for.
    let lease = manager.lease("code").unwrap();
    place.write(
        "pools.yaml",
        &[place.pool("chat", &[]), place.pool("draw", &[])],
    );
    let drains = until(&manager, "code", "draining pool", |it| {
        it.want == Want::Draining
    });
    given_up(manager.reload_config(), drains).await;
    // Who comes second finds nothing left to do.
    let again = tokio::spawn({
        let manager = manager.clone();
        async move { manager.reload_config().await }
    });
    drop(lease);
    let again = tokio::time::timeout(LIMIT, again)
        .await
        .expect("it is applied");
    assert_eq!(again.unwrap().unwrap(), ConfigChanges::default());
    until(&manager, "draw", "ready pool", |it| it.health.ready).await;
    let names: Vec<String> = manager.list().into_iter().map(|it| it.pool_id).collect();
    assert_eq!(names, ["chat", "draw"]);
    assert_eq!(pid(&manager.status("chat").unwrap()), kept);
    place.end([manager]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_manager_that_ends_while_a_pool_file_is_applied_starts_nothing_more() {
    let place = Place::new();
    let manager = place.manager("pools.yaml", &[place.pool("code", &[])]);
    manager.up_all().await;
    let lease = manager.lease("code").unwrap();
    place.write("pools.yaml", &[place.pool("draw", &[])]);
    let drains = until(&manager, "code", "draining pool", |it| {
        it.want == Want::Draining
    });
    given_up(manager.reload_config(), drains).await;
    let ending = tokio::spawn({
        let manager = manager.clone();
        async move { manager.shutdown(Ending::Stop).await }
    });
    drop(lease);
    let ended = tokio::time::timeout(LIMIT, ending).await;
    ended.expect("it ends").unwrap();
    place.end([manager]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_is_too_slow_for_the_changes_sees_how_many_are_missing() {
    let place = Place::new();
    let manager = place.manager("pools.yaml", &[place.pool("chat", &[])]);
    let mut changes = manager.subscribe();
    manager.up("chat").await.unwrap();
    let seen = changes.recv().await.unwrap().sequence;
    // Somebody else's engine, handed over again and again.
    let handoff = json!({"url": "http://127.0.0.1:1"});
    let registry = manager.registry();
    let (missed, next) = loop {
        registry
            .register_ready_from_handoff("far", &handoff)
            .unwrap();
        if changes.len() < 2_000 {
            continue;
        }
        match changes.recv().await {
            Err(RecvError::Lagged(missed)) => break (missed, changes.recv().await.unwrap()),
            other => panic!("{other:?}"),
        }
    };
    assert!(missed > 0);
    assert_eq!(next.sequence, seen + missed + 1);
    // What it missed is in the status.
    assert!(manager.status("chat").unwrap().health.ready);
    assert!(manager.status("far").unwrap().health.ready);
    place.end([manager]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_last_word_counts_and_a_nearer_deadline_hurries_a_drain() {
    let place = Place::new();
    let manager = place.manager("pools.yaml", &[place.pool("chat", &[])]);
    let engine = pid(&manager.up("chat").await.unwrap());
    let lease = manager.lease("chat").unwrap();
    let drain = tokio::spawn({
        let manager = manager.clone();
        // Longer than the test may take.
        async move { manager.drain("chat", Some(LIMIT * 10)).await }
    });
    let drains = |it: &PoolStatus| it.want == Want::Draining;
    until(&manager, "chat", "draining pool", drains).await;
    // What was asked stays asked.
    given_up(manager.up("chat"), std::future::ready(())).await;
    let down = tokio::time::timeout(LIMIT, manager.down("chat")).await;
    let status = down.expect("it does not wait for the lease").unwrap();
    assert!(drain.await.unwrap().is_ok() && is_gone(engine));
    assert_eq!(status.want, Want::Down, "{status:#?}");
    assert!(!status.health.live, "{status:#?}");
    drop(lease);
    place.end([manager]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pool_file_that_changes_again_during_a_reload_is_what_runs_in_the_end() {
    let place = Place::new();
    let manager = place.manager("pools.yaml", &[place.pool("chat", &[])]);
    manager.up("chat").await.unwrap();
    let runs = |part: &str| {
        let all = place.machine.processes();
        all.into_iter().find(|it| it.command.contains(part))
    };
    place.write("pools.yaml", &[place.pool("chat", &["--load-ms", "700"])]);
    let first = tokio::spawn({
        let manager = manager.clone();
        async move { manager.reload_config().await }
    });
    let loads = async {
        while runs("--load-ms 700").is_none() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(LIMIT, loads).await.expect("it loads");
    place.write("pools.yaml", &[place.pool("chat", &["--load-ms", "1"])]);
    let changes = manager.reload_config().await.unwrap();
    assert_eq!(changes.changed, ["chat"]);
    first.await.unwrap().unwrap();
    let running = pid(&manager.status("chat").unwrap());
    let newest = runs("--load-ms 1 ").or_else(|| runs("--load-ms 1"));
    assert_eq!(newest.map(|it| it.pid.cast_signed()), Some(running));
    place.end([manager]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_asks_for_a_pool_all_the_time_does_not_hide_that_it_hangs() {
    let place = Place::new();
    let mut pool = place.pool("chat", &[]);
    pool["supervision"]["liveness"] =
        json!({"interval": "200ms", "timeout": "100ms", "failures": 3});
    let manager = place.manager("pools.yaml", &[pool]);
    let status = manager.up("chat").await.unwrap();
    let url = status.replicas[0].url.clone().expect("it is ready");
    // Answered by nobody: the connection ends with the engine.
    let hangs = tokio::task::spawn_blocking(move || e2e::http_get(&format!("{url}/fail/hang")));
    let asking = async {
        loop {
            let _ = manager.up("chat").await;
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let hung = |it: &PoolStatus| it.replicas[0].restarts_by.contains_key("liveness");
    tokio::select! {
        () = asking => {}
        _ = until(&manager, "chat", "engine that was killed for hanging", hung) => {}
    }
    assert!(hangs.await.unwrap().is_err(), "it answers all the same");
    place.end([manager]).await;
}
