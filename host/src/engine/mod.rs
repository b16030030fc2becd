//! Engines: launched, probed, handed off, stopped.
//!
//! A start goes port → command → keeper → readiness → evidence → handoff ([`start`]); a stop goes
//! handoff → drain → TERM → grace → KILL ([`stop_instance`], [`RunningEngine::stop`]). What runs is
//! known from [`instances`], which trusts no record; what another host has left running is looked after
//! again by [`adopt()`].
//!
//! What an engine is called, what its log means and how it is asked come from its provider, in the
//! prepared engine; this room knows no engine. How processes are started and ended is the keeper's
//! matter (`process/`); which pools should run is that of whoever calls.

mod access;
mod adopt;
mod asking;
mod body;
mod bring_up;
mod command;
mod container;
mod diagnose;
mod error;
mod evidence;
mod external;
mod files;
mod fingerprint;
pub mod handoff;
mod http;
mod instance;
mod kind;
mod launch;
mod leftover;
mod listening;
mod logs;
mod ownership;
mod place;
mod port;
mod probe;
mod records;
mod running;
mod settle;
mod side;
mod sockets;
mod start;
mod stop;

use std::{
    fs::File,
    io::{Read, Seek, SeekFrom},
    path::{Path, PathBuf},
};

use engine_provider_api::Diagnosis;

pub use access::refuse_without_rights;
pub use adopt::adopt;
pub use asking::{in_flight, metrics_of};
pub use diagnose::Finding;
pub use error::{EngineError, Evidence};
pub use external::run_if_watcher;
pub use fingerprint::Fingerprint;
pub use handoff::{DEFAULT_DIRECTORY, HANDOFF_SCHEMA, Handoff, HandoffModel, file_name};
pub(crate) use instance::boot;
pub use instance::{Instance, InstanceContainer, Known, State};
pub use leftover::{clear, clear_each, left};
pub use listening::Listening;
pub use logs::{Lines, Tail, log_path, logged};
pub use records::{find_running, instances};
pub use running::{EngineEnd, RunningEngine};
pub use side::Side;
pub use start::{
    DriverMemory, Launched, Outcome, StartRequest, difference, refuse_without_evidence, start,
};
pub use stop::stop_instance;

/// Bytes read from each end of a log that is judged.
const JUDGED_BYTES: u64 = 2 * 1024 * 1024;

/// What a log says about a failure.
fn evidence_of(table: &[Diagnosis], command: String, log: PathBuf) -> Evidence {
    let text = read_log(&log);
    Evidence {
        command,
        last_lines: diagnose::last_lines(&text),
        finding: diagnose::diagnose(table, &text),
        reason: None,
        log,
    }
}

/// Beginning and end of a log, as text; empty when it cannot be read.
fn read_log(path: &Path) -> String {
    let read = || -> std::io::Result<Vec<u8>> {
        let mut file = File::open(path)?;
        let length = file.metadata()?.len();
        let mut bytes = Vec::new();
        (&mut file).take(JUDGED_BYTES).read_to_end(&mut bytes)?;
        let rest = length.saturating_sub(JUDGED_BYTES).max(JUDGED_BYTES);
        file.seek(SeekFrom::Start(rest))?;
        file.take(JUDGED_BYTES).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    String::from_utf8_lossy(&read().unwrap_or_default()).into_owned()
}

/// Records for tests of other rooms.
#[cfg(test)]
pub(crate) mod testing {
    use std::path::PathBuf;

    use super::{Instance, records};
    use crate::config::paths::Home;

    pub(crate) use super::records::tests::instance;

    /// Writes a record; where.
    pub(crate) fn write_down(instance: &Instance, home: &Home) -> PathBuf {
        std::fs::create_dir_all(records::directory(home)).unwrap();
        instance.save(home).unwrap();
        instance.record(home)
    }
}
