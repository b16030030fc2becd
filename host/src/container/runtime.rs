//! Which runtime is used, and what its programs see of the environment.

use std::collections::BTreeMap;

use engine_provider_api::{ContainerRuntime, Facts};

use super::ContainerError;
use crate::config::environment::Environment;

/// Which of the two it is; what differs between them is asked here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Runtime {
    /// Podman: no daemon, containers descend from the command that starts them.
    Podman,
    /// Docker: a daemon has the containers.
    Docker,
}

impl Runtime {
    /// The one that facts speak of.
    #[must_use]
    pub fn of(facts: &ContainerRuntime) -> Self {
        if facts.name == "docker" {
            Self::Docker
        } else {
            Self::Podman
        }
    }
}

/// Variables that podman, docker and their credential helpers read, beside those that every step
/// sees. `HOME` and `XDG_*` decide where a rootless podman keeps its images.
const VARIABLES: [&str; 20] = [
    "PATH",
    "HOME",
    "USER",
    "TMPDIR",
    "XDG_RUNTIME_DIR",
    "XDG_CONFIG_HOME",
    "XDG_DATA_HOME",
    "DBUS_SESSION_BUS_ADDRESS",
    "CONTAINERS_CONF",
    "CONTAINERS_CONF_OVERRIDE",
    "CONTAINERS_STORAGE_CONF",
    "CONTAINERS_REGISTRIES_CONF",
    "REGISTRY_AUTH_FILE",
    "STORAGE_DRIVER",
    "STORAGE_OPTS",
    "DOCKER_CONFIG",
    "DOCKER_CONTEXT",
    "DOCKER_HOST",
    "DOCKER_CERT_PATH",
    "DOCKER_TLS_VERIFY",
];

/// The environment of a runtime's program, without proxies, which pulling alone needs.
#[must_use]
pub fn environment(environment: &Environment) -> BTreeMap<String, String> {
    environment.pick(VARIABLES)
}

/// The runtime that is used: the one asked for by name, else the first that works.
pub fn choose<'a>(
    facts: &'a Facts,
    wanted: Option<&str>,
) -> Result<&'a ContainerRuntime, ContainerError> {
    let asked = |runtime: &&ContainerRuntime| wanted.is_none_or(|name| name == runtime.name);
    let mut candidates = facts.containers.runtimes.iter().filter(asked);
    let usable = candidates.find(|runtime| runtime.unusable.is_none());
    usable.ok_or_else(|| ContainerError::NoRuntime {
        passed_over: facts
            .containers
            .runtimes
            .iter()
            .filter(asked)
            .filter_map(|runtime| Some(format!("{}: {}", runtime.name, runtime.unusable.as_ref()?)))
            .collect(),
    })
}
