//! Packages that carry `llama-server`, by distribution.

use std::collections::BTreeMap;

use engine_provider_api::{Artifact, InstallPackages, Pool};

use crate::backend::Backend;

/// Step that sees that it is installed; its path is the program.
pub(crate) const INSTALL: &str = "install";

/// Packages by family and back end, the one that carries the program first. Where a distribution has
/// one for the processor only, what is installed is asked for its devices all the same.
type Row = (Backend, [(&'static str, &'static [&'static str]); 4]);

const TABLE: [Row; 4] = [
    (
        Backend::Cpu,
        [
            ("pacman", &["llama.cpp"]),
            ("aur", &["llama.cpp"]),
            ("apt", &["llama.cpp-tools"]),
            ("dnf", &["llama-cpp"]),
        ],
    ),
    (
        Backend::Cuda,
        [
            ("pacman", &["llama.cpp-cuda"]),
            ("aur", &["llama.cpp-cuda"]),
            ("apt", &["llama.cpp-tools", "libggml0-backend-cuda"]),
            ("dnf", &["llama-cpp"]),
        ],
    ),
    (
        Backend::Hip,
        [
            ("pacman", &["llama.cpp-hip"]),
            ("aur", &["llama.cpp-hip"]),
            ("apt", &["llama.cpp-tools", "libggml0-backend-hip"]),
            ("dnf", &["llama-cpp"]),
        ],
    ),
    (
        Backend::Vulkan,
        [
            ("pacman", &["llama.cpp-vulkan"]),
            ("aur", &["llama.cpp-vulkan"]),
            ("apt", &["llama.cpp-tools", "libggml0-backend-vulkan"]),
            ("dnf", &["llama-cpp", "llama-cpp-vulkan"]),
        ],
    ),
];

/// What a pool says about its package.
pub(crate) struct Package {
    name: Option<String>,
    version: Option<String>,
    repository: Option<String>,
}

impl Package {
    pub(crate) fn read(pool: &Pool) -> Self {
        let given = pool.provisioning.package.clone().unwrap_or_default();
        Self {
            name: given.name,
            version: given.version,
            repository: given.repo,
        }
    }

    pub(crate) fn backend(&self) -> Option<Backend> {
        self.name.as_deref().and_then(Backend::in_name)
    }

    pub(crate) fn install(&self, backend: Backend) -> InstallPackages {
        let row = TABLE.iter().find(|(other, _)| *other == backend);
        let (_, families) = row.expect("the table has every back end");
        let packages: BTreeMap<String, Vec<String>> = families
            .iter()
            .map(|(family, usual)| {
                let usual = || usual.iter().map(|&name| name.to_owned()).collect();
                let names = self.name.clone().map_or_else(usual, |name| vec![name]);
                ((*family).to_owned(), names)
            })
            .collect();
        InstallPackages {
            packages,
            version: self.version.clone(),
            repository: self.repository.clone(),
            program: "llama-server".to_owned(),
            ..InstallPackages::default()
        }
    }

    pub(crate) fn note(&self) -> String {
        match &self.version {
            Some(version) => format!("package version {version}, and no other"),
            None => {
                "the version that is installed, else the newest; `provisioning.package.version` \
                     keeps it to one"
                    .to_owned()
            }
        }
    }
}

/// Version of what is installed, once it is.
pub(crate) fn version(installed: Option<&Artifact>) -> Option<String> {
    installed?.labels.get("version").cloned()
}
