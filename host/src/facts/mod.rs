//! What this machine is and has.
//!
//! Collected when they are needed, every probe under a limit, and never in the way: what cannot be
//! found out is left empty, with the reason kept as evidence. Nothing here decides anything; a
//! provider reads [`Facts`], an operator reads `host facts`.
//!
//! All files are reached through [`Roots`] and all programs through [`Ask`], so that a test can
//! look at a machine it made up. Versions that tools print are remembered by what their file looks
//! like (device, inode, size, times), so that a second look starts no process.
//!
//! Seen through the eyes of whoever builds and runs engines ([`Collector::identity`]): a tool that
//! user cannot reach is not there.

mod asking;
mod cdi;
pub mod containers;
mod cuda;
mod file;
mod gpu;
mod index;
pub mod probe;
mod roots;
mod system;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
mod tools;

use std::path::PathBuf;

use engine_provider_api::{Facts, Gpus, Memory, ToolProbe};

pub use asking::{Ask, Processes, VERSION_LIMIT};
pub use file::read;
pub use index::PackageIndex;
pub use roots::Roots;
pub use tools::Skipped;

use crate::{
    config::{environment::Environment, paths::Home},
    narrate::Secrets,
    process::Identity,
};

/// How a machine is looked at.
pub struct Collector<'a> {
    /// The machine.
    pub roots: Roots,
    /// Who answers questions.
    pub asker: &'a dyn Ask,
    /// Who builds and runs engines; `None`: this process's user.
    pub identity: Option<Identity>,
    /// File in which versions are remembered; `None`: nowhere.
    pub memory: Option<PathBuf>,
    /// Program that calls [`probe::run_if_probe`] first, for NVML. `None`: NVML is not asked.
    pub probe_program: Option<PathBuf>,
}

/// What was found.
#[derive(Debug, Clone, Default)]
pub struct Collected {
    /// The facts, without secrets.
    pub facts: Facts,
    /// The package index with the credentials it needs, for whoever fetches from it.
    pub package_index: Option<PackageIndex>,
    /// Programs that were found and not taken.
    pub skipped: Vec<Skipped>,
}

/// Main memory as it is now. Reads a few small files.
#[must_use]
pub fn memory_now(environment: &Environment) -> Memory {
    system::memory(&Roots::of_this_machine(environment.clone()))
}

impl Collected {
    /// Registers what must never be told.
    pub fn register_secrets(&self, secrets: &Secrets) {
        for secret in self.package_index.iter().flat_map(PackageIndex::secrets) {
            secrets.register(&secret);
        }
    }
}

impl Collector<'_> {
    /// This machine, seen by whoever builds and runs engines; versions are remembered in the home
    /// once there is one: looking alone makes none. NVML is asked by this very program, whose `main` must call [`probe::run_if_probe`].
    #[must_use]
    pub fn of_this_machine(
        environment: &Environment,
        home: &Home,
        identity: Option<Identity>,
    ) -> Self {
        Self {
            roots: Roots::of_this_machine(environment.clone()),
            asker: &Processes,
            identity,
            memory: home
                .root()
                .is_dir()
                .then(|| home.state().join("facts").join("tools.json")),
            probe_program: Some(PathBuf::from("/proc/self/exe")),
        }
    }

    /// Bytes of GPU memory that these processes hold together, by the driver's word. `None` where it
    /// gives none: there is no NVIDIA driver, it does not answer in time, or it counts processes of
    /// another namespace than this one's. Takes a few seconds at worst.
    pub async fn device_memory(&self, pids: &[i32]) -> Option<u64> {
        let program = self.probe_program.as_ref()?;
        let versions = asking::Versions::new(self.asker, &self.roots, self.identity, None);
        gpu::memory_of(&versions, program, pids).await
    }

    /// Looks at the GPUs alone, as the driver shows them now. Bounded: a few seconds at worst.
    pub async fn gpus(&self) -> Gpus {
        let versions = asking::Versions::new(self.asker, &self.roots, self.identity, None);
        gpu::gpus(&versions, self.probe_program.as_ref()).await
    }

    /// Looks at the machine, container runtimes included.
    pub async fn collect_with_containers(&self, probes: &[ToolProbe]) -> Collected {
        let looks = futures_util::future::join(self.collect(probes), self.containers());
        let (mut collected, (containers, evidence)) = looks.await;
        collected.facts.containers = containers;
        collected.facts.gpus.evidence.extend(evidence);
        collected
    }

    /// Looks at the machine without its container runtimes; `probes` are the tools that providers name. Bounded: a few seconds at
    /// worst, a few milliseconds when nothing changed since the last time.
    pub async fn collect(&self, probes: &[ToolProbe]) -> Collected {
        let roots = &self.roots;
        let versions = asking::Versions::new(self.asker, roots, self.identity, self.memory.clone());
        let (tools, compilers, cuda, gpus) = futures_util::future::join4(
            tools::tools(&versions, probes),
            tools::compilers(&versions),
            cuda::toolkits(&versions),
            gpu::gpus(&versions, self.probe_program.as_ref()),
        )
        .await;
        let os = system::os(&versions);
        versions.save();
        let (tools, skipped) = tools;
        let package_index = index::package_index(roots);
        let facts = Facts {
            requires: Vec::new(),
            cpu: system::cpu(roots),
            memory: system::memory(roots),
            tools,
            gpus,
            cuda,
            compilers,
            rocm: cuda::rocm(roots),
            vulkan: cuda::vulkan(roots),
            package_index: package_index.as_ref().map(PackageIndex::shown),
            package_manager: system::package_manager(roots, &os),
            os,
            containers: engine_provider_api::Containers::default(),
        };
        Collected {
            facts,
            package_index,
            skipped,
        }
    }
}
