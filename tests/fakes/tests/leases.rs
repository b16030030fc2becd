//! Leases of a manager whose engines are killed all the time: each is given back, and none is lost.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use e2e::{Built, PoolStage, share};
use engine_host::{
    config::{environment::Environment, paths::Home},
    drive::Host,
    narrate::Narrator,
    pool::{Ending, PoolManager, PoolStatus},
    process::{Keeper, KeeperOptions},
};

/// How long engines are killed and leases taken.
const STORM: Duration = Duration::from_secs(10);

/// Those who lease at the same time: more than there are slots.
const CLIENTS: u64 = 8;

const POOLS: [&str; 2] = ["chat", "crash"];

fn manager(stage: &PoolStage) -> PoolManager {
    let machine = &stage.machine;
    let built = Built::debug();
    let environment = Environment::from_pairs([
        ("PATH", std::env::var_os("PATH").unwrap_or_default()),
        ("HOME", machine.root().into()),
        ("HOST_PROVIDER_PATH", built.directory.clone().into()),
    ]);
    let home = Home::at(machine.home());
    let mut host = Host::new(home.clone(), environment, Narrator::silent());
    host.program = built.host();
    host.keeper = Keeper::new(&home, KeeperOptions::program(built.host()));
    PoolManager::builder(host)
        .pools(machine.work().join("pools.yaml"))
        .handoffs(machine.work().join(".runtime/engines"))
        .build()
        .unwrap()
}

/// A number from 0 to 1 that nobody else of this test draws.
fn dice(drawn: &AtomicU64) -> f64 {
    share(drawn.fetch_add(1, Ordering::Relaxed))
}

/// Leases again and again, holds for a while, gives back; how many there were.
async fn client(manager: PoolManager, drawn: Arc<AtomicU64>, end: Instant) -> u64 {
    let mut leased = 0;
    while Instant::now() < end {
        let pool = POOLS[usize::from(dice(&drawn) < 0.3)];
        let lease = manager.lease(pool);
        leased += u64::from(lease.is_ok());
        let held = Duration::from_millis(5).mul_f64(1.0 + 20.0 * dice(&drawn));
        match dice(&drawn) < 0.2 {
            // Who holds it is given up in the middle.
            true => {
                let holding = tokio::spawn(async move {
                    let _lease = lease;
                    std::future::pending::<()>().await;
                });
                tokio::time::sleep(held).await;
                holding.abort();
            }
            false => tokio::time::sleep(held).await,
        }
    }
    leased
}

fn replica(status: &PoolStatus) -> &engine_host::pool::ReplicaStatus {
    &status.replicas[0]
}

/// Kills the engine of one pool or restarts it, and asserts that no more is leased than there is.
async fn storm(manager: &PoolManager, drawn: &AtomicU64, end: Instant) -> u32 {
    let mut killed = 0;
    while Instant::now() < end {
        for status in manager.list() {
            let replica = replica(&status);
            assert!(replica.slots.free <= replica.slots.total, "{replica:#?}");
        }
        let pid = manager.status("chat").unwrap().replicas[0].pid;
        match pid.and_then(rustix::process::Pid::from_raw) {
            Some(pid) if dice(drawn) < 0.8 => {
                let sent = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
                killed += u32::from(sent.is_ok());
            }
            _ => drop(manager.restart("chat").await),
        }
        tokio::time::sleep(Duration::from_millis(400).mul_f64(dice(drawn))).await;
    }
    killed
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn every_lease_is_given_back_whatever_becomes_of_its_engine() {
    let stage = PoolStage::new();
    let crash = stage.pool("crash", &["--exit-after-ms", "700"]);
    stage.machine.write_pools(&[stage.pool("chat", &[]), crash]);
    let manager = manager(&stage);
    manager.up_all().await;
    let (drawn, end) = (Arc::new(AtomicU64::new(0)), Instant::now() + STORM);
    let clients: Vec<_> = (0..CLIENTS)
        .map(|_| tokio::spawn(client(manager.clone(), Arc::clone(&drawn), end)))
        .collect();
    let killed = storm(&manager, &drawn, end).await;
    let mut leased = 0;
    for client in clients {
        leased += client.await.unwrap();
    }
    println!("{leased} leases while {killed} engines were killed");
    assert!(leased > 50 && killed > 3, "{leased} leases, {killed} kills");
    let _ = manager.up("chat").await.unwrap();
    for status in manager.list() {
        assert_eq!(replica(&status).leases, 0, "{status:#?}");
    }
    let chat = manager.status("chat").unwrap();
    assert_eq!(chat.slots.free, chat.slots.total, "{chat:#?}");
    assert!(chat.slots.total > 0 && manager.lease("chat").is_ok());
    manager.shutdown(Ending::Stop).await;
    drop(manager);
    stage.machine.assert_clean();
}
