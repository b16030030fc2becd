//! A podman with its own storage, networks and configuration.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::Once,
};

use super::{
    daemon::{must, removal},
    network::Network,
};

/// Storage, networks and configuration below one directory.
pub(super) struct Podman {
    directory: PathBuf,
    network: Network,
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
        let name = self.network.name();
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
        for (file, text) in [
            ("containers.conf", containers),
            ("storage.conf", storage),
            ("registries.conf", String::new()),
            (&*self.network.file(), self.network.document().to_string()),
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

    /// What of its network there is while it has no container.
    pub(super) fn network_left(&self) -> Vec<String> {
        self.network.left()
    }

    pub(super) fn share_network(&self) {
        let path = self.directory.join("containers.conf");
        let text = fs::read_to_string(&path).unwrap();
        let shared = "[containers]\nnetns = \"host\"\n";
        fs::write(path, text.replacen("[containers]\n", shared, 1)).unwrap();
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
    }
}

/// File with the process whose tests use a podman.
const OWNER: &str = "owner";

/// Ends every container of a podman and removes its networks and files, whatever is mounted there.
fn remove(directory: &Path) {
    let _ = Command::new("podman")
        .args(["rm", "--all", "--force", "--time", "0"])
        .envs(environment(directory))
        .stdin(Stdio::null())
        .output();
    for network in Network::below(&directory.join("networks")) {
        network.remove();
    }
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
