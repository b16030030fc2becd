//! What is run.

use super::*;

#[test]
fn one_gpu_in_a_container() {
    let fields = json!({ "ctx": 8192, "model": "qwen" });
    let engine = prepare(fields, Mode::Container, &machine!("podman-one-gpu"));
    assert_snapshot!(show(&engine), @r#"
    sha256:1234
    {model-fetch.path} at /models/qwen
    {cache.vllm} at /cache
    user Some("2000:0"), shm 1073741824, port 8000, read-only root false
    vllm serve /models/qwen
      --served-model-name qwen
      --host {address.host}
      --port {address.port}
      --tensor-parallel-size 1
      --max-model-len 8192
      --max-num-seqs 256
      --seed 42
      --shutdown-timeout 2
    DO_NOT_TRACK=1
    HF_HUB_OFFLINE=1
    HOME=/cache
    TORCHINDUCTOR_CACHE_DIR=/cache/torchinductor
    TRANSFORMERS_OFFLINE=1
    USER=vllm
    VLLM_BATCH_INVARIANT=1
    VLLM_CACHE_ROOT=/cache/vllm
    VLLM_NO_USAGE_STATS=1
    mask ["GPU-3d4f7a0e-6a0f-4f6c-9a7b-5f0c1d2e3f40"], slots 256, vram Some(22609) MiB, proof true
    record {"batch_invariant": "true", "image": "docker.io/vllm/vllm-openai@sha256:1234", "seed": "42", "version": "v0.30.0"}
    "#);
}

#[test]
fn two_gpus_in_a_container() {
    let fields = json!({ "profile": "throughput", "quant": "AWQ", "stop": { "grace_ms": 30_000 } });
    let engine = prepare(fields, Mode::Container, &machine!("podman-two-gpus"));
    assert_snapshot!(show(&engine), @r#"
    sha256:1234
    {model-fetch.path} at /models/Qwen2.5-0.5B-Instruct
    {cache.vllm} at /cache
    user Some("2000:0"), shm 1073741824, port 8000, read-only root false
    vllm serve /models/Qwen2.5-0.5B-Instruct
      --served-model-name Qwen2.5-0.5B-Instruct
      --host {address.host}
      --port {address.port}
      --tensor-parallel-size 2
      --max-num-seqs 256
      --quantization awq
      --shutdown-timeout 27
    DO_NOT_TRACK=1
    HF_HUB_OFFLINE=1
    HOME=/cache
    TORCHINDUCTOR_CACHE_DIR=/cache/torchinductor
    TRANSFORMERS_OFFLINE=1
    USER=vllm
    VLLM_CACHE_ROOT=/cache/vllm
    VLLM_NO_USAGE_STATS=1
    mask ["GPU-11111111-2222-3333-4444-555555555555", "GPU-66666666-7777-8888-9999-aaaaaaaaaaaa"], slots 256, vram Some(87591) MiB, proof true
    record {"image": "docker.io/vllm/vllm-openai@sha256:1234", "version": "v0.30.0"}
    "#);
}

#[test]
fn a_mig_slice_in_a_container() {
    let engine = prepare(json!({}), Mode::Container, &machine!("podman-mig"));
    assert_snapshot!(show(&engine), @r#"
    sha256:1234
    {model-fetch.path} at /models/Qwen2.5-0.5B-Instruct
    {cache.vllm} at /cache
    user Some("2000:0"), shm 1073741824, port 8000, read-only root false
    vllm serve /models/Qwen2.5-0.5B-Instruct
      --served-model-name Qwen2.5-0.5B-Instruct
      --host {address.host}
      --port {address.port}
      --tensor-parallel-size 1
      --max-num-seqs 256
      --seed 42
      --shutdown-timeout 2
    DO_NOT_TRACK=1
    HF_HUB_OFFLINE=1
    HOME=/cache
    TORCHINDUCTOR_CACHE_DIR=/cache/torchinductor
    TRANSFORMERS_OFFLINE=1
    USER=vllm
    VLLM_BATCH_INVARIANT=1
    VLLM_CACHE_ROOT=/cache/vllm
    VLLM_NO_USAGE_STATS=1
    mask ["MIG-6a1b2c3d-0001-5e4f-9a8b-7c6d5e4f3a2b"], slots 256, vram Some(67064) MiB, proof true
    record {"batch_invariant": "true", "image": "docker.io/vllm/vllm-openai@sha256:1234", "seed": "42", "version": "v0.30.0"}
    "#);
}

#[test]
fn the_processor_in_a_container() {
    let fields = json!({ "gpu": "forbid" });
    let engine = prepare(fields, Mode::Container, &machine!("podman-cpu"));
    assert_snapshot!(show(&engine), @r#"
    sha256:1234
    {model-fetch.path} at /models/Qwen2.5-0.5B-Instruct
    {cache.vllm} at /cache
    user Some("2000:0"), shm 1073741824, port 8000, read-only root true
    vllm serve /models/Qwen2.5-0.5B-Instruct
      --served-model-name Qwen2.5-0.5B-Instruct
      --host {address.host}
      --port {address.port}
      --max-num-seqs 1
      --seed 42
      --no-enable-prefix-caching
      --shutdown-timeout 2
    DO_NOT_TRACK=1
    HF_HUB_OFFLINE=1
    HOME=/cache
    TORCHINDUCTOR_CACHE_DIR=/cache/torchinductor
    TRANSFORMERS_OFFLINE=1
    USER=vllm
    VLLM_CACHE_ROOT=/cache/vllm
    VLLM_CPU_KVCACHE_SPACE=4
    VLLM_NO_USAGE_STATS=1
    mask [], slots 1, vram Some(0) MiB, proof false
    record {"batch_invariant": "false", "image": "docker.io/vllm/vllm-openai@sha256:1234", "seed": "42", "version": "v0.30.0"}
    "#);
}

#[test]
fn packages_on_the_processor() {
    let fields = json!({ "gpu": "forbid", "profile": "throughput", "ctx": 2048 });
    let engine = prepare(fields, Mode::Package, &machine!("debian-cpu"));
    assert_snapshot!(show(&engine), @r#"
    0.32.0
    {venv.path}/python/bin/python -m vllm.entrypoints.openai.api_server
      --model {model-fetch.path}
      --served-model-name Qwen2.5-0.5B-Instruct
      --host {address.host}
      --port {address.port}
      --max-model-len 2048
      --max-num-seqs 128
      --shutdown-timeout 2
    DO_NOT_TRACK=1
    HF_HUB_OFFLINE=1
    HOME={cache.vllm}
    PATH={venv.path}/python/bin:/usr/local/bin:/usr/bin:/bin
    TORCHINDUCTOR_CACHE_DIR={cache.vllm}/torchinductor
    TRANSFORMERS_OFFLINE=1
    VLLM_CACHE_ROOT={cache.vllm}/vllm
    VLLM_CPU_KVCACHE_SPACE=4
    VLLM_NO_USAGE_STATS=1
    mask [], slots 128, vram Some(0) MiB, proof false
    record {"package": "vllm-cpu", "version": "0.32.0"}
    "#);
}

#[test]
fn packages_on_a_gpu() {
    let engine = prepare(json!({}), Mode::Package, &machine!("h200"));
    assert_snapshot!(show(&engine), @r#"
    0.32.0
    {venv.path}/python/bin/python -m vllm.entrypoints.openai.api_server
      --model {model-fetch.path}
      --served-model-name Qwen2.5-0.5B-Instruct
      --host {address.host}
      --port {address.port}
      --tensor-parallel-size 1
      --max-num-seqs 256
      --seed 42
      --shutdown-timeout 2
    CUDA_VISIBLE_DEVICES=GPU-9f8e7d6c-5b4a-4392-8170-6f5e4d3c2b1a
    DO_NOT_TRACK=1
    HF_HUB_OFFLINE=1
    HOME={cache.vllm}
    PATH={venv.path}/python/bin:/usr/local/bin:/usr/bin:/bin
    TORCHINDUCTOR_CACHE_DIR={cache.vllm}/torchinductor
    TRANSFORMERS_OFFLINE=1
    VLLM_BATCH_INVARIANT=1
    VLLM_CACHE_ROOT={cache.vllm}/vllm
    VLLM_NO_USAGE_STATS=1
    mask ["GPU-9f8e7d6c-5b4a-4392-8170-6f5e4d3c2b1a"], slots 256, vram Some(132269) MiB, proof true
    record {"batch_invariant": "true", "package": "vllm", "seed": "42", "version": "0.32.0"}
    "#);
}

#[test]
fn gpus_that_are_divided_otherwise_share_less() {
    let fields = with_flags(&["-pp", "2", "--gpu_memory_utilization=0.5"]);
    let engine = prepare(fields, Mode::Container, &machine!("podman-two-gpus"));
    let flags = engine.flags.join(" ");
    assert!(flags.contains("--tensor-parallel-size 1"), "{flags}");
    assert!(flags.contains("--pipeline-parallel-size 2"), "{flags}");
    assert!(flags.contains("--gpu-memory-utilization 0.5"), "{flags}");
    let total: u64 = machine!("podman-two-gpus")
        .gpus
        .devices
        .iter()
        .map(|gpu| gpu.memory_total_bytes / 2)
        .sum();
    let vram = engine.resources.vram_bytes.unwrap();
    assert!(vram.abs_diff(total) < 2, "{vram} {total}");
}

#[test]
fn an_older_release_is_not_told_what_it_does_not_know() {
    let fields = json!({ "provisioning": { "container": { "tag": "v0.17.1" } } });
    let engine = prepare(fields, Mode::Container, &machine!("podman-one-gpu"));
    assert!(!engine.flags.contains(&"--shutdown-timeout".to_owned()));
}

#[test]
fn without_kernels_for_it_deterministic_means_one_request_at_a_time() {
    let mut facts = machine!("podman-one-gpu");
    facts.gpus.devices[0].compute_capability = "7.5".to_owned();
    let engine = prepare(json!({}), Mode::Container, &facts);
    assert_eq!(engine.slots_total, 1);
    assert!(
        engine
            .flags
            .contains(&"--no-enable-prefix-caching".to_owned())
    );
    let more = prepare(
        json!({ "options": { "slots": 4 } }),
        Mode::Container,
        &facts,
    );
    assert_eq!(more.slots_total, 4);
    assert!(
        more.warnings
            .iter()
            .any(|warning| warning.contains("different texts"))
    );
}

#[test]
fn what_vllm_prints_when_it_fails_is_understood() {
    let cases = [
        (
            "(EngineCore pid=9) ERROR ValueError: To serve at least one request with the model's max seq len (32768), (1.75 GiB KV cache is needed, which is larger than the available KV cache memory (0.53 GiB). Based on",
            "a context of 32768 tokens takes 1.75 GiB, and there is room for 0.53 GiB",
        ),
        (
            "ValueError: Free memory on device cuda:0 (3.1/23.6 GiB) on startup is less than desired GPU memory utilization (0.92, 21.7 GiB). Decrease",
            "vLLM wants 21.7 of the 23.6 GiB of cuda:0, and 3.1 GiB are free",
        ),
        (
            "api_server.py: error: unrecognized arguments: --foo 3",
            "this vLLM does not know `--foo 3`",
        ),
        (
            "pydantic: Value error, Model architectures ['FooForCausalLM'] are not supported for now. Supported",
            "this vLLM does not know the model architecture ['FooForCausalLM']",
        ),
        (
            "ValueError: Total number of attention heads (14) must be divisible by tensor parallel size (4).",
            "the model's 14 attention heads cannot be divided among 4 GPUs",
        ),
        (
            "RuntimeError: Cannot find any model weights with `/models/x`",
            "the model directory /models/x has no weights",
        ),
        (
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB.",
            "the GPU's memory is full",
        ),
        (
            "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}",
            "vLLM's computing process ended while it started",
        ),
        (
            "OSError: [Errno 98] Address already in use",
            "something else listens on the port",
        ),
    ];
    for (line, meaning) in cases {
        let all = diagnoses::all();
        let found = all.iter().find_map(|diagnosis| {
            let pattern = Regex::new(&diagnosis.pattern).expect("the pattern is sound");
            let captures = pattern.captures(line)?;
            let mut said = String::new();
            captures.expand(&diagnosis.meaning, &mut said);
            Some(said)
        });
        assert_eq!(found.as_deref(), Some(meaning), "{line}");
    }
}

#[test]
fn the_proof_is_what_vllm_prints() {
    let engine = prepare(json!({}), Mode::Container, &machine!("podman-one-gpu"));
    let evidence = engine.gpu_evidence.unwrap();
    let matches = |patterns: &[String], line: &str| {
        patterns
            .iter()
            .any(|pattern| Regex::new(pattern).unwrap().is_match(line))
    };
    let gpu = "INFO 11-21 03:00:00 [kv_cache_utils.py:2327] GPU KV cache size: 1,234,560 tokens, Maximum concurrency";
    assert!(matches(&evidence.proofs, gpu) && !matches(&evidence.disproofs, gpu));
    assert!(matches(&evidence.disproofs, &gpu.replace("GPU", "CPU")));
    assert!(evidence.driver_memory);
}
