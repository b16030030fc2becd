//! What podman, docker and their helpers print, and what each line means.

use std::sync::LazyLock;

use regex::Regex;

use super::ExitReason;

/// A pattern and what it means. Its group `it` names what the line is about.
type Wording = (&'static str, Meaning);

/// Makes a reason of what a line is about and of the line.
type Meaning = fn(it: &str, said: &str) -> ExitReason;

/// What a line is about that names nothing: of devices all that there are.
const NOTHING_NAMED: &str = "nvidia.com/gpu";

/// The first one that matches decides. Wordings of podman 4 and 5, docker 20 to 29, runc, catatonit
/// and tini.
const WORDINGS: [Wording; 11] = [
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
        r"controller [`'](?<it>[a-z]+)[`'] is not available|(?:does not support|doesn't support) cgroup (?<dev>[a-z]+)",
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
    // Who makes a container's network, not what is in the image.
    (
        r"(?:slirp4netns|pasta|netavark|rootlessport)\b.*(?:failed|[Ee]rror|: )",
        |_, said| ExitReason::Runtime {
            // Podman quotes its helper's whole output.
            said: said.split("\\n").next().unwrap_or(said).to_owned(),
        },
    ),
    (
        r#"catatonit.*failed to exec pid1: No such file|\[FATAL tini .*No such file|exec: "(?<it>[^"]+)": (?:executable file not found|stat .*: no such file)|executable file `(?<dev>[^`']+)[`'] not found|executable file .*not found"#,
        |it, _| ExitReason::NoSuchCommand {
            program: (it != NOTHING_NAMED).then(|| it.to_owned()),
        },
    ),
    (
        r"failed to exec pid1: (?<it>.*)|\[FATAL tini .* exec .* failed: |exec format error|exec: .*permission denied|OCI permission denied",
        |_, said| ExitReason::CannotStart {
            said: said.to_owned(),
        },
    ),
];

static PATTERNS: LazyLock<Vec<(Regex, Meaning)>> = LazyLock::new(|| {
    WORDINGS
        .into_iter()
        .map(|(pattern, meaning)| (Regex::new(pattern).expect("it is a constant"), meaning))
        .collect()
});

/// Beginnings of what an init program prints inside, before there is an engine.
const INITS: [&str; 2] = ["ERROR (catatonit", "[FATAL tini"];

/// Beginnings of what podman and docker print themselves.
const RUNTIMES: [&str; 6] = [
    "Error:",
    "docker:",
    "podman:",
    "Unable to find image",
    "Cannot connect to the Docker",
    "error during connect",
];

/// Lines of the runtime's program and the init program in an engine's log. `ran`: whether the engine
/// may have printed lines that begin alike, so that only the init program is believed.
pub(super) fn runtimes_own(log: &str, ran: bool) -> Vec<&str> {
    let runtimes: &[&str] = if ran { &[] } else { &RUNTIMES };
    let is_own = |line: &&str| {
        let mut starts = INITS.iter().chain(runtimes);
        starts.any(|start| line.starts_with(start))
    };
    log.lines().map(str::trim).filter(is_own).collect()
}

/// What a line means; `None`: nothing that is known.
pub(super) fn reason_of(line: &str) -> Option<ExitReason> {
    PATTERNS.iter().find_map(|(pattern, reason)| {
        let found = pattern.captures(line)?;
        let named = found.name("it").or_else(|| found.name("dev"));
        let it = named.map_or(NOTHING_NAMED, |it| it.as_str());
        Some(reason(
            it.trim_end_matches(['.', ':']),
            without_prefix(line),
        ))
    })
}

/// The line without the name of who printed it.
pub(super) fn without_prefix(line: &str) -> &str {
    let line = line.strip_prefix("Error: ").unwrap_or(line);
    line.strip_prefix("docker: ")
        .map_or(line, |line| {
            line.strip_prefix("Error response from daemon: ")
                .unwrap_or(line)
        })
        .trim_end_matches('.')
}
