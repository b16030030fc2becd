//! The one command that starts an engine, hardened the same way for all of them.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    path::PathBuf,
};

use engine_provider_api::{ContainerRuntime, Facts};

use super::{
    ContainerError, Runtime, check,
    gpus::{OWN_WAY, gpu_arguments},
};

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
    /// File that is written once the runtime's program may be interrupted: before, podman would forget
    /// the network that it has made, and docker's daemon would go on making the container. Must not be
    /// there yet.
    pub made_file: Option<PathBuf>,
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

/// Most processes and threads in a container: enough for an engine on the largest machine, far too
/// few to bring the machine down.
const PIDS_LIMIT: u32 = 16_384;

/// Arguments for the runtime's program: it runs in the foreground, so that its end is the
/// container's end and its output the engine's.
///
/// Refuses an image that is not named by digest, and texts that the command line cannot carry.
pub fn run_arguments(
    runtime: &ContainerRuntime,
    facts: &Facts,
    run: &Run,
) -> Result<Vec<String>, ContainerError> {
    check::all(run)?;
    shown_arguments(runtime, facts, run)
}

/// The same for a plan, in which digest, paths and name may still be placeholders. Never run.
pub fn shown_arguments(
    runtime: &ContainerRuntime,
    facts: &Facts,
    run: &Run,
) -> Result<Vec<String>, ContainerError> {
    check::texts(run)?;
    let kind = Runtime::of(runtime);
    let gpus = gpu_arguments(runtime, facts, &run.gpus)?;
    let mut words = Words::default();
    words.flag("run");
    words.option("--name", &run.name);
    for (name, value) in &run.labels {
        words.option("--label", format!("{name}={value}"));
    }
    if let Some(path) = &run.made_file {
        let flag = match kind {
            Runtime::Podman => "--conmon-pidfile",
            Runtime::Docker => "--cidfile",
        };
        words.option(flag, path.to_string_lossy());
    }
    words.flag("--pull=never");
    words.option("--log-driver", "none");
    hardening(&mut words, runtime, run, !gpus.is_empty());
    limits(&mut words, runtime, run);
    let own_way = gpus.first().is_some_and(|word| word == OWN_WAY);
    words.all.extend(gpus);
    network(&mut words, kind, run);
    environment(&mut words, run);
    // Where NVIDIA's runtime is docker's default one, an image that says `all` gets them all, beside
    // those that it is given.
    if runtime.nvidia_runtime && !own_way {
        words.option("--env", "NVIDIA_VISIBLE_DEVICES=void");
    }
    for mount in &run.mounts {
        words.option("--mount", bind(runtime, mount));
    }
    if let Some(user) = &run.user {
        words.option("--user", user);
    }
    // Only podman takes more than a program here, so what follows it goes before the arguments.
    let mut before = run.entrypoint.iter();
    if let Some(program) = before.next() {
        words.option("--entrypoint", program);
    }
    words.flag(&run.image);
    words.all.extend(before.chain(&run.args).cloned());
    Ok(words.all)
}

/// What of a container's wishes this runtime does not grant, one line each.
#[must_use]
pub fn run_warnings(runtime: &ContainerRuntime, run: &Run) -> Vec<String> {
    let mut warnings = Vec::new();
    if !runtime.init {
        warnings.push(format!(
            "{} has no init program for containers: processes that the engine leaves behind are not reaped (install catatonit for podman, tini for docker)",
            runtime.name
        ));
    }
    if let (true, Some(limit)) = (run.unlimited_memlock, runtime.memlock_limit_bytes) {
        warnings.push(format!(
            "the engine wants to lock memory without limit; {} can give it {} MiB",
            runtime.name,
            limit >> 20
        ));
    }
    warnings
}

/// The words of a command line as they come together.
#[derive(Default)]
struct Words {
    all: Vec<String>,
}

impl Words {
    fn flag(&mut self, word: &str) {
        self.all.push(word.to_owned());
    }

    fn option(&mut self, name: &str, value: impl AsRef<str>) {
        self.all.push(name.to_owned());
        self.all.push(value.as_ref().to_owned());
    }
}

/// What is taken away from every engine, whatever it is.
fn hardening(words: &mut Words, runtime: &ContainerRuntime, run: &Run, has_gpus: bool) {
    words.option("--cap-drop", "ALL");
    words.option("--security-opt", "no-new-privileges");
    if runtime.selinux {
        // Models and caches keep the labels that they have here: relabelling a user's own files is
        // not ours to do.
        words.option("--security-opt", "label=disable");
    }
    if runtime.init {
        words.flag("--init");
    }
    words.option("--pids-limit", PIDS_LIMIT.to_string());
    // The host asks by itself; an image's own check may even ask at another port.
    words.flag("--no-healthcheck");
    // The hook that makes NVIDIA's libraries known inside writes to the root file system.
    if run.read_only_root && !has_gpus {
        words.flag("--read-only");
    }
    let others = run.tmpfs.iter().map(String::as_str);
    for directory in std::iter::once("/tmp").chain(others.filter(|it| *it != "/tmp")) {
        in_memory(words, runtime, directory, run.user.as_deref());
    }
}

/// A directory in memory. Engines compile kernels into `/tmp` and load them from there, so code in it
/// may run, which docker would forbid by itself.
///
/// Where the image has the directory, runtimes give it the image's mode whatever is asked for: so it
/// belongs to the engine's user too.
fn in_memory(words: &mut Words, runtime: &ContainerRuntime, directory: &str, user: Option<&str>) {
    if Runtime::of(runtime) == Runtime::Podman {
        let options = "exec,nosuid,nodev,tmpfs-mode=1777,chown=true";
        words.option(
            "--mount",
            format!("type=tmpfs,target={directory},{options}"),
        );
        return;
    }
    let owner = user.map_or_else(String::new, |user| {
        let (uid, gid) = user.split_once(':').unwrap_or((user, "0"));
        format!(",uid={uid},gid={gid}")
    });
    let options = "rw,exec,nosuid,nodev,mode=1777";
    words.option("--tmpfs", format!("{directory}:{options}{owner}"));
}

fn limits(words: &mut Words, runtime: &ContainerRuntime, run: &Run) {
    if run.shm_bytes > 0 {
        words.option("--shm-size", run.shm_bytes.to_string());
    }
    if run.unlimited_memlock {
        // One limit on the command line replaces all that the runtime would give by itself.
        for limit in &runtime.default_ulimits {
            if !limit.starts_with("memlock=") {
                words.option("--ulimit", limit);
            }
        }
        // More than the hard limit needs a privilege that neither we nor the daemon have.
        let most = runtime
            .memlock_limit_bytes
            .map_or_else(|| "-1".to_owned(), |limit| limit.to_string());
        words.option("--ulimit", format!("memlock={most}:{most}"));
    }
    for (name, value) in [
        ("--cpuset-cpus", &run.cpus),
        ("--cpuset-mems", &run.numa_nodes),
    ] {
        if let Some(value) = value {
            words.option(name, value);
        }
    }
}

fn network(words: &mut Words, kind: Runtime, run: &Run) {
    for port in &run.publish {
        words.option("--publish", format!("{}:{}", port.address, port.inside));
    }
    if kind == Runtime::Podman {
        // It would hand the proxies of this machine, credentials included, to the engine.
        words.flag("--http-proxy=false");
        // Where containers.conf(5) says that containers have the machine's own network, it would publish
        // nothing, and the engine would listen on every address.
        words.option("--network", "private");
    }
}

fn environment(words: &mut Words, run: &Run) {
    for (name, value) in &run.env {
        words.option("--env", format!("{name}={value}"));
    }
    for name in &run.secret_env {
        words.option("--env", name);
    }
}

fn bind(runtime: &ContainerRuntime, mount: &BindMount) -> String {
    let source = mount.source.display();
    let mut text = format!("type=bind,source={source},target={}", mount.target);
    if !mount.writable {
        text.push_str(if Runtime::of(runtime) == Runtime::Podman {
            ",ro=true"
        } else {
            ",readonly"
        });
    } else if Runtime::of(runtime) == Runtime::Podman && runtime.rootless {
        // The engine's user inside is one of our subordinate users here.
        text.push_str(",U=true");
    }
    text
}

#[cfg(test)]
mod tests;
