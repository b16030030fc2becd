//! Podman, by what `podman info` says.

use std::path::{Path, PathBuf};

use engine_provider_api::ContainerRuntime;
use serde::Deserialize;

use super::{
    Looking, is_at_least, last_line, memlock_limit, not_found,
    remembered::mark,
    settings::{Settings, user_directory},
};
use crate::{facts::Roots, process::Exited};

const NAME: &str = "podman";

/// Oldest version that is driven: `rm --time` and the network stack are as they are since.
const LEAST: [u64; 2] = [4, 0];

/// First version that takes devices by their CDI names.
const FIRST_WITH_CDI: [u64; 2] = [4, 1];

/// First version that looks for its init program in more than one place.
const FIRST_THAT_SEARCHES: [u64; 2] = [4, 4];

/// The place of podman's init program in every version.
const INIT: &str = "/usr/libexec/podman/catatonit";

/// Further directories of it.
const INIT_DIRECTORIES: [&str; 3] = [
    "/usr/local/libexec/podman",
    "/usr/local/lib/podman",
    "/usr/lib/podman",
];

pub(super) async fn look(looking: &Looking<'_>) -> ContainerRuntime {
    let Some(program) = looking.roots.program(NAME) else {
        return not_found(NAME);
    };
    let mark = mark(looking.roots, &program, &files(looking), "");
    let mut runtime = match looking.remembered.recall(NAME, &mark) {
        Some(remembered) => remembered,
        None => {
            let runtime = ask(looking, &program).await;
            // What failed may work a moment later: nothing to remember.
            if runtime.unusable.is_none() {
                looking.remembered.remember(NAME, mark, runtime.clone());
            }
            runtime
        }
    };
    // Cheap to see, so seen every time.
    runtime.init = has_init(looking.roots, &looking.settings, &runtime.version);
    runtime.memlock_limit_bytes = memlock_limit(looking.roots, "self");
    runtime
        .default_ulimits
        .clone_from(&looking.settings.default_ulimits);
    runtime
}

/// Files that decide what it answers, besides those that settings are read from.
fn files(looking: &Looking<'_>) -> Vec<PathBuf> {
    let mut files = looking.settings.files.clone();
    let environment = looking.roots.environment();
    files.extend(
        [
            "/usr/share/containers/storage.conf",
            "/etc/containers/storage.conf",
        ]
        .map(PathBuf::from),
    );
    files.extend(user_directory(looking.roots).map(|it| it.join("storage.conf")));
    files.extend(environment.path("CONTAINERS_STORAGE_CONF"));
    files
}

async fn ask(looking: &Looking<'_>, program: &Path) -> ContainerRuntime {
    let answer = looking.ask(program, &["info", "--format", "json"]).await;
    let described = match answer {
        Ok(answer) if answer.exited == Exited::Code(0) => describe(&answer.stdout),
        Ok(answer) => Err(match last_line(&answer.stderr) {
            "" => format!("`podman info` ends with {}", answer.exited),
            line => line.to_owned(),
        }),
        Err(reason) => Err(reason),
    };
    let path = program.to_string_lossy().into_owned();
    match described {
        Ok(runtime) => ContainerRuntime { path, ..runtime },
        Err(reason) => ContainerRuntime {
            name: NAME.to_owned(),
            version: looking.version(program).await,
            path,
            unusable: Some(reason),
            ..ContainerRuntime::default()
        },
    }
}

#[derive(Debug, Deserialize)]
struct Info {
    host: HostInfo,
    store: Store,
    version: Version,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct HostInfo {
    security: Security,
    #[serde(default)]
    service_is_remote: bool,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Security {
    #[serde(default)]
    rootless: bool,
    #[serde(rename = "selinuxEnabled", default)]
    selinux: bool,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Store {
    graph_root: String,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Version {
    version: String,
}

/// What `podman info --format json` says; an error is one line.
fn describe(text: &str) -> Result<ContainerRuntime, String> {
    let info: Info = serde_json::from_str(text)
        .map_err(|error| format!("`podman info` says something else than it should: {error}"))?;
    let version = info.version.version;
    let unusable = if info.host.service_is_remote {
        Some("it drives the podman of another machine".to_owned())
    } else if is_at_least(&version, LEAST) {
        None
    } else {
        Some(format!(
            "version {version} is too old: {}.{} or later is needed",
            LEAST[0], LEAST[1]
        ))
    };
    Ok(ContainerRuntime {
        name: NAME.to_owned(),
        cdi: is_at_least(&version, FIRST_WITH_CDI),
        server_version: version.clone(),
        version,
        rootless: info.host.security.rootless,
        selinux: info.host.security.selinux,
        storage: info.store.graph_root,
        unusable,
        ..ContainerRuntime::default()
    })
}

fn has_init(roots: &Roots, settings: &Settings, version: &str) -> bool {
    if let Some(path) = &settings.init_path {
        return roots.is_program(path);
    }
    let searches = is_at_least(version, FIRST_THAT_SEARCHES);
    let elsewhere = || {
        let mut directories = INIT_DIRECTORIES.iter();
        directories.any(|directory| roots.is_program(Path::new(directory).join("catatonit")))
            || roots.program("catatonit").is_some()
    };
    roots.is_program(INIT) || (searches && elsewhere())
}
