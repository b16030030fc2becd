//! An ordinary user with a podman of its own, which needs no root anywhere.

use std::{
    fs,
    os::unix::fs::{PermissionsExt as _, chown},
    path::{Path, PathBuf},
    process::Command,
};

use e2e::{
    Built, ContainerKind, Machine, Process, Registry, container_pool, free_port, http_get,
    processes_below, uid_of,
};
use rustix::process::Signal;
use serde_json::Value;

use crate::Stage;

/// The user, and the first of those that its containers may use.
const USER: u32 = 61_001;
const FIRST_OF_ITS_OWN: u32 = 61_100_000;

/// Runs a program as the user. Root lends what a machine usually has: a line in the lists of users, ranges
/// of ids, the device that networks without root are made of. They are there for the program alone, not for
/// the machine. Arguments: the root of everything, where the program was built, the user, the program.
const AS_USER: &str = r#"
root=$1 built=$2 user=$3
shift 3
for file in passwd group subuid subgid; do
  mount --bind "$root/lent/$file" "/etc/$file"
done
mount -t tmpfs -o mode=755,dev tmpfs "$root/lent/dev"
mknod -m 666 "$root/lent/dev/tun" c 10 200
mount --bind "$root/lent/dev/tun" /dev/net/tun
mount --bind "$built" "$root/lent/built"
exec setpriv --reuid "$user" --regid "$user" --init-groups -- "$@"
"#;

/// A machine on which an ordinary user works.
struct Ordinary {
    machine: Machine,
}

impl Ordinary {
    fn new() -> Self {
        let mut machine = Machine::new();
        let root = machine.root().to_owned();
        for directory in ["lent", "lent/dev", "lent/built", "runtime", "podman"] {
            fs::create_dir(root.join(directory)).unwrap();
        }
        for (file, text) in lists(&root) {
            fs::write(root.join("lent").join(file), text).unwrap();
        }
        for (variable, file, text) in settings(&root) {
            let path = root.join(file);
            fs::write(&path, text).unwrap();
            machine.lend(variable, path.to_str().unwrap());
        }
        let runtime = root.join("runtime");
        machine.lend("XDG_RUNTIME_DIR", runtime.to_str().unwrap());
        fs::set_permissions(&runtime, fs::Permissions::from_mode(0o700)).unwrap();
        for directory in [&root, &runtime, &machine.work(), &root.join("podman")] {
            chown(directory, Some(USER), Some(USER)).unwrap();
        }
        Self { machine }
    }

    /// A program that the user starts.
    fn command(&self, program: &Path, arguments: &[&str]) -> Command {
        let built = &Built::debug().directory;
        let user = USER.to_string();
        let frame = [
            "--mount",
            "--propagation",
            "private",
            "sh",
            "-euc",
            AS_USER,
            "sh",
        ];
        let paths = [self.machine.root(), built, Path::new(&user), program];
        let paths = paths.map(|path| path.to_str().unwrap());
        let all = [&frame[..], &paths, arguments].concat();
        self.machine.command_of(Path::new("unshare"), &all)
    }

    fn host(&self, arguments: &[&str]) -> Command {
        let host = self.machine.root().join("lent/built/host");
        self.command(&host, arguments)
    }

    /// What the user's podman says.
    #[track_caller]
    fn podman(&self, arguments: &[&str]) -> String {
        let output = self
            .command(Path::new("podman"), arguments)
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{arguments:?}: {said}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }
}

impl Drop for Ordinary {
    /// Also the process that keeps a user's namespaces, which podman leaves on purpose.
    fn drop(&mut self) {
        for arguments in [
            &["rm", "--all", "--force", "--time", "0"][..],
            &["system", "migrate"],
        ] {
            let _ = self.command(Path::new("podman"), arguments).output();
        }
    }
}

/// The lists in which a system looks for a user and for the ids that it may give away.
fn lists(root: &Path) -> [(&'static str, String); 4] {
    let home = root.display();
    let range = format!("{USER}:{FIRST_OF_ITS_OWN}:65536\n");
    [
        (
            "passwd",
            format!("root:x:0:0::/root:/bin/sh\nordinary:x:{USER}:{USER}::{home}:/bin/sh\n"),
        ),
        ("group", format!("root:x:0:\nordinary:x:{USER}:\n")),
        ("subuid", range.clone()),
        ("subgid", range),
    ]
}

/// Podman's configuration: variable, file, text.
fn settings(root: &Path) -> [(&'static str, PathBuf, String); 3] {
    let file = |name: &str| root.join("podman").join(name);
    let directory = file("tmp").display().to_string();
    [
        (
            "CONTAINERS_CONF",
            file("containers.conf"),
            // There is no systemd to ask for a group, and the usual limits are more than is allowed here.
            format!(
                "[containers]\ndefault_ulimits = [\"nofile=1024:1024\", \"nproc=1024:1024\"]\n\
                 [engine]\nruntime = \"runc\"\ncgroup_manager = \"cgroupfs\"\n\
                 events_logger = \"file\"\nlock_type = \"file\"\ntmp_dir = \"{directory}\"\n"
            ),
        ),
        (
            "CONTAINERS_STORAGE_CONF",
            file("storage.conf"),
            // Where it lies follows from the user's home.
            "[storage]\ndriver = \"overlay\"\n".to_owned(),
        ),
        (
            "CONTAINERS_REGISTRIES_CONF",
            file("registries.conf"),
            String::new(),
        ),
    ]
}

#[test]
fn an_ordinary_user_runs_an_engine_of_which_nothing_is_left() {
    let user = Ordinary::new();
    let registry = Registry::open();
    let registries = user.machine.root().join("podman/registries.conf");
    let trusted = format!(
        "[[registry]]\nlocation = \"{}\"\ninsecure = true\n",
        registry.address()
    );
    fs::write(registries, trusted).unwrap();
    let digest = registry.push("tests/engine", "v1", &Stage::image());
    let pool = container_pool(&registry, &digest, ContainerKind::Podman, free_port());
    user.machine.write_pool(&pool);

    let mut running = user.machine.start(user.host(&["provision"]));
    let url = running.wait_ready();
    let (status, report) = http_get(&format!("{url}/report")).unwrap();
    assert_eq!(status, 200, "{report}");
    let report: Value = serde_json::from_str(&report).unwrap();
    let capabilities = report["status"].as_str().unwrap();
    assert!(
        capabilities.contains("CapBnd:\t0000000000000000"),
        "{capabilities}"
    );
    let handoff = user.machine.handoff();
    assert_eq!(handoff["provisioning_mode"], "container", "{handoff}");
    assert_eq!(handoff["engine_version"], digest, "{handoff}");
    // Nothing of it is root: neither what keeps it nor what runs inside.
    for process in user.machine.processes() {
        // What podman runs for a moment may be gone by now.
        if let Some(uid) = uid_of(process.pid) {
            assert_eq!(uid, USER, "{process:?}");
        }
    }
    // Other tests' engines among them, which come and go.
    let engines = processes_below(Path::new("/bin/fake-engine"));
    let is_its_own = |process: &Process| uid_of(process.pid) == Some(USER);
    assert!(engines.iter().any(is_its_own), "{engines:#?}");

    let run = running.end(Signal::INT).code(130);
    run.says("stopped");
    assert_eq!(user.podman(&["ps", "--all", "--quiet"]), "");
    assert_eq!(
        user.podman(&["images", "--digests", "--format", "{{.Digest}}"])
            .trim(),
        digest
    );
    // Podman keeps a user's namespaces for the next time, in a process that this ends.
    let _ = user.podman(&["system", "migrate"]);
    user.machine.assert_clean();
    user.machine.store().assert_sound();
}
