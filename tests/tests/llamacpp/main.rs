//! The main job for real: README's first command on an empty home, with the release build and the
//! one real llama.cpp build of a run. Everything that needs a real engine shares that home.

mod again;
mod first;
mod refused;

use std::{
    sync::{LazyLock, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use e2e::{Built, Machine};

/// Longest time for fetching and building llama.cpp on two slow processors.
const BUILD_LIMIT: Duration = Duration::from_secs(20 * 60);

/// README's first command.
const COMMAND_ONE: [&str; 6] = [
    "provision",
    "--provider",
    "llamacpp",
    "--gpu",
    "prefer",
    "--allow-package-installs",
];

static MACHINE: LazyLock<Machine> = LazyLock::new(|| Machine::shared("llamacpp", Built::release()));

/// The home in which llama.cpp was built, one test at a time: they start engines and measure.
fn built() -> (&'static Machine, MutexGuard<'static, ()>) {
    static TURN: Mutex<()> = Mutex::new(());
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    LazyLock::force(&first::FIRST);
    (&MACHINE, turn)
}
