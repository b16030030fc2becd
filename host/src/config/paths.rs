//! Where things lie.
//!
//! One root: `HOST_HOME`, else as root `/var/lib/engine-host`, else `$XDG_DATA_HOME/engine-host`.
//! Below it `store/` (results that can be made again), `state/` (what runs), `logs/`. Machine
//! configuration is read from `/etc/engine-host`, the user's from `$XDG_CONFIG_HOME/engine-host`.

use std::path::{Path, PathBuf};

use etcetera::{BaseStrategy, base_strategy::Xdg};

use super::environment::Environment;

/// Directories of one installation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Home {
    root: PathBuf,
    user_config: Option<PathBuf>,
}

impl Home {
    /// Finds the root from the environment; creates nothing.
    #[must_use]
    pub fn locate(environment: &Environment) -> Self {
        let xdg = Xdg::new().ok();
        let root = environment.path("HOST_HOME").unwrap_or_else(|| {
            match (&xdg, rustix::process::geteuid().is_root()) {
                (Some(xdg), false) => xdg.data_dir().join("engine-host"),
                _ => PathBuf::from("/var/lib/engine-host"),
            }
        });
        Self {
            root: std::path::absolute(&root).unwrap_or(root),
            user_config: xdg.map(|xdg| xdg.config_dir().join("engine-host")),
        }
    }

    /// A home at this absolute path without a user configuration, for tests and embedders.
    pub fn at(root: impl Into<PathBuf>) -> Self {
        Self {
            root: root.into(),
            user_config: None,
        }
    }

    /// The root itself.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Results that can be made again: sources, builds, models, observations.
    #[must_use]
    pub fn store(&self) -> PathBuf {
        self.root.join("store")
    }

    /// What runs: instances, keeper sockets, reservations.
    #[must_use]
    pub fn state(&self) -> PathBuf {
        self.root.join("state")
    }

    /// Logs, one directory per pool.
    #[must_use]
    pub fn logs(&self) -> PathBuf {
        self.root.join("logs")
    }

    /// Writable directories that outlive a run, for example a compiler cache.
    #[must_use]
    pub fn cache(&self, name: &str) -> PathBuf {
        self.root.join("cache").join(name)
    }

    /// Providers that this user installed.
    #[must_use]
    pub fn user_providers(&self) -> PathBuf {
        self.root.join("providers")
    }

    /// Providers that the machine's administrator installed.
    #[must_use]
    pub fn system_providers() -> PathBuf {
        PathBuf::from("/usr/lib/engine-host/providers")
    }

    /// Machine policy: a ceiling for everybody.
    #[must_use]
    pub fn machine_policy() -> PathBuf {
        PathBuf::from("/etc/engine-host/policy.yaml")
    }

    /// The user's policy, below the machine's.
    #[must_use]
    pub fn user_policy(&self) -> Option<PathBuf> {
        Some(self.user_config.as_ref()?.join("policy.yaml"))
    }
}
