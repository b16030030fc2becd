//! Whether this machine can run what comes in a container, GPUs included.

use engine_provider_api::{ContainerRuntime, Facts, GpuPolicy, Hint};

use crate::{
    container::{self, Runtime},
    fault::Fault,
};

/// What was found out about containers here.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Containers {
    /// Why engines cannot run in containers here, one phrase each; empty: they can.
    pub(super) reasons: Vec<String>,
    /// What fixes it, best first.
    pub(super) fixes: Vec<Hint>,
    /// What is good to know: the runtime taken, why another was not, the devices seen.
    pub(super) notes: Vec<String>,
}

/// Looks at the runtimes that were found. `wanted`: only this one will do.
pub(super) fn judge(facts: &Facts, gpu: GpuPolicy, wanted: Option<&str>) -> Containers {
    let mut found = Containers::default();
    match container::choose(facts, wanted) {
        Ok(runtime) => {
            found.notes.push(format!("runs with {}", named(runtime)));
            found.notes.extend(passed_over(facts, runtime));
            if !runtime.init {
                found.notes.extend(no_init(runtime));
            }
            gpus(facts, runtime, gpu, &mut found);
        }
        Err(error) => {
            found.reasons.push(error.to_string());
            let details = error.details().into_iter();
            found.reasons.extend(details.map(|detail| detail.text));
            let again = Some("{host} doctor");
            found.fixes = error.hints();
            found.fixes.retain(|fix| fix.command.as_deref() != again);
        }
    }
    found
}

/// `podman 5.4.2, rootless`.
pub(in crate::cli) fn named(runtime: &ContainerRuntime) -> String {
    let version = match Runtime::of(runtime) {
        Runtime::Podman => runtime.version.clone(),
        Runtime::Docker => format!("{} (engine {})", runtime.version, runtime.server_version),
    };
    let rootless = if runtime.rootless { ", rootless" } else { "" };
    format!("{} {version}{rootless}", runtime.name)
}

fn passed_over(facts: &Facts, taken: &ContainerRuntime) -> Vec<String> {
    let others = facts.containers.runtimes.iter();
    others
        .take_while(|other| other.name != taken.name)
        .filter_map(|other| {
            let why = other.unusable.as_ref()?;
            Some(format!("{} was passed over: {why}", other.name))
        })
        .collect()
}

fn no_init(runtime: &ContainerRuntime) -> Option<String> {
    let package = match Runtime::of(runtime) {
        Runtime::Podman => "catatonit",
        Runtime::Docker => "tini",
    };
    Some(format!(
        "{} has no init program for containers, so what engines leave behind is not reaped: install `{package}`",
        runtime.name
    ))
}

/// Whether each GPU has a name that this runtime takes.
fn gpus(facts: &Facts, runtime: &ContainerRuntime, gpu: GpuPolicy, found: &mut Containers) {
    let devices = &facts.containers.cdi_devices;
    if gpu == GpuPolicy::Forbid || facts.gpus.devices.is_empty() {
        return;
    }
    if !devices.is_empty() {
        found
            .notes
            .push(format!("container devices: {}", devices.join(", ")));
    }
    let uuids: Vec<String> = facts
        .gpus
        .devices
        .iter()
        .map(|it| it.uuid.clone())
        .collect();
    if let Err(error) = container::gpu_arguments(runtime, facts, &uuids) {
        found.reasons.push(error.to_string());
        let details = error.details().into_iter();
        found
            .reasons
            .extend(details.map(|detail| match detail.label {
                "there are" => format!("there are: {}", detail.text),
                _ => detail.text,
            }));
        found.fixes.extend(error.hints());
    }
}
