//! Policy as it is written: the policy files, and `policy{}` of a pool file.

use std::path::Path;

use engine_provider_api::GpuPolicy;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;

use super::{Caller, NetworkPolicy, Origin, Setting, parse_identity};
use crate::{
    config::{
        document::{Kind, Source, parse},
        paths::Home,
        places::Places,
        problem::{ConfigError, FileKind, Problem},
        schema::{Report, conform},
    },
    process::Identity,
};

/// What may be done. Everything is optional; what is missing is not spoken of.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(rename = "Policy")]
pub struct PolicyFile {
    /// Name of the policy, for events.
    #[schemars(length(min = 1))]
    pub label: Option<String>,
    /// Whether a GPU must, may or must not be used.
    pub gpu: Option<GpuPolicy>,
    /// Whether distribution packages may be installed.
    pub allow_package_installs: Option<bool>,
    /// Whether packages may be built from the Arch User Repository.
    pub allow_aur: Option<bool>,
    /// Whether programs may be downloaded.
    pub allow_binary_downloads: Option<bool>,
    /// Whether a model that neither its operator nor its source gives a digest for is trusted when it
    /// is first fetched. Default: yes, said aloud and remembered.
    pub allow_unverified_models: Option<bool>,
    /// Which hosts may be reached.
    pub network: Option<NetworkWritten>,
    /// Tools that may be run, by program name. Default: those that plans name.
    pub tools: Option<Vec<String>>,
    /// Who builds and runs engines when the host runs as root: `root`, `uid`, `uid:gid`, or a user
    /// or `user:group` of this machine.
    #[schemars(length(min = 1))]
    pub run_as: Option<String>,
    /// Variables of the host's environment that may be seen.
    pub environment: Option<EnvironmentNames>,
}

/// `as-planned`, `offline`, or a list of hosts.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(untagged)]
#[schemars(rename = "Network")]
pub enum NetworkWritten {
    /// One word.
    Word(NetworkWord),
    /// These hosts only; `*.example.org` covers every host below a domain.
    Hosts(Vec<String>),
}

/// Network without a list.
#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum NetworkWord {
    /// The hosts that a plan names and shows.
    AsPlanned,
    /// None at all.
    Offline,
}

/// Names of variables that may be seen.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(rename = "EnvironmentNames")]
pub struct EnvironmentNames {
    /// By engines.
    pub engines: Option<Vec<String>>,
    /// By steps (downloads, builds).
    pub steps: Option<Vec<String>>,
}

/// What one file, pool or command line says; `None` where it says nothing.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Layer {
    /// Name of the policy.
    pub label: Option<String>,
    /// `gpu`.
    pub gpu: Option<Setting<GpuPolicy>>,
    /// `allow_package_installs`.
    pub allow_package_installs: Option<Setting<bool>>,
    /// `allow_aur`.
    pub allow_aur: Option<Setting<bool>>,
    /// `allow_binary_downloads`.
    pub allow_binary_downloads: Option<Setting<bool>>,
    /// `allow_unverified_models`.
    pub allow_unverified_models: Option<Setting<bool>>,
    /// `network`.
    pub network: Option<Setting<NetworkPolicy>>,
    /// `tools`.
    pub tools: Option<Setting<Vec<String>>>,
    /// `run_as`.
    pub run_as: Option<Setting<Identity>>,
    /// `environment.engines`.
    pub engine_environment: Option<Setting<Vec<String>>>,
    /// `environment.steps`.
    pub step_environment: Option<Setting<Vec<String>>>,
}

impl Layer {
    /// What it says, wherever that is written: for comparison with another reading.
    #[must_use]
    pub fn without_places(self) -> Self {
        let Self {
            label,
            gpu,
            allow_package_installs,
            allow_aur,
            allow_binary_downloads,
            allow_unverified_models,
            network,
            tools,
            run_as,
            engine_environment,
            step_environment,
        } = self;
        Self {
            label,
            gpu: anywhere(gpu),
            allow_package_installs: anywhere(allow_package_installs),
            allow_aur: anywhere(allow_aur),
            allow_binary_downloads: anywhere(allow_binary_downloads),
            allow_unverified_models: anywhere(allow_unverified_models),
            network: anywhere(network),
            tools: anywhere(tools),
            run_as: anywhere(run_as),
            engine_environment: anywhere(engine_environment),
            step_environment: anywhere(step_environment),
        }
    }
}

fn anywhere<T>(setting: Option<Setting<T>>) -> Option<Setting<T>> {
    setting.map(|it| Setting::default_of(it.value))
}

/// Policies of this machine and, below it, of this user, outermost first; those that are there.
pub fn ceilings(home: &Home, caller: &Caller) -> Result<Vec<Layer>, ConfigError> {
    let mut layers = Vec::new();
    for path in [Some(Home::machine_policy()), home.user_policy()]
        .into_iter()
        .flatten()
    {
        layers.extend(read(&path, caller)?);
    }
    Ok(layers)
}

/// Reads a policy file as a ceiling; `None` where there is none.
pub fn read(path: &Path, caller: &Caller) -> Result<Option<Layer>, ConfigError> {
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(source) => {
            return Err(ConfigError::Read {
                path: path.to_owned(),
                kind: FileKind::Policy,
                source,
            });
        }
    };
    let source = Source::new(path, text);
    let invalid = |problems| ConfigError::invalid(FileKind::Policy, &source, problems);
    let node = parse(&source).map_err(|problem| invalid(vec![problem]))?;
    if node.kind == Kind::Null {
        return Ok(Some(Layer::default()));
    }
    let schema = schemars::schema_for!(PolicyFile).to_value();
    let mut report = Report::default();
    let value = conform(&schema, &node, "", &mut report);
    if !report.problems.is_empty() {
        return Err(invalid(report.problems));
    }
    let places = Places::of_file(&source, &node);
    let written = from_value(value).map_err(|problem| invalid(vec![problem]))?;
    layer_of(&written, &places, Ceiling::Yes, caller)
        .map(Some)
        .map_err(invalid)
}

fn from_value(value: Value) -> Result<PolicyFile, Problem> {
    serde_json::from_value(value).map_err(|error| Problem::new("", None, error.to_string()))
}

/// Whether nothing below may exceed a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ceiling {
    /// A policy file.
    Yes,
    /// A pool file.
    No,
}

/// What a written policy says; `places` are those of its fields.
pub fn layer_of(
    written: &PolicyFile,
    places: &Places,
    ceiling: Ceiling,
    caller: &Caller,
) -> Result<Layer, Vec<Problem>> {
    let mut problems = Vec::new();
    let environment = written.environment.clone().unwrap_or_default();
    let layer = Layer {
        label: written.label.clone(),
        gpu: set(written.gpu, "gpu", places, ceiling),
        allow_package_installs: set(
            written.allow_package_installs,
            "allow_package_installs",
            places,
            ceiling,
        ),
        allow_aur: set(written.allow_aur, "allow_aur", places, ceiling),
        allow_binary_downloads: set(
            written.allow_binary_downloads,
            "allow_binary_downloads",
            places,
            ceiling,
        ),
        allow_unverified_models: set(
            written.allow_unverified_models,
            "allow_unverified_models",
            places,
            ceiling,
        ),
        network: set(
            network(written, places, &mut problems),
            "network",
            places,
            ceiling,
        ),
        tools: set(written.tools.clone(), "tools", places, ceiling),
        run_as: set(
            run_as(written, places, caller, &mut problems),
            "run_as",
            places,
            ceiling,
        ),
        engine_environment: set(environment.engines, "environment.engines", places, ceiling),
        step_environment: set(environment.steps, "environment.steps", places, ceiling),
    };
    if problems.is_empty() {
        Ok(layer)
    } else {
        Err(problems)
    }
}

/// A value with the place its field has.
pub(crate) fn set<T>(
    value: Option<T>,
    field: &str,
    places: &Places,
    ceiling: Ceiling,
) -> Option<Setting<T>> {
    let origin = match (places.source(), places.near(field)) {
        (Some(source), Some(place)) => Origin::File {
            path: source.path.clone(),
            line: place.line,
            ceiling: ceiling == Ceiling::Yes,
        },
        _ => Origin::Default,
    };
    Some(Setting {
        value: value?,
        origin,
    })
}

fn network(
    written: &PolicyFile,
    places: &Places,
    problems: &mut Vec<Problem>,
) -> Option<NetworkPolicy> {
    Some(match written.network.as_ref()? {
        NetworkWritten::Word(NetworkWord::AsPlanned) => NetworkPolicy::AsPlanned,
        NetworkWritten::Word(NetworkWord::Offline) => NetworkPolicy::Offline,
        NetworkWritten::Hosts(hosts) => {
            for (index, host) in hosts.iter().enumerate().filter(|(_, host)| !is_host(host)) {
                let problem = places
                    .problem(&format!("network[{index}]"), format!("`{host}` is no host name"))
                    .help("write a host such as `github.com`, or `*.example.org`, without scheme or path");
                problems.push(problem);
            }
            NetworkPolicy::Only(hosts.iter().map(|host| host.to_lowercase()).collect())
        }
    })
}

fn is_host(text: &str) -> bool {
    let name = text.strip_prefix("*.").unwrap_or(text);
    !name.is_empty()
        && name.split('.').all(|label| {
            let word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
            !label.is_empty() && label.bytes().all(word)
        })
        || name.parse::<std::net::IpAddr>().is_ok()
}

fn run_as(
    written: &PolicyFile,
    places: &Places,
    caller: &Caller,
    problems: &mut Vec<Problem>,
) -> Option<Identity> {
    let text = written.run_as.as_ref()?;
    match parse_identity(text, caller) {
        Ok(identity) => Some(identity),
        Err(reason) => {
            problems.push(
                places
                    .problem("run_as", reason)
                    .help("write `root`, `uid`, `uid:gid`, or a user of this machine"),
            );
            None
        }
    }
}

#[cfg(test)]
mod tests;
