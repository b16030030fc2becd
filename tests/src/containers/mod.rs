//! Real podman, real docker and a real registry, each of the tests' own.
//!
//! What this machine or a build machine needs in order to run containers at all stands here and
//! never in the product: another low-level runtime, limits, networks that nobody else uses.

pub(crate) mod daemon;
mod docker;
mod image;
mod network;
mod podman;
mod registry;

use std::{
    collections::BTreeMap,
    path::Path,
    process::{Command, Stdio},
};

pub use docker::DockerDaemon;
pub use image::{IMAGE_REVISION, IMAGE_VERSION, Image, ImageFile, this_architecture};
pub use registry::{CREDENTIALS, KeptBlob, PushedIndex, Registry, basic};

use crate::{Machine, RUN_LIMIT, wait_for};
use podman::Podman;

/// Which of the two.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ContainerKind {
    /// Podman, with a storage that nobody else uses.
    Podman,
    /// Docker, with a daemon that nobody else uses.
    Docker,
}

impl ContainerKind {
    /// Both: most promises hold for either.
    pub const BOTH: [Self; 2] = [Self::Podman, Self::Docker];

    /// Its program, and the word in pool files.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Podman => "podman",
            Self::Docker => "docker",
        }
    }
}

/// A container runtime that belongs to one test; everything in it goes when it is dropped.
pub struct Containers {
    kind: ContainerKind,
    environment: BTreeMap<String, String>,
    podman: Option<Podman>,
}

impl Containers {
    /// One of this kind, with its files below `root`.
    #[must_use]
    pub fn new(kind: ContainerKind, root: &Path) -> Self {
        match kind {
            ContainerKind::Podman => Self::of_podman(Podman::below(root, None)),
            ContainerKind::Docker => Self::of_daemon(DockerDaemon::shared(), root),
        }
    }

    /// A podman whose images have to fit into this many bytes.
    #[must_use]
    pub fn podman_with_little_room(root: &Path, bytes: u64) -> Self {
        Self::of_podman(Podman::below(root, Some(bytes)))
    }

    /// A client of this daemon, with its configuration below `root`.
    #[must_use]
    pub fn of_daemon(daemon: &DockerDaemon, root: &Path) -> Self {
        let configuration = root.join("docker-client");
        std::fs::create_dir_all(&configuration).unwrap();
        let pair = |name: &str, value: String| (name.to_owned(), value);
        Self {
            kind: ContainerKind::Docker,
            environment: BTreeMap::from([
                pair("DOCKER_HOST", daemon.address()),
                pair("DOCKER_CONFIG", configuration.display().to_string()),
            ]),
            podman: None,
        }
    }

    fn of_podman(podman: Podman) -> Self {
        Self {
            kind: ContainerKind::Podman,
            environment: podman.environment(),
            podman: Some(podman),
        }
    }

    /// Which of the two.
    #[must_use]
    pub fn kind(&self) -> ContainerKind {
        self.kind
    }

    /// Variables by which its program finds what belongs to it.
    #[must_use]
    pub fn environment(&self) -> &BTreeMap<String, String> {
        &self.environment
    }

    /// Lets a machine use it.
    pub fn lend(&self, machine: &mut Machine) {
        for (name, value) in &self.environment {
            machine.lend(name, value);
        }
    }

    /// Lets it speak plain HTTP to a registry; docker does so with every one on this machine.
    pub fn trust(&self, registry: &Registry) {
        if let Some(podman) = &self.podman {
            podman.trust(&registry.address());
        }
    }

    /// Lets its settings say that containers have the machine's own network. Docker has no such setting.
    pub fn share_network(&self) {
        if let Some(podman) = &self.podman {
            podman.share_network();
        }
    }

    /// Its program with these arguments.
    #[must_use]
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(self.kind.name());
        command
            .args(arguments)
            .envs(&self.environment)
            .stdin(Stdio::null());
        command
    }

    /// Runs it to its end and gives standard output.
    ///
    /// # Panics
    ///
    /// When it fails.
    #[track_caller]
    pub fn run(&self, arguments: &[&str]) -> String {
        let output = self.command(arguments).output().unwrap_or_else(|error| {
            panic!(
                "{}: {error}; scripts/setup-tests installs it",
                self.kind.name()
            )
        });
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{arguments:?}: {stderr}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Names of containers, running or not, that carry a label, `NAME` or `NAME=value`.
    #[must_use]
    pub fn labelled(&self, label: &str) -> Vec<String> {
        let filter = format!("label={label}");
        let listed = self.listed(&["--filter", &filter, "--format", "{{.Names}}"]);
        listed.lines().map(str::to_owned).collect()
    }

    /// Names that podman's storage has for containers of which podman itself knows nothing: it was killed
    /// while it made them.
    #[must_use]
    pub fn half_made(&self) -> Vec<String> {
        if self.kind == ContainerKind::Docker {
            return Vec::new();
        }
        let listed = self.listed(&["--external", "--format", "{{.Status}} {{.Names}}"]);
        let parts = listed
            .lines()
            .filter_map(|line| line.strip_prefix("Storage "));
        parts.map(str::to_owned).collect()
    }

    /// What `ps` says of all containers. It fails when one goes between its name and its state.
    #[track_caller]
    fn listed(&self, more: &[&str]) -> String {
        const GONE: [&str; 2] = ["container not known", "no such container"];
        let list = [&["ps", "--all"], more].concat();
        wait_for("containers to be listed", RUN_LIMIT, || {
            let listed = self.command(&list).output().unwrap();
            let complaint = String::from_utf8_lossy(&listed.stderr);
            if GONE.iter().any(|gone| complaint.contains(gone)) {
                return Err(complaint.into_owned());
            }
            assert!(listed.status.success(), "{list:?}: {complaint}");
            Ok(String::from_utf8_lossy(&listed.stdout).into_owned())
        })
    }

    /// What is left of podman's network, which should be nothing when there is no container. A leftover
    /// rule would take the port's connections from whoever uses it next.
    #[must_use]
    pub fn network_left(&self) -> Vec<String> {
        self.podman
            .as_ref()
            .map_or_else(Vec::new, Podman::network_left)
    }

    /// Digests under which images of a repository are there.
    #[must_use]
    pub fn digests_of(&self, repository: &str) -> Vec<String> {
        let format = "{{.Digest}}";
        let listed = self.run(&["images", "--digests", "--format", format, repository]);
        let mut digests: Vec<String> = listed.lines().map(str::to_owned).collect();
        digests.retain(|digest| digest.starts_with("sha256:"));
        digests
    }
}
