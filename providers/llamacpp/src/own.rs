//! The flags that the provider sets.

use engine_provider_api::{Profile, ProviderError};
use engine_provider_kit::flags::{self, Flag};

use crate::{Decision, built::Built, flags::KNOWN};

/// Slots of profile `throughput`; llama-server's own choice where it is left to choose.
pub(crate) const SLOTS: u32 = 4;

/// The provider's flags, and the operator's in the place of those they replace.
pub(crate) fn all_flags(
    decision: &Decision,
    built: &Built,
    warnings: &mut Vec<String>,
) -> Result<Vec<Flag>, ProviderError> {
    let mut own = own_flags(decision, built.on_gpu);
    if let Some(help) = &built.help {
        flags::check(&decision.flags, help, decision.origin.called())?;
        own.retain(|flag| {
            let known = help.entry(&flag.name).is_some();
            if !known {
                warnings.push(format!(
                    "this llama-server has no `{}`: left out",
                    flag.name
                ));
            }
            known
        });
    }
    Ok(flags::override_with(own, &decision.flags, &KNOWN))
}

fn own_flags(decision: &Decision, on_gpu: bool) -> Vec<Flag> {
    let pool = decision.pool;
    let switch = |name: &str| Flag::own::<&str>(name, []);
    let mut flags = match pool.profile {
        Profile::Deterministic => vec![
            Flag::own("--parallel", ["1"]),
            switch("--no-cont-batching"),
            switch("--no-cache-prompt"),
        ],
        Profile::Throughput => vec![
            Flag::own("--parallel", [SLOTS.to_string()]),
            switch("--kv-unified"),
            switch("--cont-batching"),
        ],
    };
    flags.push(switch("--metrics"));
    flags.push(switch("--no-webui"));
    flags.push(Flag::own("--seed", [decision.options.seed.to_string()]));
    // TERM waits for the next ping of a stream, which is 30 s away by default.
    flags.push(Flag::own("--sse-ping-interval", ["1"]));
    if let Some(ctx) = pool.ctx {
        flags.push(Flag::own("--ctx-size", [ctx.to_string()]));
    }
    if let Some(threads) = threads(decision, on_gpu) {
        flags.push(Flag::own("--threads", [threads.to_string()]));
    }
    if on_gpu {
        flags.extend(gpu_flags(decision));
    }
    flags
}

/// Under `gpu: require` everything on the GPUs, no cache in main memory, and a log that proves it;
/// under `gpu: prefer` the engine fits what it can.
fn gpu_flags(decision: &Decision) -> Vec<Flag> {
    let mut flags = vec![Flag::own("--device", [decision.target.devices().join(",")])];
    if !decision.pool.tensor_split.is_empty() {
        let shares: Vec<String> = decision
            .pool
            .tensor_split
            .iter()
            .map(f64::to_string)
            .collect();
        flags.push(Flag::own("--tensor-split", [shares.join(",")]));
    }
    if decision.requires_gpu() {
        for (name, value) in [
            ("--n-gpu-layers", "all"),
            ("--fit", "off"),
            ("--cache-ram", "0"),
            ("--ctx-checkpoints", "0"),
            ("--log-verbosity", "4"),
        ] {
            flags.push(Flag::own(name, [value]));
        }
    }
    flags
}

/// On the processor one thread per core: two hardware threads share one floating-point unit on x86.
fn threads(decision: &Decision, on_gpu: bool) -> Option<u32> {
    let cpu = decision.facts.cpu.threads;
    let per_core = if decision.facts.os.arch == "x86_64" {
        2
    } else {
        1
    };
    let default = (!on_gpu && cpu > 0).then(|| (cpu / per_core).max(1));
    decision.options.threads.or(default)
}
