//! Takes an LLM inference engine from a pool file to a running, verified, supervised process.
//!
//! Providers (plugins) decide what is needed and what is run; this crate performs every effect. The
//! rooms, from the ground up:
//!
//! | room | job |
//! |---|---|
//! | [`fault`] | what every error can tell beyond its text: exit code, hints, details |
//! | [`narrate`] | one typed event per fact, masked, to people and machines |
//! | [`config`] | directories, environment, pool files |
//! | [`policy`] | what may be done here, and the line that would allow more |
//! | [`process`] | the one place that starts processes; the keeper |
//! | [`container`] | podman and docker, told apart in one table |
//! | [`net`] | the one transfer engine |
//! | [`store`] | content-addressed results, locks, single flight |
//! | [`facts`] | what this machine is and has |
//! | [`resolve`] | mutable references become immutable ones |
//! | [`provider`] | discover, check and open plugins; the worker |
//! | [`model`] | where models come from |
//! | [`act`] | one file per kind of step |
//! | [`engine`] | launch, probe, stop, handoff |
//! | [`drive`] | the journey through all of them |
//! | [`cli`] | the terminal |

pub mod act;
pub mod cli;
pub mod config;
pub mod container;
pub mod drive;
pub mod engine;
pub mod facts;
pub mod fault;
pub mod model;
pub mod narrate;
pub mod net;
pub mod policy;
pub mod process;
pub mod provider;
pub mod resolve;
pub mod store;

/// Does the work of a helper of a host, where that is what this process was started for, and gives
/// the code to end with; `None` at once otherwise.
///
/// Keeper, provider worker, probe and watcher are this program re-executed. Must come first in `main`, before
/// threads and runtimes exist.
///
/// ```no_run
/// fn main() -> std::process::ExitCode {
///     if let Some(code) = engine_host::become_helper() {
///         return code;
///     }
///     // …
///     std::process::ExitCode::SUCCESS
/// }
/// ```
#[must_use]
pub fn become_helper() -> Option<std::process::ExitCode> {
    provider::worker::run_if_worker();
    process::run_if_keeper()
        .or_else(facts::probe::run_if_probe)
        .or_else(engine::run_if_watcher)
}
