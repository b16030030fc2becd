//! The one place that starts processes.
//!
//! What outlives a probe is started by the *keeper*, a small single-threaded process (this binary
//! re-executed) that is a subreaper and ends everything it started when its host is gone, however
//! it went. Short questions (`cmake --version`) are asked directly, with a limit.

mod command;
pub(crate) mod worker;

pub use command::{Child, Exited, Identity, LogFile, Network, Output, Spec, quote, signal_name};
