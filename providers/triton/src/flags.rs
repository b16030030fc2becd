//! What an operator may pass to `tritonserver`.

use std::collections::BTreeMap;

use engine_provider_api::{GpuPolicy, Pool, ProviderError, Template};
use engine_provider_kit::{
    environment,
    flags::{self, Flag, Refusal},
    help::Help,
};

const fn refused(name: &'static str, reason: &'static str, instead: &'static str) -> Refusal {
    Refusal {
        name,
        reason,
        instead,
    }
}

const fn managed(name: &'static str, instead: &'static str) -> Refusal {
    refused(name, "is set by the provider", instead)
}

const ADDRESS: &str = "remove it: the host chooses the addresses";
const MODEL: &str = "set `provisioning.model.ref` instead";
const PROBES: &str = "remove it: the host asks whether the models are ready";
const REMOVE: &str = "remove it";

/// Flags that belong to pool fields or would blind the host.
const MANAGED: &[Refusal] = &[
    managed("--http-port", "set `provisioning.ports` instead"),
    managed("--http-address", ADDRESS),
    managed("--grpc-port", ADDRESS),
    managed("--grpc-address", ADDRESS),
    managed("--metrics-port", ADDRESS),
    managed("--metrics-address", ADDRESS),
    managed(
        "--reuse-http-port",
        "remove it: ports must be the engine's own",
    ),
    managed(
        "--reuse-grpc-port",
        "remove it: ports must be the engine's own",
    ),
    managed("--model-repository", MODEL),
    managed("--model-store", MODEL),
    managed("--strict-readiness", PROBES),
    managed("--exit-on-error", PROBES),
    managed("--exit-timeout-secs", "set `stop.grace` instead"),
    managed("--backend-directory", REMOVE),
    refused("--allow-http", "hides the engine from the host", REMOVE),
    refused("--allow-metrics", "hides the engine from the host", REMOVE),
    refused(
        "--http-restricted-api",
        "may hide health from the host",
        REMOVE,
    ),
    refused(
        "--log-file",
        "hides the log from the host",
        "remove it: `logs` shows the log that the host keeps",
    ),
    refused("--help", "prints something and ends", REMOVE),
];

const VARIABLES: &[Refusal] = &[
    managed("CUDA_VISIBLE_DEVICES", "set `devices` instead"),
    managed("NVIDIA_VISIBLE_DEVICES", "set `devices` instead"),
];

const OFF_GPU: &str = "keeps something outside GPU memory, which `gpu: require` excludes";

/// The pool's flags; Triton itself refuses those it does not know.
pub(crate) fn given(pool: &Pool) -> Result<Vec<Flag>, ProviderError> {
    let given = flags::parse(&pool.provisioning.flags)?;
    flags::refuse(&given, MANAGED)?;
    Ok(given)
}

/// The provider's flags and the pool's.
pub(crate) fn all(own: Vec<Flag>, given: &[Flag]) -> Vec<Flag> {
    flags::override_with(own, given, &Help::default())
}

/// The pool's environment, refused where it goes around pool or policy.
pub(crate) fn environment(pool: &Pool) -> Result<BTreeMap<String, Template>, ProviderError> {
    let mut table = VARIABLES.to_vec();
    if pool.gpu == GpuPolicy::Require {
        table.push(refused("VLLM_CPU_*", OFF_GPU, REMOVE));
    }
    environment::environment(pool, &table)
}
