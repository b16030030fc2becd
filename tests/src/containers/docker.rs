//! A docker daemon with its own storage, socket and network.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::Command,
    sync::{
        OnceLock,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use super::daemon::{Daemon, abandoned, must, removal};
use crate::wait_for;

/// Longest a daemon may take to answer after its start.
const START_LIMIT: Duration = Duration::from_secs(60);

/// How the directories of daemons begin.
const PREFIX: &str = "host-docker-";

/// How a daemon gives GPUs to containers.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Gpus {
    /// Not at all.
    None,
    /// As NVIDIA's container toolkit has it: a runtime called `nvidia`, and a hook on the daemon's path.
    OwnWay,
}

impl Gpus {
    fn flags(self) -> &'static [&'static str] {
        match self {
            Self::None => &[],
            Self::OwnWay => &["--add-runtime", "nvidia=runc"],
        }
    }

    /// The daemon's `PATH=…`, on which the hook is, in this directory.
    fn path(self, directory: &Path) -> String {
        let usual = std::env::var("PATH").expect("programs are found");
        if self == Self::None {
            return format!("PATH={usual}");
        }
        let hook = directory.join("nvidia-container-runtime-hook");
        fs::write(&hook, "#!/bin/sh\nexec cat >/dev/null\n").unwrap();
        fs::set_permissions(&hook, fs::Permissions::from_mode(0o755)).unwrap();
        format!("PATH={}:{usual}", directory.display())
    }
}

/// A daemon; ends when dropped, or when the tests end however they end.
pub struct DockerDaemon {
    directory: PathBuf,
    _daemon: Daemon,
}

impl DockerDaemon {
    /// The one that all tests of this process share.
    ///
    /// # Panics
    ///
    /// When it does not start.
    pub fn shared() -> &'static Self {
        static DAEMON: OnceLock<DockerDaemon> = OnceLock::new();
        DAEMON.get_or_init(|| Self::start(None, Gpus::None))
    }

    /// One whose images have to fit into this many bytes.
    #[must_use]
    pub fn with_little_room(bytes: u64) -> Self {
        Self::start(Some(bytes), Gpus::None)
    }

    /// One that gives GPUs to containers in NVIDIA's own way, by a hook that installs nothing: what a
    /// container was given is the variable `NVIDIA_VISIBLE_DEVICES` in it, as with the real one.
    #[must_use]
    pub fn with_gpus() -> Self {
        Self::start(None, Gpus::OwnWay)
    }

    fn start(limit_bytes: Option<u64>, gpus: Gpus) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        for left in abandoned(PREFIX) {
            let _ = Command::new("sh")
                .args(["-c", &end_and_remove(&left)])
                .status();
        }
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let pid = std::process::id();
        let directory = std::env::temp_dir().join(format!("{PREFIX}{pid}-{number}"));
        let data = directory.join("data");
        fs::create_dir_all(&data).unwrap();
        if let Some(bytes) = limit_bytes {
            let options = format!("size={bytes}");
            must(
                "mount",
                &[
                    "-t",
                    "tmpfs",
                    "-o",
                    &options,
                    "tmpfs",
                    data.to_str().unwrap(),
                ],
            );
        }
        let bridge = bridge(pid.wrapping_mul(4).wrapping_add(number));
        let log = directory.join("log");
        let file = |name: &str| directory.join(name).display().to_string();
        let socket = format!("unix://{}", file("docker.sock"));
        // No rules in the machine's packet filter: what is published on the loopback address goes
        // through docker's proxy anyway.
        let command = [
            "dockerd",
            "--data-root",
            &file("data"),
            "--exec-root",
            &file("exec"),
            "--pidfile",
            &file("pid"),
            "--host",
            &socket,
            "--bridge",
            &bridge,
            "--iptables=false",
            "--ip6tables=false",
            "--ip-masq=false",
            "--shutdown-timeout=1",
        ];
        let path = gpus.path(&directory);
        let command = [&["env", &path], &command[..], gpus.flags()].concat();
        let afterwards = format!("{}; ip link delete {bridge}", end_and_remove(&directory));
        let daemon = Daemon::start(&command, &log, &afterwards);
        wait_for("dockerd to answer", START_LIMIT, || {
            let said = fs::read_to_string(&log).unwrap_or_default();
            assert!(!daemon.ended(), "dockerd ended:\n{said}");
            let asked = Command::new("docker")
                .args([
                    "--host",
                    &socket,
                    "version",
                    "--format",
                    "{{.Server.Version}}",
                ])
                .output()
                .unwrap();
            if asked.status.success() {
                Ok(())
            } else {
                Err(said)
            }
        });
        Self {
            directory,
            _daemon: daemon,
        }
    }

    /// Value of `DOCKER_HOST`.
    #[must_use]
    pub fn address(&self) -> String {
        format!("unix://{}", self.directory.join("docker.sock").display())
    }
}

/// Ends what a killed run left of a daemon, and removes its files.
fn end_and_remove(directory: &Path) -> String {
    let pid = directory.join("pid");
    format!(
        "[ -f '{0}' ] && kill -KILL $(cat '{0}') 2>/dev/null; {1}",
        pid.display(),
        removal(directory)
    )
}

/// A bridge with addresses that no other daemon gives out.
fn bridge(number: u32) -> String {
    // 10.192.0.0/11 in blocks of 64 addresses.
    let block = number % (1 << 15);
    let (high, middle, low) = (192 + block / 1024, block / 4 % 256, block % 4 * 64 + 1);
    let name = format!("ehd{block}");
    let address = format!("10.{high}.{middle}.{low}/26");
    let _ = Command::new("ip").args(["link", "delete", &name]).output();
    must("ip", &["link", "add", "name", &name, "type", "bridge"]);
    must("ip", &["address", "add", &address, "dev", &name]);
    must("ip", &["link", "set", &name, "up"]);
    name
}
