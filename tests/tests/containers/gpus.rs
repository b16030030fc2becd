//! GPUs in containers, on a machine that has none: the driver's library is a fake one, and the devices
//! that the Container Device Interface describes are harmless.

use std::{
    fs,
    path::PathBuf,
    process::Command,
    sync::{Mutex, MutexGuard, PoisonError},
};

use e2e::{ContainerKind, Registry, http_get, repository_root};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::Stage;

/// A description of devices for all runtimes of this machine; gone when dropped.
struct Description {
    path: PathBuf,
    _alone: MutexGuard<'static, ()>,
}

/// There is one directory for descriptions on a machine.
static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Description {
    /// Names with a device node each: `/dev/fake-NAME` is this machine's `/dev/null`.
    fn of(names: &[&str]) -> Self {
        let alone = alone();
        let device = |name: &&str| {
            let node = json!({
                "path": node(name), "hostPath": "/dev/null", "type": "c", "major": 1, "minor": 3,
            });
            json!({"name": name, "containerEdits": {"deviceNodes": [node]}})
        };
        let devices: Vec<Value> = names.iter().map(device).collect();
        let document = json!({"cdiVersion": "0.3.0", "kind": "nvidia.com/gpu", "devices": devices});
        // What lies here is forgotten at the next boot, whatever becomes of the tests.
        let directory = PathBuf::from("/var/run/cdi");
        fs::create_dir_all(&directory).unwrap();
        let path = directory.join("engine-host-tests.json");
        fs::write(&path, document.to_string()).unwrap();
        Self {
            path,
            _alone: alone,
        }
    }
}

impl Drop for Description {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

fn node(name: &str) -> String {
    format!("/dev/{}", node_name(name))
}

fn node_name(name: &str) -> String {
    format!("fake-{}", name.replace(':', "-"))
}

/// A stage whose driver shows two cards, or one card in two slices.
fn stage(kind: ContainerKind, define: &str, image: e2e::Image) -> Stage {
    let mut stage = Stage::with(kind, Registry::open(), image);
    let directory = stage.machine.root().join("driver");
    fs::create_dir(&directory).unwrap();
    let status = Command::new("cc")
        .args(["-shared", "-fPIC", "-w", define, "-o"])
        .arg(directory.join("libnvidia-ml.so.1"))
        .arg(repository_root().join("host/tests/nvml/fake.c"))
        .status()
        .expect("scripts/setup-tests installs a C compiler");
    assert!(status.success());
    let directory = directory.to_str().unwrap().to_owned();
    stage.machine.lend("LD_LIBRARY_PATH", &directory);
    stage.pool["gpu"] = json!("require");
    stage
}

/// Device nodes of a description that an engine sees.
fn devices_seen(stage: &Stage) -> Vec<String> {
    let mut running = stage.machine.provision(&[]);
    let url = running.wait_ready();
    let report: Value =
        serde_json::from_str(&http_get(&format!("{url}/report")).unwrap().1).unwrap();
    let mut seen: Vec<String> = report["devices"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|name| Some(name.as_str()?.to_owned()))
        .filter(|name| name.starts_with("fake-"))
        .collect();
    seen.sort();
    let handoff = stage.machine.handoff();
    assert_eq!(
        handoff["device_mask"].as_array().unwrap().len(),
        seen.len(),
        "{handoff}"
    );
    let _ = running.end(Signal::INT).code(130);
    stage.assert_clean();
    seen
}

#[test]
fn an_engine_sees_the_gpus_of_its_pool_and_no_other_under_podman() {
    let _description = Description::of(&["0", "1"]);
    let mut stage = stage(ContainerKind::Podman, "-DTWO", Stage::image());
    stage.pool["devices"] = json!([1]);
    stage.write();
    assert_eq!(devices_seen(&stage), [node_name("1")]);
    stage.pool["devices"] = json!([]);
    stage.write();
    assert_eq!(devices_seen(&stage), [node_name("0"), node_name("1")]);
    stage.pool["gpu"] = json!("forbid");
    stage.write();
    assert_eq!(devices_seen(&stage), Vec::<String>::new());
}

#[test]
fn an_engine_sees_the_slice_of_its_pool_and_no_other_under_podman() {
    let _description = Description::of(&["0:1", "0:2"]);
    let mut stage = stage(ContainerKind::Podman, "-DMIG", Stage::image());
    stage.pool["devices"] = json!(["MIG-1"]);
    stage.write();
    assert_eq!(devices_seen(&stage), [node_name("0:1")]);
}

#[test]
fn a_gpu_that_no_description_names_is_refused_before_the_pull() {
    let _alone = alone();
    let stage = stage(ContainerKind::Podman, "-DTWO", Stage::image());
    stage.write();
    let run = stage.machine.run(&["provision"]).code(5);
    run.says("nvidia-ctk cdi generate");
    assert_eq!(
        stage
            .registry
            .fetches(stage.image.layer_digests().last().unwrap()),
        0
    );
    stage.assert_clean();
    stage.assert_no_image();
}

#[test]
fn a_docker_that_cannot_give_gpus_is_refused_before_the_pull() {
    let _description = Description::of(&["0", "1"]);
    let stage = stage(ContainerKind::Docker, "-DTWO", Stage::image());
    stage.write();
    let run = stage.machine.run(&["provision"]).code(5);
    run.says("cannot give a GPU to a container here");
    assert_eq!(
        stage
            .registry
            .fetches(stage.image.layer_digests().last().unwrap()),
        0
    );
    stage.assert_clean();
    stage.assert_no_image();
}

#[test]
fn an_image_that_wants_a_newer_driver_is_refused_before_its_layers() {
    let _description = Description::of(&["0", "1"]);
    let image = Stage::image().env("NVIDIA_REQUIRE_CUDA=cuda>=99.0");
    let stage = stage(ContainerKind::Podman, "-DTWO", image);
    stage.write();
    let run = stage.machine.run(&["provision"]).code(5);
    run.says("99.0");
    run.says("12.8");
    assert_eq!(
        stage
            .registry
            .fetches(stage.image.layer_digests().last().unwrap()),
        0
    );
    stage.assert_clean();
    stage.assert_no_image();
}
