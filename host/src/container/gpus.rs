//! From GPUs by their driver's ids to what a runtime is told.
//!
//! The Container Device Interface names a device by UUID where its description was made that way,
//! else by index, a MIG slice as `0:1`. Both runtimes take these names with `--device`; only a docker
//! for which there are none, and that has NVIDIA's own runtime, is told `--gpus`, which podman ignores
//! without a word.

use std::collections::BTreeMap;

use engine_provider_api::{ContainerRuntime, Device, Facts, Gpu, GpuPolicy, Pool};

use super::{ContainerError, Runtime, error::generate_devices};
use crate::fault::{Hint, hint};

/// GPUs that an engine of this pool would be given, as [`gpu_arguments`] takes them: those that it names,
/// else what providers choose.
#[must_use]
pub fn gpus_of(pool: &Pool, facts: &Facts) -> Vec<String> {
    if pool.gpu == GpuPolicy::Forbid {
        return Vec::new();
    }
    let named = pool.devices.iter().map(|device| match device {
        Device::Index(index) => index.to_string(),
        Device::Uuid(uuid) => uuid.clone(),
    });
    match pool.devices.is_empty() {
        true => usual_gpus(facts),
        false => named.collect(),
    }
}

/// GPUs that providers choose where nobody names any: all of the first one's vendor, and of MIG slices the
/// first. A processor's own graphics beside them is nothing that a container has to be given.
#[must_use]
pub fn usual_gpus(facts: &Facts) -> Vec<String> {
    let all = &facts.gpus.devices;
    let Some(first) = all.first() else {
        return Vec::new();
    };
    if first.mig {
        return vec![first.uuid.clone()];
    }
    all.iter()
        .filter(|gpu| gpu.vendor == first.vendor && !gpu.mig)
        .map(|gpu| gpu.uuid.clone())
        .collect()
}

/// Arguments that give GPUs to a container; none for none.
///
/// `gpus`: driver ids (`GPU-…`, `MIG-…`) or indices in the driver's order.
pub fn gpu_arguments(
    runtime: &ContainerRuntime,
    facts: &Facts,
    gpus: &[String],
) -> Result<Vec<String>, ContainerError> {
    if gpus.is_empty() {
        return Ok(Vec::new());
    }
    let named = if runtime.cdi {
        device_arguments(facts, gpus)
    } else {
        Err(no_gpus(runtime))
    };
    // Many a docker knows such names and nobody described the devices: its own way works there.
    if named.is_err() && has_own_way(runtime) {
        let ids: Vec<&str> = gpus.iter().map(|gpu| id_of(facts, gpu)).collect();
        // Docker reads the value as CSV: without the quotes the second device is another setting.
        let value = format!("\"device={}\"", ids.join(","));
        return Ok(vec![OWN_WAY.to_owned(), value]);
    }
    named
}

/// Docker's own flag for GPUs.
pub(super) const OWN_WAY: &str = "--gpus";

/// Whether a runtime can give GPUs without names: docker with NVIDIA's runtime.
fn has_own_way(runtime: &ContainerRuntime) -> bool {
    Runtime::of(runtime) == Runtime::Docker && runtime.nvidia_runtime
}

fn device_arguments(facts: &Facts, gpus: &[String]) -> Result<Vec<String>, ContainerError> {
    let mut arguments = Vec::new();
    for gpu in gpus {
        arguments.extend(["--device".to_owned(), device_name(facts, gpu)?]);
    }
    Ok(arguments)
}

/// The name of a GPU in the Container Device Interface, for example `nvidia.com/gpu=GPU-5f3c…`.
pub fn device_name(facts: &Facts, gpu: &str) -> Result<String, ContainerError> {
    let devices = &facts.containers.cdi_devices;
    let missing = || ContainerError::NoSuchDevice {
        gpu: gpu.to_owned(),
        devices: devices.clone(),
    };
    let id = id_of(facts, gpu);
    let ends = format!("={id}");
    if let Some(name) = devices.iter().find(|name| name.ends_with(&ends)) {
        return Ok(name.clone());
    }
    let found = facts.gpus.devices.iter().find(|device| device.uuid == id);
    let device = found.ok_or_else(missing)?;
    let kind = kind_of(device);
    let name = if device.mig {
        slice_name(facts, device, &kind)
    } else {
        Some(format!("{kind}={}", device.index))
    };
    name.filter(|name| devices.contains(name))
        .ok_or_else(missing)
}

/// The driver's id of a GPU given by id or index.
fn id_of<'a>(facts: &'a Facts, gpu: &'a str) -> &'a str {
    let Ok(index) = gpu.parse::<u32>() else {
        return gpu;
    };
    let mut devices = facts.gpus.devices.iter();
    devices
        .find(|device| device.index == index && !device.mig)
        .map_or(gpu, |device| device.uuid.as_str())
}

fn kind_of(device: &Gpu) -> String {
    format!("{}.com/gpu", device.vendor)
}

/// The name of a MIG slice by numbers, `0:1`. Slices are numbered with gaps, which the driver's list
/// does not show: so the k-th slice of a GPU is the k-th name, and where their counts differ the
/// description is of another layout and nothing is guessed.
fn slice_name(facts: &Facts, slice: &Gpu, kind: &str) -> Option<String> {
    let start = format!("{kind}={}:", slice.index);
    let named: BTreeMap<u32, &String> = facts
        .containers
        .cdi_devices
        .iter()
        .filter_map(|name| Some((name.strip_prefix(&start)?.parse().ok()?, name)))
        .collect();
    let slices: Vec<&Gpu> = facts
        .gpus
        .devices
        .iter()
        .filter(|device| device.mig && device.index == slice.index)
        .collect();
    let position = slices.iter().position(|one| one.uuid == slice.uuid)?;
    if named.len() != slices.len() {
        return None;
    }
    named.into_values().nth(position).cloned()
}

fn no_gpus(runtime: &ContainerRuntime) -> ContainerError {
    let version = match Runtime::of(runtime) {
        Runtime::Podman => &runtime.version,
        Runtime::Docker => &runtime.server_version,
    };
    ContainerError::NoGpus {
        runtime: format!("{} {version}", runtime.name),
        reason: match Runtime::of(runtime) {
            Runtime::Podman => "it does not know the Container Device Interface: podman 4.1 does".to_owned(),
            Runtime::Docker => "its Container Device Interface is off (docker 25 has it, 28.2 has it on), and there is no `nvidia` runtime".to_owned(),
        },
        fixes: gpu_fixes(runtime),
    }
}

/// What makes a runtime give GPUs to containers.
pub fn gpu_fixes(runtime: &ContainerRuntime) -> Vec<Hint> {
    match Runtime::of(runtime) {
        Runtime::Podman => vec![
            hint("install podman 4.1 or later", None),
            generate_devices(),
        ],
        Runtime::Docker => vec![
            hint(
                "tell docker about NVIDIA's runtime and its devices (NVIDIA Container Toolkit), then start it anew",
                Some(
                    "sudo nvidia-ctk runtime configure --runtime=docker --cdi.enabled && sudo systemctl restart docker",
                ),
            ),
            generate_devices(),
        ],
    }
}

#[cfg(test)]
mod tests {
    use engine_provider_api::{Containers, Gpus};

    use super::*;
    use crate::fault::Fault as _;

    fn gpu(index: u32, uuid: &str) -> Gpu {
        Gpu {
            index,
            uuid: uuid.to_owned(),
            vendor: "nvidia".to_owned(),
            mig: uuid.starts_with("MIG"),
            ..Gpu::default()
        }
    }

    fn facts(gpus: &[(u32, &str)], devices: &[&str]) -> Facts {
        Facts {
            gpus: Gpus {
                devices: gpus.iter().map(|(index, uuid)| gpu(*index, uuid)).collect(),
                ..Gpus::default()
            },
            containers: Containers {
                cdi_devices: devices.iter().map(|name| (*name).to_owned()).collect(),
                ..Containers::default()
            },
            ..Facts::default()
        }
    }

    fn podman() -> ContainerRuntime {
        ContainerRuntime {
            name: "podman".to_owned(),
            version: "5.2.3".to_owned(),
            cdi: true,
            ..ContainerRuntime::default()
        }
    }

    fn words(gpus: &[&str]) -> Vec<String> {
        gpus.iter().map(|gpu| (*gpu).to_owned()).collect()
    }

    #[test]
    fn a_gpu_is_named_by_uuid_where_the_description_has_it_else_by_index() {
        let by_uuid = facts(
            &[(0, "GPU-a"), (1, "GPU-b")],
            &["nvidia.com/gpu=1", "nvidia.com/gpu=GPU-b"],
        );
        assert_eq!(
            device_name(&by_uuid, "GPU-b").unwrap(),
            "nvidia.com/gpu=GPU-b"
        );
        assert_eq!(device_name(&by_uuid, "1").unwrap(), "nvidia.com/gpu=GPU-b");
        let by_index = facts(&[(0, "GPU-a"), (1, "GPU-b")], &["nvidia.com/gpu=1"]);
        assert_eq!(device_name(&by_index, "GPU-b").unwrap(), "nvidia.com/gpu=1");
        let missing = device_name(&by_index, "GPU-a").unwrap_err();
        assert_eq!(
            missing.to_string(),
            "no container device stands for GPU `GPU-a`"
        );
        assert_eq!(missing.details()[0].text, "nvidia.com/gpu=1");
        let hints = missing.hints();
        assert!(
            hints[0]
                .command
                .as_deref()
                .unwrap()
                .contains("nvidia-ctk cdi generate")
        );
    }

    #[test]
    fn slices_are_counted_over_the_gaps_in_their_numbers() {
        let gpus = [(0, "MIG-a"), (0, "MIG-b"), (1, "GPU-c")];
        let names = [
            "nvidia.com/gpu=0:10",
            "nvidia.com/gpu=0:2",
            "nvidia.com/gpu=1",
        ];
        let machine = facts(&gpus, &names);
        let name = |gpu| device_name(&machine, gpu);
        assert_eq!(name("MIG-a").unwrap(), "nvidia.com/gpu=0:2");
        assert_eq!(name("MIG-b").unwrap(), "nvidia.com/gpu=0:10");
        // A description of another layout names other slices: nothing is guessed.
        assert!(device_name(&facts(&gpus, &names[..1]), "MIG-a").is_err());
    }

    #[test]
    fn docker_is_told_gpus_only_where_it_has_nothing_better() {
        let machine = facts(&[(0, "GPU-a"), (1, "GPU-b")], &["nvidia.com/gpu=all"]);
        let mut docker = ContainerRuntime {
            name: "docker".to_owned(),
            server_version: "20.10.24".to_owned(),
            ..ContainerRuntime::default()
        };
        let neither = gpu_arguments(&docker, &machine, &words(&["GPU-a"])).unwrap_err();
        assert_eq!(
            neither.to_string(),
            "docker 20.10.24 cannot give a GPU to a container here"
        );
        docker.nvidia_runtime = true;
        let told = gpu_arguments(&docker, &machine, &words(&["0", "GPU-b"])).unwrap();
        assert_eq!(told, ["--gpus", "\"device=GPU-a,GPU-b\""]);
        // Knowing names is of no use where nobody described the devices.
        docker.cdi = true;
        let told = gpu_arguments(&docker, &machine, &words(&["GPU-a"])).unwrap();
        assert_eq!(told, ["--gpus", "\"device=GPU-a\""]);
        let slices = facts(&[(0, "MIG-a"), (0, "MIG-b")], &[]);
        let told = gpu_arguments(&docker, &slices, &words(&["MIG-b", "MIG-a"])).unwrap();
        assert_eq!(told, ["--gpus", "\"device=MIG-b,MIG-a\""]);
        let described = facts(&[(0, "GPU-a")], &["nvidia.com/gpu=0"]);
        let told = gpu_arguments(&docker, &described, &words(&["GPU-a"])).unwrap();
        assert_eq!(told, ["--device", "nvidia.com/gpu=0"]);
        docker.nvidia_runtime = false;
        assert!(gpu_arguments(&docker, &machine, &words(&["GPU-a"])).is_err());
        // Podman would ignore `--gpus` without a word.
        let mut old = podman();
        (old.cdi, old.nvidia_runtime) = (false, true);
        assert!(gpu_arguments(&old, &machine, &words(&["GPU-a"])).is_err());
        assert!(gpu_arguments(&old, &machine, &[]).unwrap().is_empty());
    }
}
