//! GPUs in containers, on a machine that has none: the driver's library is a fake one, and the devices
//! that the Container Device Interface describes are harmless.

use std::{
    fs,
    path::PathBuf,
    process::Command,
    sync::{Mutex, MutexGuard, PoisonError},
};

use e2e::{
    ContainerKind, Containers, DockerDaemon, Image, Machine, Registry, http_get, repository_root,
    wait_for, weights_below,
};
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

impl Description {
    /// Removes it, as an upgrade of the driver does; nobody else writes one meanwhile.
    fn remove(&self) {
        fs::remove_file(&self.path).unwrap();
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
fn stage(kind: ContainerKind, define: &str, image: Image) -> Stage {
    // It does not tell who holds memory: nobody does.
    driven(
        Stage::with(kind, Registry::open(), image),
        &["-DMUTE", define],
    )
}

/// The same with a driver made so.
fn driven(mut stage: Stage, defines: &[&str]) -> Stage {
    let directory = driver(&stage, "driver", defines);
    stage.machine.lend("LD_LIBRARY_PATH", &directory);
    stage.pool["gpu"] = json!("require");
    stage
}

/// The directory of a driver's library made so.
fn driver(stage: &Stage, name: &str, defines: &[&str]) -> String {
    let directory = stage.machine.root().join(name);
    fs::create_dir(&directory).unwrap();
    let status = Command::new("cc")
        .args(["-shared", "-fPIC", "-w", "-o"])
        .arg(directory.join("libnvidia-ml.so.1"))
        .args(defines)
        .arg(repository_root().join("host/tests/nvml/fake.c"))
        .status()
        .expect("scripts/setup-tests installs a C compiler");
    assert!(status.success());
    directory.to_str().unwrap().to_owned()
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
    stage.pool.as_object_mut().unwrap().remove("devices");
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

#[test]
fn a_gpu_that_goes_while_its_image_is_pulled_is_said_and_nothing_is_left() {
    let description = Description::of(&["0", "1"]);
    let image = Stage::image().ballast(24 << 20);
    let stage = stage(ContainerKind::Podman, "-DTWO", image);
    stage.write();
    let running = stage.machine.start(stage.machine.command(&["provision"]));
    wait_for("the pull", e2e::RUN_LIMIT, || {
        let all = stage.machine.processes();
        let is_pull = |process: &e2e::Process| process.command.contains("podman pull ");
        if all.iter().any(is_pull) {
            Ok(())
        } else {
            Err(all)
        }
    });
    description.remove();
    let run = running.finish(e2e::RUN_LIMIT).code(10);
    run.says("no container device is called `nvidia.com/gpu=0`");
    run.says("nvidia-ctk cdi generate");
    stage.assert_clean();
    // It is looked for before the next start.
    let run = stage.machine.run(&["provision"]).code(5);
    run.says("nvidia-ctk cdi generate");
    stage.assert_clean();
}

/// A stage with the stand-in of an engine, which says this of where it sits.
fn saying(engine: &str, program: &str, said: &str) -> Stage {
    let image = Stage::image()
        .program("fake-engine", program)
        .env(&format!("PRINT_LINES={said}"));
    let mut stage = Stage::with(ContainerKind::Podman, Registry::open(), image);
    stage.pin();
    stage.pool["engine"] = json!(engine);
    stage.pool["devices"] = json!([0]);
    stage
}

/// Asserts that the engine is ended again because it is not on the GPU, for this reason, and that the way
/// out is told.
#[track_caller]
fn assert_not_on_gpu(stage: &Stage, reason: &str) {
    let run = stage.machine.run(&["provision"]).code(10);
    run.says("the engine is not on the GPU");
    run.says(reason);
    run.says("--gpu prefer");
    stage.assert_clean();
}

/// Asserts that the engine is handed off, and that it is told by what it is known to be on the GPU.
#[track_caller]
fn assert_on_gpu(stage: &Stage, witness: &str) {
    let running = stage.machine.provision(&[]);
    let handoff = stage.machine.handoff();
    assert_eq!(handoff["device_mask"], json!(["GPU-0"]), "{handoff}");
    let run = running.end(Signal::INT).code(130);
    run.says(&format!("the engine is on the GPU: {witness}"));
    stage.assert_clean();
}

const IN_MAIN_MEMORY: &str = "\
load_tensors:   CPU_Mapped model buffer size =  4460.45 MiB
llama_kv_cache:        CPU KV buffer size =   448.00 MiB";

const ON_THE_CARD: &str = "\
load_tensors:   CPU_Mapped model buffer size =   292.36 MiB
load_tensors:        CUDA0 model buffer size =  4168.09 MiB
llama_kv_cache:      CUDA0 KV buffer size =   448.00 MiB";

#[test]
fn llamacpp_in_main_memory_is_ended_and_on_the_card_it_is_handed_off() {
    let _description = Description::of(&["0", "1"]);
    for (said, proof) in [
        (
            IN_MAIN_MEMORY,
            Err("its log says `llama_kv_cache:        CPU KV buffer size"),
        ),
        ("nothing of it", Err("its log names no buffers")),
        (
            ON_THE_CARD,
            Ok("its log says CPU_Mapped 292 MiB, CUDA0 4616 MiB"),
        ),
    ] {
        let stage = saying("llamacpp", "app/llama-server", said);
        let mut stage = driven(stage, &["-DMUTE", "-DTWO"]);
        stage.pool["provisioning"]["model"] = json!({"ref": "builtin:haiku"});
        stage.write();
        match proof {
            Ok(witness) => assert_on_gpu(&stage, witness),
            Err(reason) => assert_not_on_gpu(&stage, reason),
        }
    }
}

#[test]
fn vllm_is_on_the_card_where_its_log_and_the_driver_say_so() {
    let _description = Description::of(&["0", "1"]);
    let on_card = "GPU KV cache size: 1,234,560 tokens, Maximum concurrency";
    let stage = saying("vllm", "usr/bin/vllm", on_card);
    let mut stage = driven(stage, &["-DTWO", "-DHOLDER=\"somebody\""]);
    let weights = weights_below(stage.machine.root());
    stage.pool["provisioning"]["model"] = json!({"ref": weights});
    stage.write();
    assert_not_on_gpu(&stage, "the driver knows of no memory that it holds");
    let mute = driver(&stage, "mute", &["-DTWO", "-DMUTE"]);
    stage.machine.lend("LD_LIBRARY_PATH", &mute);
    assert_not_on_gpu(&stage, "the driver does not say how much memory it holds");
    let knowing = driver(&stage, "knowing", &["-DTWO", "-DHOLDER=\"vllm\""]);
    stage.machine.lend("LD_LIBRARY_PATH", &knowing);
    let witness =
        "its log says `GPU KV cache size: 1,234,560 tokens`; the driver says that it holds";
    assert_on_gpu(&stage, witness);
}

#[test]
fn under_a_docker_without_names_for_gpus_its_own_way_is_taken_and_the_driver_finds_the_engine() {
    let daemon = DockerDaemon::with_gpus();
    let machine = Machine::new();
    let containers = Containers::of_daemon(&daemon, machine.root());
    let image = Stage::image()
        .program("fake-tgi", "bin/fake-tgi")
        .entrypoint(&["/bin/fake-tgi"]);
    let stage = Stage::of(machine, containers, Registry::open(), image);
    let mut stage = driven(stage, &["-DTWO", "-DHOLDER=\"somebody\""]);
    stage.pin();
    stage.pool["engine"] = json!("tgi");
    let weights = weights_below(stage.machine.root());
    stage.pool["provisioning"]["model"] = json!({"ref": weights});
    stage.write();
    assert_not_on_gpu(&stage, "the driver knows of no memory that it holds");
    let knowing = driver(&stage, "knowing", &["-DTWO", "-DHOLDER=\"fake-tgi\""]);
    stage.machine.lend("LD_LIBRARY_PATH", &knowing);
    let mut running = stage.machine.provision(&[]);
    let url = running.wait_ready();
    let seen = http_get(&format!("{url}/environment")).unwrap().1;
    let seen: Value = serde_json::from_str(&seen).unwrap();
    assert_eq!(seen["NVIDIA_VISIBLE_DEVICES"], "GPU-0,GPU-1", "{seen}");
    let handoff = stage.machine.handoff();
    assert_eq!(
        handoff["device_mask"],
        json!(["GPU-0", "GPU-1"]),
        "{handoff}"
    );
    let run = running.end(Signal::INT).code(130);
    run.says("the engine is on the GPU: the driver says that it holds");
    stage.assert_clean();
}
