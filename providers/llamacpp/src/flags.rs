//! What an operator may pass to `llama-server`, and under which name.

use std::{collections::BTreeMap, sync::LazyLock};

use engine_provider_api::{GpuPolicy, Pool, ProviderError, Template};
use engine_provider_kit::{
    environment,
    flags::{self, Flag, Refusal},
    help::Help,
};

/// Flags of the pinned commit, from its own `--help`; also how any commit's flags are spelled.
pub(crate) static KNOWN: LazyLock<Help> =
    LazyLock::new(|| Help::parse(include_str!("flags-0c1e57098bba.txt")));

/// Names that operators use and llama-server never had.
const ALIASES: &[(&str, &str)] = &[("--ngl", "--n-gpu-layers")];

const fn managed(name: &'static str, instead: &'static str) -> Refusal {
    Refusal {
        name,
        reason: "is set by the provider",
        instead,
    }
}

const fn refused(name: &'static str, reason: &'static str, instead: &'static str) -> Refusal {
    Refusal {
        name,
        reason,
        instead,
    }
}

const MODEL: &str = "set `provisioning.model.ref` instead";
const LOG: &str = "remove it: `logs` shows the log that the host keeps";
const NO_SERVER: &str = "prints something and ends";
const REMOVE: &str = "remove it";
const TLS: &str = "put a proxy that speaks TLS before the engine";

/// Flags that belong to pool fields or would blind the host.
pub(crate) const MANAGED: &[Refusal] = &[
    managed("--host", "remove it: the host chooses the address"),
    managed("--port", "set `provisioning.ports` instead"),
    managed(
        "--reuse-port",
        "remove it: the port must be the engine's own",
    ),
    managed("--model", MODEL),
    managed("--model-url", MODEL),
    managed("--docker-repo", MODEL),
    managed("--hf-repo", MODEL),
    managed("--hf-file", MODEL),
    managed(
        "--hf-token",
        "write `HF_TOKEN: \"{secret.HF_TOKEN}\"` in `provisioning.env`",
    ),
    managed(
        "--api-key",
        "write `LLAMA_API_KEY: \"{secret.NAME}\"` in `provisioning.env`",
    ),
    managed("--alias", "set `model` instead"),
    managed("--ctx-size", "set `ctx` instead"),
    managed("--device", "set `devices` instead"),
    managed("--tensor-split", "set `tensor_split` instead"),
    managed("--threads", "set `options.threads` instead"),
    managed("--seed", "set `options.seed` instead"),
    refused("--api-prefix", "hides `/health` from the host", REMOVE),
    refused("--ssl-key-file", "hides `/health` from the host", TLS),
    refused("--ssl-cert-file", "hides `/health` from the host", TLS),
    refused("--log-disable", "hides the log from the host", LOG),
    refused("--log-file", "hides the log from the host", LOG),
    refused("--log-jsonl", "hides the log from the host", LOG),
    refused("--usage", NO_SERVER, REMOVE),
    refused("--version", NO_SERVER, REMOVE),
    refused("--cache-list", NO_SERVER, REMOVE),
    refused("--completion-bash", NO_SERVER, REMOVE),
    refused("--list-devices", NO_SERVER, REMOVE),
    refused("--fim-*", "downloads a model", MODEL),
    refused("--gpt-oss-*", "downloads a model", MODEL),
    refused("--vision-gemma-*", "downloads a model", MODEL),
    refused("--embd-gemma-default", "downloads a model", MODEL),
];

const OFF_GPU: &str = "keeps something outside GPU memory, which `gpu: require` excludes";
const PREFER: &str = "remove it, or set `gpu: prefer`";

/// Flags that put weights, caches or work outside GPU memory.
pub(crate) const OFF_GPU_FLAGS: &[Refusal] = &[
    refused("--cpu-moe", OFF_GPU, PREFER),
    refused("--n-cpu-moe", OFF_GPU, PREFER),
    refused("--n-cpu-ffn", OFF_GPU, PREFER),
    refused("--no-kv-offload", OFF_GPU, PREFER),
    refused("--no-op-offload", OFF_GPU, PREFER),
    refused("--no-mmproj-offload", OFF_GPU, PREFER),
    refused("--cpu-moe-draft", OFF_GPU, PREFER),
    refused("--n-cpu-moe-draft", OFF_GPU, PREFER),
    refused("--cache-ram", OFF_GPU, PREFER),
    refused("--swa-checkpoints", OFF_GPU, PREFER),
    refused("--rpc", OFF_GPU, PREFER),
    refused(
        "--fit",
        "moves what does not fit to main memory unseen",
        PREFER,
    ),
    refused(
        "--log-verbosity",
        "is set by the provider: the log proves where the model is",
        PREFER,
    ),
    refused(
        "--log-verbose",
        "is set by the provider: the log proves where the model is",
        PREFER,
    ),
];

/// Tells whether a value puts something outside GPU memory.
pub(crate) type Judge = fn(&str) -> bool;

/// Flags whose value decides whether they put something outside GPU memory.
pub(crate) const OFF_GPU_VALUES: &[(&str, Judge)] = &[
    ("--override-tensor", names_cpu),
    ("--override-tensor-draft", names_cpu),
    ("--device-draft", |value| value == "none"),
    ("--mmproj-device", |value| value == "none"),
    ("--lazy-mode", |value| value == "on"),
    ("--n-gpu-layers", |value| !says_all(value)),
    ("--n-gpu-layers-draft", |value| !says_all(value)),
];

fn names_cpu(value: &str) -> bool {
    let tail = |part: &str| part.rsplit('=').next().map(str::to_ascii_uppercase);
    value
        .split(',')
        .filter_map(tail)
        .any(|buffer| buffer.starts_with("CPU") || buffer.ends_with("_HOST"))
}

/// `all`, or a number so large that operators mean all layers by it. Such a number is passed as it
/// was written; whether it was large enough is proven after the start.
fn says_all(value: &str) -> bool {
    value == "all" || value.parse::<u32>().is_ok_and(|layers| layers >= 99)
}

/// The pool's flags under their canonical names, refused where they contradict pool or policy.
///
/// Unknown ones are refused here only where the commit is the pinned one; else after the build.
pub(crate) fn given(pool: &Pool, pinned: bool) -> Result<Vec<Flag>, ProviderError> {
    let mut given = flags::parse(&pool.provisioning.flags)?;
    flags::normalise(&mut given, ALIASES, &KNOWN);
    flags::refuse(&given, MANAGED)?;
    if pool.gpu == GpuPolicy::Require {
        flags::refuse(&given, OFF_GPU_FLAGS)?;
        refuse_values(&given)?;
    }
    if pinned {
        flags::check(&given, &KNOWN, "llama-server")?;
    }
    Ok(given)
}

fn refuse_values(given: &[Flag]) -> Result<(), ProviderError> {
    for flag in given {
        let bad = |(name, bad): &&(&str, Judge)| *name == flag.name && bad(flag.value());
        if OFF_GPU_VALUES.iter().any(|row| bad(&row)) {
            let shown = format!("`{} {}` {OFF_GPU}", flag.name, flag.value());
            let error = ProviderError::invalid(flag.field.clone(), shown);
            return Err(match flag.name.contains("gpu-layers") {
                true => error.hint(format!("write `{} all`, or set `gpu: prefer`", flag.name)),
                false => error.hint(PREFER),
            });
        }
    }
    Ok(())
}

/// Whether a flag has a meaning on GPUs only.
pub(crate) fn asks_for_gpu(given: &[Flag]) -> bool {
    given
        .iter()
        .any(|flag| flag.name == "--n-gpu-layers" && flag.value() != "0")
}

const DEVICES: &str = "set `devices` instead";

const VARIABLES: &[Refusal] = &[
    refused(
        "LLAMA_ARG_*",
        "changes flags unseen",
        "write the flag into `provisioning.flags`",
    ),
    managed("CUDA_VISIBLE_DEVICES", DEVICES),
    managed("HIP_VISIBLE_DEVICES", DEVICES),
    managed("ROCR_VISIBLE_DEVICES", DEVICES),
    managed("GGML_VK_VISIBLE_DEVICES", DEVICES),
];

const OFF_GPU_VARIABLES: &[Refusal] = &[
    refused("GGML_CUDA_ENABLE_UNIFIED_MEMORY", OFF_GPU, PREFER),
    refused("GGML_VK_PREFER_HOST_MEMORY", OFF_GPU, PREFER),
    refused("GGML_VK_ALLOW_SYSMEM_FALLBACK", OFF_GPU, PREFER),
    refused("MTMD_BACKEND_DEVICE", OFF_GPU, PREFER),
];

/// The pool's environment, refused where it goes around pool or policy.
pub(crate) fn environment(pool: &Pool) -> Result<BTreeMap<String, Template>, ProviderError> {
    let mut table = VARIABLES.to_vec();
    if pool.gpu == GpuPolicy::Require {
        table.extend(OFF_GPU_VARIABLES);
    }
    environment::environment(pool, &table)
}
