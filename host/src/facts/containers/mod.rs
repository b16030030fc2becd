//! Container runtimes: which there are, what they can do, why one cannot be used.
//!
//! Looked at only for whoever wants containers. `podman info` takes a third of a second, so what it
//! said is remembered until the program, its configuration, the machine's boot, the user or a
//! variable that it reads is another; a second look starts no process. That a daemon answers is seen
//! anew each time by connecting to it: it may have been stopped, or started, meanwhile.
//!
//! Runtimes are asked as this process's own user, who is the one that runs them, whoever builds and
//! runs engines otherwise.

mod docker;
mod podman;
mod remembered;
mod settings;

use std::{path::Path, time::Duration};

use engine_provider_api::{ContainerRuntime, Containers, Evidence};

use super::{
    Collector, Roots,
    asking::{Said, Versions, bounded},
    cdi, tools,
};
use crate::{
    container::environment,
    process::{Answer, Question},
};
use remembered::Remembered;
use settings::Settings;

/// Longest time a runtime may take to describe itself: podman looks through its storage, which a
/// first call after an update may have to rebuild.
pub const INFO_LIMIT: Duration = Duration::from_secs(20);

impl Collector<'_> {
    /// Looks for podman and docker, and for devices that they can give; the evidence says what was
    /// wrong with descriptions of devices. Takes a few milliseconds when nothing changed.
    pub async fn containers(&self) -> (Containers, Vec<Evidence>) {
        let beside = |name: &str| self.memory.as_ref().map(|it| it.with_file_name(name));
        let memory = beside("runtimes.json");
        // A file of their own: tools are looked at in the same moment, and theirs is written whole.
        let versions = beside("runtime-versions.json");
        let versions = Versions::new(self.asker, &self.roots, None, versions);
        let looking = Looking {
            roots: &self.roots,
            settings: Settings::read(&self.roots),
            remembered: Remembered::read(memory),
            versions,
        };
        let looks = futures_util::future::join(podman::look(&looking), docker::look(&looking));
        let (mut podman, mut docker) = looks.await;
        // What is confined only on paper needs nothing; the switch can be thrown at any time.
        let enforces = self.roots.word("/sys/fs/selinux/enforce").as_deref() == Some("1");
        podman.selinux &= enforces;
        docker.selinux &= enforces;
        looking.remembered.save();
        looking.versions.save();
        let directories = looking.settings.cdi_directories();
        let (cdi_devices, evidence) = cdi::devices(&self.roots, directories);
        let containers = Containers {
            runtimes: vec![podman, docker],
            cdi_devices,
        };
        (containers, evidence)
    }
}

/// What both runtimes are looked at with.
struct Looking<'a> {
    roots: &'a Roots,
    settings: Settings,
    remembered: Remembered,
    versions: Versions<'a>,
}

impl Looking<'_> {
    /// Asks a runtime's program; its whole environment is the one that it runs engines with.
    async fn ask(&self, program: &Path, args: &[&str]) -> Result<Answer, String> {
        let mut env = environment(self.roots.environment());
        env.insert("LC_ALL".to_owned(), "C".to_owned());
        let question = Question {
            program: self.roots.real(program),
            args: args.iter().map(|it| (*it).to_owned()).collect(),
            env,
            identity: None,
            limit: INFO_LIMIT,
        };
        bounded(self.versions.asker, question)
            .await
            .map_err(|error| crate::narrate::chain(&error))
    }

    /// The version a program prints, remembered like those of tools.
    async fn version(&self, program: &Path) -> String {
        match self.versions.of(program, &["--version".to_owned()]).await {
            Said::Version(version) => version,
            Said::Unusable(_) => String::new(),
        }
    }
}

/// A runtime that is not there.
fn not_found(name: &str) -> ContainerRuntime {
    ContainerRuntime {
        name: name.to_owned(),
        unusable: Some("not found".to_owned()),
        ..ContainerRuntime::default()
    }
}

/// The last line that says something.
fn last_line(text: &str) -> &str {
    let mut lines = text.lines().rev().map(str::trim);
    lines.find(|line| !line.is_empty()).unwrap_or("")
}

fn is_at_least(version: &str, least: [u64; 2]) -> bool {
    tools::numbers(version).as_slice() >= least.as_slice()
}

/// Hard limit of locked memory of a process, in bytes; `None` where there is none, or where it may
/// raise its own limits.
fn memlock_limit(roots: &Roots, process: &str) -> Option<u64> {
    /// Bit of `CAP_SYS_RESOURCE` (capabilities(7)).
    const MAY_RAISE_LIMITS: u64 = 1 << 24;
    let status = roots.text(format!("/proc/{process}/status"))?;
    let capabilities = status
        .lines()
        .find_map(|line| line.strip_prefix("CapEff:"))?;
    let capabilities = u64::from_str_radix(capabilities.trim(), 16).ok()?;
    if capabilities & MAY_RAISE_LIMITS != 0 {
        return None;
    }
    let limits = roots.text(format!("/proc/{process}/limits"))?;
    let line = limits
        .lines()
        .find_map(|line| line.strip_prefix("Max locked memory"))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests;
