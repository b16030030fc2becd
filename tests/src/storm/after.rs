//! What has to be true after a storm.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    time::Duration,
};

use serde_json::Value;

use super::pools::{Member, Standing};
use crate::{
    Containers, Daemon, Machine, Process, RUN_LIMIT, children_of, http_get, own_resident_bytes,
    wait_for,
};

/// Longest time until nothing is left of what was ended.
const ORPHAN_LIMIT: Duration = Duration::from_secs(30);

/// Longest time until a lease is over that nobody renews.
const LEASE_LIMIT: Duration = Duration::from_secs(60);

/// What a daemon takes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Footprint {
    pid: u32,
    resident: u64,
    descriptors: usize,
    threads: usize,
}

impl Footprint {
    pub(super) fn of(daemon: &Daemon<'_>) -> Self {
        let pid = daemon.running.pid();
        let count = |what: &str| fs::read_dir(format!("/proc/{pid}/{what}")).unwrap().count();
        Self {
            pid,
            // Not what is shared divided: how many share the code is others' matter, and changes all the time.
            resident: own_resident_bytes(pid),
            descriptors: count("fd"),
            threads: count("task"),
        }
    }
}

/// Asserts that a daemon took no more at the end than before.
#[track_caller]
pub(super) fn assert_flat(before: Footprint, after: Footprint, most: u64) {
    let grown = after.resident.saturating_sub(before.resident);
    println!(
        "measured: the daemon is {:.1} MiB resident after the storm, {:+.1} MiB since a little after its half, limit {:+} MiB",
        mebibytes(after.resident),
        mebibytes(after.resident) - mebibytes(before.resident),
        most >> 20
    );
    assert_eq!(before.pid, after.pid, "it is the same daemon");
    assert!(grown <= most, "{before:?}, then {after:?}");
    // A few connections come and go.
    assert!(
        after.descriptors <= before.descriptors + 16,
        "{before:?}, then {after:?}"
    );
    assert!(
        after.threads <= before.threads + 8,
        "{before:?}, then {after:?}"
    );
}

fn mebibytes(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

/// Asserts that no pool is lost: each one that can be ready is so again, and each one that falls is
/// started again and again.
#[track_caller]
pub(super) fn assert_recovers(daemon: &Daemon<'_>, members: &[Member]) {
    let mut seen: BTreeMap<String, BTreeSet<u64>> = BTreeMap::new();
    let starts = |member: &Member, seen: &BTreeSet<u64>| match member.standing {
        Standing::Stays => !seen.is_empty(),
        Standing::Falls | Standing::Never => seen.len() >= 2,
    };
    wait_for("every pool to be well again", RUN_LIMIT, || {
        let list = daemon.get("/v1/pools");
        for pool in list["pools"].as_array().unwrap() {
            let replica = &pool["replicas"][0];
            let id = pool["pool_id"].as_str().unwrap().to_owned();
            let member = members
                .iter()
                .find(|it| it.id == id)
                .expect("it is one of ours");
            let mark = match member.standing {
                Standing::Never => replica["restarts"].as_u64(),
                _ if replica["state"] == "ready" => replica["pid"].as_u64(),
                _ => None,
            };
            seen.entry(id).or_default().extend(mark);
        }
        let missing = |it: &&Member| !seen.get(&it.id).is_some_and(|seen| starts(it, seen));
        let lost: Vec<&str> = members.iter().filter(missing).map(|it| &*it.id).collect();
        match lost.is_empty() {
            true => Ok(()),
            false => Err(of_pools(&list, &lost)),
        }
    });
}

/// Asserts that nothing is leased once nobody leases anything: each lease was given back, has expired, or
/// went with its engine, and its slot is free.
#[track_caller]
pub(super) fn assert_nothing_is_leased(daemon: &Daemon<'_>, ids: &[String]) {
    wait_for("every slot to be free", LEASE_LIMIT, || {
        let mut pools = daemon.get("/v1/pools")["pools"].as_array().unwrap().clone();
        pools.retain(|pool| {
            let slots = &pool["slots"];
            pool["leases"] != 0 || slots["free"].as_u64() != slots["total"].as_u64()
        });
        if pools.is_empty() { Ok(()) } else { Err(pools) }
    });
    for id in ids {
        let held = daemon.get(&format!("/v1/pools/{id}/leases"));
        assert_eq!(held["leases"].as_array().map(Vec::len), Some(0), "{held:#}");
    }
}

/// What a daemon says of these pools.
fn of_pools(list: &Value, ids: &[&str]) -> Vec<Value> {
    let mut pools = list["pools"].as_array().unwrap().clone();
    pools.retain(|pool| ids.iter().any(|id| pool["pool_id"] == *id));
    pools
}

/// Asserts that every engine that runs is one that the daemon knows, and every handoff is right.
#[track_caller]
pub(super) fn assert_all_is_known(machine: &Machine, daemon: &Daemon<'_>, members: &[Member]) {
    let stays = members
        .iter()
        .filter(|it| it.standing == Standing::Stays)
        .count();
    // Of an engine that was stopped at last it is still to be found out that it hangs.
    wait_for("every handoff to answer", RUN_LIMIT, || {
        let mut urls: Vec<String> = machine.handoffs().iter().map(|path| url_in(path)).collect();
        urls.retain(|url| !matches!(http_get(&format!("{url}/health")), Ok((200, _))));
        if urls.is_empty() { Ok(()) } else { Err(urls) }
    });
    wait_for("what runs to be what is known", ORPHAN_LIMIT, || {
        let list = daemon.get("/v1/pools");
        let pools = list["pools"].as_array().unwrap();
        let ready: BTreeMap<u32, String> = pools
            .iter()
            .map(|pool| &pool["replicas"][0])
            .filter(|replica| replica["state"] == "ready")
            .map(|replica| {
                assert_eq!(replica["leases"], 0, "{replica:#}");
                let pid = u32::try_from(replica["pid"].as_u64().unwrap()).unwrap();
                (pid, replica["url"].as_str().unwrap().to_owned())
            })
            .collect();
        let mut running = machine.processes();
        running.retain(|it| it.pid != daemon.running.pid());
        let strangers = strangers(&running, &ready.keys().copied().collect());
        let handed: BTreeSet<String> = machine.handoffs().iter().map(|path| url_in(path)).collect();
        let known: BTreeSet<String> = ready.values().cloned().collect();
        if ready.len() == stays && strangers.is_empty() && handed == known {
            Ok(())
        } else {
            Err((ready, strangers, handed))
        }
    });
}

fn url_in(path: &std::path::Path) -> String {
    let text = fs::read(path).unwrap_or_default();
    let handoff: Value = serde_json::from_slice(&text).unwrap_or_default();
    handoff["url"]
        .as_str()
        .unwrap_or("half a handoff")
        .to_owned()
}

/// Processes of engines whose minder has none of these: one minder has one engine.
fn strangers(all: &[Process], engines: &BTreeSet<u32>) -> Vec<Process> {
    let parent_of = |pid: u32| all.iter().find(|it| it.pid == pid).map(|it| it.parent);
    let minders: BTreeSet<u32> = engines.iter().filter_map(|pid| parent_of(*pid)).collect();
    let is_known = |process: &Process| {
        let mut at = process.pid;
        while let Some(parent) = parent_of(at) {
            if minders.contains(&parent) {
                return true;
            }
            at = parent;
        }
        false
    };
    let mut engines: Vec<Process> = all.to_vec();
    engines.retain(|it| !it.command.starts_with("host ") && !is_known(it));
    engines
}

/// Asserts that none of our processes has a child that nobody reaps. An engine's own children, which the
/// storm kills too, are its own matter: the fake one reaps none.
#[track_caller]
pub(super) fn assert_no_zombie(machine: &Machine) {
    wait_for("no zombie to be left", ORPHAN_LIMIT, || {
        let mut parents = machine.processes();
        parents.retain(|it| !it.command.contains("fake-engine "));
        let children = parents.iter().flat_map(|it| children_of(it.pid));
        let zombies: Vec<Process> = children.filter(|it| it.state == 'Z').collect();
        if zombies.is_empty() {
            Ok(())
        } else {
            Err(zombies)
        }
    });
}

/// Asserts that nothing is left once the daemon has ended.
#[track_caller]
pub(super) fn assert_nothing_is_left(machine: &Machine, containers: &Containers) {
    let label = format!("engine-host.home={}", machine.home().display());
    wait_for("every container to be removed", ORPHAN_LIMIT, || {
        let mut left = containers.labelled(&label);
        left.extend(containers.half_made());
        if left.is_empty() { Ok(()) } else { Err(left) }
    });
    // A storm kills podman itself while it sets up or removes a network, of which it then forgets what it
    // had made. That nothing is left where only ours are killed is asserted in the group `containers`.
    let forgotten = containers.network_left();
    if !forgotten.is_empty() {
        println!("killed in the middle, podman has forgotten {forgotten:?}");
    }
    machine.assert_clean();
    machine.store().assert_sound();
    for kept in ["state/instances", "state/keepers"] {
        let path = machine.home().join(kept);
        let mut files = machine.files_below(&path);
        files.retain(|name| !name.ends_with(".lock"));
        assert_eq!(files, Vec::<String>::new(), "left in {}", path.display());
    }
}
