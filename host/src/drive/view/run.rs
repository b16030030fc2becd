//! The engine as it would run: a process, a container, or one that runs already.

use std::collections::BTreeMap;

use engine_provider_api::{
    ContainerLaunch, ExternalLaunch, Launch, Pool, PreparedEngine, ProcessLaunch, Template,
};
use schemars::JsonSchema;
use serde::Serialize;

use super::word;
use crate::drive::contained::{Contained, first_port};

/// The engine as it would run.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct RunView {
    /// What is provisioned, `(known after build)` where that is the case.
    pub engine_version: String,
    /// The model served.
    pub model: ModelView,
    /// What is started. Nothing, where the engine runs already.
    pub command: CommandView,
    /// The container that the command runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub container: Option<ContainerView>,
    /// URL of the engine that runs already.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub external: Option<String>,
    /// Requests served at the same time.
    pub slots_total: u32,
    /// GPUs it may see.
    pub device_mask: Vec<String>,
    /// What it is tuned for.
    pub profile: String,
}

/// The model served.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct ModelView {
    /// Public name.
    pub id: String,
    /// Path, where it is known.
    pub path: Option<String>,
    /// Digest, where it is known.
    pub digest: Option<String>,
}

/// A command in the classic form; placeholders that are filled at launch are left in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct CommandView {
    /// Program.
    pub bin: String,
    /// Arguments.
    pub args: Vec<String>,
    /// Names and values of the environment; secrets stay `{secret.NAME}`. Of a container: what its
    /// runtime's program gets beside its own, which are the secrets.
    pub env: BTreeMap<String, String>,
    /// Ports that are tried, in order; the last one stands for itself and those above it.
    pub ports: Vec<u16>,
    /// Working directory; empty where there is none.
    pub workdir: String,
}

/// A container, for people who want to know what it sees.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct ContainerView {
    /// `podman` or `docker`.
    pub runtime: String,
    /// Version of what runs the container.
    pub runtime_version: String,
    /// Image by digest.
    pub image: String,
    /// Names and values of the environment, added to the image's; secrets stay `{secret.NAME}`.
    pub env: BTreeMap<String, String>,
    /// What of this machine it sees.
    pub mounts: Vec<MountView>,
    /// Where its ports are reached.
    pub published: Vec<PortView>,
    /// User and group inside, where the launch decides.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
}

/// A file or directory of this machine inside a container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct MountView {
    /// Path here, `{STEP.path}` while it is not known.
    pub source: String,
    /// Path inside.
    pub target: String,
    /// Whether the engine may write in it.
    pub writable: bool,
}

/// A port inside a container and where it is reached.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct PortView {
    /// Address here; the next port is tried where it is taken.
    pub address: String,
    /// Port inside.
    pub inside: u16,
}

impl RunView {
    /// One phrase about where it will be.
    pub(super) fn summary(&self, engine: &str) -> String {
        match (&self.external, self.command.ports.first()) {
            (Some(url), _) => format!("{engine} at {url}, which runs already"),
            (None, Some(port)) => format!("{engine} on port {port}"),
            (None, None) => engine.to_owned(),
        }
    }
}

/// The engine in its classic form, for `plan` and `prepare`. `path_of`: the path of a step's result,
/// where it is known; `contained`: its container, where it runs in one.
#[must_use]
pub fn run_view(
    engine: &PreparedEngine,
    pool: &Pool,
    path_of: impl Fn(&str) -> Option<String>,
    contained: Option<&Contained>,
) -> RunView {
    let command = match &engine.launch {
        Launch::Process(launch) => process(launch, pool, &path_of),
        Launch::Container(launch) => container(launch, pool, contained),
        Launch::External(_) => CommandView {
            bin: String::new(),
            args: Vec::new(),
            env: BTreeMap::new(),
            ports: Vec::new(),
            workdir: String::new(),
        },
    };
    RunView {
        engine_version: engine.engine_version.clone(),
        model: ModelView {
            id: engine.model.id.clone(),
            path: engine.model.path.clone(),
            digest: engine.model.digest.clone(),
        },
        command,
        container: match (&engine.launch, contained) {
            (Launch::Container(launch), Some(contained)) => Some(view(launch, contained)),
            _ => None,
        },
        external: match &engine.launch {
            Launch::External(ExternalLaunch { url }) => Some(url.clone()),
            _ => None,
        },
        slots_total: engine.slots_total,
        device_mask: engine.device_mask.clone(),
        profile: word(&engine.profile),
    }
}

fn process(
    launch: &ProcessLaunch,
    pool: &Pool,
    path_of: &impl Fn(&str) -> Option<String>,
) -> CommandView {
    let fill = |template: &Template| fill(template, path_of);
    let ports = &pool.provisioning.ports;
    CommandView {
        bin: fill(&launch.program),
        args: launch.args.iter().map(fill).collect(),
        env: launch
            .env
            .iter()
            .map(|(name, value)| (name.clone(), fill(value)))
            .collect(),
        ports: match ports.is_empty() {
            true => vec![launch.usual_port],
            false => ports.clone(),
        },
        workdir: "{files}".to_owned(),
    }
}

fn container(launch: &ContainerLaunch, pool: &Pool, contained: Option<&Contained>) -> CommandView {
    let ports = &pool.provisioning.ports;
    CommandView {
        bin: contained.map_or_else(String::new, |it| it.runtime.path.clone()),
        args: contained.map_or_else(Vec::new, |it| it.args.clone()),
        env: secrets(launch, contained),
        ports: match ports.is_empty() {
            true => vec![first_port(launch, pool)],
            false => ports.clone(),
        },
        workdir: String::new(),
    }
}

/// Variables with a secret in them, as they were written.
fn secrets(launch: &ContainerLaunch, contained: Option<&Contained>) -> BTreeMap<String, String> {
    let names = contained.iter().flat_map(|it| &it.run.secret_env);
    names
        .filter_map(|name| Some((name.clone(), launch.env.get(name)?.to_string())))
        .collect()
}

fn view(launch: &ContainerLaunch, contained: &Contained) -> ContainerView {
    let run = &contained.run;
    let mut env = run.env.clone();
    env.extend(secrets(launch, Some(contained)));
    ContainerView {
        runtime: contained.runtime.name.clone(),
        runtime_version: contained.runtime.server_version.clone(),
        image: run.image.clone(),
        env,
        mounts: run
            .mounts
            .iter()
            .map(|mount| MountView {
                source: mount.source.display().to_string(),
                target: mount.target.clone(),
                writable: mount.writable,
            })
            .collect(),
        published: run
            .publish
            .iter()
            .map(|port| PortView {
                address: port.address.to_string(),
                inside: port.inside,
            })
            .collect(),
        user: run.user.clone(),
    }
}

/// Fills in the paths that are known and leaves what only the launch knows.
fn fill(template: &Template, path_of: impl Fn(&str) -> Option<String>) -> String {
    let known = |name: &str| {
        let path = name.strip_suffix(".path").and_then(&path_of);
        Some(path.unwrap_or_else(|| format!("{{{name}}}")))
    };
    template
        .render(known)
        .unwrap_or_else(|_| template.to_string())
}
