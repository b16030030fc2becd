//! A machine with GPUs, as far as their driver tells.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use crate::repository_root;

/// A library in the place of the driver's, in a directory of its own below this one: it shows two cards of
/// 24 GiB, half of them free, and does not tell who holds memory.
///
/// # Panics
///
/// Without a C compiler, which `scripts/setup-tests` installs.
#[must_use]
pub fn fake_driver(below: &Path) -> PathBuf {
    driver(below, &[])
}

/// The same; free is what is left of a card by the engines below this directory that were given it alone,
/// each of which takes so many GiB.
///
/// # Panics
///
/// Without a C compiler, which `scripts/setup-tests` installs.
#[must_use]
pub fn fake_driver_of_engines_that_take(below: &Path, gibibytes: u32) -> PathBuf {
    let place = format!("-DBELOW=\"{}\"", below.display());
    driver(below, &[format!("-DHOLDS={gibibytes}"), place])
}

fn driver(below: &Path, more: &[String]) -> PathBuf {
    let directory = below.join("driver");
    fs::create_dir(&directory).unwrap();
    let library = directory.join("libnvidia-ml.so.1");
    let status = Command::new("cc")
        .args(["-shared", "-fPIC", "-w", "-DMUTE", "-DTWO"])
        .args(more)
        .arg("-o")
        .arg(&library)
        .arg(repository_root().join("host/tests/nvml/fake.c"))
        .status()
        .expect("scripts/setup-tests installs a C compiler");
    assert!(status.success());
    library
}
