//! From a container's launch to the one command that runs it, and to what is left to do behind it.
//!
//! Inside, the engine listens on every address and on its own ports; here they are published on the
//! reserved ports of the address that was asked for. What the runtime's program is told beyond that,
//! and how it is hardened, is the container room's matter.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, SocketAddr},
    path::{Component, Path, PathBuf},
};

use engine_provider_api::{Mount, Template};
use sha2::{Digest, Sha256};

use super::{
    EngineError, Evidence, Fingerprint, InstanceContainer,
    kind::Contained,
    launch::{self, Places, Rendered, SeenFrom},
    logs,
    start::place_of,
};
use crate::{
    config::paths::Home,
    container::{self, ExitReason, Run, Surroundings, assemble},
    process::{Farewell, Part},
    store::hex,
};

/// Address that an engine listens on inside its container.
pub(super) const HOST_INSIDE: &str = "0.0.0.0";

/// Label whose value no other installation's container has: who removes one looks at it.
const MARK: &str = "engine-host.instance";

/// Longest time one command of the farewell may take. A removal that waits for a busy disk takes
/// seconds.
const FAREWELL_LIMIT_MS: u64 = 20_000;

/// What an instance's container is called and labelled.
#[derive(Debug, Clone)]
pub(super) struct Label<'a> {
    pub(super) home: &'a Home,
    /// Name of the instance in file names.
    pub(super) key: &'a str,
    pub(super) pool: &'a str,
    pub(super) replica: &'a str,
}

impl Label<'_> {
    pub(super) fn name(&self) -> String {
        format!("engine-host-{}", self.key)
    }

    /// What tells this instance's containers from all others, those of other homes included.
    pub(super) fn mark(&self) -> String {
        use std::os::unix::ffi::OsStrExt;
        let mut digest = Sha256::new();
        digest.update(self.home.root().as_os_str().as_bytes());
        digest.update([0]);
        digest.update(self.key.as_bytes());
        hex(&digest.finalize())[..32].to_owned()
    }

    /// What the runtime writes once the container is made.
    pub(super) fn made_file(&self) -> PathBuf {
        place_of(self.home, self.key).join("made")
    }

    fn labels(&self) -> BTreeMap<String, String> {
        let home = self.home.root().to_string_lossy().into_owned();
        [
            (MARK, self.mark()),
            ("engine-host.home", home),
            ("engine-host.pool", self.pool.to_owned()),
            ("engine-host.replica", self.replica.to_owned()),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .into()
    }
}

/// A container's command, and what belongs to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RenderedContainer {
    pub(super) run: Run,
    /// Secret variables with their values, for the runtime's program alone.
    pub(super) secret_env: BTreeMap<String, String>,
    /// Names of the caches it uses, below the home's.
    pub(super) caches: BTreeSet<String>,
}

/// Where its ports are published.
#[derive(Debug, Clone, Copy)]
pub(super) struct Outside<'a> {
    pub(super) host: IpAddr,
    pub(super) port: u16,
    pub(super) more: &'a BTreeMap<String, u16>,
}

/// Fills a container's launch in. `places` are those of this machine; what is inside is filled in
/// from the launch.
pub(super) fn render(
    contained: &Contained<'_>,
    settings: Option<&engine_provider_api::Container>,
    gpus: &[String],
    label: &Label<'_>,
    places: &Places<'_>,
    outside: Outside<'_>,
) -> Result<RenderedContainer, EngineError> {
    let launch = contained.launch;
    let numbers = contained.numbers_inside();
    let inside = Places {
        host: HOST_INSIDE,
        port: &numbers.port,
        ports: &numbers.more,
        seen_from: SeenFrom::Container,
        ..*places
    };
    let mut rendered = Rendered::default();
    for argument in &launch.args {
        let text = launch::public(argument, &inside, &mut rendered.caches)?;
        rendered.args.push(text);
    }
    let mut secret_env = BTreeMap::new();
    for (name, template) in &launch.env {
        let value = launch::with_secrets(template, &inside, &mut rendered)?;
        if container::is_secret(name, template)? {
            secret_env.insert(name.clone(), value);
        }
    }
    launch::refuse_told_secrets(&rendered)?;
    let mut sources = BTreeSet::new();
    for mount in &launch.mounts {
        check(mount)?;
        sources.insert(mount.source.as_str());
    }
    let at = |port| SocketAddr::new(outside.host, port);
    let more = outside.more.iter();
    let surroundings = Surroundings {
        name: label.name(),
        image: contained.image.reference.clone(),
        labels: label.labels(),
        made_file: Some(label.made_file()),
        address: Some(at(outside.port)),
        more_addresses: more.map(|(name, port)| (name.clone(), at(*port))).collect(),
        gpus: gpus.to_vec(),
    };
    let mut caches = BTreeSet::new();
    let run = assemble(launch, settings, surroundings, |template| {
        // A mount's source is the one text that is read here and not inside.
        let seen = match sources.contains(template.as_str()) {
            true => places,
            false => &inside,
        };
        launch::public(template, seen, &mut caches)
    })?;
    Ok(RenderedContainer {
        run,
        secret_env,
        caches,
    })
}

/// Only what was obtained, what is placed and caches can be mounted.
fn check(mount: &Mount) -> Result<(), EngineError> {
    let known = is_cache(&mount.source) || is_below_a_result(&mount.source);
    if known && is_target(&mount.target) {
        return Ok(());
    }
    Err(EngineError::BadMount {
        source_text: mount.source.as_str().to_owned(),
        target: mount.target.clone(),
    })
}

pub(super) fn is_cache(source: &Template) -> bool {
    let name = source
        .as_str()
        .strip_prefix("{cache.")
        .and_then(|rest| rest.strip_suffix('}'));
    name.is_some_and(|name| {
        let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        !name.is_empty() && name.bytes().all(plain)
    })
}

fn is_below_a_result(source: &Template) -> bool {
    let below_files = source.as_str().strip_prefix("{files}");
    launch::is_a_result(source) || below_files.is_some_and(launch::stays_below)
}

/// Whether a container's path is absolute, plain and not its root.
fn is_target(target: &str) -> bool {
    let path = Path::new(target);
    path.is_absolute()
        && path.components().count() > 1
        && path
            .components()
            .all(|part| matches!(part, Component::RootDir | Component::Normal(_)))
        && !target.contains([',', ':', '\n'])
}

/// What tells this container from another one: everything but its ports here.
pub(super) fn fingerprint(
    contained: &Contained<'_>,
    rendered: &RenderedContainer,
    digests: impl Fn(&BTreeMap<String, String>) -> BTreeMap<String, String>,
) -> Fingerprint {
    let run = &rendered.run;
    let mut settings = BTreeMap::new();
    let mut say = |name: String, value: String| {
        if !value.is_empty() {
            settings.insert(name, value);
        }
    };
    say("runtime".to_owned(), contained.runtime.name.clone());
    say("user".to_owned(), run.user.clone().unwrap_or_default());
    say("gpus".to_owned(), run.gpus.join(","));
    say("cpus".to_owned(), run.cpus.clone().unwrap_or_default());
    let nodes = run.numa_nodes.clone().unwrap_or_default();
    say("memory nodes".to_owned(), nodes);
    say("shm bytes".to_owned(), run.shm_bytes.to_string());
    for mount in &run.mounts {
        let source = mount.source.to_string_lossy().into_owned();
        say(format!("mount {}", mount.target), source);
    }
    Fingerprint {
        program: run.image.clone(),
        args: [run.entrypoint.as_slice(), &run.args].concat(),
        env: digests(&run.env)
            .into_iter()
            .chain(digests(&rendered.secret_env))
            .collect(),
        settings,
        ..Fingerprint::default()
    }
}

/// What is done once the container's own command has ended: asked how it ended, then removed.
pub(super) fn farewell(
    contained: &Contained<'_>,
    label: &Label<'_>,
    env: &BTreeMap<String, String>,
    log: &Path,
) -> Farewell {
    let name = label.name();
    // A container has its secrets in its configuration: only these parts are asked for.
    let parts = "{\"State\":{{json .State}},\"Labels\":{{json .Config.Labels}}}";
    let ask = ["container", "inspect", "--format", parts, &name];
    Farewell {
        program: PathBuf::from(&contained.runtime.path),
        env: env.clone(),
        ask: ask.map(str::to_owned).into(),
        mark: label.mark(),
        nothing: "no such container".to_owned(),
        part: container::ask_for_part(contained.runtime, &name).map(|(ask, none)| Part {
            ask,
            none,
            half_removed: Some(container::HALF_REMOVED.to_owned()),
        }),
        made: Some(label.made_file()),
        answer: logs::answer(log),
        remove: container::removal(contained.runtime, &name),
        limit_ms: FAREWELL_LIMIT_MS,
    }
}

/// The error that an ended container is, where it is not the engine that failed: something that the
/// host can do about, or that has an error of its own. `answer`: what the runtime said of it.
pub(super) fn failure(
    container: &InstanceContainer,
    reason: &ExitReason,
    answer: &str,
    evidence: &Evidence,
) -> Option<EngineError> {
    let runtime = container.runtime.clone();
    match reason {
        ExitReason::NameInUse => Some(EngineError::NameTaken {
            runtime,
            name: container.name.clone(),
            // Those that are ours were removed by whoever minded this one, and so was a part of one,
            // of which the runtime has nothing to say.
            ours: answer.is_empty() || answer.contains(&container.farewell.mark),
        }),
        ExitReason::ImageUnknown => Some(EngineError::ImageGone {
            runtime,
            image: container.image.clone(),
            evidence: Box::new(evidence.clone()),
        }),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
