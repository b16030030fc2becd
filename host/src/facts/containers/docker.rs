//! Docker, by what `docker info` says, and by its daemon's socket.
//!
//! The program without its daemon can do nothing, and a daemon comes and goes: so the socket is
//! connected to every time, before anything that was remembered is believed. Docker's program is
//! asked only where that works.

use std::{
    io::ErrorKind,
    path::{Path, PathBuf},
    time::Duration,
};

use engine_provider_api::ContainerRuntime;
use serde::Deserialize;
use sha2::{Digest as _, Sha256};
use tokio::net::UnixStream;

use super::{Looking, is_at_least, last_line, memlock_limit, not_found, remembered::mark};
use crate::facts::Roots;

const NAME: &str = "docker";

/// Oldest engine that is driven: `run --pull` and the rest are as they are since.
const LEAST: [u64; 2] = [20, 10];

/// First version, of program and engine, that takes devices by their CDI names.
const FIRST_WITH_CDI: [u64; 2] = [25, 0];

/// Longest wait for a daemon to accept a connection; a living one does at once.
const CONNECT_LIMIT: Duration = Duration::from_secs(2);

pub(super) async fn look(looking: &Looking<'_>) -> ContainerRuntime {
    let Some(program) = looking.roots.program(NAME) else {
        return not_found(NAME);
    };
    let daemon = match reach(looking.roots).await {
        Ok(daemon) => daemon,
        Err(reason) => return unusable(looking, &program, reason).await,
    };
    let pid = daemon.pid(looking.roots);
    let files = files(looking.roots, &daemon.socket);
    let who = pid.as_deref().unwrap_or_default();
    let mark = mark(looking.roots, &program, &files, who);
    let mut runtime = match looking.remembered.recall(NAME, &mark) {
        Some(remembered) => remembered,
        None => match ask(looking, &program).await {
            Ok(runtime) => {
                if runtime.unusable.is_none() {
                    looking.remembered.remember(NAME, mark, runtime.clone());
                }
                runtime
            }
            Err(reason) => return unusable(looking, &program, reason).await,
        },
    };
    // The limits are those of the daemon, from whom containers descend.
    runtime.memlock_limit_bytes = pid.and_then(|pid| memlock_limit(looking.roots, &pid));
    runtime
}

async fn unusable(looking: &Looking<'_>, program: &Path, reason: String) -> ContainerRuntime {
    ContainerRuntime {
        name: NAME.to_owned(),
        path: program.to_string_lossy().into_owned(),
        version: looking.version(program).await,
        unusable: Some(reason),
        ..ContainerRuntime::default()
    }
}

/// A daemon that accepts connections.
struct Daemon {
    socket: PathBuf,
    /// Who listens on the socket: the daemon, or an init system that starts it.
    listener: Option<i32>,
}

impl Daemon {
    /// The daemon's process; `None` where it cannot be told.
    fn pid(&self, roots: &Roots) -> Option<String> {
        let itself = self
            .listener
            .filter(|pid| *pid > 1)
            .map(|pid| pid.to_string());
        let seen = itself.filter(|pid| roots.exists(format!("/proc/{pid}/limits")));
        let written = || roots.word("/var/run/docker.pid");
        seen.or_else(written)
            .filter(|pid| pid.bytes().all(|byte| byte.is_ascii_digit()))
    }
}

/// The daemon, once something answers on its socket; else why not, in one line.
async fn reach(roots: &Roots) -> Result<Daemon, String> {
    let host = host(roots);
    let Some(path) = host.strip_prefix("unix://") else {
        return Err(format!(
            "its daemon is on another machine ({host}): models cannot be mounted there"
        ));
    };
    let connecting = UnixStream::connect(roots.real(path));
    match tokio::time::timeout(CONNECT_LIMIT, connecting).await {
        Ok(Ok(connected)) => Ok(Daemon {
            socket: PathBuf::from(path),
            listener: connected.peer_cred().ok().and_then(|it| it.pid()),
        }),
        Ok(Err(error)) if error.kind() == ErrorKind::PermissionDenied => Err(format!(
            "permission denied while trying to connect to the Docker daemon at {host}"
        )),
        // Docker's own words, so that they can be searched for.
        Ok(Err(_)) => Err(format!("Cannot connect to the Docker daemon at {host}")),
        Err(_) => Err(format!(
            "the Docker daemon at {host} accepts no connection within {CONNECT_LIMIT:?}"
        )),
    }
}

/// Where docker's program looks for its daemon: `DOCKER_HOST`, else the context in force.
fn host(roots: &Roots) -> String {
    let environment = roots.environment();
    if let Some(host) = environment.get("DOCKER_HOST") {
        return host.to_owned();
    }
    context_host(roots).unwrap_or_else(|| "unix:///var/run/docker.sock".to_owned())
}

/// The daemon of a context other than `default` (`docker context use`).
fn context_host(roots: &Roots) -> Option<String> {
    let configuration = configuration(roots)?;
    let named = roots.environment().get("DOCKER_CONTEXT").map(str::to_owned);
    let current = || {
        let text = roots.text(configuration.join("config.json"))?;
        let value: serde_json::Value = serde_json::from_str(&text).ok()?;
        value["currentContext"].as_str().map(str::to_owned)
    };
    let name = named
        .or_else(current)
        .filter(|name| !name.is_empty() && name != "default")?;
    let id: String = Sha256::digest(name.as_bytes())
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    let meta = configuration
        .join("contexts/meta")
        .join(id)
        .join("meta.json");
    let value: serde_json::Value = serde_json::from_str(&roots.text(meta)?).ok()?;
    value["Endpoints"]["docker"]["Host"]
        .as_str()
        .map(str::to_owned)
}

/// Directory of the program's own settings.
fn configuration(roots: &Roots) -> Option<PathBuf> {
    let environment = roots.environment();
    let home = || Some(environment.path("HOME")?.join(".docker"));
    environment.path("DOCKER_CONFIG").or_else(home)
}

/// Files that decide what it answers: a daemon that started anew has another socket or process id.
fn files(roots: &Roots, socket: &Path) -> Vec<PathBuf> {
    let mut files = vec![
        socket.to_owned(),
        PathBuf::from("/var/run/docker.pid"),
        PathBuf::from("/etc/docker/daemon.json"),
    ];
    files.extend(configuration(roots).map(|it| it.join("config.json")));
    files
}

async fn ask(looking: &Looking<'_>, program: &Path) -> Result<ContainerRuntime, String> {
    let answer = looking
        .ask(program, &["info", "--format", "{{json .}}"])
        .await?;
    let runtime = describe(&answer.stdout).map_err(|reason| match last_line(&answer.stderr) {
        "" => reason,
        line => line.to_owned(),
    })?;
    Ok(ContainerRuntime {
        path: program.to_string_lossy().into_owned(),
        version: match runtime.version.as_str() {
            // Programs before 20.10 do not say their version there.
            "" => looking.version(program).await,
            version => version.to_owned(),
        },
        ..runtime
    })
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct Info {
    #[serde(rename = "ID")]
    id: String,
    server_version: String,
    runtimes: Option<std::collections::BTreeMap<String, serde_json::Value>>,
    init_binary: String,
    init_commit: Option<Commit>,
    security_options: Option<Vec<String>>,
    #[serde(rename = "CDISpecDirs")]
    cdi_spec_dirs: Option<Vec<String>>,
    client_info: Option<Client>,
    server_errors: Option<Vec<String>>,
    #[serde(rename = "OSType")]
    os_type: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Commit {
    #[serde(rename = "ID")]
    id: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct Client {
    version: String,
}

/// What `docker info --format '{{json .}}'` says; an error is one line.
fn describe(text: &str) -> Result<ContainerRuntime, String> {
    let info: Info = serde_json::from_str(text)
        .map_err(|error| format!("`docker info` says something else than it should: {error}"))?;
    if let Some(error) = info.server_errors.iter().flatten().next() {
        return Err(last_line(error).to_owned());
    }
    let server = info.server_version;
    let client = info.client_info.unwrap_or_default().version;
    let security = info.security_options.unwrap_or_default();
    let has = |name: &str| {
        let mut options = security.iter().flat_map(|option| option.split(','));
        options.any(|option| option == format!("name={name}"))
    };
    // Its init program is asked for its version; `N/A` says that there was nobody to ask.
    let has_init =
        !info.init_binary.is_empty() && info.init_commit.is_some_and(|commit| commit.id != "N/A");
    let knows_cdi = is_at_least(&server, FIRST_WITH_CDI)
        && (client.is_empty() || is_at_least(&client, FIRST_WITH_CDI));
    let unusable = if server.is_empty() {
        return Err("the Docker daemon does not say what it is".to_owned());
    } else if info.os_type == "windows" {
        Some("its engine runs Windows containers".to_owned())
    } else if is_at_least(&server, LEAST) {
        None
    } else {
        let [major, minor] = LEAST;
        Some(format!(
            "engine {server} is too old: {major}.{minor} or later is needed"
        ))
    };
    Ok(ContainerRuntime {
        name: NAME.to_owned(),
        version: client,
        rootless: has("rootless"),
        selinux: has("selinux"),
        init: has_init,
        // The engine lists the directories only where the feature is on.
        cdi: knows_cdi && info.cdi_spec_dirs.is_some_and(|it| !it.is_empty()),
        nvidia_runtime: info.runtimes.is_some_and(|it| it.contains_key("nvidia")),
        storage: format!("docker:{}", info.id),
        server_version: server,
        unusable,
        ..ContainerRuntime::default()
    })
}
