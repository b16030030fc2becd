//! The same for Triton and llama.cpp.

use insta::assert_snapshot;

use crate::commands::{ONE, change, changes, command};

#[test]
fn triton_under_podman() {
    assert_snapshot!(command("triton", ONE, "podman").join("\n"), @r"
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
    --ulimit memlock=-1:-1
    --device nvidia.com/gpu=0
    --publish 127.0.0.1:8000:8000
    --publish 127.0.0.1:8001:8001
    --publish 127.0.0.1:8002:8002
    --http-proxy=false
    --network private
    --env HF_TOKEN
    --mount type=bind,source={model-fetch.path},target=/models,ro=true
    --user 1000:1000
    nvcr.io/nvidia/tritonserver@sha256:(known after pull)
    tritonserver
    --http-address 0.0.0.0
    --http-port 8000
    --grpc-address 0.0.0.0
    --grpc-port 8001
    --metrics-address 0.0.0.0
    --metrics-port 8002
    --model-repository /models
    --strict-readiness true
    --exit-on-error true
    --exit-timeout-secs 4
    ");
    assert_snapshot!(changes("triton", "podman"), @r"
    podman-cpu
    - --device nvidia.com/gpu=0
    + --read-only
    + --allow-gpu-metrics false

    podman-two-gpus
    - --device nvidia.com/gpu=0
    + --device nvidia.com/gpu=GPU-11111111-2222-3333-4444-555555555555
    + --device nvidia.com/gpu=GPU-66666666-7777-8888-9999-aaaaaaaaaaaa

    podman-mig
    - --device nvidia.com/gpu=0
    + --device nvidia.com/gpu=0:0
    ");
}

#[test]
fn triton_under_docker() {
    let podman = command("triton", ONE, "podman");
    assert_snapshot!(change(&podman, &command("triton", ONE, "docker")), @r"
    - /usr/bin/podman
    - --mount type=tmpfs,target=/tmp,exec,nosuid,nodev,tmpfs-mode=1777,chown=true
    - --http-proxy=false
    - --network private
    - --mount type=bind,source={model-fetch.path},target=/models,ro=true
    + /usr/bin/docker
    + --tmpfs /tmp:rw,exec,nosuid,nodev,mode=1777,uid=1000,gid=1000
    + --env NVIDIA_VISIBLE_DEVICES=void
    + --mount type=bind,source={model-fetch.path},target=/models,readonly
    ");
    assert_snapshot!(changes("triton", "docker"), @r"
    podman-cpu
    - --device nvidia.com/gpu=0
    + --read-only
    + --allow-gpu-metrics false

    podman-two-gpus
    - --device nvidia.com/gpu=0
    + --device nvidia.com/gpu=GPU-11111111-2222-3333-4444-555555555555
    + --device nvidia.com/gpu=GPU-66666666-7777-8888-9999-aaaaaaaaaaaa

    podman-mig
    - --device nvidia.com/gpu=0
    + --device nvidia.com/gpu=0:0
    ");
}

#[test]
fn llamacpp_under_podman() {
    assert_snapshot!(command("llamacpp", ONE, "podman").join("\n"), @r"
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
    --device nvidia.com/gpu=0
    --publish 127.0.0.1:8080:8080
    --http-proxy=false
    --network private
    --env HF_TOKEN
    --mount type=bind,source=HOME/store/blobs/sha256/744ce8ad850a323018a6aaf88b444cfe7089d4a5f7de1185d67cd632610cd9cb,target=/models/qwen.gguf,ro=true
    --user 65532:65532
    --entrypoint /app/llama-server
    ghcr.io/ggml-org/llama.cpp@sha256:(known after pull)
    --host 0.0.0.0
    --port 8080
    --model /models/qwen.gguf
    --alias qwen
    --parallel 1
    --no-cont-batching
    --no-cache-prompt
    --metrics
    --no-webui
    --seed 42
    --sse-ping-interval 1
    --device CUDA0
    ");
    assert_snapshot!(changes("llamacpp", "podman"), @r"
    podman-cpu
    - --device nvidia.com/gpu=0
    - --device CUDA0
    + --read-only
    + --threads 4

    podman-two-gpus
    - --device nvidia.com/gpu=0
    - --device CUDA0
    + --device nvidia.com/gpu=GPU-11111111-2222-3333-4444-555555555555
    + --device nvidia.com/gpu=GPU-66666666-7777-8888-9999-aaaaaaaaaaaa
    + --device CUDA0,CUDA1

    podman-mig
    - --device nvidia.com/gpu=0
    + --device nvidia.com/gpu=0:0
    ");
}

#[test]
fn llamacpp_under_docker() {
    let podman = command("llamacpp", ONE, "podman");
    assert_snapshot!(change(&podman, &command("llamacpp", ONE, "docker")), @r"
    - /usr/bin/podman
    - --mount type=tmpfs,target=/tmp,exec,nosuid,nodev,tmpfs-mode=1777,chown=true
    - --http-proxy=false
    - --network private
    - --mount type=bind,source=HOME/store/blobs/sha256/744ce8ad850a323018a6aaf88b444cfe7089d4a5f7de1185d67cd632610cd9cb,target=/models/qwen.gguf,ro=true
    + /usr/bin/docker
    + --tmpfs /tmp:rw,exec,nosuid,nodev,mode=1777,uid=65532,gid=65532
    + --env NVIDIA_VISIBLE_DEVICES=void
    + --mount type=bind,source=HOME/store/blobs/sha256/744ce8ad850a323018a6aaf88b444cfe7089d4a5f7de1185d67cd632610cd9cb,target=/models/qwen.gguf,readonly
    ");
    assert_snapshot!(changes("llamacpp", "docker"), @r"
    podman-cpu
    - --device nvidia.com/gpu=0
    - --device CUDA0
    + --read-only
    + --threads 4

    podman-two-gpus
    - --device nvidia.com/gpu=0
    - --device CUDA0
    + --device nvidia.com/gpu=GPU-11111111-2222-3333-4444-555555555555
    + --device nvidia.com/gpu=GPU-66666666-7777-8888-9999-aaaaaaaaaaaa
    + --device CUDA0,CUDA1

    podman-mig
    - --device nvidia.com/gpu=0
    + --device nvidia.com/gpu=0:0
    ");
}
