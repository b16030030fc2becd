//! What is planned and prepared for machines that were written down, and what is refused.

use std::fmt::Write as _;

use engine_provider_api::{
    Act, Artifact, Facts, Image, Launch, Mode, Plan, Pool, PreparedEngine, ProviderError,
};
use engine_provider_kit::{
    machine,
    testing::{self, join, with_flags},
};
use insta::assert_snapshot;
use regex::Regex;
use serde_json::{Value, json};

use crate::{Tgi, diagnoses};

/// A pool that serves a model of the hub, with these fields over it.
fn pool(fields: Value) -> Pool {
    let least = json!({
        "id": "chat",
        "engine": "tgi",
        "provisioning": { "model": { "ref": "hf:Qwen/Qwen2.5-0.5B-Instruct" } },
    });
    testing::pool(least, fields)
}

fn try_plan(fields: Value, mode: Mode, facts: &Facts) -> Result<Plan, ProviderError> {
    testing::plan(&Tgi, pool(fields), mode, facts)
}

fn plan(fields: Value, mode: Mode, facts: &Facts) -> String {
    let plan = try_plan(fields, mode, facts).expect("the pool can be planned");
    let mut text = String::new();
    for step in &plan.steps {
        let _ = write!(text, "{}:", step.id);
        match &step.act {
            Act::PullImage(pull) => {
                let image = &pull.image;
                let _ = write!(text, " {}", image.repository);
                let _ = write!(text, " {:?} {:?}", image.tag, image.digest);
            }
            Act::StageModel(model) => {
                let _ = write!(text, " {} as {:?}", model.reference, model.shape);
            }
            other => panic!("unexpected {}", other.kind()),
        }
        text.push('\n');
    }
    text + &testing::advice(&plan.notes, &plan.warnings)
}

/// The engine of a pool whose model has 1 GiB and whose image, if it has one, was pulled.
fn prepare(fields: Value, mode: Mode, facts: &Facts) -> PreparedEngine {
    let model = Artifact {
        path: Some("/store/model".to_owned()),
        size_bytes: Some(1 << 30),
        ..Artifact::default()
    };
    let image = Artifact {
        image: Some(Image {
            reference: "ghcr.io/huggingface/text-generation-inference@sha256:1234".to_owned(),
            digest: "sha256:1234".to_owned(),
            tag: Some("3.3.7".to_owned()),
            ..Image::default()
        }),
        ..Artifact::default()
    };
    let artifacts = [("model-fetch", model), ("pull-image", image)];
    let artifacts = artifacts.map(|(step, artifact)| (step.to_owned(), artifact));
    testing::prepare(&Tgi, pool(fields), mode, facts, artifacts.into())
        .expect("the pool can be prepared")
}

fn show(engine: &PreparedEngine) -> String {
    let mut text = format!("{}\n", engine.engine_version);
    let (env, args) = match &engine.launch {
        Launch::Container(launch) => {
            for mount in &launch.mounts {
                let _ = writeln!(text, "{} at {}", mount.source, mount.target);
            }
            let _ = writeln!(
                text,
                "user {:?}, shm {}, port {}, read-only root {}",
                launch.user, launch.shm_bytes, launch.port, launch.read_only_root
            );
            (&launch.env, &launch.args)
        }
        Launch::Process(launch) => panic!("a process: {}", launch.program),
        Launch::External(launch) => return format!("{text}{}\n", launch.url),
    };
    assert!(
        args.is_empty(),
        "the entry point splits arguments: {}",
        join(args)
    );
    for (name, value) in env {
        let _ = writeln!(text, "{name}={value}");
    }
    let _ = writeln!(
        text,
        "mask {:?}, slots {}, vram {:?} MiB, proof {}\nrecord {:?}",
        engine.device_mask,
        engine.slots_total,
        engine.resources.vram_bytes.map(|bytes| bytes >> 20),
        engine.gpu_evidence.is_some(),
        engine.build_record
    );
    text + &testing::advice(&[], &engine.warnings)
}

fn refusal(fields: Value, mode: Mode, facts: &Facts) -> String {
    let error = try_plan(fields, mode, facts).expect_err("the pool is refused");
    testing::told(&error)
}

#[test]
fn the_plan_says_what_to_use_instead() {
    let facts = machine!("podman-one-gpu");
    assert_snapshot!(plan(json!({}), Mode::Container, &facts), @r#"
    pull-image: ghcr.io/huggingface/text-generation-inference Some("3.3.7") None
    model-fetch: hf:Qwen/Qwen2.5-0.5B-Instruct as Directory
    note: profile deterministic: 1 request at a time, nothing out of a cache; requests bring their own seed; `profile: throughput` is faster
    note: user root inside the container: TGI cannot run as another since 3.1; a rootless runtime makes it an ordinary user of this machine
    warning: TGI is in maintenance mode, 3.3.7 is its last release: `engine: vllm` serves the same models and is developed further
    "#);
}

#[test]
fn one_gpu() {
    let fields = json!({ "ctx": 8192, "model": "qwen" });
    let engine = prepare(fields, Mode::Container, &machine!("podman-one-gpu"));
    assert_snapshot!(show(&engine), @r#"
    sha256:1234
    {model-fetch.path} at /models/qwen
    {cache.tgi} at /data
    user Some("0:0"), shm 1073741824, port 8080, read-only root false
    GRACEFUL_TERMINATION_TIMEOUT=3
    HF_HOME=/data
    HF_HUB_OFFLINE=1
    HOSTNAME={address.host}
    HUGGINGFACE_HUB_CACHE=/data
    MAX_BATCH_SIZE=1
    MAX_INPUT_TOKENS=8191
    MAX_TOTAL_TOKENS=8192
    MODEL_ID=/models/qwen
    NUM_SHARD=1
    PORT={address.port}
    PREFIX_CACHING=0
    TRITON_CACHE_DIR=/data/triton
    USAGE_STATS=off
    mask ["GPU-3d4f7a0e-6a0f-4f6c-9a7b-5f0c1d2e3f40"], slots 1, vram Some(24576) MiB, proof true
    record {"image": "ghcr.io/huggingface/text-generation-inference@sha256:1234", "version": "3.3.7"}
    warning: TGI is in maintenance mode, 3.3.7 is its last release: `engine: vllm` serves the same models and is developed further
    "#);
}

#[test]
fn two_gpus() {
    let fields = json!({ "profile": "throughput", "quant": "AWQ", "stop": { "grace_ms": 90_000 } });
    let engine = prepare(fields, Mode::Container, &machine!("podman-two-gpus"));
    assert_snapshot!(show(&engine), @r#"
    sha256:1234
    {model-fetch.path} at /models/Qwen2.5-0.5B-Instruct
    {cache.tgi} at /data
    user Some("0:0"), shm 1073741824, port 8080, read-only root false
    GRACEFUL_TERMINATION_TIMEOUT=88
    HF_HOME=/data
    HF_HUB_OFFLINE=1
    HOSTNAME={address.host}
    HUGGINGFACE_HUB_CACHE=/data
    MAX_CONCURRENT_REQUESTS=128
    MODEL_ID=/models/Qwen2.5-0.5B-Instruct
    NUM_SHARD=2
    PORT={address.port}
    QUANTIZE=awq
    TRITON_CACHE_DIR=/data/triton
    USAGE_STATS=off
    mask ["GPU-11111111-2222-3333-4444-555555555555", "GPU-66666666-7777-8888-9999-aaaaaaaaaaaa"], slots 128, vram Some(95208) MiB, proof true
    record {"image": "ghcr.io/huggingface/text-generation-inference@sha256:1234", "version": "3.3.7"}
    warning: TGI is in maintenance mode, 3.3.7 is its last release: `engine: vllm` serves the same models and is developed further
    "#);
}

#[test]
fn a_mig_slice() {
    let engine = prepare(json!({}), Mode::Container, &machine!("podman-mig"));
    assert_snapshot!(show(&engine), @r#"
    sha256:1234
    {model-fetch.path} at /models/Qwen2.5-0.5B-Instruct
    {cache.tgi} at /data
    user Some("0:0"), shm 1073741824, port 8080, read-only root false
    GRACEFUL_TERMINATION_TIMEOUT=3
    HF_HOME=/data
    HF_HUB_OFFLINE=1
    HOSTNAME={address.host}
    HUGGINGFACE_HUB_CACHE=/data
    MAX_BATCH_SIZE=1
    MODEL_ID=/models/Qwen2.5-0.5B-Instruct
    NUM_SHARD=1
    PORT={address.port}
    PREFIX_CACHING=0
    TRITON_CACHE_DIR=/data/triton
    USAGE_STATS=off
    mask ["MIG-6a1b2c3d-0001-5e4f-9a8b-7c6d5e4f3a2b"], slots 1, vram Some(72896) MiB, proof true
    record {"image": "ghcr.io/huggingface/text-generation-inference@sha256:1234", "version": "3.3.7"}
    warning: TGI is in maintenance mode, 3.3.7 is its last release: `engine: vllm` serves the same models and is developed further
    "#);
}

#[test]
fn the_processor_needs_an_image_of_its_own() {
    let facts = machine!("podman-cpu");
    let text = refusal(json!({ "gpu": "prefer" }), Mode::Container, &facts);
    assert_snapshot!(text, @r"
    PoolUnavailable: TGI's image runs on GPUs only, and this pool uses none
      fix: use `engine: vllm` or `engine: llamacpp`, which run on the processor too
      fix: or set `provisioning.container.tag` to one of TGI's `-intel-cpu` tags
    ");
    let container = json!({ "tag": "3.3.5-intel-cpu" });
    let fields = json!({ "gpu": "forbid", "provisioning": { "container": container } });
    let engine = prepare(fields, Mode::Container, &facts);
    assert!(engine.device_mask.is_empty() && engine.gpu_evidence.is_none());
    assert!(!engine.flags.contains(&"--num-shard".to_owned()));
}

#[test]
fn flags_become_variables() {
    let fields = with_flags(&[
        "--max-batch-prefill-tokens=4096",
        "--trust-remote-code",
        "--dtype",
        "float16",
    ]);
    let engine = prepare(fields, Mode::Container, &machine!("podman-one-gpu"));
    let Launch::Container(launch) = engine.launch else {
        panic!("no container")
    };
    let value = |name: &str| launch.env[name].as_str();
    assert_eq!(value("MAX_BATCH_PREFILL_TOKENS"), "4096");
    assert_eq!(value("TRUST_REMOTE_CODE"), "true");
    assert_eq!(value("DTYPE"), "float16");
}

#[test]
fn what_belongs_to_the_pool_is_refused_as_flag_and_as_variable() {
    let facts = machine!("podman-one-gpu");
    for (flag, variable, instead) in [
        ("--model-id", "MODEL_ID", "provisioning.model.ref"),
        ("--num-shard", "NUM_SHARD", "set `devices`"),
        ("--max-total-tokens", "MAX_TOTAL_TOKENS", "set `ctx`"),
        (
            "--graceful-termination-timeout",
            "GRACEFUL_TERMINATION_TIMEOUT",
            "stop.grace",
        ),
        ("--ngrok-edge", "NGROK_EDGE", "remove it"),
    ] {
        let as_flag = refusal(with_flags(&[flag, "4"]), Mode::Container, &facts);
        assert!(as_flag.contains(instead), "{as_flag}");
        let fields = json!({ "provisioning": { "env": { variable: "4" } } });
        let as_variable = refusal(fields, Mode::Container, &facts);
        assert!(as_variable.contains(instead), "{as_variable}");
        assert!(as_variable.contains(&format!("field: provisioning.env.{variable}")));
    }
    let env = json!({ "API_KEY": "{secret.KEY}" });
    let keyed = prepare(
        json!({ "provisioning": { "env": env } }),
        Mode::Container,
        &facts,
    );
    let Launch::Container(launch) = keyed.launch else {
        panic!("no container")
    };
    assert_eq!(launch.env["API_KEY"].as_str(), "{secret.KEY}");
}

#[test]
fn other_modes_and_models_of_other_engines_are_refused() {
    let facts = machine!("podman-one-gpu");
    let text = refusal(json!({}), Mode::Package, &facts);
    assert!(text.contains("`container` or `external`"), "{text}");
    let fields = json!({ "provisioning": { "model": { "ref": "builtin:haiku" } } });
    let text = refusal(fields, Mode::Container, &facts);
    assert!(text.contains("engine: llamacpp"), "{text}");
}

#[test]
fn what_tgi_prints_when_it_fails_is_understood() {
    for (line, meaning) in [
        (
            "error: invalid value 'foo' for '--quantize <QUANTIZE>'",
            "TGI does not accept `foo` for `--quantize`",
        ),
        (
            "RuntimeError: Not enough memory to handle 4096 prefill tokens. You need to decrease `--max-batch-prefill-tokens`",
            "GPU memory has no room for 4096 tokens",
        ),
        (
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB.",
            "the GPU's memory is full",
        ),
        (
            "Error: ShardCannotStart",
            "the process that holds the model ended while it started",
        ),
    ] {
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
