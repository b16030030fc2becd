//! What is written down about the engines of a home, and which of them run.
//!
//! A record is a hint, never trusted: see [`Instance`]. A start, an adoption and a clean-up hold the
//! instance's lock; the minder of an engine removes its record once the engine is gone, and where the
//! minder was killed, whoever looks next does.

use std::{
    fs,
    path::{Path, PathBuf},
};

use super::{
    EngineError, Instance, Side,
    instance::{SCHEMA, key},
    side,
};
use crate::{
    config::paths::Home,
    store::{StoreError, read_document, try_lock},
};

/// Every engine of this home that lives. Records of dead ones are removed on the way, with their
/// handoffs; those of containers stay until [`super::clear`] has removed what is left of them.
pub fn instances(home: &Home) -> Result<Vec<Instance>, EngineError> {
    crate::process::sweep(home);
    let mut found = Vec::new();
    let entries = match fs::read_dir(directory(home)) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(found),
        Err(source) => return Err(StoreError::io("list", directory(home), source).into()),
    };
    for entry in entries.flatten() {
        let path = entry.path();
        if path.extension().is_none_or(|extension| extension != "json") {
            continue;
        }
        match read(&path) {
            Ok(Some(instance)) if instance.is_alive() => found.push(instance),
            Ok(Some(instance)) => clean_up(home, &instance),
            // Gone meanwhile, or cut short by a power failure: nothing it speaks of runs.
            Ok(None) => {}
            Err(StoreError::Damaged { .. }) => drop(fs::remove_file(&path)),
            Err(error) => return Err(error.into()),
        }
    }
    let name = |it: &Instance| (it.pool_id.clone(), it.replica_id.clone(), it.started_at);
    found.sort_by_key(name);
    Ok(found)
}

/// Dead engines whose containers nobody has removed, by the names of their instances.
pub(super) fn abandoned(home: &Home) -> Vec<(String, Instance)> {
    let entries = fs::read_dir(directory(home))
        .into_iter()
        .flatten()
        .flatten();
    let names = entries.filter_map(|entry| {
        let name = entry.file_name().into_string().ok()?;
        Some(name.strip_suffix(".json")?.to_owned())
    });
    let left = |key: String| {
        let found = recorded(home, &key).ok()??;
        (found.container.is_some() && !found.is_there()).then_some((key, found))
    };
    names.filter_map(left).collect()
}

/// The engine of one instance, if it lives: of two that do, the one whose handoff stands.
pub fn find_running(
    home: &Home,
    handoff_directory: &Path,
    pool: &str,
    replica: &str,
) -> Result<Option<Instance>, EngineError> {
    let mut sides = recorded_sides(home, &key(handoff_directory, pool, replica))?;
    sides.retain(Instance::is_alive);
    let standing = side::standing(&sides).cloned();
    Ok(standing.or_else(|| sides.into_iter().next()))
}

/// What is written down about both sides of an instance.
pub(super) fn recorded_sides(home: &Home, key: &str) -> Result<Vec<Instance>, EngineError> {
    let sides = Side::BOTH.map(|side| recorded(home, &side.key(key)));
    sides.into_iter().filter_map(Result::transpose).collect()
}

/// What is written down about the side of an instance with this name; `None` where nothing is, or nothing that
/// can be read.
pub(super) fn recorded(home: &Home, key: &str) -> Result<Option<Instance>, EngineError> {
    read_or_damaged(&record_path(home, key))
}

fn clean_up(home: &Home, instance: &Instance) {
    // Held by somebody who is starting it: they look themselves.
    let lock = lock_path(home, &instance.instance_key());
    if let Ok(Some(_lock)) = try_lock(&lock, "cleaning up")
        && let Ok(Some(again)) = read(&instance.record(home))
        && !again.is_there()
        && again.container.is_none()
    {
        again.forget(home);
    }
}

/// Lock of an instance, of both its sides.
pub(super) fn lock_path(home: &Home, key: &str) -> PathBuf {
    directory(home).join(format!("{}.lock", side::instance_of(key)))
}

pub(super) fn directory(home: &Home) -> PathBuf {
    home.state().join("instances")
}

pub(super) fn record_path(home: &Home, key: &str) -> PathBuf {
    directory(home).join(format!("{key}.json"))
}

pub(super) fn read(path: &Path) -> Result<Option<Instance>, StoreError> {
    read_document(path, SCHEMA)
}

fn read_or_damaged(path: &Path) -> Result<Option<Instance>, EngineError> {
    match read(path) {
        Err(StoreError::Damaged { .. }) => Ok(None),
        other => Ok(other?),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::collections::BTreeMap;

    use engine_provider_api::{Mode, Stop};
    use jiff::Timestamp;

    use super::*;
    use crate::{
        engine::{Fingerprint, Known, State, instance::boot},
        process::{ChildAddress, ProcessIdentity},
    };

    /// The record of an engine of pool `chat`, replica `r0`.
    pub(crate) fn instance(home: &Path, process: ProcessIdentity) -> Instance {
        Instance {
            pool_id: "chat".to_owned(),
            replica_id: "r0".to_owned(),
            handoff_directory: home.join("engines"),
            handoff: home.join("engines/toy.json"),
            engine: "toy".to_owned(),
            engine_version: "1".to_owned(),
            provisioning_mode: Mode::Binary,
            state: State::Ready,
            process,
            minder: None,
            boot: boot(),
            address: ChildAddress {
                keeper: process,
                child: 1,
            },
            host: process,
            kept: true,
            kept_limit_ms: None,
            side: Side::First,
            url: "http://127.0.0.1:1".to_owned(),
            endpoints: BTreeMap::new(),
            container: None,
            uses: Vec::new(),
            log: home.join("log"),
            started_at: Timestamp::from_second(1_700_000_000).unwrap(),
            command: Fingerprint::default(),
            stop: Stop::default(),
            grace_ms: 1,
            known: Known::default(),
        }
    }

    fn place() -> (tempfile::TempDir, Home) {
        let directory = tempfile::tempdir().unwrap();
        let home = Home::at(directory.path());
        fs::create_dir_all(super::directory(&home)).unwrap();
        fs::create_dir_all(directory.path().join("engines")).unwrap();
        (directory, home)
    }

    #[test]
    fn a_living_engine_is_found_by_all_three_parts_of_its_name() {
        let (root, home) = place();
        let here = root.path().join("engines");
        let own = instance(root.path(), ProcessIdentity::of_this_process());
        own.save(&home).unwrap();
        assert_eq!(instances(&home).unwrap(), std::slice::from_ref(&own));
        assert_eq!(find_running(&home, &here, "chat", "r0").unwrap(), Some(own));
        let elsewhere = root.path().join("other");
        assert_eq!(find_running(&home, &elsewhere, "chat", "r0").unwrap(), None);
        assert_eq!(find_running(&home, &here, "chat", "r1").unwrap(), None);
    }

    #[test]
    fn a_pid_that_was_given_to_somebody_else_is_not_trusted_and_its_handoff_goes() {
        let (root, home) = place();
        let mut process = ProcessIdentity::of_this_process();
        process.start_time_ticks += 1;
        let dead = instance(root.path(), process);
        dead.save(&home).unwrap();
        let handoff = serde_json::json!({
            "engine": "toy", "engine_version": "1", "provisioning_mode": "binary",
            "url": dead.url, "pool_id": "chat", "replica_id": "r0", "model": {"id": "m"},
            "flags": [], "started_at": dead.started_at,
        });
        fs::write(&dead.handoff, handoff.to_string()).unwrap();
        assert_eq!(instances(&home).unwrap(), []);
        assert!(!dead.handoff.exists() && !dead.record(&home).exists());
    }

    #[test]
    fn a_handoff_that_another_has_written_since_stays() {
        let (root, home) = place();
        let mut process = ProcessIdentity::of_this_process();
        process.start_time_ticks += 1;
        let dead = instance(root.path(), process);
        dead.save(&home).unwrap();
        fs::write(&dead.handoff, "{\"url\": \"somebody else's\"}").unwrap();
        assert_eq!(instances(&home).unwrap(), []);
        assert!(dead.handoff.exists());
    }

    #[test]
    fn records_of_another_boot_and_damaged_ones_mean_nothing() {
        let (root, home) = place();
        let mut old = instance(root.path(), ProcessIdentity::of_this_process());
        old.boot = "another".to_owned();
        old.save(&home).unwrap();
        fs::write(super::directory(&home).join("x.json"), "{").unwrap();
        assert_eq!(instances(&home).unwrap(), []);
    }
}
