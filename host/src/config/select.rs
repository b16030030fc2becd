//! Which pool is wanted, and what the command line changes about it.

use std::path::{Path, PathBuf};

use engine_provider_api::{Device, GpuPolicy, Mode, Pool};

use super::{
    modes::misfits,
    places::Places,
    pool_files::PoolFiles,
    pools::Surroundings,
    problem::{ConfigError, Problem, list},
    supervision::Supervision,
    syntax::{self, Base},
};
use crate::policy::{Layer, NetworkPolicy, Origin, Policy, Setting};

/// Pool file looked for where no other is named.
pub const USUAL_FILE: &str = "pools.yaml";

/// Name of a provider's default pool.
pub const DEFAULT_POOL: &str = "default";

/// How a pool is picked.
#[derive(Debug, Clone, Default)]
pub struct Selection {
    /// `--config`.
    pub config: Option<PathBuf>,
    /// `--pool`.
    pub pool: Option<String>,
    /// `--provider`: the engine family.
    pub provider: Option<String>,
    /// Directory in which [`USUAL_FILE`] is looked for.
    pub directory: PathBuf,
}

/// What was picked.
#[derive(Debug, Clone)]
pub enum Selected {
    /// A pool of a file.
    Pool(Box<Wanted>),
    /// No file: the default pool of this engine's provider. Give it to [`Wanted::of_default`].
    DefaultPool {
        /// Engine family.
        engine: String,
    },
}

/// The pool that is wanted.
#[derive(Debug, Clone)]
pub struct Wanted {
    /// The pool.
    pub pool: Pool,
    /// How a daemon keeps it up.
    pub supervision: Supervision,
    /// What it asks of policy, weakest first. For [`crate::policy::resolve`].
    pub requests: Vec<Layer>,
    /// Where its values stand.
    pub places: Places,
    /// What the operator should know, rendered.
    pub notices: Vec<String>,
}

/// What the command line changes.
#[derive(Debug, Clone, Default)]
pub struct Overlay {
    /// `--mode`.
    pub mode: Option<Mode>,
    /// `--model`: a reference; a relative path starts at [`Overlay::base`].
    pub model: Option<String>,
    /// `--container-runtime`: `podman` or `docker`.
    pub container_runtime: Option<String>,
    /// Where relative paths of the command line start.
    pub base: Base,
    /// `--gpu`.
    pub gpu: Option<GpuPolicy>,
    /// `--allow-package-installs`.
    pub allow_package_installs: bool,
    /// `--allow-binary-downloads`.
    pub allow_binary_downloads: bool,
    /// `--offline`.
    pub offline: bool,
    /// GPUs that were chosen for one replica, in place of the pool's own.
    pub devices: Option<Vec<Device>>,
}

/// The pool file of a selection; `None` where there is none.
///
/// `--config` wins, then [`USUAL_FILE`] in the directory.
#[must_use]
pub fn file_of(selection: &Selection) -> Option<PathBuf> {
    if let Some(path) = &selection.config {
        return Some(path.clone());
    }
    selection
        .directory
        .join(USUAL_FILE)
        .is_file()
        .then(|| PathBuf::from(USUAL_FILE))
}

/// Picks a pool: `--pool`, else the first pool of the engine of `--provider`, else the first pool.
pub fn select(
    selection: &Selection,
    files: &PoolFiles,
    surroundings: &Surroundings,
) -> Result<Selected, ConfigError> {
    let Some(path) = file_of(selection) else {
        return default_pool(selection);
    };
    let loaded = files.load(&selection.directory.join(&path), surroundings)?;
    let entries = &loaded.pools;
    let index = index_of(selection, entries.iter().map(|entry| &entry.pool), &path)?;
    let entry = entries[index].clone();
    let mut notices: Vec<String> = loaded
        .notices
        .iter()
        .map(|notice| notice.render(&loaded.source))
        .collect();
    if !entry.pool.preload {
        let words = "a daemon starts this pool on demand; a command that names it starts it now";
        notices.push(
            entry
                .places
                .problem("preload", words)
                .render(&loaded.source),
        );
    }
    if selection.pool.is_none() && selection.provider.is_none() && entries.len() > 1 {
        let others = list(entries.iter().map(|entry| entry.pool.id.as_str()));
        notices.push(format!(
            "{}: pool `{}` is taken, the first of {others}; `--pool` picks another",
            path.display(),
            entry.pool.id
        ));
    }
    Ok(Selected::Pool(Box::new(Wanted {
        pool: entry.pool,
        supervision: entry.supervision,
        requests: entry.requests,
        places: entry.places,
        notices,
    })))
}

/// Without a pool file: the provider's default pool, and no other.
fn default_pool(selection: &Selection) -> Result<Selected, ConfigError> {
    let engine = selection.provider.clone();
    let engine = engine.ok_or(ConfigError::NothingGiven)?;
    match &selection.pool {
        Some(pool) if pool != DEFAULT_POOL => Err(ConfigError::NoPoolFile {
            wanted: pool.clone(),
        }),
        _ => Ok(Selected::DefaultPool { engine }),
    }
}

fn index_of<'a>(
    selection: &Selection,
    pools: impl Iterator<Item = &'a Pool> + Clone,
    path: &Path,
) -> Result<usize, ConfigError> {
    if let Some(wanted) = &selection.pool {
        let found = pools.clone().position(|pool| pool.id == *wanted);
        let index = found.ok_or_else(|| ConfigError::NoSuchPool {
            path: path.to_owned(),
            wanted: wanted.clone(),
            known: pools.clone().map(|pool| pool.id.clone()).collect(),
        })?;
        let engine = pools.clone().nth(index).map(|pool| pool.engine.clone());
        return match (&selection.provider, engine) {
            (Some(provider), Some(engine)) if *provider != engine => {
                Err(ConfigError::OtherEngine {
                    pool: wanted.clone(),
                    engine,
                    provider: provider.clone(),
                })
            }
            _ => Ok(index),
        };
    }
    let Some(engine) = &selection.provider else {
        return Ok(0);
    };
    let found = pools.clone().position(|pool| pool.engine == *engine);
    found.ok_or_else(|| {
        let mut known: Vec<String> = pools.map(|pool| pool.engine.clone()).collect();
        known.sort();
        known.dedup();
        ConfigError::NoPoolOfEngine {
            path: path.to_owned(),
            engine: engine.clone(),
            known,
        }
    })
}

impl Wanted {
    /// A provider's default pool, which stands in no file and asks nothing of policy.
    #[must_use]
    pub fn of_default(pool: Pool) -> Self {
        Self {
            pool,
            supervision: Supervision::default(),
            requests: Vec::new(),
            places: Places::default(),
            notices: Vec::new(),
        }
    }

    /// Applies the command line: mode and model now, the rest as a request to policy.
    pub fn overlay(&mut self, overlay: &Overlay) -> Result<(), ConfigError> {
        self.requests.push(overlay.layer());
        if let Some(devices) = &overlay.devices {
            self.pool.devices.clone_from(devices);
        }
        if let Some(reference) = &overlay.model {
            self.replace_model(reference, &overlay.base)?;
        }
        let Some(mode) = overlay.mode else {
            return Ok(());
        };
        let because = format!("not used: `--mode {mode}` was given");
        let unused = misfits(&self.pool, mode, &self.places, &because);
        self.note(unused);
        self.pool.provisioning.mode = Some(mode);
        Ok(())
    }

    /// Takes the container runtime that the command line names, now that the mode is known. It means
    /// nothing to a mode without containers, which is said.
    pub fn use_runtime(&mut self, runtime: &str, mode: Mode) {
        let provisioning = &mut self.pool.provisioning;
        let container = match mode {
            Mode::Container => Some(provisioning.container.get_or_insert_default()),
            Mode::Binary => provisioning
                .binary
                .as_mut()
                .and_then(|binary| binary.image.as_mut()),
            _ => None,
        };
        match container {
            Some(container) => container.runtime = Some(runtime.to_owned()),
            None => self.notices.push(format!(
                "`--container-runtime {runtime}` is not used: mode `{mode}` runs no container"
            )),
        }
    }

    /// Another model: what was said of the old one (digest, name, quantisation) goes with it.
    fn replace_model(&mut self, reference: &str, base: &Base) -> Result<(), ConfigError> {
        let checked = syntax::model_reference(reference, base);
        let reference = checked.map_err(|(message, help)| ConfigError::BadFlag {
            flag: "--model",
            message,
            help,
        })?;
        let model = self.pool.provisioning.model.get_or_insert_default();
        if model.reference != reference {
            model.reference = reference;
            model.checksum = None;
            self.pool.model = None;
            self.pool.quant = None;
        }
        Ok(())
    }

    /// Applies what policy resolved to.
    pub fn apply(&mut self, policy: &Policy) {
        self.pool.gpu = policy.gpu.value;
        if policy.gpu.value != GpuPolicy::Forbid {
            return;
        }
        let origin = policy.gpu.origin.to_string();
        for field in ["devices", "tensor_split"] {
            if self.places.exact(field).is_some() {
                let problem = self.places.problem(
                    field,
                    format!("`{field}` is not used: `gpu` is `forbid` by {origin}"),
                );
                self.note(vec![problem]);
            }
        }
        self.pool.devices.clear();
        self.pool.tensor_split.clear();
    }

    fn note(&mut self, problems: Vec<Problem>) {
        let source = self.places.source().cloned();
        let render = |problem: &Problem| match &source {
            Some(source) => problem.render(source),
            None => problem.message.clone(),
        };
        self.notices.extend(problems.iter().map(render));
    }
}

impl Overlay {
    /// The flags as a request to policy.
    #[must_use]
    pub fn layer(&self) -> Layer {
        fn flag<T>(value: Option<T>, name: &str) -> Option<Setting<T>> {
            Some(Setting {
                value: value?,
                origin: Origin::Flag(name.to_owned()),
            })
        }
        let on = |given: bool| given.then_some(true);
        Layer {
            gpu: flag(self.gpu, "--gpu"),
            allow_package_installs: flag(
                on(self.allow_package_installs),
                "--allow-package-installs",
            ),
            allow_binary_downloads: flag(
                on(self.allow_binary_downloads),
                "--allow-binary-downloads",
            ),
            network: flag(self.offline.then_some(NetworkPolicy::Offline), "--offline"),
            ..Layer::default()
        }
    }
}

#[cfg(test)]
mod tests;
