//! A real pacman on a root and a repository of its own.
//!
//! The host finds pacman where every machine has it, and pacman its settings there too: each run has
//! a mount name space in which the settings, and the name of the distribution, are this test's.

use std::{fs, path::Path, process::Command};

use e2e::{LockFile, Machine, RUN_LIMIT, Run, Running};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::{pool, state, write_programs};

const ALLOW: &str = "--allow-package-installs";

/// A machine with pacman and the repository `toys`.
struct Arch {
    machine: Machine,
}

impl Arch {
    fn new() -> Self {
        let arch = Self {
            machine: Machine::new(),
        };
        let root = arch.root();
        for name in ["root", "db", "cache", "repo"] {
            fs::create_dir(root.join(name)).unwrap();
        }
        let root = root.display();
        let config = format!(
            "[options]\nRootDir = {root}/root\nDBPath = {root}/db\nCacheDir = {root}/cache\n\
             LogFile = {root}/log\nGPGDir = {root}/gpg\nArchitecture = auto\nSigLevel = Never\n\
             [toys]\nServer = file://{root}/repo\n"
        );
        fs::write(arch.root().join("pacman.conf"), config).unwrap();
        fs::write(arch.root().join("os-release"), "ID=arch\nNAME=Arch\n").unwrap();
        arch
    }

    fn root(&self) -> &Path {
        self.machine.root()
    }

    /// Puts this version of the package into the repository.
    fn release(&self, version: &str) {
        write_programs(&self.root().join("pkg/usr/bin"));
        let info = format!(
            "pkgname = llama-toy\npkgbase = llama-toy\npkgver = {version}\npkgdesc = toy\n\
             url = http://localhost\nbuilddate = 1700000000\npackager = t\nsize = 100\narch = any\n"
        );
        fs::write(self.root().join("pkg/.PKGINFO"), info).unwrap();
        let file = format!("llama-toy-{version}-any.pkg.tar.gz");
        self.shell(&format!(
            "cd pkg && tar -czf ../repo/{file} .PKGINFO usr && cd ../repo && repo-add -q toys.db.tar.gz {file}"
        ));
    }

    fn shell(&self, text: &str) {
        let output = Command::new("sh")
            .args(["-euc", text])
            .current_dir(self.root())
            .output()
            .unwrap();
        assert!(output.status.success(), "{text}: {output:?}");
    }

    /// Runs pacman as an administrator would.
    fn type_in(&self, arguments: &str) {
        self.shell(&format!("pacman --config pacman.conf {arguments}"));
    }

    fn write_pool(&self, settings: Value) {
        self.machine.write_pool(&pool("package", settings));
    }

    fn start(&self, arguments: &[&str]) -> Running {
        let host = self.machine.command(arguments);
        let enter = "mount --bind \"$1/os-release\" /etc/os-release; \
                     mount --bind \"$1/pacman.conf\" /etc/pacman.conf; shift; exec \"$@\"";
        let mut command = Command::new("unshare");
        command
            .args(["--mount", "sh", "-euc", enter, "sh"])
            .arg(self.root())
            .arg(host.get_program())
            .args(host.get_args())
            .current_dir(self.machine.work())
            .env_clear()
            .envs(
                host.get_envs()
                    .filter_map(|(name, value)| Some((name, value?))),
            )
            .stdin(std::process::Stdio::null())
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::piped());
        self.machine.start(command)
    }

    fn run(&self, arguments: &[&str]) -> Run {
        self.start(arguments).finish(RUN_LIMIT)
    }

    fn installed(&self) -> bool {
        self.root().join("root/usr/bin/llama-server").exists()
    }
}

fn named() -> Value {
    json!({"name": "llama-toy"})
}

fn pinned(version: &str) -> Value {
    json!({"name": "llama-toy", "version": version, "repo": "toys"})
}

#[test]
fn a_package_is_installed_with_leave_alone_and_then_used_as_it_is() {
    let arch = Arch::new();
    arch.release("b7000-1");
    arch.write_pool(named());
    let plan = arch.run(&["plan", "--json"]).code(0).json();
    let (shown, detail) = state(&plan, "install");
    assert_eq!(shown, "install");
    assert!(
        detail.contains("needs --allow-package-installs for llama-toy"),
        "{detail}"
    );
    let run = arch.run(&["provision"]).code(4);
    run.says("policy does not allow installing packages (llama-toy)");
    run.says("pacman -S --needed llama-toy");
    run.says(ALLOW);
    assert!(!arch.installed());
    arch.machine.assert_clean();

    let mut running = arch.start(&["provision", ALLOW]);
    let url = running.wait_ready();
    assert_eq!(e2e::http_get(&format!("{url}/health")).unwrap().0, 200);
    let handoff = arch.machine.handoff();
    assert_eq!(handoff["engine_version"], "b7000-1");
    assert_eq!(handoff["provisioning_mode"], "package");
    let _ = running.end(Signal::INT).code(130);
    arch.machine.assert_clean();

    // Newer ones in the repository change nothing; no leave, no network.
    arch.release("b7001-1");
    let plan = arch.run(&["plan", "--offline", "--json"]).code(0).json();
    assert_eq!(state(&plan, "install").0, "cached");
    let prepared = arch.run(&["prepare", "--offline", "--json"]).code(0).json();
    assert_eq!(prepared["engine_version"], "b7000-1");
    let program = arch.root().join("root/usr/bin/llama-server");
    assert_eq!(prepared["command"]["bin"], program.to_str().unwrap());

    // Upgraded by its administrator, it is the new one at once.
    arch.type_in("-Syyu --noconfirm");
    let prepared = arch.run(&["prepare", "--offline", "--json"]).code(0).json();
    assert_eq!(prepared["engine_version"], "b7001-1");
}

#[test]
fn a_pinned_version_is_had_exactly_and_never_by_going_back() {
    let arch = Arch::new();
    arch.release("b7000-1");
    arch.write_pool(pinned("b6999-1"));
    let run = arch.run(&["provision", ALLOW]).code(7);
    run.says(
        "package `llama-toy` is asked for in version b6999-1, and repository `toys` offers b7000-1",
    );
    run.says("version: \"b7000-1\"");
    assert!(!arch.installed());
    // Once the lists are here, the plan says so as well.
    let plan = arch.run(&["plan", ALLOW, "--json"]).code(0).json();
    assert_eq!(state(&plan, "install").0, "unsupported");

    arch.write_pool(pinned("b7000-1"));
    let prepared = arch.run(&["prepare", ALLOW, "--json"]).code(0).json();
    assert_eq!(prepared["engine_version"], "b7000-1");
    arch.release("b7001-1");
    arch.type_in("-Syyu --noconfirm");
    let run = arch.run(&["provision", ALLOW]).code(7);
    run.says("is installed in version b7001-1, not older version b7000-1: it is not downgraded");
    run.says("pacman -U /var/cache/pacman/pkg/llama-toy-b7000-1-*.pkg.tar.zst");
    arch.machine.assert_clean();
}

#[test]
fn a_package_that_nobody_has_is_named() {
    let arch = Arch::new();
    arch.release("b7000-1");
    arch.write_pool(json!({"name": "llama-missing"}));
    let run = arch.run(&["provision", ALLOW]).code(7);
    run.says("no repository of this system has package `llama-missing`");
    run.says("pacman -Syu");
    assert!(!arch.installed());
    arch.machine.assert_clean();
}

#[test]
fn a_package_that_moves_on_is_refused_until_it_is_locked_anew() {
    let arch = Arch::new();
    arch.release("b7000-1");
    arch.type_in("-Sy --noconfirm");
    arch.write_pool(named());
    let run = arch.run(&["lock"]).code(0);
    run.prints("packages.pacman arch.llama-toy  b7000-1");
    let lock = LockFile::of(&arch.machine);
    let edited = || arch.run(&["prepare", "--locked", ALLOW]);
    lock.assert_every_edit_is_refused(&arch.machine, "default", edited);
    assert!(!arch.installed());
    // Its repository has one version only: the locked one cannot be had any more.
    arch.release("b7001-1");
    arch.type_in("-Sy --noconfirm");
    let run = arch.run(&["prepare", "--locked", ALLOW]).code(15);
    run.says("locked  b7000-1");
    run.says("now     b7001-1");
    arch.run(&["prepare", ALLOW]).code(7).says("offers b7001-1");
    assert!(!arch.installed());
    let run = arch.run(&["lock", "--update", "default.engine"]).code(0);
    run.prints("llama-toy\n      b7000-1\n    → b7001-1");
    let prepared = arch
        .run(&["prepare", "--locked", ALLOW, "--json"])
        .code(0)
        .json();
    assert_eq!(prepared["engine_version"], "b7001-1");
    arch.machine.assert_clean();
}
