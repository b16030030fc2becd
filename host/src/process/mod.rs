//! The one place that starts processes.
//!
//! What outlives a probe is started by the [`Keeper`], a small single-threaded process (this binary
//! re-executed) that is a subreaper and ends everything it started when its host is gone, however
//! it went. Short questions (`cmake --version`) are [`ask`]ed directly, with a limit.

mod ask;
mod attend;
mod busy;
mod client;
mod command;
mod confine;
mod control;
mod daemon;
mod error;
mod farewell;
mod identity;
mod keeper;
mod link;
mod log;
mod memory_kills;
mod quiet;
mod removal;
mod sockets;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
pub(crate) mod worker;

pub use ask::{Answer, OUTPUT_LIMIT, Question, ask, ask_with_input};
pub use attend::attend;
pub use client::{ChildAddress, Keeper, KeeperOptions, Running};
pub use command::{
    Child, Exited, Identity, LogFile, Network, Output, Privileges, Spec, quote, signal_name,
};
pub use control::{Control, sweep};
pub use daemon::start_daemon;
pub use error::{ProcessError, StartFailure};
pub use farewell::{Farewell, Part};
pub use identity::{BytesRead, ProcessIdentity, bytes_read, descendants};
pub use keeper::{Ended, MARKER, run, run_if_keeper};
pub use memory_kills::MemoryKills;
pub use quiet::{rest, share_one_heap};
pub use removal::Removal;
pub use sockets::{Sockets, sockets_of};
