use super::*;

fn runtime(name: &str) -> ContainerRuntime {
    ContainerRuntime {
        name: name.to_owned(),
        path: format!("/usr/bin/{name}"),
        ..ContainerRuntime::default()
    }
}

const NEVER_RAN: &str =
    r#"{"Status":"created","OOMKilled":false,"ExitCode":0,"StartedAt":"0001-01-01T00:00:00Z"}"#;
const RAN: &str = r#"{"Status":"exited","OOMKilled":false,"ExitCode":127,"StartedAt":"2026-11-21T03:34:43.85393434Z"}"#;

#[test]
fn a_container_is_removed_at_once_with_its_volumes() {
    let words = |name| removal(&runtime(name), "engine-host-x").join(" ");
    assert_eq!(
        words("podman"),
        "rm --force --time 0 --volumes engine-host-x"
    );
    assert_eq!(words("docker"), "rm --force --volumes engine-host-x");
}

#[test]
fn what_the_runtimes_print_becomes_one_sentence() {
    // Lines that podman 4.3, docker 28 with engine 20.10, runc, catatonit and tini really printed.
    let told = |code, line: &str| {
        exit_reason(Some(code), Some(NEVER_RAN), line).map(|reason| reason.to_string())
    };
    let cases = [
        (
            125,
            "Error: localhost/rt@sha256:00: image not known",
            "the runtime does not have the image",
        ),
        (
            125,
            "docker: Error response from daemon: No such image: localhost/rt@sha256:00",
            "the runtime does not have the image",
        ),
        (
            125,
            "Error: creating container storage: the container name \"rt-a\" is already in use by 2772a3. You have to remove that container",
            "another container has its name",
        ),
        (
            125,
            "docker: Error response from daemon: Conflict. The container name \"/rt-a\" is already in use by container \"2772\".",
            "another container has its name",
        ),
        (
            126,
            "Error: cannot listen on the TCP port: listen tcp4 127.0.0.1:18080: bind: address already in use",
            "its port is taken by somebody else",
        ),
        (
            125,
            "docker: Error response from daemon: driver failed programming external connectivity on endpoint rt-a: Bind for 127.0.0.1:18080 failed: port is already allocated.",
            "its port is taken by somebody else",
        ),
        (
            126,
            "Error: setting up CDI devices: unresolvable CDI devices nvidia.com/gpu=0",
            "no container device is called `nvidia.com/gpu=0`",
        ),
        (
            125,
            "docker: Error response from daemon: could not select device driver \"\" with capabilities: [[gpu]].",
            "no container device is called `nvidia.com/gpu`",
        ),
        (
            1,
            "ERROR (catatonit:6): failed to exec pid1: No such file or directory",
            "the image does not have the program",
        ),
        (
            126,
            "[FATAL tini (7)] exec /tmp failed: Permission denied",
            "the program in the image cannot be started: [FATAL tini (7)] exec /tmp failed: Permission denied",
        ),
        (
            127,
            "docker: Error response from daemon: failed to create shim task: OCI runtime create failed: runc create failed: unable to start container process: exec: \"nosuch\": executable file not found in $PATH: unknown.",
            "the image does not have the program `nosuch`",
        ),
        (
            126,
            "Error: OCI runtime error: crun: the requested cgroup controller `cpuset` is not available",
            "the runtime may not use the control group `cpuset`",
        ),
        (
            125,
            "Error: requested CPUs are not available - requested 9, available: 0-1",
            "this machine does not have those processors: requested CPUs are not available - requested 9, available: 0-1",
        ),
        (
            125,
            "Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon running?",
            "the container daemon does not answer: Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon running?",
        ),
        (
            125,
            "docker: Error response from daemon: invalid mount config for type \"bind\": bind source path does not exist: /nope.",
            "something that should be mounted is not there: invalid mount config for type \"bind\": bind source path does not exist: /nope",
        ),
        (
            126,
            r#"Error: /usr/bin/slirp4netns failed: "open(\"/dev/net/tun\"): Permission denied\nWARNING: Support for seccomp is experimental\nchild failed(1)\n""#,
            r#"the container runtime failed: /usr/bin/slirp4netns failed: "open(\"/dev/net/tun\"): Permission denied"#,
        ),
        (
            125,
            "Error: something new",
            "the container runtime failed: something new",
        ),
        (
            126,
            "Error: something else",
            "the program in the image cannot be started: something else",
        ),
    ];
    for (code, line, sentence) in cases {
        assert_eq!(told(code, line).as_deref(), Some(sentence), "{line}");
    }
}

#[test]
fn a_missing_program_is_named_by_whoever_knows_it() {
    let of_init = "ERROR (catatonit:6): failed to exec pid1: No such file or directory";
    let reason = exit_reason(Some(1), Some(NEVER_RAN), of_init).unwrap();
    let told = reason.naming(Some("/app/llama-server")).to_string();
    assert_eq!(
        told,
        "the image does not have the program `/app/llama-server`"
    );
    let of_podman = "Error: crun: executable file `nosuch` not found in $PATH: No such file or directory: OCI runtime attempted to invoke a command that was not found";
    let reason = exit_reason(Some(127), Some(NEVER_RAN), of_podman).unwrap();
    let told = reason.naming(Some("other")).to_string();
    assert_eq!(told, "the image does not have the program `nosuch`");
}

#[test]
fn what_an_engine_did_is_not_blamed_on_its_runtime() {
    let log = "INFO serving\nOSError: [Errno 98] address already in use\nTraceback";
    assert_eq!(exit_reason(Some(1), Some(RAN), log), None);
    let log = "Error: listener: address already in use (os error 98)\n";
    assert_eq!(exit_reason(Some(1), None, log), None);
    let ended = RAN.replace("127", "125");
    assert_eq!(exit_reason(Some(125), Some(&ended), log), None);
    assert_eq!(exit_reason(Some(127), Some(RAN), ""), None);
    assert_eq!(exit_reason(None, None, ""), None);
    assert_eq!(exit_reason(Some(0), Some(RAN), ""), None);
}

#[test]
fn the_state_of_the_container_that_has_the_name_is_not_ours() {
    let log = "docker: Error response from daemon: Conflict. The container name \"/x\" is already in use by container \"2772\".\n";
    let runs = r#"{"Running":true,"ExitCode":0,"StartedAt":"2026-01-01T00:00:00Z"}"#;
    let ended = r#"{"OOMKilled":true,"ExitCode":137,"StartedAt":"2026-01-01T00:00:00Z"}"#;
    for state in [runs, ended] {
        let reason = exit_reason(Some(125), Some(state), log);
        assert_eq!(reason, Some(ExitReason::NameInUse), "{state}");
    }
}

#[test]
fn memory_is_the_kernels_word_in_every_form_of_inspect() {
    let state = r#"{"OOMKilled":true,"ExitCode":137,"StartedAt":"2026-01-01T00:00:00Z"}"#;
    for text in [
        state.to_owned(),
        format!("[{{\"Id\":\"x\",\"State\":{state}}}]"),
        format!("{{\"State\":{state}}}\n"),
    ] {
        let reason = exit_reason(Some(137), Some(&text), "");
        assert_eq!(reason, Some(ExitReason::OutOfMemory), "{text}");
    }
    assert_eq!(exit_reason(Some(137), Some("no json"), ""), None);
}

#[test]
fn whoever_reads_why_it_ended_is_told_what_helps() {
    let said = || "x".to_owned();
    for reason in [
        ExitReason::OutOfMemory,
        ExitReason::PortTaken,
        ExitReason::DeviceMissing { device: said() },
        ExitReason::NoDaemon { said: said() },
        ExitReason::NoControlGroup { controller: said() },
        ExitReason::NoSuchProcessors { said: said() },
        ExitReason::MountMissing { said: said() },
        ExitReason::NoSuchCommand { program: None },
        ExitReason::CannotStart { said: said() },
        ExitReason::Runtime { said: said() },
    ] {
        assert!(reason.fix().is_some(), "{reason:?}");
    }
    // No limit of ours is there to be raised.
    assert!(!ExitReason::OutOfMemory.fix().unwrap().contains("raise"));
}
