//! A podman with its own storage, networks and configuration.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{
        Once,
        atomic::{AtomicU32, Ordering},
    },
};

use serde_json::json;

use super::daemon::{must, removal};

/// Storage, networks and configuration below one directory.
pub(super) struct Podman {
    directory: PathBuf,
    network: Network,
}

/// A network that no other podman on this machine uses: addresses are given out per storage, so two
/// podmans on the same network give the same address twice.
struct Network {
    name: String,
    subnet: String,
    gateway: String,
}

impl Network {
    fn next() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = std::process::id().wrapping_mul(64) + COUNT.fetch_add(1, Ordering::Relaxed);
        // 10.64.0.0/10 in blocks of 64 addresses.
        let block = number % (1 << 16);
        let (high, middle, low) = (64 + block / 1024, block / 4 % 256, block % 4 * 64);
        Self {
            name: format!("ehp{block}"),
            subnet: format!("10.{high}.{middle}.{low}/26"),
            gateway: format!("10.{high}.{middle}.{}", low + 1),
        }
    }
}

impl Podman {
    /// One below `root`, on a file system of its own where its images get a limit.
    pub(super) fn below(root: &Path, limit_bytes: Option<u64>) -> Self {
        static SWEPT: Once = Once::new();
        SWEPT.call_once(sweep);
        let directory = root.join("podman");
        fs::create_dir_all(directory.join("graph")).unwrap();
        fs::create_dir_all(directory.join("networks")).unwrap();
        if let Some(bytes) = limit_bytes {
            let graph = directory.join("graph");
            let options = format!("size={bytes}");
            must(
                "mount",
                &[
                    "-t",
                    "tmpfs",
                    "-o",
                    &options,
                    "tmpfs",
                    graph.to_str().unwrap(),
                ],
            );
        }
        let podman = Self {
            directory,
            network: Network::next(),
        };
        podman.configure();
        podman
    }

    fn configure(&self) {
        let Network {
            name,
            subnet,
            gateway,
        } = &self.network;
        // crun refuses some machines' control groups, and the limits that podman asks for by itself
        // are more than a machine inside a container may give. Its locks lie in memory that every
        // podman of a user shares, where those of a removed storage stay taken for ever: not here.
        let containers = format!(
            "[containers]\ndefault_ulimits = [\"nofile=1024:1024\", \"nproc=1024:1024\"]\n\
             [engine]\nruntime = \"runc\"\nlock_type = \"file\"\ntmp_dir = \"{}\"\n\
             [network]\ndefault_network = \"{name}\"\nnetwork_config_dir = \"{}\"\n",
            self.file("tmp"),
            self.file("networks")
        );
        let storage = format!(
            "[storage]\ndriver = \"overlay\"\ngraphroot = \"{}\"\nrunroot = \"{}\"\n",
            self.file("graph"),
            self.file("run")
        );
        let network = json!({
            "name": name,
            "id": format!("{name:0>64}").replace(|digit: char| !digit.is_ascii_hexdigit(), "e"),
            "driver": "bridge",
            "network_interface": name,
            "created": "2026-01-01T00:00:00Z",
            "subnets": [{"subnet": subnet, "gateway": gateway}],
            "ipv6_enabled": false,
            "internal": false,
            "dns_enabled": false,
            "ipam_options": {"driver": "host-local"},
        });
        for (file, text) in [
            ("containers.conf", containers),
            ("storage.conf", storage),
            ("registries.conf", String::new()),
            (&*format!("networks/{name}.json"), network.to_string()),
            (OWNER, std::process::id().to_string()),
        ] {
            fs::write(self.directory.join(file), text).unwrap();
        }
    }

    fn file(&self, name: &str) -> String {
        self.directory.join(name).display().to_string()
    }

    pub(super) fn environment(&self) -> BTreeMap<String, String> {
        environment(&self.directory)
    }

    pub(super) fn trust(&self, address: &str) {
        let path = self.directory.join("registries.conf");
        let mut text = fs::read_to_string(&path).unwrap();
        text += &format!("[[registry]]\nlocation = \"{address}\"\ninsecure = true\n");
        fs::write(path, text).unwrap();
    }
}

impl Drop for Podman {
    fn drop(&mut self) {
        remove(&self.directory);
        let _ = Command::new("ip")
            .args(["link", "delete", &self.network.name])
            .output();
    }
}

/// File with the process whose tests use a podman.
const OWNER: &str = "owner";

/// Ends every container of a podman and removes its files, whatever is mounted there.
fn remove(directory: &Path) {
    let _ = Command::new("podman")
        .args(["rm", "--all", "--force", "--time", "0"])
        .envs(environment(directory))
        .stdin(Stdio::null())
        .output();
    let _ = Command::new("sh")
        .args(["-c", &removal(directory)])
        .output();
}

/// Removes what killed tests left, with the machines that it belonged to.
fn sweep() {
    let machines = fs::read_dir(std::env::temp_dir()).into_iter().flatten();
    for machine in machines.flatten() {
        let directory = machine.path().join("podman");
        let Ok(owner) = fs::read_to_string(directory.join(OWNER)) else {
            continue;
        };
        if !Path::new("/proc").join(&owner).exists() {
            remove(&directory);
            let _ = fs::remove_dir_all(machine.path());
        }
    }
}

fn environment(directory: &Path) -> BTreeMap<String, String> {
    [
        ("CONTAINERS_CONF", "containers.conf"),
        ("CONTAINERS_STORAGE_CONF", "storage.conf"),
        ("CONTAINERS_REGISTRIES_CONF", "registries.conf"),
    ]
    .into_iter()
    .map(|(name, file)| (name.to_owned(), directory.join(file).display().to_string()))
    .collect()
}
