//! Why a container ended, and how it is removed.
//!
//! Exit codes alone mislead: under `--init` a program that is missing gives 1, a taken port gives 126
//! under podman and 125 under docker. So what the runtime's program printed decides first, then what
//! `inspect` says, then the code.

mod lines;

use engine_provider_api::ContainerRuntime;
use serde_json::Value;

use self::lines::{reason_of, runtimes_own, without_prefix};
use super::Runtime;

/// Arguments that remove a container with what it wrote, killing what still runs in it at once. Fails
/// harmlessly where there is no such container.
#[must_use]
pub fn removal(runtime: &ContainerRuntime, name: &str) -> Vec<String> {
    let remove: &[&str] = match Runtime::of(runtime) {
        // Without a time podman sends TERM and waits ten seconds; docker kills at once.
        Runtime::Podman => &["rm", "--force", "--time", "0", "--volumes"],
        Runtime::Docker => &["rm", "--force", "--volumes"],
    };
    let words = remove.iter().chain(std::iter::once(&name));
    words.map(|&word| word.to_owned()).collect()
}

/// What podman complains of, in lower case, when it is to inspect a container whose storage is gone: killed
/// while it removes one, it has forgotten that and still knows the rest. Removing it once more succeeds.
/// Source: podman 4.3.1.
pub const HALF_REMOVED: &str = "container not known";

/// Arguments that ask whether the runtime's storage has a container of this name that the runtime itself
/// may know nothing of, and the exit status that says no. Podman makes one there first: killed right then,
/// it neither shows nor inspects it, and refuses its name to every other one.
///
/// A list of all (`podman ps --external`) would fail whenever some other container goes meanwhile.
/// Source: `podman-container-exists(1)`.
#[must_use]
pub fn ask_for_part(runtime: &ContainerRuntime, name: &str) -> Option<(Vec<String>, i32)> {
    let ask = ["container", "exists", "--external", name];
    let is_podman = Runtime::of(runtime) == Runtime::Podman;
    is_podman.then(|| (ask.map(str::to_owned).into(), 1))
}

/// Why a container ended, where it can be told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExitReason {
    /// The kernel killed it for want of memory.
    OutOfMemory,
    /// The runtime does not have the image.
    ImageUnknown,
    /// Another container has the name.
    NameInUse,
    /// The port here, or the first of several, is taken.
    PortTaken,
    /// A device by a CDI name is not described to the runtime.
    DeviceMissing {
        /// Its name.
        device: String,
    },
    /// The daemon went away, or was not there.
    NoDaemon {
        /// What the runtime said.
        said: String,
    },
    /// The runtime may not set a limit: a control group that it does not have.
    NoControlGroup {
        /// Which, for example `cpuset`.
        controller: String,
    },
    /// Processors or memory nodes that this machine does not have.
    NoSuchProcessors {
        /// What the runtime said.
        said: String,
    },
    /// A directory that should be mounted is not there.
    MountMissing {
        /// What the runtime said.
        said: String,
    },
    /// The image has no such program.
    NoSuchCommand {
        /// Its name, where the runtime tells it.
        program: Option<String>,
    },
    /// The program is there and cannot be run.
    CannotStart {
        /// What the runtime said.
        said: String,
    },
    /// The runtime itself failed.
    Runtime {
        /// What it said.
        said: String,
    },
}

impl ExitReason {
    /// The same with the program's name, where only the caller knows it: an init program tells of none.
    #[must_use]
    pub fn naming(self, program: Option<&str>) -> Self {
        match self {
            Self::NoSuchCommand { program: None } => Self::NoSuchCommand {
                program: program.map(str::to_owned),
            },
            told => told,
        }
    }

    /// What helps, one sentence; `None` where the sentence says it all.
    #[must_use]
    pub fn fix(&self) -> Option<&'static str> {
        match self {
            Self::OutOfMemory => Some(
                "use a smaller model or a shorter context, or a machine with more memory: the host sets no \
                 limit of its own",
            ),
            Self::PortTaken => Some(
                "name free ports in `provisioning.ports` of the pool; `ss -ltnp` shows who has them",
            ),
            Self::MountMissing { .. } => Some(
                "run the same command again, which obtains anew what was removed; what is yours must lie \
                 where the runtime's daemon sees it",
            ),
            Self::NoSuchCommand { .. } => Some(
                "use an image that is made for this engine, or the one that the provider names",
            ),
            Self::CannotStart { .. } => Some(
                "use an image that is made for this engine and this machine's processor (`uname -m`)",
            ),
            Self::Runtime { .. } => {
                Some("see whether the runtime runs anything: `podman info`, `docker info`")
            }
            Self::DeviceMissing { .. } => Some(
                "describe the devices anew: `sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml`",
            ),
            Self::NoDaemon { .. } => Some("start it: `sudo systemctl start docker`"),
            Self::NoControlGroup { controller } if controller == "cpuset" => Some(
                "leave `cpus` and `numa_nodes` out of the pool, or let systemd delegate `cpuset` to users",
            ),
            Self::NoControlGroup { .. } => {
                Some("let systemd delegate the controller to users, or run the host as root")
            }
            Self::NoSuchProcessors { .. } => {
                Some("correct `provisioning.container.cpus` or `numa_nodes` of the pool")
            }
            Self::ImageUnknown | Self::NameInUse => None,
        }
    }
}

impl std::fmt::Display for ExitReason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::OutOfMemory => f.write_str("it ran out of memory, and the kernel killed it"),
            Self::ImageUnknown => f.write_str("the runtime does not have the image"),
            Self::NameInUse => f.write_str("another container has its name"),
            Self::PortTaken => f.write_str("its port is taken by somebody else"),
            Self::DeviceMissing { device } => {
                write!(f, "no container device is called `{device}`")
            }
            Self::NoDaemon { said } => write!(f, "the container daemon does not answer: {said}"),
            Self::NoControlGroup { controller } => {
                write!(
                    f,
                    "the runtime may not use the control group `{controller}`"
                )
            }
            Self::NoSuchProcessors { said } => {
                write!(f, "this machine does not have those processors: {said}")
            }
            Self::MountMissing { said } => {
                write!(f, "something that should be mounted is not there: {said}")
            }
            Self::NoSuchCommand { program: None } => {
                f.write_str("the image does not have the program")
            }
            Self::NoSuchCommand {
                program: Some(program),
            } => write!(f, "the image does not have the program `{program}`"),
            Self::CannotStart { said } => {
                write!(f, "the program in the image cannot be started: {said}")
            }
            Self::Runtime { said } => write!(f, "the container runtime failed: {said}"),
        }
    }
}

/// Why a container ended. `code`: exit code of the runtime's program, `None` when a signal ended it;
/// `state`: what `inspect` printed, all of it or the state alone; `log`: the last lines
/// of the engine's log, among which the runtime's program wrote its own.
///
/// `None`: the engine ended by itself, and its own log says why.
#[must_use]
pub fn exit_reason(code: Option<i32>, state: Option<&str>, log: &str) -> Option<ExitReason> {
    let state = state.and_then(state_of).filter(|it| is_about(it, code));
    if is_out_of_memory(state.as_ref()) {
        return Some(ExitReason::OutOfMemory);
    }
    // Only of a container that never ran the end is the runtime's: an engine prints and returns what
    // it likes, the runtime's own codes included.
    let ran = state.as_ref().is_some_and(has_run) || !matches!(code, Some(125..=127));
    let said = runtimes_own(log, ran);
    if let Some(reason) = said.iter().rev().find_map(|line| reason_of(line)) {
        return Some(reason);
    }
    let last = said.last().copied().unwrap_or("it gave no reason");
    let said = without_prefix(last).to_owned();
    match code? {
        125 if !ran => Some(ExitReason::Runtime { said }),
        126 if !ran => Some(ExitReason::CannotStart { said }),
        127 if !ran => Some(ExitReason::NoSuchCommand { program: None }),
        _ => None,
    }
}

/// The state in what `inspect` printed: an object, one inside a container, or one in a list of them.
fn state_of(text: &str) -> Option<Value> {
    let mut value: Value = serde_json::from_str(text.trim()).ok()?;
    if let Value::Array(list) = value {
        value = list.into_iter().next()?;
    }
    match value.get_mut("State") {
        Some(state) => Some(state.take()),
        None => value.is_object().then_some(value),
    }
}

/// Whether a state can be that of the container whose client gave this code. Where the name was in use
/// it is that of the container that has it, which may run or have ended long ago.
fn is_about(state: &Value, code: Option<i32>) -> bool {
    let theirs = state["ExitCode"].as_i64();
    theirs
        .zip(code)
        .is_none_or(|(theirs, ours)| theirs == i64::from(ours))
}

fn is_out_of_memory(state: Option<&Value>) -> bool {
    state.is_some_and(|state| state["OOMKilled"].as_bool() == Some(true))
}

/// Whether it ever ran: both runtimes write the year 1 where it did not.
fn has_run(state: &Value) -> bool {
    let started = state["StartedAt"].as_str();
    started.is_some_and(|time| !time.is_empty() && !time.starts_with("0001-"))
}

#[cfg(test)]
mod tests;
