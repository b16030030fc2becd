use std::os::unix::net::UnixListener;

use crate::facts::testing::{FakeMachine, Script};

use super::*;

/// What podman 4.3 and docker 28 with engine 20.10 really said, shortened.
const PODMAN: &str = r#"{"host":{"security":{"rootless":true,"selinuxEnabled":false},"serviceIsRemote":false},
    "store":{"graphRoot":"/home/op/.local/share/containers/storage"},"version":{"Version":"4.3.1"}}"#;
const DOCKER: &str = r#"{"ID":"4YYA:FDGE","ServerVersion":"20.10.24+dfsg1","InitBinary":"docker-init","InitCommit":{"ID":""},
    "Runtimes":{"runc":{"path":"runc"},"nvidia":{"path":"nvidia-container-runtime"}},"OSType":"linux",
    "SecurityOptions":["name=seccomp,profile=default"],"CDISpecDirs":null,"ClientInfo":{"Version":"28.2.2"}}"#;

fn machine() -> FakeMachine {
    let mut machine = FakeMachine::default();
    machine.set("HOME", "/home/op");
    machine.program("/usr/bin/podman", "x");
    machine.program("/usr/bin/docker", "x");
    machine.write("/proc/sys/kernel/random/boot_id", "1\n");
    machine.write("/var/run/docker.pid", "77");
    machine
}

fn script(machine: &FakeMachine) -> Script {
    Script::of(machine)
        .answers("/usr/bin/podman info --format json", 0, PODMAN)
        .answers("/usr/bin/docker info --format {{json .}}", 0, DOCKER)
        .answers(
            "/usr/bin/docker --version",
            0,
            "Docker version 28.2.2, build x",
        )
        .answers("/usr/bin/podman --version", 0, "podman version 4.3.1")
}

/// A daemon, as far as it accepts connections.
fn daemon(machine: &FakeMachine) -> UnixListener {
    let path = machine.real("/var/run/docker.sock");
    let _ = std::fs::remove_file(&path);
    UnixListener::bind(path).unwrap()
}

async fn look(machine: &FakeMachine, script: &Script) -> Containers {
    let collector = Collector {
        roots: machine.roots(),
        asker: script,
        identity: None,
        memory: Some(machine.real("/state/facts/tools.json")),
        probe_program: None,
    };
    collector.containers().await.0
}

#[tokio::test]
async fn both_are_described_podman_first() {
    let machine = machine();
    let _daemon = daemon(&machine);
    machine.program("/usr/libexec/podman/catatonit", "x");
    machine.write("/proc/self/status", "Name:\tx\nCapEff:\t0000000000000000\n");
    machine.write(
        "/proc/self/limits",
        "Limit  Soft Hard Units\nMax locked memory         65536                8388608              bytes     \n",
    );
    machine.write("/proc/77/status", "CapEff:\t000001ffffffffff\n");
    machine.write(
        "/etc/cdi/x.json",
        r#"{"kind":"nvidia.com/gpu","devices":[{"name":"0"}]}"#,
    );
    let found = look(&machine, &script(&machine)).await;
    let [podman, docker] = &found.runtimes[..] else {
        panic!("{found:?}");
    };
    assert_eq!(podman.name, "podman");
    assert_eq!((podman.version.as_str(), podman.rootless), ("4.3.1", true));
    assert!(podman.cdi && podman.init && podman.unusable.is_none());
    assert_eq!(podman.memlock_limit_bytes, Some(8_388_608));
    assert_eq!(podman.storage, "/home/op/.local/share/containers/storage");
    assert_eq!(docker.version, "28.2.2");
    assert_eq!(docker.server_version, "20.10.24+dfsg1");
    assert!(docker.init && docker.nvidia_runtime && docker.unusable.is_none());
    assert!(!docker.cdi && !docker.rootless);
    // A daemon that may raise limits has none.
    assert_eq!(docker.memlock_limit_bytes, None);
    assert_eq!(docker.storage, "docker:4YYA:FDGE");
    assert_eq!(found.cdi_devices, ["nvidia.com/gpu=0"]);
}

#[tokio::test]
async fn a_second_look_starts_no_process_until_something_changes() {
    let mut machine = machine();
    let _daemon = daemon(&machine);
    let script = script(&machine);
    let first = look(&machine, &script).await;
    let both = [
        "/usr/bin/docker info --format {{json .}}",
        "/usr/bin/podman info --format json",
    ];
    assert_eq!(script.asked(), both);
    assert_eq!(look(&machine, &script).await, first);
    assert_eq!(script.asked(), [""; 0]);
    // A configuration that appears, another boot, another variable.
    machine.write("/etc/containers/storage.conf", "[storage]\n");
    look(&machine, &script).await;
    assert_eq!(script.asked(), both[1..]);
    machine.write("/proc/sys/kernel/random/boot_id", "2\n");
    look(&machine, &script).await;
    assert_eq!(script.asked(), both);
    machine.set("CONTAINERS_STORAGE_CONF", "/elsewhere.conf");
    look(&machine, &script).await;
    assert_eq!(script.asked(), both);
    machine.write("/var/run/docker.pid", "78");
    look(&machine, &script).await;
    assert_eq!(script.asked(), both[..1]);
}

#[tokio::test]
async fn a_second_look_starts_no_process_where_docker_has_no_daemon_either() {
    let machine = machine();
    let script = script(&machine);
    let first = look(&machine, &script).await;
    let asked = script.asked();
    assert!(
        asked.contains(&"/usr/bin/docker --version".to_owned()),
        "{asked:?}"
    );
    assert_eq!(look(&machine, &script).await, first);
    assert_eq!(script.asked(), [""; 0]);
}

#[tokio::test]
async fn a_daemon_that_comes_and_goes_is_seen_each_time() {
    let machine = machine();
    let script = script(&machine);
    let docker = async || look(&machine, &script).await.runtimes.pop().unwrap();
    let down = Some("Cannot connect to the Docker daemon at unix:///var/run/docker.sock");
    assert_eq!(docker().await.unusable.as_deref(), down);
    assert_eq!(docker().await.version, "28.2.2");
    let running = daemon(&machine);
    assert_eq!(docker().await.unusable, None);
    drop(running);
    assert_eq!(docker().await.unusable.as_deref(), down);
    let _again = daemon(&machine);
    assert_eq!(docker().await.unusable, None);
}

#[tokio::test]
async fn a_runtime_that_fails_is_told_by_its_last_line_and_asked_again() {
    let machine = machine();
    let script = script(&machine).fails(
        "/usr/bin/podman info --format json",
        125,
        "warning: x\nError: cannot re-exec process\n\n",
    );
    let podman = look(&machine, &script).await.runtimes.swap_remove(0);
    assert_eq!(
        podman.unusable.as_deref(),
        Some("Error: cannot re-exec process")
    );
    assert_eq!(podman.version, "4.3.1");
    script.asked();
    look(&machine, &script).await;
    assert!(
        script
            .asked()
            .contains(&"/usr/bin/podman info --format json".to_owned())
    );
}

#[tokio::test]
async fn what_is_too_old_or_elsewhere_is_passed_over_with_the_reason() {
    let mut machine = machine();
    let old = PODMAN.replace("4.3.1", "3.4.4");
    let script = script(&machine).answers("/usr/bin/podman info --format json", 0, &old);
    machine.set("DOCKER_HOST", "tcp://10.0.0.1:2375");
    let found = look(&machine, &script).await;
    let reasons: Vec<&str> = found
        .runtimes
        .iter()
        .map(|it| it.unusable.as_deref().unwrap())
        .collect();
    assert_eq!(
        reasons,
        [
            "version 3.4.4 is too old: 4.0 or later is needed",
            "its daemon is on another machine (tcp://10.0.0.1:2375): models cannot be mounted there",
        ]
    );
    let nothing = FakeMachine::default();
    let found = look(&nothing, &Script::of(&nothing)).await;
    assert!(
        found
            .runtimes
            .iter()
            .all(|it| it.unusable.as_deref() == Some("not found"))
    );
}

#[tokio::test]
async fn a_context_decides_where_docker_is() {
    let machine = machine();
    machine.write(
        "/home/op/.docker/config.json",
        r#"{"currentContext":"rootless"}"#,
    );
    // Docker names the directory by the sha256 of `rootless`.
    machine.write(
        "/home/op/.docker/contexts/meta/12b961af5feb3e9d39f93b2cefb9a1a944f18d02cca0cac2f04f5a982240605f/meta.json",
        r#"{"Name":"rootless","Endpoints":{"docker":{"Host":"unix:///run/user/1000/docker.sock"}}}"#,
    );
    let docker = look(&machine, &script(&machine))
        .await
        .runtimes
        .pop()
        .unwrap();
    assert_eq!(
        docker.unusable.as_deref(),
        Some("Cannot connect to the Docker daemon at unix:///run/user/1000/docker.sock")
    );
}

#[tokio::test]
async fn containers_conf_says_limits_and_where_the_init_program_is() {
    let mut machine = machine();
    machine.write(
        "/etc/containers/containers.conf",
        "[containers]\ndefault_ulimits = [\"nofile=1024:1024\"]\n[engine]\ninit_path = \"/opt/init\"\n",
    );
    machine.write(
        "/etc/containers/containers.conf.d/10.conf",
        "[containers]\ndefault_ulimits = [\"nproc=64:64\"]\n[engine]\ncdi_spec_dirs = [\"/srv/cdi\"]\n",
    );
    machine.write("/srv/cdi/a.yaml", "kind: x.com/y\ndevices: [{name: '1'}]\n");
    let script = script(&machine);
    let found = look(&machine, &script).await;
    assert_eq!(found.runtimes[0].default_ulimits, ["nproc=64:64"]);
    assert_eq!(found.cdi_devices, ["x.com/y=1"]);
    assert!(!found.runtimes[0].init);
    machine.program("/opt/init", "x");
    assert!(look(&machine, &script).await.runtimes[0].init);
    // A file named by variable is the only one.
    machine.write("/only.conf", "");
    machine.set("CONTAINERS_CONF", "/only.conf");
    assert_eq!(
        look(&machine, &script).await.runtimes[0].default_ulimits,
        [""; 0]
    );
}

#[tokio::test]
async fn selinux_counts_only_while_it_enforces() {
    let machine = machine();
    let confined = PODMAN.replace("\"selinuxEnabled\":false", "\"selinuxEnabled\":true");
    let script = script(&machine).answers("/usr/bin/podman info --format json", 0, &confined);
    machine.write("/sys/fs/selinux/enforce", "1");
    assert!(look(&machine, &script).await.runtimes[0].selinux);
    machine.write("/sys/fs/selinux/enforce", "0");
    assert!(!look(&machine, &script).await.runtimes[0].selinux);
}
