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
//! | `otlp` | a sink of the narration: traces, to a collector of OpenTelemetry (feature `otlp`) |
//! | [`store`] | content-addressed results, locks, single flight |
//! | `unpack` | archives of strangers, unpacked inside a directory or refused |
//! | [`facts`] | what this machine is and has |
//! | [`resolve`] | mutable references become immutable ones |
//! | [`lock`] | the file that pins provider, engine and model together |
//! | [`provider`] | discover, check and open plugins; the worker |
//! | [`model`] | where models come from |
//! | [`act`] | one file per kind of step |
//! | [`engine`] | launch, probe, stop, handoff |
//! | [`drive`] | the journey through all of them |
//! | [`pool`] | pools that stay up: manager, leases, supervision |
//! | `api` | a manager, served: Unix socket and HTTP (feature `http`) |
//! | `cli` | the terminal (feature `cli`) |

pub mod act;
#[cfg(feature = "http")]
pub mod api;
#[cfg(feature = "cli")]
pub mod cli;
pub mod config;
pub mod container;
pub mod drive;
pub mod engine;
pub mod facts;
pub mod fault;
#[doc(hidden)]
pub mod fuzzing;
pub mod lock;
pub mod model;
pub mod narrate;
pub mod net;
#[cfg(feature = "otlp")]
pub mod otlp;
pub mod policy;
pub mod pool;
pub mod process;
pub mod provider;
pub mod resolve;
pub mod store;
mod unpack;

pub use engine::handoff;

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
