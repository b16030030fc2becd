//! What is shown of containers before anything is pulled, for machines that are written down.

use e2e::{Machine, Run, facts};
use serde_json::json;

/// A machine with a pool whose engine comes in a container.
fn machine() -> Machine {
    let machine = Machine::new();
    machine.write_pool(&json!({
        "id": "chat",
        "engine": "llamacpp",
        "gpu": "prefer",
        "provisioning": {
            "mode": "container",
            "model": {"ref": "builtin:haiku"},
            "env": {"HF_TOKEN": "{secret.HF_TOKEN}"},
            "container": {
                "image": "registry.example.org/engine",
                "digest": format!("sha256:{}", "ab".repeat(32)),
            },
        },
    }));
    machine
}

fn plan(machine: &Machine, on: &str, more: &[&str]) -> Run {
    machine.run(&[&["plan", "--facts", &facts(on)], more].concat())
}

/// The command as it is shown, without what the engine itself is told.
fn command(machine: &Machine, on: &str, more: &[&str]) -> String {
    let run = plan(machine, on, more).code(0);
    let text = machine.normal(&run.stdout);
    let (_, command) = text.split_once("would run:\n").expect("a command is shown");
    let end = command.find("@sha256:").expect("an image by digest");
    command[..end].to_owned()
}

#[test]
fn a_container_is_shown_as_the_command_that_would_run_it() {
    let machine = machine();
    insta::assert_snapshot!(command(&machine, "podman-one-gpu", &[]), @r"
    HF_TOKEN=*** \
    /usr/bin/podman run \
      --name 'engine-host-{instance}' \
      --pull=never \
      --log-driver none \
      --cap-drop ALL \
      --security-opt no-new-privileges \
      --init \
      --pids-limit 16384 \
      --no-healthcheck \
      --mount type=tmpfs,target=/tmp,exec,nosuid,nodev,tmpfs-mode=1777,chown=true \
      --device nvidia.com/gpu=0 \
      --publish 127.0.0.1:8080:8080 \
      --http-proxy=false \
      --network private \
      --env HF_TOKEN \
      --mount type=bind,source=HOME/store/blobs/sha256/744ce8ad850a323018a6aaf88b444cfe7089d4a5f7de1185d67cd632610cd9cb,target=/models/haiku.gguf,ro=true \
      --user 65532:65532 \
      --entrypoint /app/llama-server \
      registry.example.org/engine
    ");
    let more = ["--container-runtime", "docker"];
    insta::assert_snapshot!(command(&machine, "podman-one-gpu", &more), @r"
    HF_TOKEN=*** \
    /usr/bin/docker run \
      --name 'engine-host-{instance}' \
      --pull=never \
      --log-driver none \
      --cap-drop ALL \
      --security-opt no-new-privileges \
      --init \
      --pids-limit 16384 \
      --no-healthcheck \
      --tmpfs /tmp:rw,exec,nosuid,nodev,mode=1777,uid=65532,gid=65532 \
      --device nvidia.com/gpu=0 \
      --publish 127.0.0.1:8080:8080 \
      --env HF_TOKEN \
      --env NVIDIA_VISIBLE_DEVICES=void \
      --mount type=bind,source=HOME/store/blobs/sha256/744ce8ad850a323018a6aaf88b444cfe7089d4a5f7de1185d67cd632610cd9cb,target=/models/haiku.gguf,readonly \
      --user 65532:65532 \
      --entrypoint /app/llama-server \
      registry.example.org/engine
    ");
    machine.assert_untouched();
}

#[test]
fn what_a_container_sees_is_listed_for_machines_to_read() {
    let machine = machine();
    let plan = plan(&machine, "podman-mig", &["--json"]).code(0).json();
    let container = serde_json::to_string_pretty(&plan["run"]["container"]).unwrap();
    insta::assert_snapshot!(machine.normal(&container), @r#"
    {
      "env": {
        "HF_TOKEN": "{secret.HF_TOKEN}"
      },
      "image": "registry.example.org/engine@sha256:abababababababababababababababababababababababababababababababab",
      "mounts": [
        {
          "source": "HOME/store/blobs/sha256/744ce8ad850a323018a6aaf88b444cfe7089d4a5f7de1185d67cd632610cd9cb",
          "target": "/models/haiku.gguf",
          "writable": false
        }
      ],
      "published": [
        {
          "address": "127.0.0.1:8080",
          "inside": 8080
        }
      ],
      "runtime": "podman",
      "runtime_version": "5.4.2",
      "user": "65532:65532"
    }
    "#);
    assert_eq!(plan["run"]["command"]["bin"], "/usr/bin/podman");
    assert_eq!(
        plan["run"]["command"]["env"]["HF_TOKEN"],
        "{secret.HF_TOKEN}"
    );
}

#[test]
fn a_machine_that_can_run_no_container_is_told_before_anything_is_pulled() {
    let machine = machine();
    let run = plan(&machine, "debian-cpu", &[]).code(5);
    run.says("no container runtime can be used here");
    run.says("apt-get install podman");
    let run = plan(&machine, "podman-cpu", &["--container-runtime", "docker"]).code(5);
    run.says("docker: not found");
    machine.assert_untouched();
}

#[test]
fn a_gpu_without_a_container_device_is_told_before_anything_is_pulled() {
    let machine = machine();
    let run = undescribed(&machine, "podman-two-gpus").code(5);
    run.says("no container device stands for GPU `GPU-11111111-2222-3333-4444-555555555555`");
    run.says("nvidia-ctk cdi generate");
}

#[test]
fn a_runtime_that_cannot_give_the_gpus_is_passed_over_for_one_that_can() {
    let machine = machine();
    let run = undescribed(&machine, "podman-one-gpu").code(0);
    let told = "docker is used, podman was passed over: no container device stands for GPU";
    let flag = "--gpus '\"device=GPU-3d4f7a0e-6a0f-4f6c-9a7b-5f0c1d2e3f40\"'";
    for text in [told, flag] {
        assert!(run.stdout.contains(text), "{}", run.stdout);
    }
}

/// The plan for a machine whose GPUs nobody described to container runtimes.
fn undescribed(machine: &Machine, name: &str) -> Run {
    let text = std::fs::read_to_string(facts(name)).unwrap();
    let others = text.replace("nvidia.com/gpu=", "other.com/gpu=x");
    let path = machine.write("facts.json", &others);
    machine.run(&["plan", "--facts", path.to_str().unwrap()])
}

#[test]
fn an_engine_that_runs_already_is_attached_to_and_nothing_else() {
    let machine = Machine::new();
    machine.write_pool(&json!({
        "id": "there",
        "engine": "llamacpp",
        "gpu": "forbid",
        "model": "theirs",
        "provisioning": {"external": {"url": "http://127.0.0.1:9000"}},
    }));
    let run = plan(&machine, "debian-cpu", &[]).code(0);
    insta::assert_snapshot!(machine.normal(&run.stdout), @r"
    pool there: llamacpp that runs already, provider llamacpp 0.1.0

      run              run         llamacpp at http://127.0.0.1:9000, which runs already

    engine version  external
    model           theirs

    would attach to:
      http://127.0.0.1:9000

    note: attach to http://127.0.0.1:9000: the engine is probed and handed off, never started nor stopped
    ");
    let plan = plan(&machine, "debian-cpu", &["--json"]).code(0).json();
    assert_eq!(plan["run"]["external"], "http://127.0.0.1:9000");
}
