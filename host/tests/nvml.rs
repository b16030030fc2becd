//! GPUs through NVML: the real probe in the real program, against a made-up driver library.
#![expect(
    clippy::disallowed_methods,
    reason = "the test compiles its library itself"
)]

use std::{
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

use engine_host::{
    config::environment::Environment,
    facts::{Collector, Processes, Roots},
};
use engine_provider_api::{GpuStatus, Gpus};

/// Longest time the whole search may take with a driver that never answers: the driver's limit and
/// some room for a busy machine.
const PATIENCE: Duration = Duration::from_secs(20);

/// A machine whose only file is the library, compiled with a macro that says how it behaves.
fn machine(behaviour: &str) -> tempfile::TempDir {
    let root = tempfile::tempdir().expect("a temporary directory");
    let directory = root.path().join("usr/lib");
    std::fs::create_dir_all(&directory).expect("directories");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/nvml/fake.c");
    let status = Command::new("cc")
        .args(["-shared", "-fPIC", "-w", &format!("-D{behaviour}"), "-o"])
        .arg(directory.join("libnvidia-ml.so.1"))
        .arg(source)
        .status()
        .expect("the tests need a C compiler named `cc`");
    assert!(status.success());
    root
}

fn collector(root: &Path) -> Collector<'static> {
    Collector {
        roots: Roots::at(root, Environment::default()),
        asker: &Processes,
        identity: None,
        memory: None,
        probe_program: Some(PathBuf::from(env!("CARGO_BIN_EXE_host"))),
    }
}

async fn gpus(root: &Path) -> Gpus {
    collector(root).collect(&[]).await.facts.gpus
}

/// Makes a process of this machine be in a pid namespace.
fn enter(root: &Path, namespace: &str) {
    let directory = root.join("proc/self/ns");
    std::fs::create_dir_all(&directory).expect("directories");
    std::os::unix::fs::symlink(namespace, directory.join("pid")).expect("a link");
}

fn finding(gpus: &Gpus) -> &str {
    &gpus.evidence[0].finding
}

#[tokio::test]
async fn two_gpus_are_seen_whole() {
    let root = machine("TWO");
    let gpus = gpus(root.path()).await;
    assert_eq!(gpus.status, GpuStatus::Present);
    assert_eq!(finding(&gpus), "driver 570.86.15, 2 device(s)");
    assert_eq!(gpus.driver.as_deref(), Some("570.86.15"));
    assert_eq!(gpus.cuda.as_deref(), Some("12.8"));
    let second = &gpus.devices[1];
    assert_eq!((second.index, second.uuid.as_str()), (1, "GPU-1"));
    assert_eq!(second.compute_capability, "8.6");
    assert_eq!(second.memory_total_bytes, 24 << 30);
    assert_eq!(second.memory_free_bytes, 12 << 30);
    assert!(!second.mig);
}

#[tokio::test]
async fn slices_take_the_place_of_their_gpu() {
    let root = machine("MIG");
    let gpus = gpus(root.path()).await;
    let shown: Vec<(&str, bool)> = gpus
        .devices
        .iter()
        .map(|gpu| (gpu.uuid.as_str(), gpu.mig))
        .collect();
    assert_eq!(shown, [("MIG-1", true), ("MIG-2", true)]);
}

#[tokio::test]
async fn what_a_library_prints_does_not_disturb_the_answer() {
    let root = machine("NOISY");
    assert_eq!(gpus(root.path()).await.devices.len(), 2);
}

#[tokio::test]
async fn a_driver_that_does_not_match_its_library_is_broken_where_there_is_hardware() {
    let root = machine("MISMATCH");
    let without = gpus(root.path()).await;
    assert_eq!(without.status, GpuStatus::None);
    std::fs::create_dir_all(root.path().join("dev")).expect("a directory");
    std::fs::write(root.path().join("dev/nvidia0"), "").expect("a file");
    let with = gpus(root.path()).await;
    assert_eq!(with.status, GpuStatus::DriverBroken);
    assert!(finding(&with).contains("NVML does not start"), "{with:?}");
}

#[tokio::test]
async fn a_driver_that_crashes_or_hangs_ends_the_probe_and_nothing_else() {
    let crashed = machine("CRASH");
    let gpus_of_crashed = gpus(crashed.path()).await;
    assert!(
        finding(&gpus_of_crashed).contains("SEGV"),
        "{gpus_of_crashed:?}"
    );
    let hung = machine("HANG");
    let started = Instant::now();
    let gpus_of_hung = gpus(hung.path()).await;
    assert!(started.elapsed() < PATIENCE);
    assert!(
        finding(&gpus_of_hung).contains("did not answer"),
        "{gpus_of_hung:?}"
    );
}

#[tokio::test]
async fn the_driver_tells_what_a_process_holds() {
    let root = machine("TWO");
    enter(root.path(), "pid:[4026531836]");
    let own = i32::try_from(std::process::id()).expect("a pid is a positive i32");
    let collector = collector(root.path());
    assert_eq!(collector.device_memory(&[1, own]).await, Some(2 << 30));
    assert_eq!(collector.device_memory(&[1]).await, Some(0));
}

#[tokio::test]
async fn a_driver_that_cannot_know_our_processes_has_no_word() {
    let own = i32::try_from(std::process::id()).expect("a pid is a positive i32");
    let (mute, contained, broken) = (machine("MUTE"), machine("TWO"), machine("CRASH"));
    enter(mute.path(), "pid:[4026531836]");
    enter(contained.path(), "pid:[4026532198]");
    enter(broken.path(), "pid:[4026531836]");
    for root in [mute, contained, broken] {
        assert_eq!(collector(root.path()).device_memory(&[own]).await, None);
    }
}

#[test]
fn the_probe_is_no_part_of_ordinary_use() {
    let output = Command::new(env!("CARGO_BIN_EXE_host"))
        .args(["__probe-nvml", "/nonexistent.so"])
        .output()
        .expect("the program starts");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("NVML does not start"), "{text}");
}
