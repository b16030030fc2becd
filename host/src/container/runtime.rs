//! Which runtime is used, and what its programs see of the environment.

use std::collections::BTreeMap;

use engine_provider_api::{ContainerRuntime, Facts};

use super::ContainerError;
use crate::{
    config::environment::Environment,
    fault::{Hint, hint},
};

/// Which of the two it is; what differs between them is asked here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Runtime {
    /// Podman: no daemon, containers descend from the command that starts them.
    Podman,
    /// Docker: a daemon has the containers.
    Docker,
}

impl Runtime {
    /// The name of its program.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Podman => "podman",
            Self::Docker => "docker",
        }
    }

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
    let asked: Vec<&ContainerRuntime> = facts
        .containers
        .runtimes
        .iter()
        .filter(|runtime| wanted.is_none_or(|name| name == runtime.name))
        .collect();
    let usable = asked.iter().find(|runtime| runtime.unusable.is_none());
    usable
        .copied()
        .ok_or_else(|| no_runtime(facts, wanted, &asked))
}

fn no_runtime(facts: &Facts, wanted: Option<&str>, asked: &[&ContainerRuntime]) -> ContainerError {
    let mut passed_over: Vec<String> = asked
        .iter()
        .filter_map(|runtime| Some(format!("{}: {}", runtime.name, runtime.unusable.as_ref()?)))
        .collect();
    if passed_over.is_empty() {
        let names = wanted.unwrap_or("podman, docker");
        passed_over.push(format!("{names}: not looked for on this machine"));
    }
    ContainerError::NoRuntime {
        passed_over,
        fixes: fixes(facts, wanted),
    }
}

/// What makes a runtime usable, best first. `wanted`: only this one will do.
#[must_use]
pub fn fixes(facts: &Facts, wanted: Option<&str>) -> Vec<Hint> {
    let runtimes = &facts.containers.runtimes;
    let of = |name: &str| runtimes.iter().find(|runtime| runtime.name == name);
    let mut fixes = Vec::new();
    let docker = of("docker").and_then(|docker| Some((docker, docker.unusable.as_ref()?)));
    if let Some((docker, why)) = docker.filter(|_| wanted != Some("podman")) {
        fixes.extend(docker_fix(docker, why));
    }
    let there = |name: &str| of(name).is_some_and(|runtime| !runtime.path.is_empty());
    let name = wanted.unwrap_or("podman");
    if !there(name) {
        fixes.extend(install(facts, name));
    }
    fixes
}

fn docker_fix(docker: &ContainerRuntime, why: &str) -> Option<Hint> {
    let down = why.contains("Cannot connect") || why.contains("error during connect");
    if docker.path.is_empty() {
        None
    } else if why.contains("permission denied") {
        Some(hint(
            "let your user use docker, then log in again (it is as good as being root)",
            Some("sudo usermod -aG docker \"$USER\""),
        ))
    } else if down {
        Some(hint("start docker", Some("sudo systemctl start docker")))
    } else {
        None
    }
}

/// How a runtime is installed on this distribution. With podman comes the init program that it has
/// in a package of its own on some.
fn install(facts: &Facts, name: &str) -> Option<Hint> {
    let family = facts.package_manager.as_ref()?.family.as_str();
    let command = match (family, name) {
        ("apt", "podman") => "sudo apt-get install podman catatonit",
        ("dnf", "podman") => "sudo dnf install podman catatonit",
        ("pacman", "podman") => "sudo pacman -S --needed podman catatonit",
        ("apt", "docker") => "sudo apt-get install docker.io",
        ("dnf", "docker") => "sudo dnf install moby-engine && sudo systemctl enable --now docker",
        ("pacman", "docker") => {
            "sudo pacman -S --needed docker && sudo systemctl enable --now docker"
        }
        _ => return None,
    };
    Some(hint(format!("install {name}"), Some(command)))
}

#[cfg(test)]
mod tests {
    use engine_provider_api::{Containers, PackageManager};

    use super::*;
    use crate::fault::Fault as _;

    fn machine(podman: Option<&str>, docker: Option<&str>) -> Facts {
        let runtime = |name: &str, unusable: Option<&str>| ContainerRuntime {
            name: name.to_owned(),
            path: match unusable {
                Some("not found") => String::new(),
                _ => format!("/usr/bin/{name}"),
            },
            unusable: unusable.map(str::to_owned),
            ..ContainerRuntime::default()
        };
        Facts {
            containers: Containers {
                runtimes: vec![runtime("podman", podman), runtime("docker", docker)],
                cdi_devices: Vec::new(),
            },
            package_manager: Some(PackageManager {
                family: "apt".to_owned(),
                path: "/usr/bin/apt-get".to_owned(),
            }),
            ..Facts::default()
        }
    }

    #[test]
    fn podman_is_taken_before_docker_and_a_name_decides() {
        let name = |facts: &Facts, wanted| choose(facts, wanted).unwrap().name.clone();
        let both = machine(None, None);
        assert_eq!(name(&both, None), "podman");
        assert_eq!(name(&both, Some("docker")), "docker");
        assert_eq!(name(&machine(Some("too old"), None), None), "docker");
    }

    #[test]
    fn nothing_usable_is_told_with_every_reason_and_what_to_type() {
        let down = "Cannot connect to the Docker daemon at unix:///var/run/docker.sock";
        let facts = machine(Some("not found"), Some(down));
        let error = choose(&facts, None).unwrap_err();
        let told: Vec<String> = error.details().into_iter().map(|it| it.text).collect();
        assert_eq!(
            told,
            ["podman: not found".to_owned(), format!("docker: {down}")]
        );
        let typed: Vec<String> = error
            .hints()
            .into_iter()
            .filter_map(|it| it.command)
            .collect();
        assert_eq!(
            typed,
            [
                "sudo systemctl start docker",
                "sudo apt-get install podman catatonit",
                "{host} doctor"
            ]
        );
        // Asked for by name, the other one is no answer.
        let error = choose(&machine(Some("not found"), None), Some("podman")).unwrap_err();
        assert_eq!(error.details().len(), 1);
        let unseen = choose(&Facts::default(), None).unwrap_err();
        assert!(unseen.details()[0].text.contains("not looked for"));
    }
}
