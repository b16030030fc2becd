//! Leases of a manager whose engines are killed all the time: each is given back, and none is lost.

use std::{
    collections::HashSet,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use e2e::{Built, PoolStage, share};
use engine_host::{
    config::{environment::Environment, paths::Home},
    drive::Host,
    narrate::Narrator,
    pool::{Ending, PoolManager, PoolStatus},
    process::{Keeper, KeeperOptions, ProcessIdentity},
};
use fakes::until;
use rustix::process::Signal;

/// How long engines are killed and leases taken, at least.
const STORM: Duration = Duration::from_secs(10);

/// How long at most: a slow machine may take it until there were enough of both.
const STORM_LIMIT: Duration = Duration::from_secs(120);

/// Leases there have to be more of, and engines that were killed: fewer prove little.
const ENOUGH: (u64, usize) = (50, 3);

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

/// What those who lease and whoever kills share.
#[derive(Default)]
struct Storm {
    drawn: AtomicU64,
    leased: AtomicU64,
    over: AtomicBool,
}

impl Storm {
    /// A number from 0 to 1 that nobody else of this test draws.
    fn dice(&self) -> f64 {
        share(self.drawn.fetch_add(1, Ordering::Relaxed))
    }

    fn leased(&self) -> u64 {
        self.leased.load(Ordering::SeqCst)
    }

    /// Whether so many killed engines, and the leases that there were, prove something.
    fn was_enough(&self, killed: usize) -> bool {
        self.leased() > ENOUGH.0 && killed > ENOUGH.1
    }
}

/// Leases again and again, holds for a while, gives back.
async fn client(manager: PoolManager, storm: Arc<Storm>) {
    while !storm.over.load(Ordering::SeqCst) {
        let pool = POOLS[usize::from(storm.dice() < 0.3)];
        let lease = manager.lease(pool);
        let count = u64::from(lease.is_ok());
        storm.leased.fetch_add(count, Ordering::SeqCst);
        let held = Duration::from_millis(5).mul_f64(1.0 + 20.0 * storm.dice());
        match storm.dice() < 0.2 {
            // Who holds it is given up in the middle.
            true => {
                let holding = tokio::spawn(async move {
                    let _lease = lease;
                    std::future::pending::<()>().await;
                });
                tokio::time::sleep(held).await;
                holding.abort();
                // What it holds is given back once it has ended, not before.
                let _ = holding.await;
            }
            false => tokio::time::sleep(held).await,
        }
    }
}

fn replica(status: &PoolStatus) -> &engine_host::pool::ReplicaStatus {
    &status.replicas[0]
}

/// Kills the engine of one pool or restarts it, again and again, and asserts that no more is leased than there
/// is; which engines were killed.
async fn strike(manager: &PoolManager, storm: &Storm) -> HashSet<ProcessIdentity> {
    let (start, mut killed) = (Instant::now(), HashSet::new());
    while start.elapsed() < STORM
        || (start.elapsed() < STORM_LIMIT && !storm.was_enough(killed.len()))
    {
        for status in manager.list() {
            let replica = replica(&status);
            assert!(replica.slots.free <= replica.slots.total, "{replica:#?}");
        }
        match manager.status("chat").unwrap().replicas[0].pid {
            Some(pid) if storm.dice() < 0.8 => {
                if let Some(process) = ProcessIdentity::of(pid)
                    && process.signal(Signal::KILL).unwrap()
                {
                    killed.insert(process);
                }
            }
            _ => drop(manager.restart("chat").await),
        }
        tokio::time::sleep(Duration::from_millis(400).mul_f64(storm.dice())).await;
    }
    killed
}

/// Waits until a pool serves with an engine that was not killed: of the last one that was, the manager may not
/// have noticed it yet.
async fn serves(manager: &PoolManager, pool: &str, killed: &HashSet<ProcessIdentity>) {
    until("an engine that lives", || {
        let status = manager.status(pool).unwrap();
        let replica = replica(&status);
        let process = replica.pid.and_then(ProcessIdentity::of);
        let lives = process.is_some_and(|it| it.is_alive() && !killed.contains(&it));
        match replica.health.ready && lives {
            true => Ok(()),
            false => Err(format!("{status:#?}")),
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn every_lease_is_given_back_whatever_becomes_of_its_engine() {
    let stage = PoolStage::new();
    let crash = stage.pool("crash", &["--exit-after-ms", "700"]);
    stage.machine.write_pools(&[stage.pool("chat", &[]), crash]);
    let manager = manager(&stage);
    manager.up_all().await;
    let storm = Arc::new(Storm::default());
    let clients: Vec<_> = (0..CLIENTS)
        .map(|_| tokio::spawn(client(manager.clone(), Arc::clone(&storm))))
        .collect();
    let killed = strike(&manager, &storm).await;
    storm.over.store(true, Ordering::SeqCst);
    for client in clients {
        client.await.unwrap();
    }
    let told = format!(
        "{} leases while {} engines were killed",
        storm.leased(),
        killed.len()
    );
    println!("{told}");
    assert!(storm.was_enough(killed.len()), "{told}");
    serves(&manager, "chat", &killed).await;
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
