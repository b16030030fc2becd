//! What an engine consists of on this machine: which processes are its own, and whether it is the one
//! that answers.
//!
//! | kind | its processes | whose socket it must be |
//! |---|---|---|
//! | process | the program's tree | one of them |
//! | podman | everything below the minder: its monitor leaves the client's tree and comes to it | one of them (monitor, `rootlessport`, `pasta`) |
//! | docker | what its daemon says the container's first process is, with its tree | the daemon says that the container runs and publishes this port |
//! | external | none that is known | anybody's |

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    path::PathBuf,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use serde::Deserialize;

use super::{
    kind::Kind,
    ownership::{self, Listener},
    sockets::{self, Listeners},
};
use crate::{
    container::Runtime,
    process::{Identity, Keeper, ProcessError, ProcessIdentity, Question, Running, ask},
};

/// Longest time docker may take to say what it has.
const DOCKER_LIMIT: Duration = Duration::from_secs(10);

/// What an engine consists of.
#[derive(Debug)]
pub(super) enum Body {
    /// A program with its descendants, and whose they are where they are not this process's own.
    Process(ProcessIdentity, Option<Identity>),
    /// All that is below its minder, and the port inside.
    Minded(ProcessIdentity, u16),
    /// Processes of a daemon.
    Docker(Box<Docker>),
    /// Somebody else's.
    External,
}

/// A container that docker runs.
#[derive(Debug)]
pub(super) struct Docker {
    program: PathBuf,
    env: BTreeMap<String, String>,
    name: String,
    inside: u16,
    /// Its first process, once docker has said that it is the one that answers.
    found: Mutex<Option<ProcessIdentity>>,
}

impl Body {
    pub(super) fn of(
        kind: &Kind<'_>,
        running: &Running,
        identity: Option<Identity>,
        name: String,
        env: &BTreeMap<String, String>,
    ) -> Self {
        let process = running.process();
        match kind {
            Kind::Process(_) => Self::Process(process, identity),
            Kind::External(_) => Self::External,
            Kind::Container(contained) => match contained.which() {
                // Its parent is the minder for as long as both live.
                Runtime::Podman => {
                    let minder = process.parent().unwrap_or(process);
                    Self::Minded(minder, contained.launch.port)
                }
                Runtime::Docker => Self::Docker(Box::new(Docker {
                    program: contained.runtime.path.clone().into(),
                    env: env.clone(),
                    name,
                    inside: contained.launch.port,
                    found: Mutex::new(None),
                })),
            },
        }
    }

    /// Its processes, as far as they are known.
    pub(super) fn tree(&self) -> Vec<ProcessIdentity> {
        match self {
            Self::Process(root, _) | Self::Minded(root, _) => root.tree(),
            Self::Docker(docker) => docker.found().map_or_else(Vec::new, ProcessIdentity::tree),
            Self::External => Vec::new(),
        }
    }

    /// Whether it is this engine that answers there.
    pub(super) async fn listener(
        &self,
        address: SocketAddr,
        keeper: &Keeper,
    ) -> Result<Listener, ProcessError> {
        match self {
            // Most engines listen themselves; walking the whole tree is for those that do not.
            Self::Process(process, identity) => {
                let own = [*process];
                ownership::listener(address, &own, || process.tree(), keeper, *identity).await
            }
            Self::Minded(minder, _) => {
                ownership::listener(address, &[], || minder.tree(), keeper, None).await
            }
            Self::Docker(docker) => Ok(docker.listener(address).await),
            Self::External => Ok(Listener::Ours),
        }
    }

    /// Whether what connects to this address comes to this machine's own sockets, as it must to a process
    /// of it; what becomes of it is known where it cannot be connected to.
    pub(super) async fn is_reached(&self, address: SocketAddr) -> bool {
        match self {
            Self::Process(..) => sockets::is_reached(address).await.unwrap_or(true),
            Self::Minded(..) | Self::Docker(_) | Self::External => true,
        }
    }

    /// Whether a process of it listens for what comes to this address, so that whoever connects must come to
    /// it. What holds a container's port here may only keep it from others, while rules lead to the inside:
    /// so there is where it is looked for. Of docker, whose proxy may take every connection, it is not told.
    pub(super) async fn listens_itself(
        &self,
        address: SocketAddr,
        keeper: &Keeper,
    ) -> Result<bool, ProcessError> {
        let (process, identity) = match self {
            Self::Process(process, identity) => (process, *identity),
            Self::Minded(minder, inside) => {
                return Ok(sockets::listens_inside(&minder.tree(), *inside));
            }
            Self::Docker(_) | Self::External => return Ok(false),
        };
        let sockets = Listeners::now().reached_at(address);
        let own = [*process];
        let whose = ownership::whose(&sockets, &own, || process.tree(), keeper, identity);
        Ok(whose.await? == Listener::Ours)
    }
}

/// The parts of `docker inspect` that are asked for.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Inspected {
    running: bool,
    pid: i32,
    /// By port and protocol, `8080/tcp`.
    ports: Option<BTreeMap<String, Option<Vec<Binding>>>>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Binding {
    host_ip: String,
    host_port: String,
}

impl Docker {
    fn found(&self) -> Option<ProcessIdentity> {
        *self.found.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn listener(&self, address: SocketAddr) -> Listener {
        if self.found().is_some_and(ProcessIdentity::is_alive) {
            return Listener::Ours;
        }
        let template = "{\"Running\":{{json .State.Running}},\"Pid\":{{json .State.Pid}},\
                        \"Ports\":{{json .NetworkSettings.Ports}}}";
        let answer = ask(&Question {
            program: self.program.clone(),
            args: ["container", "inspect", "--format", template, &self.name]
                .map(str::to_owned)
                .to_vec(),
            env: self.env.clone(),
            identity: None,
            limit: DOCKER_LIMIT,
        })
        .await;
        // What docker does not tell now it may tell at the next look.
        let Ok(answer) = answer else {
            return Listener::Nobody;
        };
        let Ok(inspected) = serde_json::from_str::<Inspected>(&answer.stdout) else {
            return Listener::Nobody;
        };
        if !inspected.publishes(self.inside, address) {
            return Listener::Foreign;
        }
        *self.found.lock().unwrap_or_else(PoisonError::into_inner) =
            ProcessIdentity::of(inspected.pid);
        Listener::Ours
    }
}

impl Inspected {
    fn publishes(&self, inside: u16, address: SocketAddr) -> bool {
        let bindings = self
            .ports
            .iter()
            .filter_map(|ports| ports.get(&format!("{inside}/tcp")))
            .flatten()
            .flatten();
        let (ip, port) = (address.ip().to_string(), address.port().to_string());
        self.running
            && bindings
                .into_iter()
                .any(|binding| binding.host_ip == ip && binding.host_port == port)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn docker_s_word_is_read() {
        let text = r#"{"Running":true,"Pid":4711,"Ports":{"8080/tcp":[{"HostIp":"127.0.0.1","HostPort":"18080"}],"8081/tcp":null}}"#;
        let inspected: Inspected = serde_json::from_str(text).unwrap();
        assert_eq!(inspected.pid, 4711);
        let at = |text: &str| text.parse().unwrap();
        assert!(inspected.publishes(8080, at("127.0.0.1:18080")));
        assert!(!inspected.publishes(8080, at("127.0.0.1:18081")));
        assert!(!inspected.publishes(8081, at("127.0.0.1:18080")));
        let ended = Inspected {
            running: false,
            ..inspected
        };
        assert!(!ended.publishes(8080, at("127.0.0.1:18080")));
        let none = r#"{"Running":false,"Pid":0,"Ports":null}"#;
        let none: Inspected = serde_json::from_str(none).unwrap();
        assert!(!none.publishes(8080, at("127.0.0.1:18080")));
    }
}
