//! The handoff: how an orchestrator learns of a ready engine.
//!
//! It is written after the engine is ready and removed when it is stopped, however that happens:
//! readers may take its existence for "there is an engine here", and must still probe it. It is
//! made beside, synced and renamed, in a directory that is opened without following other people's
//! links ([`super::place`]), so that a reader never sees half of it and nobody can lead the host to
//! write elsewhere.

mod watch;

use std::{
    collections::BTreeMap,
    fs::File,
    io::{self, Write},
    os::fd::OwnedFd,
    path::Path,
};

use engine_provider_api::{Mode, PreparedEngine};
use jiff::Timestamp;
use rustix::fs::{AtFlags, FileType, Mode as Bits, OFlags};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    EngineError, Instance,
    place::{self, Missing},
};

pub use watch::{Binding, HandoffEvent, Watch, WatchSettings, watch, watch_with};

/// Schema of the handoffs that this version writes.
pub const HANDOFF_SCHEMA: u32 = 1;

/// Directory used when none is named, below the working directory.
pub const DEFAULT_DIRECTORY: &str = ".runtime/engines";

/// A ready engine, for an orchestrator.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Handoff {
    /// Engine family.
    pub engine: String,
    /// What was provisioned.
    pub engine_version: String,
    /// How it came onto the machine.
    pub provisioning_mode: Mode,
    /// Where it answers.
    pub url: String,
    /// Pool.
    pub pool_id: String,
    /// Replica of the pool.
    pub replica_id: String,
    /// The model it serves.
    pub model: HandoffModel,
    /// Normalised engine flags.
    pub flags: Vec<String>,
    /// Schema of this document; absent in documents of other writers.
    #[serde(default)]
    pub schema: u32,
    /// What the running engine says it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_version: Option<String>,
    /// Where its other ports answer, by name, for example `grpc`; absent where it has none.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub endpoints: BTreeMap<String, String>,
    /// GPUs it may see, as driver ids.
    #[serde(default)]
    pub device_mask: Vec<String>,
    /// Requests it serves at the same time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slots_total: Option<u32>,
    /// Protocol it speaks, for example `openai`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dialect: Option<String>,
    /// When it was started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub started_at: Option<Timestamp>,
}

/// The model of a handoff.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct HandoffModel {
    /// Public name.
    pub id: String,
    /// Absolute path, where it has one.
    #[serde(default)]
    pub path: Option<String>,
    /// Digest of the file, where it is known, for example `sha256:744c…`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
}

impl Handoff {
    /// The handoff of an engine that is ready.
    pub(super) fn of(
        prepared: &PreparedEngine,
        instance: &Instance,
        observed_version: Option<String>,
    ) -> Self {
        Self {
            engine: prepared.engine.clone(),
            engine_version: prepared.engine_version.clone(),
            provisioning_mode: prepared.provisioning_mode,
            url: instance.url.clone(),
            pool_id: instance.pool_id.clone(),
            replica_id: instance.replica_id.clone(),
            model: HandoffModel {
                id: prepared.model.id.clone(),
                path: prepared.model.path.clone(),
                digest: prepared.model.digest.clone(),
            },
            flags: prepared.flags.clone(),
            schema: HANDOFF_SCHEMA,
            observed_version,
            endpoints: instance.endpoints.clone(),
            device_mask: prepared.device_mask.clone(),
            slots_total: Some(prepared.slots_total),
            dialect: Some(prepared.dialect.clone()),
            started_at: Some(instance.started_at),
        }
    }
}

/// File name of a handoff: `<engine>.json` for pool `default`, replica `r0`. Each name must be an id:
/// an engine's comes from its provider, which must not choose where the host writes.
pub fn file_name(engine: &str, pool: &str, replica: &str) -> Result<String, EngineError> {
    if let Some(name) = [engine, pool, replica]
        .into_iter()
        .find(|name| !is_id(name))
    {
        return Err(EngineError::Name {
            name: name.to_owned(),
        });
    }
    Ok(if pool == "default" && replica == "r0" {
        format!("{engine}.json")
    } else {
        format!("{engine}.{pool}.{replica}.json")
    })
}

/// Whether a name is one of `[a-z0-9-]{1,63}`.
fn is_id(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    (1..=63).contains(&name.len()) && name.bytes().all(plain)
}

/// Makes the directory where it is missing and checks that a handoff can be put there; before the
/// engine is started, so that nothing is loaded for nothing.
pub(super) fn check(path: &Path) -> Result<(), EngineError> {
    let failed = |error: io::Error| unsafe_to_write(path, &error);
    let directory = place::open(directory_of(path), Missing::Create).map_err(failed)?;
    refuse_link(&directory, path)
}

/// Writes the handoff.
pub(super) fn write(path: &Path, handoff: &Handoff) -> Result<(), EngineError> {
    let failed = |error: io::Error| unsafe_to_write(path, &error);
    let directory = place::open(directory_of(path), Missing::Fail).map_err(failed)?;
    refuse_link(&directory, path)?;
    let mut text = serde_json::to_vec_pretty(handoff).expect("a handoff is plain data");
    text.push(b'\n');
    replace(&directory, path, &text).map_err(failed)
}

fn replace(directory: &OwnedFd, path: &Path, text: &[u8]) -> io::Result<()> {
    let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
    // One name, so that what a killed host has left does not stay for ever; readers look at `*.json`.
    let beside = format!(".{}.partial", name.to_string_lossy());
    let _ = rustix::fs::unlinkat(directory, &beside, AtFlags::empty());
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mode = Bits::from_raw_mode(0o640);
    let file = rustix::fs::openat(directory, &beside, flags, mode)?;
    let written = write_and_sync(File::from(file), text, mode)
        .and_then(|()| Ok(rustix::fs::renameat(directory, &beside, directory, name)?));
    if written.is_err() {
        let _ = rustix::fs::unlinkat(directory, &beside, AtFlags::empty());
    }
    written
}

fn write_and_sync(mut file: File, text: &[u8], mode: Bits) -> io::Result<()> {
    rustix::fs::fchmod(&file, mode)?;
    file.write_all(text)?;
    file.sync_data()
}

/// A link in the handoff's place is somebody's doing: it is neither followed nor replaced.
fn refuse_link(directory: &OwnedFd, path: &Path) -> Result<(), EngineError> {
    let name = path.file_name().unwrap_or_default();
    match rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(status) if !FileType::from_raw_mode(status.st_mode).is_file() => {
            Err(EngineError::Handoff {
                path: path.to_owned(),
                reason: "there is a link or something else that is no plain file".to_owned(),
            })
        }
        _ => Ok(()),
    }
}

fn directory_of(path: &Path) -> &Path {
    path.parent().unwrap_or(Path::new("/"))
}

fn unsafe_to_write(path: &Path, error: &io::Error) -> EngineError {
    EngineError::Handoff {
        path: path.to_owned(),
        reason: error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    fn handoff() -> Handoff {
        serde_json::from_value(serde_json::json!({
            "engine": "llamacpp", "engine_version": "b1234-cuda", "provisioning_mode": "source",
            "url": "http://127.0.0.1:8080", "pool_id": "default", "replica_id": "r0",
            "model": {"id": "local:/models/x.gguf", "path": "/abs/models/x.gguf"},
            "flags": ["--parallel", "1"],
        }))
        .expect("a document with nothing but what is required")
    }

    #[test]
    fn only_the_default_replica_has_the_short_name() {
        let name = |engine, pool, replica| file_name(engine, pool, replica).unwrap();
        assert_eq!(name("llamacpp", "default", "r0"), "llamacpp.json");
        assert_eq!(
            name("llamacpp", "default", "r1"),
            "llamacpp.default.r1.json"
        );
        assert_eq!(name("vllm", "chat", "r0"), "vllm.chat.r0.json");
    }

    #[test]
    fn a_name_that_would_lead_elsewhere_is_refused() {
        let long = "x".repeat(64);
        for bad in [
            "/etc/docker/daemon",
            "../x",
            "",
            ".",
            "a/b",
            "A",
            "a.b",
            &long,
        ] {
            for (engine, pool, replica) in [(bad, "p", "r0"), ("e", bad, "r0"), ("e", "p", bad)] {
                let error = file_name(engine, pool, replica).unwrap_err();
                assert!(matches!(error, EngineError::Name { name } if name == bad));
            }
        }
    }

    #[test]
    fn it_is_whole_private_and_alone() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join(".runtime/engines/llamacpp.json");
        check(&path).unwrap();
        for _ in 0..2 {
            write(&path, &handoff()).unwrap();
        }
        let read: Handoff = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        assert_eq!(read, handoff());
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o7777, 0o640);
        let directory = std::fs::read_dir(path.parent().unwrap()).unwrap();
        assert_eq!(directory.count(), 1, "nothing is left beside it");
    }

    #[test]
    fn links_are_refused_and_what_they_point_to_stays() {
        let root = tempfile::tempdir().unwrap();
        let victim = root.path().join("victim");
        std::fs::write(&victim, "precious").unwrap();
        let path = root.path().join("engines/llamacpp.json");
        check(&path).unwrap();
        symlink(&victim, &path).unwrap();
        assert!(matches!(check(&path), Err(EngineError::Handoff { .. })));
        assert!(write(&path, &handoff()).is_err());
        assert_eq!(std::fs::read_to_string(&victim).unwrap(), "precious");
    }
}
