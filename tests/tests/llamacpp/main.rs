//! The main job for real: README's first command on an empty home, with the release build and the
//! one real llama.cpp build of a run. Everything that needs a real engine shares that home.

mod again;
mod first;
mod kept;
mod modes;
mod refused;

use std::{
    path::PathBuf,
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

/// The program that was built.
fn program() -> PathBuf {
    drop(built());
    let builds = MACHINE.home().join("store/build");
    let programs = std::fs::read_dir(builds).unwrap().map(|entry| {
        let tree = entry.unwrap().path().join("tree");
        tree.join("bin/llama-server")
    });
    let mut programs: Vec<PathBuf> = programs.filter(|program| program.is_file()).collect();
    programs.pop().expect("llama.cpp was built")
}

/// A machine of one's own, for the program obtained in another way.
fn machine() -> Machine {
    Machine::with(Built::release())
}

fn expected_haiku() -> &'static str {
    first::first_haiku()
}
