//! The real apt and dpkg of this machine, in a mount name space in which what they write goes to
//! memory, and in which they know one repository: this test's.

use std::{
    fs,
    io::{BufRead as _, BufReader, Write as _},
    process::{Child, Command, Stdio},
};

use e2e::{LockFile, Machine, RUN_LIMIT, Run, Running, sha256};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::{SERVER, pool, state, write_programs};

const ALLOW: &str = "--allow-package-installs";

/// Lays memory over the directories that are written to; this test's directory is read.
const ENTER: &str = r#"set -eu
mount -t tmpfs tmpfs /mnt
for name in etc usr var; do
  mkdir -p /mnt/$name/up /mnt/$name/work
  mount -t overlay overlay -o lowerdir=/$name,upperdir=/mnt/$name/up,workdir=/mnt/$name/work /$name
done
rm -rf /etc/apt/sources.list.d/* /var/lib/apt/lists/*
read -r directory
echo "deb [trusted=yes] file:$directory/repo ./" > /etc/apt/sources.list
printf 'ID=debian\n' > /etc/os-release
echo ready
exec sleep 1000
"#;

/// A machine with a repository for apt.
struct Debian {
    machine: Machine,
    /// Keeps the name space.
    holder: Child,
}

impl Debian {
    fn new() -> Self {
        let machine = Machine::new();
        fs::create_dir(machine.root().join("repo")).unwrap();
        fs::write(machine.root().join("repo/Packages"), "").unwrap();
        // It reads the directory, so that nothing of it shows it: it is no process of the host.
        let mut holder = Command::new("unshare")
            .args(["--mount", "sh", "-c", ENTER])
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdin = holder.stdin.take().unwrap();
        writeln!(stdin, "{}", machine.root().display()).unwrap();
        let mut line = String::new();
        let mut stdout = BufReader::new(holder.stdout.take().unwrap());
        stdout.read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n", "these tests need root and overlay mounts");
        Self { machine, holder }
    }

    /// Puts another version of the package into the repository, beside those that it has.
    fn release(&self, version: &str) {
        let root = self.machine.root();
        write_programs(&root.join("pkg/usr/bin"));
        fs::create_dir_all(root.join("pkg/DEBIAN")).unwrap();
        let control = format!(
            "Package: llama-toy\nVersion: {version}\nArchitecture: all\nMaintainer: toy <t@localhost>\n\
             Description: toy\n"
        );
        fs::write(root.join("pkg/DEBIAN/control"), &control).unwrap();
        let file = format!("repo/llama-toy_{version}_all.deb");
        let output = Command::new("dpkg-deb")
            .args([
                "-Zgzip",
                "-z1",
                "--root-owner-group",
                "--build",
                "pkg",
                &file,
            ])
            .current_dir(root)
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        let content = fs::read(root.join(&file)).unwrap();
        let entry = format!(
            "{control}Filename: ./{}\nSize: {}\nSHA256: {}\n\n",
            &file["repo/".len()..],
            content.len(),
            sha256(&content)
        );
        let list = root.join("repo/Packages");
        let list_so_far = fs::read_to_string(&list).unwrap();
        fs::write(list, list_so_far + &entry).unwrap();
    }

    /// Runs a command as its administrator would.
    fn type_in(&self, words: &[&str]) {
        let output = Command::new("nsenter")
            .arg(format!("--mount=/proc/{}/ns/mnt", self.holder.id()))
            .args(words)
            .env("LC_ALL", "C")
            .output()
            .unwrap();
        assert!(output.status.success(), "{words:?}: {output:?}");
    }

    fn start(&self, arguments: &[&str]) -> Running {
        let host = self.machine.command(arguments);
        let mut command = Command::new("nsenter");
        command
            .arg(format!("--mount=/proc/{}/ns/mnt", self.holder.id()))
            .args(["sh", "-euc", "cd \"$1\"; shift; exec \"$@\"", "sh"])
            .arg(self.machine.work())
            .arg(host.get_program())
            .args(host.get_args())
            .env_clear()
            .envs(
                host.get_envs()
                    .filter_map(|(name, value)| Some((name, value?))),
            )
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        self.machine.start(command)
    }

    fn run(&self, arguments: &[&str]) -> Run {
        self.start(arguments).finish(RUN_LIMIT)
    }

    fn write_pool(&self, settings: Value) {
        self.machine.write_pool(&pool("package", settings));
    }
}

impl Drop for Debian {
    fn drop(&mut self) {
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}

#[test]
fn apt_installs_exactly_what_is_asked_for_and_nothing_else() {
    let debian = Debian::new();
    debian.release("7000-1");
    debian.release("7001-1");
    let pinned = |version: &str| json!({"name": "llama-toy", "version": version});
    debian.write_pool(pinned("7000-1"));
    let run = debian.run(&["provision"]).code(4);
    run.says("apt-get install -y llama-toy=7000-1");
    run.says(ALLOW);

    // The lists were never fetched; then they are.
    let mut running = debian.start(&["provision", ALLOW]);
    let url = running.wait_ready();
    assert_eq!(e2e::http_get(&format!("{url}/health")).unwrap().0, 200);
    assert_eq!(debian.machine.handoff()["engine_version"], "7000-1");
    let _ = running.end(Signal::INT).code(130);
    debian.machine.assert_clean();

    // Without a version: what is installed, though there is a newer one.
    debian.write_pool(json!({"name": "llama-toy"}));
    let prepared = debian
        .run(&["prepare", "--offline", "--json"])
        .code(0)
        .json();
    assert_eq!(prepared["engine_version"], "7000-1");
    assert_eq!(prepared["command"]["bin"], "/usr/bin/llama-server");

    debian.write_pool(pinned("7001-1"));
    let plan = debian.run(&["plan", ALLOW, "--json"]).code(0).json();
    let (_, detail) = state(&plan, "install");
    assert!(
        detail.contains("llama-toy 7001-1 (here: 7000-1)"),
        "{detail}"
    );
    let prepared = debian.run(&["prepare", ALLOW, "--json"]).code(0).json();
    assert_eq!(prepared["engine_version"], "7001-1");

    debian.write_pool(pinned("7000-1"));
    let run = debian.run(&["provision", ALLOW]).code(7);
    run.says("is installed in version 7001-1, not older version 7000-1: it is not downgraded");
    run.says("apt-get install --allow-downgrades llama-toy=7000-1");

    for missing in [pinned("7002-1"), json!({"name": "llama-missing"})] {
        debian.write_pool(missing);
        let run = debian.run(&["provision", ALLOW]).code(7);
        run.says("no repository of this system has package `llama-");
        run.says("apt-get update");
    }
    assert!(!std::path::Path::new("/usr/bin/llama-stand-in").exists());
    debian.machine.assert_clean();
}

#[test]
fn a_package_is_locked_before_it_is_installed_and_had_in_this_version_alone() {
    let debian = Debian::new();
    debian.release("7000-1");
    debian.write_pool(json!({"name": "llama-toy"}));
    // Nothing was ever fetched that could tell: that is said, and not taken for exact.
    let run = debian.run(&["lock"]).code(0);
    run.says("no list of packages here tells which version of llama-server would be installed");
    run.says("apt-get update");
    let run = debian.run(&["prepare", "--locked", ALLOW]).code(15);
    run.says("packages");
    run.says("lock --allow-package-installs --update default.engine");

    debian.type_in(&["apt-get", "update"]);
    let run = debian.run(&["lock"]).code(0);
    run.prints(".packages.apt debian");
    let lock = LockFile::of(&debian.machine);
    // A newer one comes: it is not taken before that is asked for.
    debian.release("7001-1");
    debian.type_in(&["apt-get", "update"]);
    let _ = debian.run(&["lock", "--check"]).code(0);
    let edited = || debian.run(&["prepare", "--locked", ALLOW]);
    lock.assert_every_edit_is_refused(&debian.machine, "default", edited);
    let prepare = || {
        debian
            .run(&["prepare", "--locked", ALLOW, "--json"])
            .code(0)
            .json()
    };
    assert_eq!(prepare()["engine_version"], "7000-1");
    let _ = debian.run(&["lock"]).code(0);
    assert_eq!(
        LockFile::of(&debian.machine),
        lock,
        "it was not asked to move"
    );

    let run = debian.run(&["lock", "--update", "default.engine"]).code(0);
    run.prints("llama-toy\n      7000-1\n    → 7001-1");
    // Another version than the one that is here is an installation, which needs leave.
    let run = debian.run(&["prepare", "--locked"]).code(4);
    run.says("apt-get install -y llama-toy=7001-1");
    let prepared = prepare();
    assert_eq!(prepared["engine_version"], "7001-1");
    let record = &prepared["records"]["install"];
    assert_eq!(record["kind"], "install-packages");
    assert_eq!(record["result"]["package"], "llama-toy");
    assert_eq!(record["result"]["version"], "7001-1");
    let digest = format!("sha256:{}", sha256(SERVER.as_bytes()));
    assert_eq!(record["result"]["digest"], digest);

    // What is locked is older than what is here: it is refused, not taken for it.
    let text = fs::read_to_string(debian.machine.work().join("host.lock")).unwrap();
    let older: String = text
        .lines()
        .filter(|line| !line.starts_with("seal"))
        .map(|line| line.replace("7001-1", "7000-1") + "\n")
        .collect();
    debian.machine.write("host.lock", &older);
    let run = debian.run(&["prepare", "--locked", ALLOW]).code(15);
    run.says("locked  7000-1");
    run.says("now     7001-1");
    let run = debian.run(&["prepare", ALLOW]).code(0);
    run.says("llama-toy 7000-1 is locked, and 7001-1 is installed");
    debian.machine.assert_clean();
}
