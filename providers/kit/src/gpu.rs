//! Which GPUs a pool uses, from what it asks for and what the machine has.

use std::collections::BTreeSet;

use engine_provider_api::{Device, Gpu, GpuPolicy, GpuStatus, Gpus, Pool, ProviderError};

/// What a pool runs on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Choice<'a> {
    /// These GPUs, in this order: all of one vendor.
    Gpus(Vec<&'a Gpu>),
    /// The processor; with a warning where a GPU was preferred.
    Processor {
        /// What the operator should know, one line.
        warning: Option<String>,
    },
}

/// Chooses GPUs, or refuses before anything is fetched or built.
///
/// `require` without a usable GPU is [`unavailable`]; `prefer` then means the processor, said
/// aloud. `devices` are looked up by index or driver id and must exist.
pub fn choose<'a>(pool: &Pool, gpus: &'a Gpus) -> Result<Choice<'a>, ProviderError> {
    if pool.gpu == GpuPolicy::Forbid {
        let fields = [
            ("devices", pool.devices.is_empty()),
            ("tensor_split", pool.tensor_split.is_empty()),
        ];
        return match fields.iter().find(|(_, empty)| !empty) {
            Some((field, _)) => Err(ProviderError::invalid(
                *field,
                format!("`{field}` is about GPUs, but `gpu: forbid` allows none"),
            )
            .hint(format!("remove `{field}`, or set `gpu: require`"))),
            None => Ok(Choice::Processor { warning: None }),
        };
    }
    if gpus.status != GpuStatus::Present || gpus.devices.is_empty() {
        return match pool.gpu {
            GpuPolicy::Require => Err(unavailable(pool, gpus)),
            _ => Ok(Choice::Processor {
                warning: Some(format!(
                    "{}: this pool runs on the processor",
                    finding(gpus)
                )),
            }),
        };
    }
    let chosen = if pool.devices.is_empty() {
        usable(gpus)
    } else {
        named(pool, gpus)?
    };
    check_split(pool, chosen.len())?;
    Ok(Choice::Gpus(chosen))
}

/// As [`choose`], for an engine that knows NVIDIA's GPUs only; `engine` is named in messages.
pub fn choose_nvidia<'a>(
    pool: &Pool,
    gpus: &'a Gpus,
    engine: &str,
) -> Result<Choice<'a>, ProviderError> {
    let choice = choose(pool, gpus)?;
    let Choice::Gpus(chosen) = &choice else {
        return Ok(choice);
    };
    let Some(other) = chosen.iter().find(|gpu| gpu.vendor != "nvidia") else {
        return Ok(choice);
    };
    let message = format!(
        "this provider runs {engine} on NVIDIA GPUs only, not on {}",
        other.name
    );
    match pool.gpu {
        GpuPolicy::Require => Err(allow_processor(ProviderError::unavailable(message))),
        _ => Ok(Choice::Processor {
            warning: Some(format!("{message}: this pool runs on the processor")),
        }),
    }
}

/// The refusal for a pool that requires a GPU where none works: what was tried, what would repair
/// it, and the flag that allows the processor.
#[must_use]
pub fn unavailable(pool: &Pool, gpus: &Gpus) -> ProviderError {
    let mut error = ProviderError::unavailable(format!(
        "pool `{}` requires a GPU, and {}",
        pool.id,
        finding(gpus)
    ));
    for evidence in &gpus.evidence {
        error = error.because(format!("{}: {}", evidence.source, evidence.finding));
    }
    if gpus.status == GpuStatus::DriverBroken {
        error = error.fix(
            "reload or reinstall the GPU driver (after an upgrade, reboot), then check it",
            "nvidia-smi",
        );
    }
    allow_processor(error)
}

/// Adds the advice that lets this pool run without a GPU.
#[must_use]
pub fn allow_processor(error: ProviderError) -> ProviderError {
    error.fix(
        "let it run on the processor where there is no GPU (`gpu: prefer` in the pool)",
        "{again} --gpu prefer",
    )
}

/// Refuses a model that cannot fit, whatever else happens: its size is the least it takes.
///
/// Gives a warning where it would not fit beside what uses the GPUs now. Sizes that are not known
/// (0) say nothing.
pub fn check_room(
    pool: &Pool,
    gpus: &[&Gpu],
    model_bytes: u64,
) -> Result<Option<String>, ProviderError> {
    let total: u64 = gpus.iter().map(|gpu| gpu.memory_total_bytes).sum();
    let free: u64 = gpus.iter().map(|gpu| gpu.memory_free_bytes).sum();
    let (needs, mib) = (model_bytes >> 20, |bytes: u64| bytes >> 20);
    if total > 0 && model_bytes > total {
        let message = format!(
            "the model takes at least {needs} MiB, and the GPUs of pool `{}` have {} MiB",
            pool.id,
            mib(total)
        );
        return Err(ProviderError::unavailable(message)
            .hint("use a smaller quantisation or more `devices`, or set `gpu: prefer`"));
    }
    Ok((total > 0 && model_bytes > free).then(|| {
        format!(
            "the model takes at least {needs} MiB, and {} MiB of GPU memory are free",
            mib(free)
        )
    }))
}

fn finding(gpus: &Gpus) -> &'static str {
    match gpus.status {
        GpuStatus::DriverBroken => "this machine's GPU driver does not work",
        GpuStatus::Present | GpuStatus::None => "this machine has no usable GPU",
    }
}

/// All GPUs of the first one's vendor; of MIG slices the first only, since a CUDA process uses one.
fn usable(gpus: &Gpus) -> Vec<&Gpu> {
    let first = &gpus.devices[0];
    if first.mig {
        return vec![first];
    }
    gpus.devices
        .iter()
        .filter(|gpu| gpu.vendor == first.vendor && !gpu.mig)
        .collect()
}

fn named<'a>(pool: &Pool, gpus: &'a Gpus) -> Result<Vec<&'a Gpu>, ProviderError> {
    let mut chosen: Vec<&Gpu> = Vec::new();
    let mut seen = BTreeSet::new();
    for (position, device) in pool.devices.iter().enumerate() {
        let invalid =
            |message: String| ProviderError::invalid(format!("devices[{position}]"), message);
        let found = gpus.devices.iter().find(|gpu| match device {
            Device::Index(index) => gpu.index == *index && !gpu.mig,
            Device::Uuid(uuid) => gpu.uuid == *uuid,
        });
        let gpu = found.ok_or_else(|| {
            invalid(format!(
                "this machine has no usable GPU `{}`",
                shown(device)
            ))
            .hint(format!("it has {}", list(gpus)))
        })?;
        if !seen.insert(gpu.uuid.as_str()) {
            return Err(invalid(format!("GPU `{}` is named twice", shown(device))));
        }
        if chosen
            .first()
            .is_some_and(|first| first.vendor != gpu.vendor)
        {
            return Err(invalid("the GPUs are of different vendors".to_owned()));
        }
        chosen.push(gpu);
    }
    if chosen.len() > 1 && chosen.iter().any(|gpu| gpu.mig) {
        return Err(ProviderError::invalid(
            "devices",
            "one process can use one MIG slice, and no GPU beside it",
        ));
    }
    Ok(chosen)
}

fn check_split(pool: &Pool, gpus: usize) -> Result<(), ProviderError> {
    let split = &pool.tensor_split;
    if split.is_empty() {
        return Ok(());
    }
    if split.len() != gpus {
        return Err(ProviderError::invalid(
            "tensor_split",
            format!(
                "`tensor_split` has {} shares, but {gpus} GPUs are used by `devices`",
                split.len()
            ),
        ));
    }
    let sound = |share: &f64| share.is_finite() && *share >= 0.0;
    if !split.iter().all(sound) || split.iter().sum::<f64>() <= 0.0 {
        return Err(ProviderError::invalid(
            "tensor_split",
            "shares are positive numbers",
        ));
    }
    Ok(())
}

fn shown(device: &Device) -> String {
    match device {
        Device::Index(index) => index.to_string(),
        Device::Uuid(uuid) => uuid.clone(),
    }
}

fn list(gpus: &Gpus) -> String {
    let line = |gpu: &Gpu| format!("{} ({}, {})", gpu.index, gpu.name, gpu.uuid);
    let all: Vec<String> = gpus.devices.iter().map(line).collect();
    all.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine_provider_api::Evidence;
    use serde_json::json;

    fn pool(fields: serde_json::Value) -> Pool {
        let mut pool = json!({ "id": "chat", "engine": "toy" });
        let object = pool.as_object_mut().unwrap();
        object.extend(fields.as_object().unwrap().clone());
        serde_json::from_value(pool).unwrap()
    }

    fn gpu(index: u32, vendor: &str) -> Gpu {
        Gpu {
            index,
            uuid: format!("GPU-{index}"),
            name: "Card".to_owned(),
            vendor: vendor.to_owned(),
            ..Gpu::default()
        }
    }

    fn two() -> Gpus {
        Gpus {
            status: GpuStatus::Present,
            devices: vec![gpu(0, "nvidia"), gpu(1, "nvidia")],
            ..Gpus::default()
        }
    }

    fn refusal(fields: serde_json::Value, gpus: &Gpus) -> ProviderError {
        choose(&pool(fields), gpus).unwrap_err()
    }

    #[test]
    fn a_broken_driver_is_not_the_same_as_no_gpu() {
        let mut gpus = Gpus {
            evidence: vec![Evidence {
                source: "nvml".to_owned(),
                finding: "Driver/library version mismatch".to_owned(),
            }],
            ..Gpus::default()
        };
        let none = refusal(json!({}), &gpus);
        assert_eq!(
            none.message,
            "pool `chat` requires a GPU, and this machine has no usable GPU"
        );
        gpus.status = GpuStatus::DriverBroken;
        let broken = refusal(json!({}), &gpus);
        assert_eq!(
            broken.message,
            "pool `chat` requires a GPU, and this machine's GPU driver does not work"
        );
        assert_eq!(broken.causes, ["nvml: Driver/library version mismatch"]);
        let commands: Vec<_> = broken
            .hints
            .iter()
            .filter_map(|h| h.command.as_deref())
            .collect();
        assert_eq!(commands, ["nvidia-smi", "{again} --gpu prefer"]);
    }

    #[test]
    fn prefer_says_aloud_that_it_runs_on_the_processor() {
        let none = Gpus::default();
        let choice = choose(&pool(json!({ "gpu": "prefer" })), &none);
        let warning = "this machine has no usable GPU: this pool runs on the processor".to_owned();
        assert_eq!(
            choice,
            Ok(Choice::Processor {
                warning: Some(warning)
            })
        );
    }

    #[test]
    fn gpus_that_an_engine_does_not_know_are_not_used() {
        let gpus = Gpus {
            status: GpuStatus::Present,
            devices: vec![gpu(0, "amd")],
            ..Gpus::default()
        };
        let refused = choose_nvidia(&pool(json!({})), &gpus, "Toy").unwrap_err();
        assert_eq!(
            refused.message,
            "this provider runs Toy on NVIDIA GPUs only, not on Card"
        );
        let preferred = choose_nvidia(&pool(json!({ "gpu": "prefer" })), &gpus, "Toy");
        assert!(matches!(
            preferred,
            Ok(Choice::Processor { warning: Some(_) })
        ));
    }

    #[test]
    fn devices_keep_their_order_and_must_exist() {
        let gpus = two();
        let choice = choose(&pool(json!({ "devices": [1, "GPU-0"] })), &gpus).unwrap();
        let Choice::Gpus(chosen) = choice else {
            panic!("no GPUs")
        };
        assert_eq!(
            chosen.iter().map(|gpu| gpu.index).collect::<Vec<_>>(),
            [1, 0]
        );

        let missing = refusal(json!({ "devices": [0, 7] }), &gpus);
        assert_eq!(missing.field.as_deref(), Some("devices[1]"));
        assert_eq!(
            missing.hints[0].text,
            "it has 0 (Card, GPU-0), 1 (Card, GPU-1)"
        );
        let twice = refusal(json!({ "devices": [0, "GPU-0"] }), &gpus);
        assert_eq!(twice.message, "GPU `GPU-0` is named twice");
    }

    #[test]
    fn contradictions_name_both_fields() {
        let gpus = two();
        let forbidden = refusal(json!({ "gpu": "forbid", "devices": [0] }), &gpus);
        assert!(forbidden.message.contains("`devices`") && forbidden.message.contains("forbid"));
        let share = refusal(json!({ "gpu": "forbid", "tensor_split": [1.0] }), &gpus);
        assert_eq!(share.field.as_deref(), Some("tensor_split"));
        let split = refusal(json!({ "tensor_split": [3.0, 1.0, 1.0] }), &gpus);
        assert_eq!(
            split.message,
            "`tensor_split` has 3 shares, but 2 GPUs are used by `devices`"
        );
        assert!(choose(&pool(json!({ "tensor_split": [-1.0, 2.0] })), &gpus).is_err());
    }

    #[test]
    fn a_model_larger_than_the_gpus_is_refused_before_the_start() {
        let card = Gpu {
            memory_total_bytes: 100 << 20,
            memory_free_bytes: 50 << 20,
            ..gpu(0, "nvidia")
        };
        let room = |mib: u64| check_room(&pool(json!({})), &[&card], mib << 20);
        assert_eq!(room(50), Ok(None));
        assert!(
            room(51)
                .unwrap()
                .unwrap()
                .ends_with("50 MiB of GPU memory are free")
        );
        assert_eq!(
            room(101).unwrap_err().message,
            "the model takes at least 101 MiB, and the GPUs of pool `chat` have 100 MiB"
        );
        assert_eq!(
            check_room(&pool(json!({})), &[&gpu(0, "amd")], 1 << 40),
            Ok(None)
        );
    }

    #[test]
    fn gpus_of_one_vendor_are_used_together_and_mig_slices_alone() {
        let mut gpus = two();
        gpus.devices.push(gpu(2, "amd"));
        let count = |gpus: &Gpus| match choose(&pool(json!({})), gpus).unwrap() {
            Choice::Gpus(chosen) => chosen.len(),
            Choice::Processor { .. } => 0,
        };
        assert_eq!(count(&gpus), 2);
        gpus.devices.iter_mut().for_each(|gpu| gpu.mig = true);
        assert_eq!(count(&gpus), 1);
        let both = refusal(json!({ "devices": ["GPU-0", "GPU-1"] }), &gpus);
        assert_eq!(both.field.as_deref(), Some("devices"));
    }
}
