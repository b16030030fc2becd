//! From a launch as its provider wrote it to a container with everything filled in.
//!
//! The plan shows and the engine room starts what this makes, so that both are the same.

use std::{collections::BTreeMap, net::SocketAddr, path::PathBuf};

use engine_provider_api::{Container, ContainerLaunch, Mount, Template, TemplateError};

use super::{BindMount, Published, Run};
use crate::{config::syntax::names_a_secret, model::source::parts_of};

/// What a launch alone does not say about its container.
#[derive(Debug, Clone, Default)]
pub struct Surroundings {
    /// Name of the container.
    pub name: String,
    /// Image by digest.
    pub image: String,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// File that is written once the container is made: [`Run::made_file`].
    pub made_file: Option<PathBuf>,
    /// Address here of the port that answers requests.
    pub address: Option<SocketAddr>,
    /// Addresses here of the ports beside it, by name.
    pub more_addresses: BTreeMap<String, SocketAddr>,
    /// GPUs by driver id; empty: none.
    pub gpus: Vec<String>,
}

/// Makes a container of a launch. `settings`: those of the pool; `fill`: fills in a template, with
/// [`inside`] for what the launch itself decides.
///
/// A variable that [`is_secret`] becomes a name in [`Run::secret_env`], its value is not filled in:
/// it belongs into the environment of the runtime's program.
pub fn assemble<E: From<TemplateError>>(
    launch: &ContainerLaunch,
    settings: Option<&Container>,
    surroundings: Surroundings,
    mut fill: impl FnMut(&Template) -> Result<String, E>,
) -> Result<Run, E> {
    let (mut env, mut secret_env) = (BTreeMap::new(), std::collections::BTreeSet::new());
    for (name, value) in &launch.env {
        if is_secret(name, value)? {
            secret_env.insert(name.clone());
        } else {
            env.insert(name.clone(), fill(value)?);
        }
    }
    let mut mounts = Vec::new();
    for mount in &launch.mounts {
        mounts.extend(with_parts(BindMount {
            source: PathBuf::from(fill(&mount.source)?),
            target: mount.target.clone(),
            writable: is_writable(mount),
        }));
    }
    let args = launch
        .args
        .iter()
        .map(&mut fill)
        .collect::<Result<_, E>>()?;
    Ok(Run {
        entrypoint: launch.entrypoint.clone(),
        args,
        env,
        secret_env,
        mounts,
        publish: published(launch, &surroundings),
        user: launch.user.clone(),
        shm_bytes: settings
            .and_then(|it| it.shm_bytes)
            .unwrap_or(launch.shm_bytes),
        unlimited_memlock: launch.unlimited_memlock,
        read_only_root: launch.read_only_root,
        tmpfs: launch.tmpfs.clone(),
        cpus: settings.and_then(|it| it.cpus.clone()),
        numa_nodes: settings.and_then(|it| it.numa_nodes.clone()),
        name: surroundings.name,
        image: surroundings.image,
        labels: surroundings.labels,
        made_file: surroundings.made_file,
        gpus: surroundings.gpus,
    })
}

/// What `{address.host}`, `{address.port}` and `{port.NAME}` are inside a container; `None`: another
/// placeholder.
#[must_use]
pub fn inside(launch: &ContainerLaunch, name: &str) -> Option<String> {
    match name {
        // What is published reaches the container from outside its own loopback.
        "address.host" => Some("0.0.0.0".to_owned()),
        "address.port" => Some(launch.port.to_string()),
        _ => {
            let name = name.strip_prefix("port.")?;
            let port = launch.more_ports.iter().find(|port| port.name == name)?;
            Some(port.usual_port.to_string())
        }
    }
}

/// A mount, and where it is a part of a split model, those of the other parts: an engine is given one and
/// finds the others beside it, by their names.
fn with_parts(mount: BindMount) -> Vec<BindMount> {
    let name = mount.source.file_name().and_then(|name| name.to_str());
    let parts = name.and_then(parts_of).zip(parts_of(&mount.target));
    let Some((names, targets)) = parts.filter(|(names, targets)| names.len() == targets.len())
    else {
        return vec![mount];
    };
    let part = |(name, target): (String, String)| BindMount {
        source: mount.source.with_file_name(name),
        target,
        writable: mount.writable,
    };
    names.into_iter().zip(targets).map(part).collect()
}

/// Only a cache can be written.
fn is_writable(mount: &Mount) -> bool {
    mount.source.as_str().starts_with("{cache.")
}

/// Whether a variable's value is for the engine alone: it has a secret in it, or is called as one that an
/// operator wrote into the pool file.
pub fn is_secret(name: &str, value: &Template) -> Result<bool, TemplateError> {
    let names = value.placeholders()?;
    Ok(names_a_secret(name) || names.iter().any(|name| name.starts_with("secret.")))
}

fn published(launch: &ContainerLaunch, surroundings: &Surroundings) -> Vec<Published> {
    let first = surroundings.address.map(|address| Published {
        address,
        inside: launch.port,
    });
    let more = launch.more_ports.iter().filter_map(|port| {
        Some(Published {
            address: *surroundings.more_addresses.get(&port.name)?,
            inside: port.usual_port,
        })
    });
    first.into_iter().chain(more).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mounted(source: &str, target: &str) -> Vec<(String, String)> {
        let mounts = with_parts(BindMount {
            source: source.into(),
            target: target.to_owned(),
            writable: false,
        });
        let pair = |mount: BindMount| (mount.source.display().to_string(), mount.target);
        mounts.into_iter().map(pair).collect()
    }

    #[test]
    fn the_first_part_of_a_split_model_brings_the_others_with_it() {
        let parts = mounted(
            "/s/m x-00001-of-00002.gguf",
            "/models/m-x-00001-of-00002.gguf",
        );
        let of = |number| {
            let rest = format!("-0000{number}-of-00002.gguf");
            (format!("/s/m x{rest}"), format!("/models/m-x{rest}"))
        };
        assert_eq!(parts, [of(1), of(2)]);
        for (source, target) in [
            ("/s/m.gguf", "/models/m.gguf"),
            ("/s/m-00001-of-00002.gguf", "/models/m.gguf"),
            ("/s/m-00001-of-00002.gguf", "/models/m-00001-of-00003.gguf"),
        ] {
            let alone = (source.to_owned(), target.to_owned());
            assert_eq!(mounted(source, target), [alone]);
        }
    }
}
