//! Pools that stay up: the daemon, its commands and its API, against real processes with shortened
//! clocks.

mod api;
mod daemon;
mod embedded;
mod falls;
mod leased;
mod placed;
mod secrets;
mod seen;
mod supervised;
mod swapped;
mod systemd;
mod told;

pub(crate) use e2e::{Daemon, PoolStage as Stage};
use rustix::process::Signal;
use serde_json::Value;

/// Process id of a replica's engine.
pub(crate) fn pid(replica: &Value) -> i32 {
    replica["pid"].as_i64().unwrap().try_into().unwrap()
}

/// Kills a process.
pub(crate) fn kill(pid: i32) {
    let pid = rustix::process::Pid::from_raw(pid).unwrap();
    rustix::process::kill_process(pid, Signal::KILL).unwrap();
}
