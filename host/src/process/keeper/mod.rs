//! The keeper: starts every child that outlives a question, and ends it when its host is gone.
//!
//! It is this program re-executed, single-threaded, in a session of its own, so that a terminal's
//! Ctrl-C reaches the host and not what the host runs. Per child it makes a copy of itself, the
//! *minder*, which is the subreaper of that child's tree alone. Who notices whose death:
//!
//! | who dies, however | who notices | what happens |
//! |---|---|---|
//! | host | keeper: its socket closes | steps are killed, engines get TERM, grace, KILL; kept ones stay, for ever or until their limit |
//! | adopter | keeper: its socket closes | the limit of what it had adopted runs again |
//! | keeper | minders: their sockets close | the same, nothing is kept |
//! | minder | kernel: parent-death signal | the child's first process is killed; the keeper, subreaper too, kills the rest |
//! | child | minder | what is left of its tree is killed |
//!
//! An end is told once: after the whole tree is gone, its files are removed and its log is complete.
//! The keeper ends when it has neither host nor children. It never touches the network, a store or
//! a provider.

mod child;
mod hold;
mod line;
mod minder;
mod peers;
pub(super) mod protocol;
mod serve;
mod startup;
mod stay;

use std::process::ExitCode;

pub use protocol::Ended;

use super::sockets;

/// First argument that makes a program a keeper.
pub const MARKER: &str = "keeper";

/// Second argument: not a keeper, but a short look that only another user may take.
pub(super) const HELP_WITH_SOCKETS: &str = "sockets";

/// Becomes the keeper if this program was started as one, and returns how it ended. To be called at
/// the very top of `main`, before any thread or runtime is made.
///
/// ```no_run
/// fn main() -> std::process::ExitCode {
///     if let Some(code) = engine_host::process::run_if_keeper() {
///         return code;
///     }
///     // …
///     std::process::ExitCode::SUCCESS
/// }
/// ```
#[must_use]
pub fn run_if_keeper() -> Option<ExitCode> {
    let mut arguments = std::env::args_os().skip(1);
    if arguments.next()? != MARKER {
        return None;
    }
    Some(match arguments.next() {
        Some(helper) if helper == HELP_WITH_SOCKETS => sockets::answer(arguments),
        _ => run(),
    })
}

/// Runs a keeper in this process, which must have one thread and a host's socket as its standard
/// input; without that it says so and fails.
pub fn run() -> ExitCode {
    match serve::serve() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("the keeper is started by the host itself, not by hand: {error}");
            ExitCode::FAILURE
        }
    }
}
