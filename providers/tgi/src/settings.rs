//! What an operator may set, and what the provider sets.
//!
//! The image's entry point splits its arguments at blanks, so that everything goes through the
//! environment: the launcher reads `MAX_INPUT_TOKENS` where the flag is `--max-input-tokens`.

use std::collections::BTreeMap;

use engine_provider_api::{Gpu, Pool, Profile, ProviderError, Template};
use engine_provider_kit::{
    environment,
    flags::{self, Flag, Refusal},
    help::Help,
};

const MODEL: &str = "set `provisioning.model.ref` instead";
const SLOTS: &str = "set `options.slots` instead";
const CONTEXT: &str = "set `ctx` instead";

const MANAGED: &[Refusal] = &[
    Refusal::managed("--hostname", "remove it: the host chooses the address"),
    Refusal::managed("--port", "set `provisioning.ports` instead"),
    Refusal::managed("--model-id", MODEL),
    Refusal::managed("--revision", MODEL),
    Refusal::managed(
        "--huggingface-hub-cache",
        "set `provisioning.model.cache_dir` instead",
    ),
    Refusal::managed(
        "--weights-cache-override",
        "set `provisioning.model.cache_dir` instead",
    ),
    Refusal::managed("--num-shard", "set `devices` instead"),
    Refusal::managed("--sharded", "set `devices` instead"),
    Refusal::managed("--max-concurrent-requests", SLOTS),
    Refusal::managed("--max-batch-size", SLOTS),
    Refusal::managed("--max-total-tokens", CONTEXT),
    Refusal::managed("--max-input-tokens", CONTEXT),
    Refusal::managed("--max-input-length", CONTEXT),
    Refusal::managed("--graceful-termination-timeout", "set `stop.grace` instead"),
    Refusal::managed("--usage-stats", "remove it: nothing is sent"),
    Refusal::managed("--disable-usage-stats", "remove it: nothing is sent"),
    Refusal::managed(
        "--api-key",
        "write `API_KEY: \"{secret.NAME}\"` in `provisioning.env`",
    ),
    Refusal::new("--ngrok*", "opens the engine to the world", "remove it"),
    Refusal::new("--env", "prints something and ends", "remove it"),
    Refusal::new("--help", "prints something and ends", "remove it"),
    Refusal::new("--version", "prints something and ends", "remove it"),
];

const DEVICES: &str = "set `devices` instead";
const FETCHED: &str = "remove it: the host fetches the model";

const VARIABLES: &[Refusal] = &[
    Refusal::managed("CUDA_VISIBLE_DEVICES", DEVICES),
    Refusal::managed("NVIDIA_VISIBLE_DEVICES", DEVICES),
    Refusal::managed("HF_HUB_OFFLINE", FETCHED),
    Refusal::managed("HF_HOME", FETCHED),
    Refusal::managed("PREFIX_CACHING", "set `profile` instead"),
    Refusal::managed("USAGE_STATS", "remove it: nothing is sent"),
];

/// The flags that hold, the provider's and the operator's, none of which sets the same as another.
pub(crate) fn flags(pool: &Pool, gpus: &[&Gpu], slots: u32) -> Result<Vec<Flag>, ProviderError> {
    let mut given = flags::parse(&pool.provisioning.flags)?;
    let aliases = [("-p", "--port"), ("-e", "--env")];
    flags::normalise(&mut given, &aliases, &Help::default());
    flags::refuse(&given, MANAGED)?;
    let own = |name: &str, value: String| Flag::own(name, [value]);
    let mut flags = Vec::new();
    if !gpus.is_empty() {
        flags.push(own("--num-shard", gpus.len().to_string()));
    }
    match pool.profile {
        // More requests wait for their turn; `--max-concurrent-requests` would turn them away.
        Profile::Deterministic => flags.push(own("--max-batch-size", slots.to_string())),
        Profile::Throughput => flags.push(own("--max-concurrent-requests", slots.to_string())),
    }
    if let Some(ctx) = pool.ctx {
        if ctx < 2 {
            let message = "a context holds at least one token of a request and one of its answer";
            return Err(ProviderError::invalid("ctx", message).hint("raise `ctx`"));
        }
        flags.push(own("--max-total-tokens", ctx.to_string()));
        flags.push(own("--max-input-tokens", (ctx - 1).to_string()));
    }
    if let Some(quant) = &pool.quant {
        flags.push(own("--quantize", quant.to_lowercase()));
    }
    let grace_s = pool.stop.grace_ms.saturating_sub(LAST_STEPS_MS) / 1000;
    flags.push(own(
        "--graceful-termination-timeout",
        grace_s.max(1).to_string(),
    ));
    Ok(flags::override_with(flags, &given, &Help::default()))
}

/// Time that TGI itself needs to end after its last request.
const LAST_STEPS_MS: u64 = 2_000;

/// The pool's environment, refused where it goes around pool, policy or flags.
pub(crate) fn environment(pool: &Pool) -> Result<BTreeMap<String, Template>, ProviderError> {
    let given = environment::environment(pool, VARIABLES)?;
    for name in given.keys().filter(|name| *name != "API_KEY") {
        let flag = format!("--{}", name.to_lowercase().replace('_', "-"));
        let same = |refusal: &&Refusal| match refusal.name.strip_suffix('*') {
            Some(start) => flag.starts_with(start),
            None => refusal.name == flag,
        };
        if let Some(refusal) = MANAGED.iter().find(same) {
            let field = format!("provisioning.env.{name}");
            let message = format!("`{name}` {}", refusal.reason);
            return Err(ProviderError::invalid(field, message).hint(refusal.instead));
        }
    }
    Ok(given)
}

/// A flag as the launcher reads it from the environment.
pub(crate) fn variable(flag: &Flag) -> (String, Template) {
    let name = flag.name.trim_start_matches('-').replace('-', "_");
    let value = match flag.values.as_slice() {
        [] => "true".to_owned(),
        values => values.join(","),
    };
    (name.to_uppercase(), Template::literal(&value))
}
