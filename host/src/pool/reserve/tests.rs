//! Promises of reservations, on recorded machines and with real processes.

use std::{fs, path::Path, process::Child};

use engine_provider_api::{Device, Gpu, GpuPolicy, GpuStatus, Mode};

use super::*;
use crate::fault::{Exit, Fault as _};

const GIB: u64 = 1 << 30;

/// A machine that was recorded.
fn machine(name: &str) -> Facts {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/facts");
    let text = fs::read_to_string(directory.join(format!("{name}.json"))).unwrap();
    serde_json::from_str(&text).unwrap()
}

/// A machine with GPUs of these sizes, all free.
fn machine_of(sizes: &[u64]) -> Facts {
    let mut facts = Facts::default();
    facts.gpus.status = GpuStatus::Present;
    facts.gpus.devices = sizes
        .iter()
        .zip(0..)
        .map(|(gib, index)| Gpu {
            index,
            uuid: format!("GPU-{index}"),
            vendor: "nvidia".to_owned(),
            memory_total_bytes: gib * GIB,
            memory_free_bytes: gib * GIB,
            ..Gpu::default()
        })
        .collect();
    facts
}

fn pool(replicas: u32) -> Pool {
    Pool {
        replicas,
        ..Pool::new("chat", "llamacpp")
    }
}

fn want(pool: &Pool, gib: u64) -> Placement<'_> {
    Placement {
        pool,
        replica: "r0",
        need: Need::Bytes(gib * GIB),
        memory_bytes: 0,
    }
}

/// A home with two hosts, which know nothing of each other but the file.
fn two_hosts() -> (tempfile::TempDir, Reservations, Reservations) {
    let directory = tempfile::tempdir().unwrap();
    let home = Home::at(directory.path());
    let (one, other) = (Reservations::of(&home), Reservations::of(&home));
    (directory, one, other)
}

/// GPUs by the end of their ids, with whole GiB, rounded up.
fn shown(reserved: &Reserved) -> Vec<(String, u64)> {
    let shown = |share: &Share| {
        let id = share.uuid.strip_prefix("GPU-").unwrap_or(&share.uuid);
        (id[..id.len().min(8)].to_owned(), share.bytes.div_ceil(GIB))
    };
    reserved.shares().iter().map(shown).collect()
}

fn on(ids: &[(&str, u64)]) -> Vec<(String, u64)> {
    let own = |(id, gib): &(&str, u64)| ((*id).to_owned(), *gib);
    ids.iter().map(own).collect()
}

/// A process that does nothing until it is killed.
fn sleeper() -> (Child, ProcessIdentity) {
    #[expect(
        clippy::disallowed_methods,
        reason = "an owner that can be killed, without a keeper"
    )]
    let child = std::process::Command::new("sleep")
        .arg("600")
        .spawn()
        .unwrap();
    let identity = ProcessIdentity::of(i32::try_from(child.id()).unwrap()).unwrap();
    (child, identity)
}

fn kill(mut child: Child) {
    child.kill().unwrap();
    child.wait().unwrap();
}

#[tokio::test]
async fn replicas_spread_over_the_gpus_and_share_them_when_there_are_more() {
    let (_home, host, _) = two_hosts();
    let facts = machine("two-gpus");
    let pool = pool(4);
    let mut kept = Vec::new();
    for expected in ["11111111", "66666666", "11111111", "66666666"] {
        let reserved = host.place(&want(&pool, 20), &facts).await.unwrap();
        assert_eq!(shown(&reserved), on(&[(expected, 20)]));
        kept.push(reserved);
    }
    let error = host.place(&want(&pool, 20), &facts).await.unwrap_err();
    assert_eq!(
        (error.exit(), error.kind()),
        (Exit::Unavailable, "no-device-memory")
    );
    assert_eq!(
        error.to_string(),
        "no GPU has room for replica r0 of pool chat, which takes 20.0 GiB"
    );
    let details: Vec<String> = error.details().into_iter().map(|it| it.text).collect();
    insta::assert_snapshot!(details.join("\n"), @"
    GPU 0 (NVIDIA RTX A6000, GPU-11111111-2222-3333-4444-555555555555): room for 7.5 GiB of 48.0 GiB; free by its driver 47.5 GiB, 40.0 GiB reserved for 2 engines
    GPU 1 (NVIDIA L40S, GPU-66666666-7777-8888-9999-aaaaaaaaaaaa): room for 4.4 GiB of 45.0 GiB; free by its driver 44.4 GiB, 40.0 GiB reserved for 2 engines
    ");
    kept.remove(1).release().await.unwrap();
    let again = host.place(&want(&pool, 20), &facts).await.unwrap();
    assert_eq!(shown(&again), on(&[("66666666", 20)]));
}

#[tokio::test]
async fn two_hosts_respect_each_other() {
    let (_home, one, other) = two_hosts();
    let facts = machine_of(&[24]);
    let pool = pool(1);
    let first = one.place(&want(&pool, 16), &facts).await.unwrap();
    assert!(!other.fits(&want(&pool, 16), &facts).await.unwrap());
    other.place(&want(&pool, 16), &facts).await.unwrap_err();
    assert!(other.fits(&want(&pool, 8), &facts).await.unwrap());
    drop(first);
    let second = other.place(&want(&pool, 16), &facts).await.unwrap();
    assert_eq!(one.list().await.unwrap().len(), 1);
    assert_eq!(second.bytes(), 16 * GIB);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn of_many_that_ask_at_once_only_as_many_get_a_place_as_fit() {
    let (_home, one, other) = two_hosts();
    let facts = machine_of(&[24, 24]);
    let pool = pool(16);
    let ask = |host: Reservations| {
        let (facts, pool) = (facts.clone(), pool.clone());
        tokio::spawn(async move { host.place(&want(&pool, 10), &facts).await.ok() })
    };
    let asked = (0..16).map(|number| ask([&one, &other][number % 2].clone()));
    let answers = futures_util::future::join_all(asked).await;
    let placed: Vec<Reserved> = answers.into_iter().filter_map(|it| it.unwrap()).collect();
    assert_eq!(placed.len(), 4);
    let on_first = placed.iter().filter(|it| shown(it)[0].0 == "0").count();
    assert_eq!(on_first, 2);
    drop(placed);
    // Given back, though somebody may have held the lock just then.
    other.list().await.unwrap();
    assert_eq!(one.list().await.unwrap(), []);
}

#[tokio::test]
async fn what_an_engine_has_taken_is_not_taken_off_twice() {
    let (_home, host, other) = two_hosts();
    let mut facts = machine_of(&[24]);
    let pool = pool(2);
    let mut first = host.place(&want(&pool, 10), &facts).await.unwrap();
    // It loads: the driver already misses some, and the rest is still to come.
    facts.gpus.devices[0].memory_free_bytes = 20 * GIB;
    assert!(other.fits(&want(&pool, 10), &facts).await.unwrap());
    assert!(!other.fits(&want(&pool, 11), &facts).await.unwrap());
    let (child, engine) = sleeper();
    first.transfer_to(engine).await.unwrap();
    // It is ready: what is free by the driver is free.
    facts.gpus.devices[0].memory_free_bytes = 14 * GIB;
    assert!(other.fits(&want(&pool, 14), &facts).await.unwrap());
    // Somebody who is in no file has taken some.
    facts.gpus.devices[0].memory_free_bytes = 3 * GIB;
    assert!(!other.fits(&want(&pool, 4), &facts).await.unwrap());
    // Figures from before it had loaded promise nothing twice.
    facts.gpus.devices[0].memory_free_bytes = 24 * GIB;
    assert!(!other.fits(&want(&pool, 15), &facts).await.unwrap());
    kill(child);
}

#[tokio::test]
async fn a_reservation_ends_with_its_engine_however_that_ends() {
    let (_home, host, other) = two_hosts();
    let facts = machine_of(&[24]);
    let pool = pool(1);
    let mut reserved = host.place(&want(&pool, 20), &facts).await.unwrap();
    let (child, engine) = sleeper();
    reserved.transfer_to(engine).await.unwrap();
    assert_eq!(other.list().await.unwrap()[0].owner, engine);
    kill(child);
    assert_eq!(other.list().await.unwrap(), []);
    let second = other.place(&want(&pool, 20), &facts).await.unwrap();
    // The guard of the dead one takes nothing from anybody.
    drop(reserved);
    assert_eq!(host.list().await.unwrap().len(), 1);
    drop(second);
}

#[tokio::test]
async fn a_namesake_of_a_dead_owner_and_another_boot_mean_nothing() {
    let (home, host, _) = two_hosts();
    let facts = machine_of(&[24]);
    let pool = pool(1);
    let document = home.path().join("state/devices.json");
    let reserved = host.place(&want(&pool, 20), &facts).await.unwrap();
    let written: serde_json::Value = serde_json::from_slice(&fs::read(&document).unwrap()).unwrap();
    drop(reserved);
    let ticks = "/reservations/0/owner/start_time_ticks";
    for (at, value) in [(ticks, 1.into()), ("/boot", "another".into())] {
        let mut changed = written.clone();
        *changed.pointer_mut(at).unwrap() = value;
        fs::write(&document, changed.to_string()).unwrap();
        assert_eq!(host.list().await.unwrap(), [], "{at}");
    }
    fs::write(&document, written.to_string()).unwrap();
    assert_eq!(host.list().await.unwrap().len(), 1, "this process lives");
}

#[tokio::test]
async fn a_file_that_was_lost_or_damaged_is_written_anew_with_what_is_held() {
    let (home, host, other) = two_hosts();
    let facts = machine_of(&[24]);
    let pool = pool(1);
    let document = home.path().join("state/devices.json");
    let held = host.place(&want(&pool, 20), &facts).await.unwrap();
    fs::write(&document, "{\"schema\": 1, ").unwrap();
    assert_eq!(host.list().await.unwrap().len(), 1);
    fs::remove_dir_all(home.path().join("state")).unwrap();
    assert_eq!(host.list().await.unwrap().len(), 1);
    other.place(&want(&pool, 20), &facts).await.unwrap_err();
    drop(held);
    assert_eq!(other.list().await.unwrap(), []);
}

#[tokio::test]
async fn a_newer_file_is_neither_read_nor_rewritten() {
    let (home, host, _) = two_hosts();
    fs::create_dir_all(home.path().join("state")).unwrap();
    let document = home.path().join("state/devices.json");
    fs::write(&document, "{\"schema\": 2}").unwrap();
    let pool = pool(1);
    let error = host.place(&want(&pool, 1), &machine_of(&[24])).await;
    assert_eq!(error.unwrap_err().to_string(), "GPUs cannot be reserved");
    assert_eq!(fs::read_to_string(&document).unwrap(), "{\"schema\": 2}");
}

#[tokio::test]
async fn an_engine_that_outlives_its_host_keeps_its_place_and_is_adopted() {
    let (_home, host, next) = two_hosts();
    let facts = machine_of(&[24]);
    let pool = pool(1);
    let (child, engine) = sleeper();
    let mut reserved = host.place(&want(&pool, 20), &facts).await.unwrap();
    reserved.transfer_to(engine).await.unwrap();
    reserved.leave();
    assert!(!next.fits(&want(&pool, 20), &facts).await.unwrap());
    let adopted = next.adopt("chat", "r0", engine, Vec::new()).await.unwrap();
    assert_eq!(shown(&adopted), on(&[("0", 20)]));
    adopted.release().await.unwrap();
    // The state was lost: what the handoff says is written down.
    let share = Share {
        uuid: "GPU-0".to_owned(),
        bytes: 6 * GIB,
    };
    let adopted = next.adopt("chat", "r0", engine, vec![share]).await.unwrap();
    assert_eq!(host.list().await.unwrap()[0].devices, adopted.shares());
    kill(child);
}

#[tokio::test]
async fn the_place_of_an_engine_that_was_left_is_taken_over_by_the_next_host_alone() {
    let (_home, host, next) = two_hosts();
    let mut facts = machine_of(&[24, 24]);
    let mut pool = pool(1);
    let (child, engine) = sleeper();
    let mut reserved = host.place(&want(&pool, 20), &facts).await.unwrap();
    reserved.transfer_to(engine).await.unwrap();
    facts.gpus.devices[0].memory_free_bytes = 4 * GIB;
    // While its host looks after it, another place is another engine's.
    let other = next.place(&want(&pool, 20), &facts).await.unwrap();
    assert_eq!(shown(&other), on(&[("1", 20)]));
    other.release().await.unwrap();
    reserved.leave();
    let mut taken = next.place(&want(&pool, 20), &facts).await.unwrap();
    assert_eq!(shown(&taken), on(&[("0", 20)]));
    // What its engine has taken of the GPU is its own.
    taken.settle(&want(&pool, 22), &facts).await.unwrap();
    taken.settle(&want(&pool, 25), &facts).await.unwrap_err();
    let other = host.place(&want(&pool, 20), &facts).await.unwrap();
    assert_eq!(shown(&other), on(&[("1", 20)]), "it was taken over");
    drop(other);
    taken.transfer_to(engine).await.unwrap();
    taken.leave();
    // The pool was moved meanwhile.
    pool.devices = vec![Device::Index(1)];
    let moved = host.place(&want(&pool, 20), &facts).await.unwrap();
    assert_eq!(shown(&moved), on(&[("1", 20)]));
    kill(child);
}

#[tokio::test]
async fn a_large_model_gets_the_fewest_gpus_that_hold_it() {
    let (_home, host, _) = two_hosts();
    let facts = machine_of(&[24, 24, 24, 8]);
    let pool = pool(1);
    let place = async |gib| {
        let reserved = host.place(&want(&pool, gib), &facts).await.unwrap();
        shown(&reserved)
    };
    assert_eq!(place(24).await, on(&[("0", 24)]));
    assert_eq!(place(25).await, on(&[("0", 13), ("1", 13)]));
    assert_eq!(place(72).await, on(&[("0", 24), ("1", 24), ("2", 24)]));
    // In proportion, where equal shares do not fit.
    assert_eq!(
        place(80).await,
        on(&[("0", 24), ("1", 24), ("2", 24), ("3", 8)])
    );
    host.place(&want(&pool, 81), &facts).await.unwrap_err();
}

#[tokio::test]
async fn what_the_pool_says_of_gpus_is_kept_to() {
    let (_home, host, _) = two_hosts();
    let facts = machine_of(&[24, 24, 24]);
    let mut pool = pool(1);
    pool.devices = vec![Device::Index(2), Device::Uuid("GPU-0".to_owned())];
    let all = host.place(&want(&pool, 2), &facts).await.unwrap();
    assert_eq!(shown(&all), on(&[("2", 1), ("0", 1)]));
    drop(all);
    pool.tensor_split = vec![3.0, 1.0];
    let split = host.place(&want(&pool, 20), &facts).await.unwrap();
    assert_eq!(shown(&split), on(&[("2", 15), ("0", 5)]));
    drop(split);
    host.place(&want(&pool, 33), &facts).await.unwrap_err();
    pool.tensor_split.clear();
    pool.replicas = 2;
    let one = host.place(&want(&pool, 2), &facts).await.unwrap();
    let other = host.place(&want(&pool, 2), &facts).await.unwrap();
    assert_eq!(
        (shown(&one), shown(&other)),
        (on(&[("2", 2)]), on(&[("0", 2)]))
    );
    pool.devices = vec![Device::Index(7)];
    let error = host.place(&want(&pool, 2), &facts).await.unwrap_err();
    assert_eq!(error.exit(), Exit::Config);
    assert_eq!(
        error.to_string(),
        "pool chat names the GPU `7`, which is not there"
    );
}

#[tokio::test]
async fn a_replica_gets_one_mig_slice_and_never_two() {
    let (_home, host, _) = two_hosts();
    let facts = machine("podman-mig");
    let pool = pool(2);
    let slices: Vec<&str> = facts
        .gpus
        .devices
        .iter()
        .map(|it| it.uuid.as_str())
        .collect();
    let large = host.place(&want(&pool, 60), &facts).await.unwrap();
    assert_eq!(large.devices(), [Device::Uuid(slices[0].to_owned())]);
    let small = host.place(&want(&pool, 10), &facts).await.unwrap();
    assert_eq!(small.devices(), [Device::Uuid(slices[1].to_owned())]);
    drop((large, small));
    host.place(&want(&pool, 80), &facts).await.unwrap_err();
}

#[tokio::test]
async fn without_gpus_nothing_is_reserved_and_main_memory_must_do() {
    let (home, host, _) = two_hosts();
    let mut pool = pool(1);
    let cpu = machine("debian-cpu");
    for (policy, facts) in [
        (GpuPolicy::Forbid, machine("two-gpus")),
        (GpuPolicy::Prefer, cpu.clone()),
        (GpuPolicy::Prefer, machine("driver-broken")),
    ] {
        pool.gpu = policy;
        let reserved = host.place(&want(&pool, 20), &facts).await.unwrap();
        assert_eq!(reserved.devices(), Vec::new());
        reserved.release().await.unwrap();
    }
    let greedy = Placement {
        memory_bytes: 64 * GIB,
        ..want(&pool, 20)
    };
    let error = host.place(&greedy, &cpu).await.unwrap_err();
    assert_eq!(
        (error.exit(), error.kind()),
        (Exit::Unavailable, "no-memory")
    );
    insta::assert_snapshot!(error, @"replica r0 of pool chat takes 64.0 GiB of main memory, and 23.4 GiB are available");
    assert!(!host.fits(&greedy, &cpu).await.unwrap());
    let mut unknown = cpu.clone();
    unknown.memory.available_bytes = 0;
    host.place(&greedy, &unknown).await.unwrap();
    pool.gpu = GpuPolicy::Require;
    let error = host.place(&want(&pool, 20), &cpu).await.unwrap_err();
    assert_eq!(error.kind(), "no-gpu");
    pool.provisioning.mode = Some(Mode::External);
    host.place(&want(&pool, 20), &cpu).await.unwrap();
    assert!(!home.path().join("state/devices.json").exists());
}

#[tokio::test]
async fn main_memory_is_promised_to_those_that_start_until_they_are_ready() {
    let (home, host, other) = two_hosts();
    let mut pool = pool(3);
    pool.gpu = GpuPolicy::Forbid;
    let takes = |gib: u64| Placement {
        memory_bytes: gib * GIB,
        ..want(&pool, 0)
    };
    let with = |gib: u64| {
        let mut facts = Facts::default();
        facts.memory.available_bytes = gib * GIB;
        facts
    };
    let mut one = host.place(&takes(40), &with(100)).await.unwrap();
    let mut two = other.place(&takes(40), &with(100)).await.unwrap();
    let error = host.place(&takes(40), &with(100)).await.unwrap_err();
    insta::assert_snapshot!(error, @"replica r0 of pool chat takes 40.0 GiB of main memory, and 100.0 GiB are available, 80.0 GiB of them promised to engines that are starting");
    assert!(!host.fits(&takes(40), &with(100)).await.unwrap());
    // What one has loaded of its share is not taken off twice.
    let three = host.place(&takes(20), &with(70)).await.unwrap();
    host.place(&takes(1), &with(70)).await.unwrap_err();
    three.release().await.unwrap();
    other.place(&takes(20), &with(70)).await.unwrap();

    // What one of them leaves without having become ready is there again.
    let fails = host.place(&takes(10), &with(70)).await.unwrap();
    let loads = host.place(&takes(10), &with(70)).await.unwrap();
    drop(fails);
    drop(host.place(&takes(10), &with(70)).await.unwrap());
    drop(loads);

    let (child, engine) = sleeper();
    one.transfer_to(engine).await.unwrap();
    host.place(&takes(21), &with(60)).await.unwrap_err();
    two.transfer_to(engine).await.unwrap();
    assert_eq!(host.list().await.unwrap(), []);
    drop(other.place(&takes(60), &with(60)).await.unwrap());
    kill(child);

    // One whose host was killed promises nothing any more.
    let path = home.path().join("state/devices.json");
    let four = host.place(&takes(60), &with(60)).await.unwrap();
    let (child, owner) = sleeper();
    let mut book = Book::read(&path).unwrap();
    book.reservations[0].owner = owner;
    drop(four);
    book.write(&path).unwrap();
    other.place(&takes(60), &with(60)).await.unwrap_err();
    kill(child);
    other.place(&takes(60), &with(60)).await.unwrap();
}

#[tokio::test]
async fn replicas_that_take_most_of_what_they_get_each_get_their_share() {
    let (_home, host, _) = two_hosts();
    let facts = machine_of(&[24, 24]);
    let pool = pool(2);
    // Nine tenths of both, as long as it was prepared for both.
    let of_all = want(&pool, 43);
    let mut placed = Vec::new();
    for gpu in ["0", "1"] {
        assert!(!host.fits(&of_all, &facts).await.unwrap());
        let mut reserved = host.place(&of_all, &facts).await.unwrap();
        assert_eq!(shown(&reserved), on(&[(gpu, 0)]));
        // Prepared for one.
        reserved.settle(&want(&pool, 21), &facts).await.unwrap();
        assert_eq!(shown(&reserved), on(&[(gpu, 21)]));
        placed.push(reserved);
    }
    let mut third = host.place(&of_all, &facts).await.unwrap();
    let error = third.settle(&want(&pool, 21), &facts).await.unwrap_err();
    assert_eq!(error.kind(), "no-device-memory");
    // One that would fit an empty GPU is refused at once.
    host.place(&want(&pool, 21), &facts).await.unwrap_err();
}

#[tokio::test]
async fn a_need_that_is_not_known_yet_gets_its_share_and_is_settled_later() {
    let (_home, host, other) = two_hosts();
    let facts = machine_of(&[24, 24, 24, 24]);
    let pool = pool(2);
    let unknown = Placement {
        need: Need::Unknown,
        ..want(&pool, 0)
    };
    let mut one = host.place(&unknown, &facts).await.unwrap();
    let two = host.place(&unknown, &facts).await.unwrap();
    assert_eq!(shown(&one), on(&[("0", 0), ("1", 0)]));
    assert_eq!(shown(&two), on(&[("2", 0), ("3", 0)]));
    one.settle(&want(&pool, 40), &facts).await.unwrap();
    assert_eq!(shown(&one), on(&[("0", 20), ("1", 20)]));
    let held = &other.list().await.unwrap()[0];
    assert_eq!(held.devices, one.shares());
    let error = one.settle(&want(&pool, 50), &facts).await.unwrap_err();
    assert_eq!(error.kind(), "no-device-memory");
    assert_eq!(one.bytes(), 40 * GIB, "what was reserved stays so");
    one.settle(&want(&pool, 0), &facts).await.unwrap();
    assert_eq!(other.list().await.unwrap().len(), 1);
}
