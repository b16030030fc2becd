//! What an operator may pass to vLLM, and what the provider passes.

use std::{collections::BTreeMap, sync::LazyLock};

use engine_provider_api::{GpuPolicy, Pool, Profile, ProviderError, Template};
use engine_provider_kit::{
    environment,
    flags::{self, Flag, Refusal},
    help::Help,
};

use crate::decision::{Decision, Options};

/// Spellings of flags that mean the same, the one that is passed on last.
static SPELLINGS: LazyLock<Help> = LazyLock::new(|| {
    Help::parse(
        "-tp, --tensor-parallel-size N
-pp, --pipeline-parallel-size N
-dp, --data-parallel-size N
-q, --quantization NAME
-asc, --api-server-count N
--device-memory-utilization, --gpu-memory-utilization SHARE
--enable-prefix-caching, --no-enable-prefix-caching
",
    )
});

const MODEL: &str = "set `provisioning.model.ref` instead";
const LOG: &str = "remove it: `logs` shows the log that the host keeps";
const TLS: &str = "put a proxy that speaks TLS before the engine";
const ONE: &str = "remove it: a pool is one engine on one machine; set `replicas` for more";

const MANAGED: &[Refusal] = &[
    Refusal::managed("--host", "remove it: the host chooses the address"),
    Refusal::managed("--port", "set `provisioning.ports` instead"),
    Refusal::managed("--uds", "remove it: the host asks over TCP"),
    Refusal::managed("--model", MODEL),
    Refusal::managed("--revision", MODEL),
    Refusal::managed("--code-revision", MODEL),
    Refusal::managed(
        "--download-dir",
        "set `provisioning.model.cache_dir` instead",
    ),
    Refusal::managed(
        "--hf-token",
        "write `HF_TOKEN: \"{secret.HF_TOKEN}\"` in `provisioning.env`",
    ),
    Refusal::managed(
        "--api-key",
        "write `VLLM_API_KEY: \"{secret.NAME}\"` in `provisioning.env`",
    ),
    Refusal::managed("--served-model-name", "set `model` instead"),
    Refusal::managed("--max-model-len", "set `ctx` instead"),
    Refusal::managed("--max-num-seqs", "set `options.slots` instead"),
    Refusal::managed("--seed", "set `options.seed` instead"),
    Refusal::managed("--tensor-parallel-size", "set `devices` instead"),
    Refusal::managed("--device-ids", "set `devices` instead"),
    Refusal::managed("--shutdown-timeout", "set `stop.grace` instead"),
    Refusal::new(
        "--config",
        "sets flags unseen",
        "write them into `provisioning.flags`",
    ),
    Refusal::new("--ssl-*", "hides `/health` from the host", TLS),
    Refusal::new("--root-path", "hides `/health` from the host", "remove it"),
    Refusal::new(
        "--disable-log-stats",
        "hides `/metrics` from the host",
        "remove it",
    ),
    Refusal::new("--log-config-file", "hides the log from the host", LOG),
    Refusal::new("--logging-config", "hides the log from the host", LOG),
    Refusal::new("--headless", "answers no requests", ONE),
    Refusal::new("--grpc", "answers no HTTP requests", "remove it"),
    Refusal::new("--nnodes", "needs other machines", ONE),
    Refusal::new("--node-rank", "needs other machines", ONE),
    Refusal::new("--data-parallel-address", "needs other machines", ONE),
    Refusal::new("--help", "prints something and ends", "remove it"),
    Refusal::new("--version", "prints something and ends", "remove it"),
];

const OFF_GPU: &str = "keeps something outside GPU memory, which `gpu: require` excludes";
const PREFER: &str = "remove it, or set `gpu: prefer`";

const OFF_GPU_FLAGS: &[Refusal] = &[
    Refusal::new("--cpu-offload-*", OFF_GPU, PREFER),
    Refusal::new("--offload-*", OFF_GPU, PREFER),
    Refusal::new("--kv-offloading-*", OFF_GPU, PREFER),
    Refusal::new("--swap-space", OFF_GPU, PREFER),
];

/// The pool's flags under their canonical names, refused where they contradict pool or policy.
fn given(pool: &Pool) -> Result<Vec<Flag>, ProviderError> {
    let mut given = flags::parse(&pool.provisioning.flags)?;
    for flag in &mut given {
        // vLLM reads `--max_model_len` too.
        flag.name = flag.name.replace('_', "-");
    }
    flags::normalise(&mut given, &[], &SPELLINGS);
    flags::refuse(&given, MANAGED)?;
    if pool.gpu == GpuPolicy::Require {
        flags::refuse(&given, OFF_GPU_FLAGS)?;
    }
    Ok(given)
}

/// The provider's flags, and the operator's in the place of those they replace.
pub(crate) fn all(decision: &Decision, options: &Options) -> Result<Vec<Flag>, ProviderError> {
    let pool = decision.pool;
    let given = given(pool)?;
    let number = |name: &str, value: u64| Flag::own(name, [value.to_string()]);
    let mut own = Vec::new();
    if !decision.gpus.is_empty() {
        let shards = shards(decision.gpus.len(), &given)?;
        own.push(number("--tensor-parallel-size", shards));
    }
    if let Some(ctx) = pool.ctx {
        own.push(number("--max-model-len", ctx.into()));
    }
    own.push(number("--max-num-seqs", decision.slots.into()));
    if let Some(quant) = &pool.quant {
        own.push(Flag::own("--quantization", [quant.to_lowercase()]));
    }
    if pool.profile == Profile::Deterministic {
        own.push(number("--seed", options.seed.into()));
        if !decision.invariant {
            // A prefix out of the cache was computed in another batch.
            own.push(Flag::own::<&str>("--no-enable-prefix-caching", []));
        }
    }
    if decision.origin.drains() {
        own.push(number("--shutdown-timeout", drain_s(pool.stop.grace_ms)));
    }
    Ok(flags::override_with(own, &given, &SPELLINGS))
}

/// Time that vLLM itself needs to end after its last request, or after it stopped waiting for it: its
/// processes are ended one after the other.
const LAST_STEPS_MS: u64 = 3_000;

/// Seconds that requests in flight are given, so that vLLM ends by itself within the grace time.
fn drain_s(grace_ms: u64) -> u64 {
    grace_ms.saturating_sub(LAST_STEPS_MS) / 1000
}

/// GPUs that share each layer: all, where the operator does not divide them otherwise.
fn shards(gpus: usize, given: &[Flag]) -> Result<u64, ProviderError> {
    let mut shards = gpus as u64;
    for name in ["--pipeline-parallel-size", "--data-parallel-size"] {
        let Some(flag) = given.iter().rfind(|flag| flag.name == name) else {
            continue;
        };
        match flag.value().parse::<u64>() {
            Ok(parts) if parts > 0 && shards.is_multiple_of(parts) => shards /= parts,
            _ => {
                let message = format!("`{name} {}` does not divide {gpus} GPUs", flag.value());
                return Err(ProviderError::invalid(flag.field.clone(), message)
                    .hint("name as many `devices` as it takes"));
            }
        }
    }
    Ok(shards)
}

/// A number that a flag has, the operator's or vLLM's own.
pub(crate) fn number(flags: &[Flag], name: &str, usual: f64) -> f64 {
    let flag = flags.iter().rfind(|flag| flag.name == name);
    let given = flag.and_then(|flag| flag.value().parse().ok());
    given.unwrap_or(usual)
}

const VARIABLES: &[Refusal] = &[
    Refusal::managed("CUDA_VISIBLE_DEVICES", "set `devices` instead"),
    Refusal::managed("NVIDIA_VISIBLE_DEVICES", "set `devices` instead"),
    Refusal::managed("VLLM_BATCH_INVARIANT", "set `profile` instead"),
    Refusal::managed("VLLM_CACHE_ROOT", "remove it: the host keeps the cache"),
    Refusal::managed("VLLM_NO_USAGE_STATS", "remove it: nothing is sent"),
    Refusal::managed("DO_NOT_TRACK", "remove it: nothing is sent"),
    Refusal::managed("HF_HUB_OFFLINE", "remove it: the host fetches the model"),
    Refusal::managed(
        "TRANSFORMERS_OFFLINE",
        "remove it: the host fetches the model",
    ),
    Refusal::new("VLLM_CONFIGURE_LOGGING", "hides the log from the host", LOG),
    Refusal::new(
        "VLLM_LOGGING_CONFIG_PATH",
        "hides the log from the host",
        LOG,
    ),
];

/// The pool's environment, refused where it goes around pool or policy.
pub(crate) fn environment(pool: &Pool) -> Result<BTreeMap<String, Template>, ProviderError> {
    environment::environment(pool, VARIABLES)
}
