//! Where providers are looked for.

use std::{
    fmt,
    path::{Path, PathBuf},
};

use schemars::JsonSchema;
use serde::Serialize;

use super::{elf::Machine, file::Owners, load, trust::Executable};
use crate::config::{environment::Environment, paths::Home};

/// Group of directories; the first that has a provider of a name wins, whatever its version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Tier {
    /// Named by path, not searched for.
    Path,
    /// `--provider-path`.
    Flag,
    /// `HOST_PROVIDER_PATH`.
    Environment,
    /// Beside the host's executable.
    BesideExecutable,
    /// Installed by this user.
    User,
    /// Installed by the administrator.
    System,
}

impl fmt::Display for Tier {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Path => "named by path",
            Self::Flag => "--provider-path",
            Self::Environment => "HOST_PROVIDER_PATH",
            Self::BesideExecutable => "beside the executable",
            Self::User => "user",
            Self::System => "system",
        })
    }
}

/// Where to look, on which machine, and whom to believe.
#[derive(Debug, Clone)]
pub struct Search {
    pub(super) directories: Vec<(Tier, PathBuf)>,
    pub(super) executable: Option<PathBuf>,
    pub(super) install_into: Option<PathBuf>,
    pub(super) machine: Machine,
    pub(super) owners: Owners,
}

impl Search {
    /// The usual tiers of a `host` process: `flags` are the directories of `--provider-path`.
    #[must_use]
    pub fn usual(flags: &[PathBuf], environment: &Environment, home: &Home) -> Self {
        let mut search = Self::nowhere(std::env::current_exe().ok());
        for directory in flags {
            search.add(Tier::Flag, directory);
        }
        if let Some(list) = environment.path("HOST_PROVIDER_PATH") {
            for directory in std::env::split_paths(&list) {
                search.add(Tier::Environment, &directory);
            }
        }
        let beside = search.executable.as_deref().and_then(Path::parent);
        if let Some(directory) = beside.map(Path::to_owned) {
            search.add(Tier::BesideExecutable, &directory);
        }
        search.add(Tier::User, &home.user_providers());
        search.add(Tier::System, &Home::system_providers());
        search.install_into = Some(home.user_providers());
        search
    }

    /// No directory yet; `executable` is the program that providers may have come with.
    #[must_use]
    pub fn nowhere(executable: Option<PathBuf>) -> Self {
        Self {
            directories: Vec::new(),
            owners: Owners::of_this_process(executable.as_deref()),
            executable,
            install_into: None,
            machine: Machine::this(load::glibc_version()),
        }
    }

    /// Looks in one more directory. An empty path is ignored, a relative one is made absolute.
    pub fn add(&mut self, tier: Tier, directory: &Path) {
        if !directory.as_os_str().is_empty() {
            let absolute = std::path::absolute(directory);
            self.directories
                .push((tier, absolute.unwrap_or_else(|_| directory.to_owned())));
        }
    }

    pub(super) fn executable(&self) -> Option<Executable> {
        self.executable.as_deref().and_then(Executable::at)
    }
}
