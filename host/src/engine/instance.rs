//! An engine that runs, as it is written down: one record per side of an instance in
//! `state/instances/`.
//!
//! An instance is (handoff directory, pool, replica). Its record is a hint, never trusted: what it
//! names must be alive with the very start time that was written down, on the same boot.

use std::{
    collections::BTreeMap,
    fs,
    net::SocketAddr,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use engine_provider_api::{Diagnosis, Mode, Probes, Stop};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::{
    Fingerprint, Handoff, Side, asking,
    records::{read, record_path},
};
use crate::{
    config::paths::Home,
    process::{ChildAddress, Farewell, MemoryKills, ProcessIdentity, Removal},
    store::{StoreError, hex},
};

/// Schema of the records that this version writes.
pub(super) const SCHEMA: u32 = 1;

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
    /// Host that started it, or that has adopted it since; nobody once that host has let it go.
    pub host: ProcessIdentity,
    /// Whether it outlives that host.
    pub kept: bool,
    /// How long it then stays without anybody who looks after it, in milliseconds. Absent where it is
    /// kept: until somebody stops it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kept_limit_ms: Option<u64>,
    /// Which of the instance's two places it has.
    #[serde(default, skip_serializing_if = "Side::is_first")]
    pub side: Side,
    /// Where it answers.
    pub url: String,
    /// Where its other ports answer, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub endpoints: BTreeMap<String, String>,
    /// The container it runs in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container: Option<InstanceContainer>,
    /// Results that it was started with, its model among them: they must not be removed while it runs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub uses: Vec<PathBuf>,
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
    /// What only its provider knew: for whoever adopts it. Empty in records of earlier versions.
    #[serde(default)]
    pub known: Known,
}

/// What is known of an engine from its provider and its start, for whoever looks after it later.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Known {
    /// Command as it could be pasted.
    pub command: String,
    /// What its log says when it fails, and what that means.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub diagnoses: Vec<Diagnosis>,
    /// How it is asked.
    pub probes: Probes,
    /// Processes that had been killed for want of memory when it was started.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_kills: Option<MemoryKills>,
    /// What it can be asked for, for example `chat`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub workloads: Vec<String>,
    /// Version of the provider that prepared it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub provider_version: Option<String>,
    /// Its handoff, once it has been ready.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub handoff: Option<Handoff>,
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
    /// The program that it runs, where launch or image name one.
    #[serde(default)]
    pub program: Option<String>,
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

    /// Whether it lives and is there to stay: it has been ready, nobody stops it, and its host lives or
    /// its keeper keeps it. Everything else that lives is on its way out.
    #[must_use]
    pub fn stays(&self) -> bool {
        let held = self.host.is_alive() || (self.kept && self.address.keeper.is_alive());
        self.is_alive() && self.state == State::Ready && held
    }

    /// Whether some host looks after it now: the one that started or adopted it.
    pub(super) fn is_attended(&self) -> bool {
        self.boot == boot() && self.host.is_alive()
    }

    /// Whether the handoff that is there speaks of it.
    #[must_use]
    pub fn is_handed_off(&self) -> bool {
        removal(&self.handoff, &self.url, self.started_at).applies()
    }

    /// Name of its instance in file names, whichever side it is on.
    pub(super) fn instance_key(&self) -> String {
        key(&self.handoff_directory, &self.pool_id, &self.replica_id)
    }

    /// Address of one of its other ports.
    pub(super) fn endpoint(&self, name: &str) -> Option<SocketAddr> {
        asking::address_of(self.endpoints.get(name)?)
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
        record_path(home, &self.side.key(&self.instance_key()))
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

    /// Writes down that nobody looks after it any more, where this process did.
    pub(super) fn mark_left(&self, home: &Home) {
        if let Ok(Some(mut record)) = read(&self.record(home))
            && record.process == self.process
            && record.host == ProcessIdentity::of_this_process()
        {
            record.host = ProcessIdentity::NOBODY;
            // Without it, it cannot be adopted before this process ends.
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

/// Name of an instance in file names.
pub(super) fn key(handoff_directory: &Path, pool: &str, replica: &str) -> String {
    use std::os::unix::ffi::OsStrExt;
    let digest = Sha256::digest(handoff_directory.as_os_str().as_bytes());
    format!("{pool}-{replica}-{}", &hex(&digest)[..8])
}

/// Identity of the machine's current boot.
pub(crate) fn boot() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id")
        .unwrap_or_default()
        .trim()
        .to_owned()
}
