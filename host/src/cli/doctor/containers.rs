//! Whether this machine can run what comes in a container, GPUs included.

use std::fmt;

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

/// What becomes of a runtime here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum RuntimeState {
    /// It runs containers, unless a pool or a flag names another.
    Used,
    /// It could, and is not taken by itself.
    Usable,
    /// It cannot.
    Cannot,
}

/// A container runtime of this machine.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct RuntimeRow {
    /// `podman` or `docker`.
    pub name: String,
    /// Its version; empty where it does not say one.
    pub version: String,
    /// Whether it works without root's rights.
    pub rootless: bool,
    /// What becomes of it.
    pub state: RuntimeState,
    /// Why it is not used, one phrase each.
    pub reasons: Vec<String>,
    /// What makes it usable, best first.
    pub fixes: Vec<Hint>,
    /// Devices that it gives to containers by name.
    pub devices: Vec<String>,
}

impl fmt::Display for RuntimeRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        if !self.version.is_empty() {
            let rights = if self.rootless { "rootless" } else { "rootful" };
            write!(f, " {}, {rights}", self.version)?;
        }
        f.write_str(match self.state {
            RuntimeState::Used => ": used",
            RuntimeState::Usable => ": usable, not used",
            RuntimeState::Cannot => ": cannot",
        })
    }
}

/// Every runtime that was looked for, whatever runs in it. `wanted`: only this one will do.
pub(in crate::cli) fn runtimes(facts: &Facts, wanted: Option<&str>) -> Vec<RuntimeRow> {
    let used = container::choose(facts, wanted).ok();
    let all = facts.containers.runtimes.iter();
    let row = |runtime: &ContainerRuntime| {
        let (state, reasons, fixes) = match (&runtime.unusable, used) {
            (Some(why), _) => {
                // One that is not installed is missed only where nothing else works.
                let missed = used.is_none() || !runtime.path.is_empty();
                let fixes = match missed {
                    true => container::fixes(facts, Some(&runtime.name)),
                    false => Vec::new(),
                };
                (RuntimeState::Cannot, vec![why.clone()], fixes)
            }
            (None, Some(used)) if used.name == runtime.name => {
                (RuntimeState::Used, Vec::new(), Vec::new())
            }
            (None, used) => {
                let why = used.map(|used| match wanted {
                    Some(_) => format!("`--container-runtime {}` was given", used.name),
                    None => format!("{} comes first; `--container-runtime` chooses", used.name),
                });
                (RuntimeState::Usable, why.into_iter().collect(), Vec::new())
            }
        };
        RuntimeRow {
            name: runtime.name.clone(),
            version: runtime.version.clone(),
            rootless: runtime.rootless,
            devices: match runtime.cdi && state != RuntimeState::Cannot {
                true => facts.containers.cdi_devices.clone(),
                false => Vec::new(),
            },
            state,
            reasons,
            fixes,
        }
    };
    all.map(row).collect()
}

/// Looks at the runtimes that were found. `wanted`: only this one will do.
pub(super) fn judge(facts: &Facts, gpu: GpuPolicy, wanted: Option<&str>) -> Containers {
    let mut found = Containers::default();
    let gpus: Vec<String> = match gpu {
        GpuPolicy::Forbid => Vec::new(),
        _ => container::usual_gpus(facts),
    };
    match container::choose_for(facts, wanted, &gpus) {
        Ok((runtime, told)) => {
            found.notes.push(format!("runs with {}", named(runtime)));
            found.notes.extend(told);
            found.notes.extend(passed_over(facts, runtime));
            if !runtime.init {
                found.notes.extend(no_init(runtime));
            }
            give(facts, runtime, &gpus, &mut found);
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
fn give(facts: &Facts, runtime: &ContainerRuntime, gpus: &[String], found: &mut Containers) {
    let devices = &facts.containers.cdi_devices;
    if gpus.is_empty() {
        return;
    }
    if !devices.is_empty() {
        found
            .notes
            .push(format!("container devices: {}", devices.join(", ")));
    }
    if let Err(error) = container::gpu_arguments(runtime, facts, gpus) {
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
