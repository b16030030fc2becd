//! Why a container ended, and what is asked and removed when it did.
//!
//! Exit codes alone mislead: under `--init` a program that is missing gives 1, a taken port gives 126
//! under podman and 125 under docker. So what the runtime's program printed decides first, then what
//! `inspect` says, then the code.

use std::sync::LazyLock;

use engine_provider_api::ContainerRuntime;
use regex::Regex;
use serde_json::Value;

use super::Runtime;

/// Commands to carry out, in order, once the program that ran a container is gone: ask how the
/// container ended, then remove it with what it wrote. Each begins with the runtime's program.
///
/// The first one prints one JSON object, the state that [`exit_reason`] reads. The second kills what
/// still runs, at once. Both fail harmlessly where there is no such container.
#[must_use]
pub fn farewell(runtime: &ContainerRuntime, name: &str) -> Vec<Vec<String>> {
    let remove: &[&str] = match Runtime::of(runtime) {
        // Without a time podman sends TERM and waits ten seconds; docker kills at once.
        Runtime::Podman => &["rm", "--force", "--time", "0", "--volumes"],
        Runtime::Docker => &["rm", "--force", "--volumes"],
    };
    let inspect = ["container", "inspect", "--format", "{{json .State}}"];
    [&inspect[..], remove]
        .into_iter()
        .map(|words| {
            let words = words.iter().map(|word| (*word).to_owned());
            std::iter::once(runtime.path.clone())
                .chain(words)
                .chain([name.to_owned()])
                .collect()
        })
        .collect()
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
    NoSuchCommand,
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
    /// What helps, one sentence; `None` where the sentence says it all.
    #[must_use]
    pub fn fix(&self) -> Option<&'static str> {
        match self {
            Self::OutOfMemory => Some("use a smaller model or context, or raise the memory limit"),
            Self::DeviceMissing { .. } => Some(
                "describe the devices anew: `sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml`",
            ),
            Self::NoDaemon { .. } => Some("start it: `sudo systemctl start docker`"),
            Self::NoControlGroup { .. } => Some(
                "leave `cpus` and `numa_nodes` out of the pool, or let systemd delegate the controller to users",
            ),
            Self::NoSuchProcessors { .. } => {
                Some("correct `provisioning.container.cpus` or `numa_nodes` of the pool")
            }
            _ => None,
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
            Self::NoSuchCommand => f.write_str("the image does not have the program"),
            Self::CannotStart { said } => {
                write!(f, "the program in the image cannot be started: {said}")
            }
            Self::Runtime { said } => write!(f, "the container runtime failed: {said}"),
        }
    }
}

/// What a line of the runtime's program means; the first pattern that matches decides. Wordings of
/// podman 4 and 5, docker 20 to 29 and runc.
static LINES: LazyLock<Vec<(Regex, fn(&str, &str) -> ExitReason)>> = LazyLock::new(|| {
    let patterns: [(&str, fn(&str, &str) -> ExitReason); 10] = [
        (
            r"unresolvable CDI devices?:? (?<it>[^,\s]+)|could not select device driver|unknown runtime.*nvidia|(?:stat|device) (?<dev>/dev/\S+): no such file",
            |it, _| ExitReason::DeviceMissing {
                device: it.to_owned(),
            },
        ),
        (
            r"image not known|No such image|unable to find image|image .* does not exist|locating image .* failed",
            |_, _| ExitReason::ImageUnknown,
        ),
        (r"container name .* is already in use", |_, _| {
            ExitReason::NameInUse
        }),
        (
            r"address already in use|port is already allocated|Ports are not available",
            |_, _| ExitReason::PortTaken,
        ),
        (
            r"Cannot connect to the Docker daemon|error during connect",
            |_, said| ExitReason::NoDaemon {
                said: said.to_owned(),
            },
        ),
        (
            r"controller [`'](?<it>[a-z]+)'? is not available|(?:does not support|doesn't support) cgroup (?<dev>[a-z]+)",
            |it, _| ExitReason::NoControlGroup {
                controller: it.to_owned(),
            },
        ),
        (
            r"requested (?:CPUs|memory nodes) are not available",
            |_, said| ExitReason::NoSuchProcessors {
                said: said.to_owned(),
            },
        ),
        (
            r"bind source path does not exist|statfs .*: no such file or directory|error mounting .*: no such file",
            |_, said| ExitReason::MountMissing {
                said: said.to_owned(),
            },
        ),
        (
            r"catatonit.*failed to exec pid1: No such file|\[FATAL tini .*No such file|executable file .* not found|exec: .*: stat .*: no such file|executable file not found",
            |_, _| ExitReason::NoSuchCommand,
        ),
        (
            r"failed to exec pid1: (?<it>.*)|exec format error|exec: .*permission denied|OCI permission denied",
            |_, said| ExitReason::CannotStart {
                said: said.to_owned(),
            },
        ),
    ];
    patterns
        .into_iter()
        .map(|(pattern, reason)| {
            let pattern = Regex::new(pattern).expect("the pattern is a constant");
            (pattern, reason)
        })
        .collect()
});

/// Why a container ended. `code`: exit code of the runtime's program, `None` when a signal ended it;
/// `state`: what the first command of [`farewell`] printed, or all of `inspect`; `log`: the last lines
/// of the engine's log, among which the runtime's program wrote its own.
///
/// `None`: the engine ended by itself, and its own log says why.
#[must_use]
pub fn exit_reason(code: Option<i32>, state: Option<&str>, log: &str) -> Option<ExitReason> {
    let state = state.and_then(state_of);
    if is_out_of_memory(state.as_ref()) {
        return Some(ExitReason::OutOfMemory);
    }
    let said = runtimes_own_lines(log);
    if let Some(reason) = said.iter().rev().find_map(|line| reason_of(line)) {
        return Some(reason);
    }
    // Only a container that never ran has a failure that is the runtime's: an engine may end with
    // the same codes.
    let ran = state.as_ref().is_some_and(has_run);
    let last = said.last().copied().unwrap_or("it gave no reason");
    let said = without_prefix(last).to_owned();
    match code? {
        125 if !ran => Some(ExitReason::Runtime { said }),
        126 if !ran => Some(ExitReason::CannotStart { said }),
        127 if !ran => Some(ExitReason::NoSuchCommand),
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

fn is_out_of_memory(state: Option<&Value>) -> bool {
    state.is_some_and(|state| state["OOMKilled"].as_bool() == Some(true))
}

/// Whether it ever ran: both runtimes write the year 1 where it did not.
fn has_run(state: &Value) -> bool {
    let started = state["StartedAt"].as_str();
    started.is_some_and(|time| !time.is_empty() && !time.starts_with("0001-"))
}

/// Lines that begin as those of podman, docker and their inits do, an engine's own left out.
fn runtimes_own_lines(log: &str) -> Vec<&str> {
    const BEGINNINGS: [&str; 8] = [
        "Error:",
        "docker:",
        "podman:",
        "Unable to find image",
        "ERROR (catatonit",
        "[FATAL tini",
        "Cannot connect to the Docker",
        "error during connect",
    ];
    log.lines()
        .map(str::trim)
        .filter(|line| BEGINNINGS.iter().any(|start| line.starts_with(start)))
        .collect()
}

fn reason_of(line: &str) -> Option<ExitReason> {
    LINES.iter().find_map(|(pattern, reason)| {
        let found = pattern.captures(line)?;
        let named = found.name("it").or_else(|| found.name("dev"));
        let it = named.map_or("nvidia.com/gpu", |it| it.as_str());
        Some(reason(
            it.trim_end_matches(['.', ':']),
            without_prefix(line),
        ))
    })
}

fn without_prefix(line: &str) -> &str {
    let line = line.strip_prefix("Error: ").unwrap_or(line);
    line.strip_prefix("docker: ")
        .map_or(line, |line| {
            line.strip_prefix("Error response from daemon: ")
                .unwrap_or(line)
        })
        .trim_end_matches('.')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runtime(name: &str) -> ContainerRuntime {
        ContainerRuntime {
            name: name.to_owned(),
            path: format!("/usr/bin/{name}"),
            ..ContainerRuntime::default()
        }
    }

    const NEVER_RAN: &str =
        r#"{"Status":"created","OOMKilled":false,"ExitCode":0,"StartedAt":"0001-01-01T00:00:00Z"}"#;
    const RAN: &str = r#"{"Status":"exited","OOMKilled":false,"ExitCode":127,"StartedAt":"2026-11-21T03:34:43.85393434Z"}"#;

    #[test]
    fn a_container_is_asked_and_then_removed_at_once_with_its_volumes() {
        let words = |name| -> Vec<String> {
            let commands = farewell(&runtime(name), "engine-host-x");
            commands.iter().map(|words| words.join(" ")).collect()
        };
        assert_eq!(
            words("podman"),
            [
                "/usr/bin/podman container inspect --format {{json .State}} engine-host-x",
                "/usr/bin/podman rm --force --time 0 --volumes engine-host-x",
            ]
        );
        assert_eq!(
            words("docker")[1],
            "/usr/bin/docker rm --force --volumes engine-host-x"
        );
    }

    #[test]
    fn what_the_runtimes_print_becomes_one_sentence() {
        // Lines that podman 4.3, docker 28 with engine 20.10, runc and catatonit really printed.
        let told = |code, line: &str| {
            exit_reason(Some(code), Some(NEVER_RAN), line).map(|reason| reason.to_string())
        };
        let cases = [
            (
                125,
                "Error: localhost/rt@sha256:00: image not known",
                "the runtime does not have the image",
            ),
            (
                125,
                "docker: Error response from daemon: No such image: localhost/rt@sha256:00",
                "the runtime does not have the image",
            ),
            (
                125,
                "Error: creating container storage: the container name \"rt-a\" is already in use by 2772a3. You have to remove that container",
                "another container has its name",
            ),
            (
                125,
                "docker: Error response from daemon: Conflict. The container name \"/rt-a\" is already in use by container \"2772\".",
                "another container has its name",
            ),
            (
                126,
                "Error: cannot listen on the TCP port: listen tcp4 127.0.0.1:18080: bind: address already in use",
                "its port is taken by somebody else",
            ),
            (
                125,
                "docker: Error response from daemon: driver failed programming external connectivity on endpoint rt-a: Bind for 127.0.0.1:18080 failed: port is already allocated.",
                "its port is taken by somebody else",
            ),
            (
                126,
                "Error: setting up CDI devices: unresolvable CDI devices nvidia.com/gpu=0",
                "no container device is called `nvidia.com/gpu=0`",
            ),
            (
                125,
                "docker: Error response from daemon: could not select device driver \"\" with capabilities: [[gpu]].",
                "no container device is called `nvidia.com/gpu`",
            ),
            (
                1,
                "ERROR (catatonit:6): failed to exec pid1: No such file or directory",
                "the image does not have the program",
            ),
            (
                127,
                "docker: Error response from daemon: failed to create shim task: OCI runtime create failed: runc create failed: unable to start container process: exec: \"nosuch\": executable file not found in $PATH: unknown.",
                "the image does not have the program",
            ),
            (
                125,
                "Error: requested CPUs are not available - requested 9, available: 0-1",
                "this machine does not have those processors: requested CPUs are not available - requested 9, available: 0-1",
            ),
            (
                125,
                "Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon running?",
                "the container daemon does not answer: Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon running?",
            ),
            (
                125,
                "docker: Error response from daemon: invalid mount config for type \"bind\": bind source path does not exist: /nope.",
                "something that should be mounted is not there: invalid mount config for type \"bind\": bind source path does not exist: /nope",
            ),
            (
                125,
                "Error: something new",
                "the container runtime failed: something new",
            ),
            (
                126,
                "Error: something else",
                "the program in the image cannot be started: something else",
            ),
        ];
        for (code, line, sentence) in cases {
            assert_eq!(told(code, line).as_deref(), Some(sentence), "{line}");
        }
    }

    #[test]
    fn what_an_engine_did_is_not_blamed_on_its_runtime() {
        let log = "INFO serving\nOSError: [Errno 98] address already in use\nTraceback";
        assert_eq!(exit_reason(Some(1), Some(RAN), log), None);
        assert_eq!(exit_reason(Some(127), Some(RAN), ""), None);
        assert_eq!(exit_reason(None, None, ""), None);
        assert_eq!(exit_reason(Some(0), Some(RAN), ""), None);
    }

    #[test]
    fn memory_is_the_kernels_word_in_every_form_of_inspect() {
        let state = r#"{"OOMKilled":true,"ExitCode":137,"StartedAt":"2026-01-01T00:00:00Z"}"#;
        for text in [
            state.to_owned(),
            format!("[{{\"Id\":\"x\",\"State\":{state}}}]"),
            format!("{{\"State\":{state}}}\n"),
        ] {
            let reason = exit_reason(Some(137), Some(&text), "");
            assert_eq!(reason, Some(ExitReason::OutOfMemory), "{text}");
        }
        assert_eq!(exit_reason(Some(137), Some("no json"), ""), None);
    }
}
