//! What runs: one record per instance in `state/instances/`.
//!
//! An instance is (handoff directory, pool, replica). Its record is a hint, never trusted: what it
//! names must be alive with the very start time that was written down, on the same boot. A start
//! and a clean-up hold the instance's lock; the minder of the engine removes the record once the
//! engine is gone, and where the minder was killed, whoever looks next does.

use std::{
    collections::BTreeMap,
    fs,
    net::SocketAddr,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use engine_provider_api::{Mode, Stop};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::{EngineError, Fingerprint, stop};
use crate::{
    config::paths::Home,
    process::{ChildAddress, Farewell, ProcessIdentity, Removal},
    store::{StoreError, hex, read_document, try_lock},
};

/// Schema of the records that this version writes.
const SCHEMA: u32 = 1;

/// An engine that runs, or that is starting.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Instance {
    /// Pool.
    pub pool_id: String,
    /// Replica of the pool.
    pub replica_id: String,
    /// Directory of the handoff; part of what makes an instance this one.
    pub handoff_directory: PathBuf,
    /// The handoff, while it is ready.
    pub handoff: PathBuf,
    /// Engine family.
    pub engine: String,
    /// What was provisioned.
    pub engine_version: String,
    /// How it came onto the machine.
    pub provisioning_mode: Mode,
    /// How far it is.
    pub state: State,
    /// Its first process.
    pub process: ProcessIdentity,
    /// The process that watches over it and cleans up behind it.
    pub minder: Option<ProcessIdentity>,
    /// Boot of the machine that the process ids belong to.
    pub boot: String,
    /// Where its keeper is reached.
    pub address: ChildAddress,
    /// Host that started it.
    pub host: ProcessIdentity,
    /// Whether it outlives that host.
    pub kept: bool,
    /// Where it answers.
    pub url: String,
    /// Where its other ports answer, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub endpoints: BTreeMap<String, String>,
    /// The container it runs in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container: Option<InstanceContainer>,
    /// Its log.
    pub log: PathBuf,
    /// When it was started.
    pub started_at: Timestamp,
    /// What it was started with.
    pub command: Fingerprint,
    /// How it is drained and ended.
    pub stop: Stop,
    /// Time between TERM and KILL, in milliseconds.
    pub grace_ms: u64,
}

/// The container of an engine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct InstanceContainer {
    /// `podman` or `docker`.
    pub runtime: String,
    /// Its name there.
    pub name: String,
    /// Image by digest.
    pub image: String,
    /// How it is removed where its minder could not.
    pub farewell: Farewell,
}

/// How far an engine is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// It loads.
    Starting,
    /// It has been ready.
    Ready,
    /// It is being drained and ended.
    Stopping,
}

impl State {
    /// The word shown to people.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Ready => "ready",
            Self::Stopping => "stopping",
        }
    }
}

impl Instance {
    /// Whether the engine itself lives.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        self.boot == boot() && self.process.is_alive()
    }

    /// Whether it lives and is there to stay: it has been ready, nobody stops it, and it is kept or
    /// its host lives. Everything else that lives is on its way out.
    #[must_use]
    pub fn stays(&self) -> bool {
        self.is_alive() && self.state == State::Ready && (self.kept || self.host.is_alive())
    }

    /// Address of one of its other ports.
    pub(super) fn endpoint(&self, name: &str) -> Option<SocketAddr> {
        stop::address_of(self.endpoints.get(name)?)
    }

    /// Whether it was started by somebody else.
    pub(super) fn is_external(&self) -> bool {
        self.provisioning_mode == Mode::External
    }

    /// Whether anything of it is left: the engine itself, or whoever cleans up behind it.
    pub(super) fn is_there(&self) -> bool {
        self.is_alive() || self.is_watched()
    }

    /// Whether somebody still cleans up behind it.
    pub(super) fn is_watched(&self) -> bool {
        self.boot == boot() && self.minder.is_some_and(ProcessIdentity::is_alive)
    }

    /// Path of its record.
    pub(super) fn record(&self, home: &Home) -> PathBuf {
        let key = key(&self.handoff_directory, &self.pool_id, &self.replica_id);
        record_path(home, &key)
    }

    /// Writes the record. Not synced: after a power failure nothing it speaks of runs any more.
    pub(super) fn save(&self, home: &Home) -> Result<(), StoreError> {
        let path = self.record(home);
        if let Err(error @ StoreError::Newer { .. }) = read(&path) {
            return Err(error);
        }
        let failed = |source| StoreError::io("write", &path, source);
        let mut value = serde_json::to_value(self).expect("a record is plain data");
        value["schema"] = SCHEMA.into();
        // One name: what a killed host has left here is overwritten by the next one.
        let beside = path.with_extension("partial");
        let mut text = serde_json::to_vec_pretty(&value).expect("a record is plain data");
        text.push(b'\n');
        fs::write(&beside, text)
            .and_then(|()| fs::set_permissions(&beside, fs::Permissions::from_mode(0o640)))
            .and_then(|()| fs::rename(&beside, &path))
            .map_err(failed)
    }

    /// Writes down that it is being stopped, where its record is still there: from now on a start
    /// waits for its end instead of taking it for one that stays.
    pub(super) fn mark_stopping(&self, home: &Home) {
        if let Ok(Some(mut record)) = read(&self.record(home))
            && record.process == self.process
        {
            record.state = State::Stopping;
            // Without it a start finds the engine gone a moment later than it could.
            let _ = record.save(home);
        }
    }

    /// Whether its record is still there: nobody has removed what it has left.
    pub(super) fn is_recorded(&self, home: &Home) -> bool {
        matches!(read(&self.record(home)), Ok(Some(record)) if record.process == self.process)
    }

    /// Takes its handoff away, where it is still this engine's.
    pub(super) fn withdraw(&self) {
        removal(&self.handoff, &self.url, self.started_at).carry_out();
    }

    /// Removes what a dead engine has left: its handoff and its record, where they are this engine's.
    pub(super) fn forget(&self, home: &Home) {
        self.withdraw();
        let record = self.record(home);
        let _ = fs::remove_file(record.with_extension("partial"));
        removal(&record, &self.url, self.started_at).carry_out();
    }
}

/// The removal of a document that speaks of the engine at this URL, started then: a handoff or a
/// record. Another engine's in its place stays.
pub(super) fn removal(path: &Path, url: &str, started_at: Timestamp) -> Removal {
    let started_at = serde_json::to_value(started_at).expect("a time is plain data");
    Removal {
        path: path.to_owned(),
        says: [("url", url.into()), ("started_at", started_at)]
            .map(|(name, value): (&str, serde_json::Value)| (name.to_owned(), value))
            .into(),
    }
}

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
    found.sort_by(|a, b| (&a.pool_id, &a.replica_id).cmp(&(&b.pool_id, &b.replica_id)));
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

/// The engine of one instance, if it lives.
pub fn find_running(
    home: &Home,
    handoff_directory: &Path,
    pool: &str,
    replica: &str,
) -> Result<Option<Instance>, EngineError> {
    let found = recorded(home, &key(handoff_directory, pool, replica))?;
    Ok(found.filter(Instance::is_alive))
}

/// What is written down about the instance with this name; `None` where nothing is, or nothing that
/// can be read.
pub(super) fn recorded(home: &Home, key: &str) -> Result<Option<Instance>, EngineError> {
    read_or_damaged(&record_path(home, key))
}

fn clean_up(home: &Home, instance: &Instance) {
    let key = key(
        &instance.handoff_directory,
        &instance.pool_id,
        &instance.replica_id,
    );
    // Held by somebody who is starting it: they look themselves.
    if let Ok(Some(_lock)) = try_lock(&lock_path(home, &key), "cleaning up")
        && let Ok(Some(again)) = read(&record_path(home, &key))
        && !again.is_there()
        && again.container.is_none()
    {
        again.forget(home);
    }
}

/// Name of an instance in file names.
pub(super) fn key(handoff_directory: &Path, pool: &str, replica: &str) -> String {
    use std::os::unix::ffi::OsStrExt;
    let digest = Sha256::digest(handoff_directory.as_os_str().as_bytes());
    format!("{pool}-{replica}-{}", &hex(&digest)[..8])
}

pub(super) fn lock_path(home: &Home, key: &str) -> PathBuf {
    directory(home).join(format!("{key}.lock"))
}

fn directory(home: &Home) -> PathBuf {
    home.state().join("instances")
}

pub(super) fn record_path(home: &Home, key: &str) -> PathBuf {
    directory(home).join(format!("{key}.json"))
}

fn read(path: &Path) -> Result<Option<Instance>, StoreError> {
    read_document(path, SCHEMA)
}

fn read_or_damaged(path: &Path) -> Result<Option<Instance>, EngineError> {
    match read(path) {
        Err(StoreError::Damaged { .. }) => Ok(None),
        other => Ok(other?),
    }
}

/// Identity of the machine's current boot.
pub(super) fn boot() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id")
        .unwrap_or_default()
        .trim()
        .to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn instance(home: &Path, process: ProcessIdentity) -> Instance {
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
            url: "http://127.0.0.1:1".to_owned(),
            endpoints: BTreeMap::new(),
            container: None,
            log: home.join("log"),
            started_at: Timestamp::from_second(1_700_000_000).unwrap(),
            command: Fingerprint::default(),
            stop: Stop::default(),
            grace_ms: 1,
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
