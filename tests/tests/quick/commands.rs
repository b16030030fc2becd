//! The podman and docker commands that would run engines no test machine can run: the whole command on
//! a machine with one GPU, and what changes on others.

use e2e::{Machine, facts};
use insta::assert_snapshot;
use serde_json::{Value, json};

pub(crate) const ONE: &str = "podman-one-gpu";

/// The command on a recorded machine, one flag to a line. What the record lacks of docker it has from
/// the machine that has both.
pub(crate) fn command(engine: &str, on: &str, runtime: &str) -> Vec<String> {
    let machine = Machine::new();
    machine.write_pool(&json!({
        "id": "chat",
        "engine": engine,
        "model": "qwen",
        "gpu": "prefer",
        "provisioning": {
            "mode": "container",
            "container": match (engine, on) {
                // Its usual image is of no use without a GPU.
                ("tgi", "podman-cpu") => json!({ "tag": "3.3.7-intel-cpu" }),
                _ => json!({}),
            },
            "model": { "ref": match engine {
                "llamacpp" => "builtin:haiku",
                _ => "hf:Qwen/Qwen2.5-0.5B-Instruct",
            } },
            "env": { "HF_TOKEN": "{secret.HF_TOKEN}" },
        },
    }));
    let read = |name: &str| -> Value {
        serde_json::from_slice(&std::fs::read(facts(name)).unwrap()).unwrap()
    };
    let mut record = read(on);
    record["containers"]["runtimes"] = read(ONE)["containers"]["runtimes"].take();
    let record = machine.write("facts.json", &record.to_string());
    let arguments = ["plan", "--json", "--container-runtime", runtime, "--facts"];
    let mut arguments = arguments.to_vec();
    arguments.push(record.to_str().unwrap());
    let plan = machine.run(&arguments).code(0).json();
    machine.assert_untouched();
    let command = &plan["run"]["command"];
    let words = command["args"].as_array().unwrap().iter();
    let mut lines = vec![command["bin"].as_str().unwrap().to_owned()];
    for word in words.map(|word| machine.normal(word.as_str().unwrap())) {
        let value = !word.starts_with('-');
        match lines.last_mut() {
            Some(line) if value && line.starts_with("--") && !line.contains([' ', '=']) => {
                line.push(' ');
                line.push_str(&word);
            }
            _ => lines.push(word),
        }
    }
    lines
}

/// What one command has and the other lacks, in their order.
pub(crate) fn change(from: &[String], to: &[String]) -> String {
    let gone = from.iter().filter(|line| !to.contains(line));
    let come = to.iter().filter(|line| !from.contains(line));
    let gone = gone.map(|line| format!("- {line}"));
    let come = come.map(|line| format!("+ {line}"));
    gone.chain(come).collect::<Vec<_>>().join("\n")
}

pub(crate) fn changes(engine: &str, runtime: &str) -> String {
    let one = command(engine, ONE, runtime);
    let others = ["podman-cpu", "podman-two-gpus", "podman-mig"];
    let others = others.map(|on| format!("{on}\n{}", change(&one, &command(engine, on, runtime))));
    others.join("\n\n")
}

#[test]
fn vllm_under_podman() {
    assert_snapshot!(command("vllm", ONE, "podman").join("\n"), @r"
    /usr/bin/podman
    run
    --name engine-host-{instance}
    --pull=never
    --log-driver none
    --cap-drop ALL
    --security-opt no-new-privileges
    --init
    --pids-limit 16384
    --no-healthcheck
    --mount type=tmpfs,target=/tmp,exec,nosuid,nodev,tmpfs-mode=1777,chown=true
    --shm-size 1073741824
    --device nvidia.com/gpu=0
    --publish 127.0.0.1:8000:8000
    --http-proxy=false
    --network private
    --env DO_NOT_TRACK=1
    --env HF_HUB_OFFLINE=1
    --env HOME=/cache
    --env TORCHINDUCTOR_CACHE_DIR=/cache/torchinductor
    --env TRANSFORMERS_OFFLINE=1
    --env USER=vllm
    --env VLLM_BATCH_INVARIANT=1
    --env VLLM_CACHE_ROOT=/cache/vllm
    --env VLLM_NO_USAGE_STATS=1
    --env HF_TOKEN
    --mount type=bind,source={model-fetch.path},target=/models/qwen,ro=true
    --mount type=bind,source={cache.vllm},target=/cache
    --user 2000:0
    --entrypoint vllm
    docker.io/vllm/vllm-openai@sha256:8a69ffad015f138d7170c4ddc429e230a3bc1c1719f67e14324749df200a4b90
    serve
    /models/qwen
    --served-model-name qwen
    --host 0.0.0.0
    --port 8000
    --tensor-parallel-size 1
    --max-num-seqs 256
    --seed 42
    --shutdown-timeout 2
    ");
    assert_snapshot!(changes("vllm", "podman"), @r"
    podman-cpu
    - --device nvidia.com/gpu=0
    - --env VLLM_BATCH_INVARIANT=1
    - docker.io/vllm/vllm-openai@sha256:8a69ffad015f138d7170c4ddc429e230a3bc1c1719f67e14324749df200a4b90
    - --tensor-parallel-size 1
    - --max-num-seqs 256
    + --read-only
    + --env VLLM_CPU_KVCACHE_SPACE=4
    + docker.io/vllm/vllm-openai-cpu@sha256:(known after pull)
    + --max-num-seqs 1
    + --no-enable-prefix-caching

    podman-two-gpus
    - --device nvidia.com/gpu=0
    - --tensor-parallel-size 1
    + --device nvidia.com/gpu=GPU-11111111-2222-3333-4444-555555555555
    + --device nvidia.com/gpu=GPU-66666666-7777-8888-9999-aaaaaaaaaaaa
    + --tensor-parallel-size 2

    podman-mig
    - --device nvidia.com/gpu=0
    + --device nvidia.com/gpu=0:0
    ");
}

#[test]
fn vllm_under_docker() {
    let podman = command("vllm", ONE, "podman");
    assert_snapshot!(change(&podman, &command("vllm", ONE, "docker")), @r"
    - /usr/bin/podman
    - --mount type=tmpfs,target=/tmp,exec,nosuid,nodev,tmpfs-mode=1777,chown=true
    - --http-proxy=false
    - --network private
    - --mount type=bind,source={model-fetch.path},target=/models/qwen,ro=true
    + /usr/bin/docker
    + --tmpfs /tmp:rw,exec,nosuid,nodev,mode=1777,uid=2000,gid=0
    + --env NVIDIA_VISIBLE_DEVICES=void
    + --mount type=bind,source={model-fetch.path},target=/models/qwen,readonly
    ");
    assert_snapshot!(changes("vllm", "docker"), @r"
    podman-cpu
    - --device nvidia.com/gpu=0
    - --env VLLM_BATCH_INVARIANT=1
    - docker.io/vllm/vllm-openai@sha256:8a69ffad015f138d7170c4ddc429e230a3bc1c1719f67e14324749df200a4b90
    - --tensor-parallel-size 1
    - --max-num-seqs 256
    + --read-only
    + --env VLLM_CPU_KVCACHE_SPACE=4
    + docker.io/vllm/vllm-openai-cpu@sha256:(known after pull)
    + --max-num-seqs 1
    + --no-enable-prefix-caching

    podman-two-gpus
    - --device nvidia.com/gpu=0
    - --tensor-parallel-size 1
    + --device nvidia.com/gpu=GPU-11111111-2222-3333-4444-555555555555
    + --device nvidia.com/gpu=GPU-66666666-7777-8888-9999-aaaaaaaaaaaa
    + --tensor-parallel-size 2

    podman-mig
    - --device nvidia.com/gpu=0
    + --device nvidia.com/gpu=0:0
    ");
}

#[test]
fn tgi_under_podman() {
    assert_snapshot!(command("tgi", ONE, "podman").join("\n"), @r"
    /usr/bin/podman
    run
    --name engine-host-{instance}
    --pull=never
    --log-driver none
    --cap-drop ALL
    --security-opt no-new-privileges
    --init
    --pids-limit 16384
    --no-healthcheck
    --mount type=tmpfs,target=/tmp,exec,nosuid,nodev,tmpfs-mode=1777,chown=true
    --shm-size 1073741824
    --device nvidia.com/gpu=0
    --publish 127.0.0.1:8080:8080
    --http-proxy=false
    --network private
    --env GRACEFUL_TERMINATION_TIMEOUT=3
    --env HF_HOME=/data
    --env HF_HUB_OFFLINE=1
    --env HOSTNAME=0.0.0.0
    --env HUGGINGFACE_HUB_CACHE=/data
    --env MAX_BATCH_SIZE=1
    --env MODEL_ID=/models/qwen
    --env NUM_SHARD=1
    --env PORT=8080
    --env PREFIX_CACHING=0
    --env TRITON_CACHE_DIR=/data/triton
    --env USAGE_STATS=off
    --env HF_TOKEN
    --mount type=bind,source={model-fetch.path},target=/models/qwen,ro=true
    --mount type=bind,source={cache.tgi},target=/data
    --user 0:0
    ghcr.io/huggingface/text-generation-inference@sha256:(known after pull)
    ");
    assert_snapshot!(changes("tgi", "podman"), @r"
    podman-cpu
    - --device nvidia.com/gpu=0
    - --env NUM_SHARD=1

    podman-two-gpus
    - --device nvidia.com/gpu=0
    - --env NUM_SHARD=1
    + --device nvidia.com/gpu=GPU-11111111-2222-3333-4444-555555555555
    + --device nvidia.com/gpu=GPU-66666666-7777-8888-9999-aaaaaaaaaaaa
    + --env NUM_SHARD=2

    podman-mig
    - --device nvidia.com/gpu=0
    + --device nvidia.com/gpu=0:0
    ");
}

#[test]
fn tgi_under_docker() {
    let podman = command("tgi", ONE, "podman");
    assert_snapshot!(change(&podman, &command("tgi", ONE, "docker")), @r"
    - /usr/bin/podman
    - --mount type=tmpfs,target=/tmp,exec,nosuid,nodev,tmpfs-mode=1777,chown=true
    - --http-proxy=false
    - --network private
    - --mount type=bind,source={model-fetch.path},target=/models/qwen,ro=true
    + /usr/bin/docker
    + --tmpfs /tmp:rw,exec,nosuid,nodev,mode=1777,uid=0,gid=0
    + --env NVIDIA_VISIBLE_DEVICES=void
    + --mount type=bind,source={model-fetch.path},target=/models/qwen,readonly
    ");
    assert_snapshot!(changes("tgi", "docker"), @r"
    podman-cpu
    - --device nvidia.com/gpu=0
    - --env NUM_SHARD=1

    podman-two-gpus
    - --device nvidia.com/gpu=0
    - --env NUM_SHARD=1
    + --device nvidia.com/gpu=GPU-11111111-2222-3333-4444-555555555555
    + --device nvidia.com/gpu=GPU-66666666-7777-8888-9999-aaaaaaaaaaaa
    + --env NUM_SHARD=2

    podman-mig
    - --device nvidia.com/gpu=0
    + --device nvidia.com/gpu=0:0
    ");
}
