//! What a right file gives.

use std::time::Duration;

use engine_provider_api::GpuPolicy;

use super::*;

#[test]
fn the_smallest_file_has_every_default() {
    let loaded = pool("").unwrap();
    let pool = &loaded.pools[0].pool;
    assert_eq!(
        (pool.id.as_str(), pool.engine.as_str()),
        ("chat", "llamacpp")
    );
    assert_eq!(pool.readiness.stall_timeout_ms, 120_000);
    assert_eq!(pool.readiness.timeout_ms, None);
    assert_eq!(pool.stop.grace_ms, 5_000);
    assert_eq!(pool.replicas, 1);
    assert_eq!(loaded.pools[0].supervision, Supervision::default());
    assert!(pool.preload);
    assert_eq!(pool.gpu, GpuPolicy::Require);
    assert_eq!(pool.provisioning.mode, None);
    assert_eq!(notices(&loaded), [""; 0]);
}

#[test]
fn every_field_arrives_where_it_belongs() {
    let loaded = pool(
        r#"model: haiku
quant: Q4_K_M
ctx: 8192
devices: [0, GPU-5f3c]
tensor_split: [1, 2.5]
preload: false
profile: throughput
options: {threads: 4}
gpu: prefer
replicas: 2
readiness: {stall_timeout: 1m30s, timeout: 2h}
stop: {grace: 500ms}
supervision:
  restart: always
  backoff: {initial: 200ms, max: 2s, stable_after: 3s}
  breaker: {failures: 7, open: 4s}
  liveness: {interval: 300ms, timeout: 1s, failures: 2}
  drain_deadline: 1m
  idle_stop: 90s
provisioning:
  mode: source
  allow_package_installs: true
  allow_binary_downloads: false
  source:
    repo: https://github.com/ggml-org/llama.cpp
    ref: 0123456
    submodules: true
    build: {cmake_flags: [-DGGML_CUDA=ON], generator: Ninja, cache_dir: ~/ccache}
  model: {ref: "hf:org/repo", cache_dir: ./models}
  ports: [8080, 8081]
  env: {HF_TOKEN: "{secret.HF_TOKEN}", NUMBER: 1}
  flags: [--parallel, 1]"#,
    )
    .unwrap();
    let entry = &loaded.pools[0];
    insta::assert_json_snapshot!(entry.pool, @r#"
    {
      "id": "chat",
      "engine": "llamacpp",
      "model": "haiku",
      "quant": "Q4_K_M",
      "ctx": 8192,
      "devices": [
        0,
        "GPU-5f3c"
      ],
      "tensor_split": [
        1.0,
        2.5
      ],
      "preload": false,
      "profile": "throughput",
      "options": {
        "threads": 4
      },
      "gpu": "prefer",
      "replicas": 2,
      "readiness": {
        "stall_timeout_ms": 90000,
        "timeout_ms": 7200000
      },
      "stop": {
        "grace_ms": 500
      },
      "provisioning": {
        "mode": "source",
        "source": {
          "repo": "https://github.com/ggml-org/llama.cpp",
          "ref": "0123456",
          "submodules": true,
          "build": {
            "cmake_flags": [
              "-DGGML_CUDA=ON"
            ],
            "generator": "Ninja",
            "cache_dir": "/home/ada/ccache"
          }
        },
        "model": {
          "ref": "hf:org/repo",
          "cache_dir": "/srv/models"
        },
        "ports": [
          8080,
          8081
        ],
        "env": {
          "HF_TOKEN": "{secret.HF_TOKEN}",
          "NUMBER": "1"
        },
        "flags": [
          "--parallel",
          "1"
        ]
      }
    }
    "#);
    let (ms, seconds) = (Duration::from_millis, Duration::from_secs);
    let supervision = Supervision {
        restart: true,
        backoff_initial: ms(200),
        backoff_max: seconds(2),
        stable_after: seconds(3),
        breaker_failures: 7,
        breaker_open: seconds(4),
        liveness_interval: ms(300),
        liveness_timeout: seconds(1),
        liveness_failures: 2,
        drain_deadline: seconds(60),
        idle_stop: Some(seconds(90)),
    };
    assert_eq!(entry.supervision, supervision);
    let own = &entry.requests[1];
    assert_eq!(
        own.gpu.as_ref().unwrap().origin.to_string(),
        "pools.yaml:12"
    );
    assert!(own.allow_package_installs.as_ref().unwrap().value);
    assert!(!own.allow_binary_downloads.as_ref().unwrap().value);
}

#[test]
fn files_of_the_original_schema_load_with_one_notice() {
    let text = r#"
catalog: {trust_policy: {mode: strict}}
pools:
  - id: default
    engine: llamacpp
    model: "local:/models/x.gguf"
    ctx: 8192
    devices: [0]
    preload: true
    require_same_engine_version: true
    sampler_profile_version: "v1"
    queue: {capacity: 64, full_policy: reject}
    admission: {priorities: [{name: interactive, queue_capacity: 8}]}
    timeouts: {wall_ms: 60000, idle_ms: 5000}
  - id: second
    engine: vllm
    model: meta/llama
    devices: [1]
    queue: {}
"#;
    let loaded = try_text(text).unwrap();
    insta::assert_snapshot!(notices(&loaded).join("\n"), @r"
    catalog: not used here, they belong to an orchestrator: `catalog`, `require_same_engine_version`, `sampler_profile_version`, `queue`, `admission`, `timeouts`
    pools[0].model: taken for the model's reference; `provisioning.model.ref` is the place for it
    ");
    let first = &loaded.pools[0].pool;
    assert_eq!(
        first.provisioning.model.as_ref().unwrap().reference,
        "file:/models/x.gguf"
    );
    assert_eq!(loaded.pools[1].pool.provisioning.model, None);
}

#[test]
fn json_is_read_like_yaml() {
    let text =
        "{\n\t\"pools\": [\n\t\t{\"id\": \"a\", \"engine\": \"llamacpp\", \"ctx\": \"x\"}\n\t]\n}";
    let source = Source::new("pools.json", text);
    let error = read(&source, &base(), &Caller::default()).unwrap_err();
    insta::assert_snapshot!(error.details()[0].text.replace('\t', "→"), @r#"
    pools.json:3:44: `ctx` must be a whole number, not the text `x`
          |
        3 | →→{"id": "a", "engine": "llamacpp", "ctx": "x"}
          | →→                                         ^^^
    "#);
}

#[test]
fn a_secret_that_stands_in_the_file_is_noticed_and_not_shown() {
    let loaded = pool("provisioning: {env: {HF_TOKEN: hf_abcdefghijklmnop}}").unwrap();
    let shown = loaded.notices[0].render(&loaded.source);
    assert!(shown.contains("{secret.HF_TOKEN}"), "{shown}");
    assert!(!shown.contains("hf_abcdef"), "{shown}");
}
