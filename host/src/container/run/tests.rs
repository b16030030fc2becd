use std::{path::Path, sync::LazyLock};

use super::*;

/// A machine recorded in the repository.
fn machine(name: &str) -> Facts {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/facts");
    crate::facts::read(&fixtures.join(name)).unwrap()
}

fn digest() -> String {
    format!("docker.io/vllm/vllm-openai@sha256:{}", "ab".repeat(32))
}

/// An engine that wants everything.
fn wants_all(facts: &Facts, gpus: usize) -> Run {
    let gpus = facts.gpus.devices.iter().take(gpus);
    Run {
        name: "engine-host-chat-r0".to_owned(),
        image: digest(),
        entrypoint: vec!["vllm".to_owned(), "serve".to_owned()],
        args: vec!["/model".to_owned(), "--port".to_owned(), "8000".to_owned()],
        env: [("HF_HUB_OFFLINE".to_owned(), "1".to_owned())].into(),
        secret_env: ["HF_TOKEN".to_owned()].into(),
        mounts: vec![
            BindMount {
                source: "/var/lib/engine-host/store/model".into(),
                target: "/model".to_owned(),
                writable: false,
            },
            BindMount {
                source: "/var/lib/engine-host/cache/vllm".into(),
                target: "/cache".to_owned(),
                writable: true,
            },
        ],
        publish: vec![Published {
            address: "127.0.0.1:8000".parse().unwrap(),
            inside: 8000,
        }],
        user: Some("2000:0".to_owned()),
        shm_bytes: 1 << 30,
        unlimited_memlock: true,
        read_only_root: true,
        tmpfs: vec!["/run".to_owned()],
        gpus: gpus.map(|gpu| gpu.uuid.clone()).collect(),
        labels: [("engine-host.pool".to_owned(), "chat".to_owned())].into(),
        cpus: Some("0-7".to_owned()),
        numa_nodes: Some("0".to_owned()),
        made_file: Some("/run/engine-host/made".into()),
    }
}

/// The command, one option per line.
fn shown(name: &str, runtime: &str, gpus: usize) -> String {
    let facts = machine(name);
    let runtime = facts
        .containers
        .runtimes
        .iter()
        .find(|it| it.name == runtime);
    let words = run_arguments(runtime.unwrap(), &facts, &wants_all(&facts, gpus)).unwrap();
    let mut text = String::new();
    for word in &words {
        let breaks = word.starts_with('-') || word.contains("@sha256:");
        text.push_str(if breaks { "\n" } else { " " });
        text.push_str(&word.replace(&"ab".repeat(32), "ab…"));
    }
    text.trim_start().to_owned()
}

/// The lines that a machine with GPUs has beside those of the same runtime without.
fn only_with_gpus(name: &str, runtime: &str, gpus: usize) -> String {
    let with = shown(name, runtime, gpus);
    let without = shown(name, runtime, 0);
    let own = with
        .lines()
        .filter(|line| !without.lines().any(|other| other == *line));
    let missing = without
        .lines()
        .filter(|line| !with.lines().any(|other| other == *line));
    own.map(|line| format!("+ {line}"))
        .chain(missing.map(|line| format!("- {line}")))
        .collect::<Vec<_>>()
        .join("\n")
}

#[test]
fn podman_is_told_everything() {
    insta::assert_snapshot!(shown("podman-cpu.json", "podman", 0), @r"
    run
    --name engine-host-chat-r0
    --label engine-host.pool=chat
    --conmon-pidfile /run/engine-host/made
    --pull=never
    --log-driver none
    --cap-drop ALL
    --security-opt no-new-privileges
    --init
    --pids-limit 16384
    --no-healthcheck
    --read-only
    --mount type=tmpfs,target=/tmp,exec,nosuid,nodev,tmpfs-mode=1777,chown=true
    --mount type=tmpfs,target=/run,exec,nosuid,nodev,tmpfs-mode=1777,chown=true
    --shm-size 1073741824
    --ulimit memlock=8388608:8388608
    --cpuset-cpus 0-7
    --cpuset-mems 0
    --publish 127.0.0.1:8000:8000
    --http-proxy=false
    --network private
    --env HF_HUB_OFFLINE=1
    --env HF_TOKEN
    --mount type=bind,source=/var/lib/engine-host/store/model,target=/model,ro=true
    --mount type=bind,source=/var/lib/engine-host/cache/vllm,target=/cache,U=true
    --user 2000:0
    --entrypoint vllm
    docker.io/vllm/vllm-openai@sha256:ab… serve /model
    --port 8000
    ");
}

#[test]
fn docker_is_told_everything() {
    insta::assert_snapshot!(shown("docker-one-gpu.json", "docker", 0), @r"
    run
    --name engine-host-chat-r0
    --label engine-host.pool=chat
    --cidfile /run/engine-host/made
    --pull=never
    --log-driver none
    --cap-drop ALL
    --security-opt no-new-privileges
    --init
    --pids-limit 16384
    --no-healthcheck
    --read-only
    --tmpfs /tmp:rw,exec,nosuid,nodev,mode=1777,uid=2000,gid=0
    --tmpfs /run:rw,exec,nosuid,nodev,mode=1777,uid=2000,gid=0
    --shm-size 1073741824
    --ulimit memlock=-1:-1
    --cpuset-cpus 0-7
    --cpuset-mems 0
    --publish 127.0.0.1:8000:8000
    --env HF_HUB_OFFLINE=1
    --env HF_TOKEN
    --env NVIDIA_VISIBLE_DEVICES=void
    --mount type=bind,source=/var/lib/engine-host/store/model,target=/model,readonly
    --mount type=bind,source=/var/lib/engine-host/cache/vllm,target=/cache
    --user 2000:0
    --entrypoint vllm
    docker.io/vllm/vllm-openai@sha256:ab… serve /model
    --port 8000
    ");
}

#[test]
fn gpus_are_devices_and_open_the_root() {
    insta::assert_snapshot!(only_with_gpus("podman-one-gpu.json", "podman", 1), @r"
    + --device nvidia.com/gpu=0
    - --read-only
    ");
    insta::assert_snapshot!(only_with_gpus("podman-two-gpus.json", "podman", 2), @r"
    + --device nvidia.com/gpu=GPU-11111111-2222-3333-4444-555555555555
    + --device nvidia.com/gpu=GPU-66666666-7777-8888-9999-aaaaaaaaaaaa
    - --read-only
    ");
    insta::assert_snapshot!(only_with_gpus("podman-mig.json", "podman", 2), @r"
    + --device nvidia.com/gpu=0:0
    + --device nvidia.com/gpu=0:1
    - --read-only
    ");
    insta::assert_snapshot!(only_with_gpus("docker-one-gpu.json", "docker", 1), @r"
    + --device nvidia.com/gpu=GPU-3d4f7a0e-6a0f-4f6c-9a7b-5f0c1d2e3f40
    - --read-only
    ");
    insta::assert_snapshot!(only_with_gpus("docker-old-one-gpu.json", "docker", 1), @r#"
    + --gpus "device=GPU-11111111-2222-3333-4444-555555555555"
    - --read-only
    - --env NVIDIA_VISIBLE_DEVICES=void
    "#);
}

/// Every runtime of every recorded machine.
fn every_runtime() -> Vec<(Facts, ContainerRuntime)> {
    [
        "podman-cpu.json",
        "podman-one-gpu.json",
        "podman-two-gpus.json",
        "podman-mig.json",
        "docker-one-gpu.json",
        "docker-old-one-gpu.json",
    ]
    .into_iter()
    .flat_map(|name| {
        let facts = machine(name);
        let runtimes = facts.containers.runtimes.clone().into_iter();
        let usable = runtimes.filter(|runtime| runtime.unusable.is_none());
        usable
            .map(|runtime| (facts.clone(), runtime))
            .collect::<Vec<_>>()
    })
    .collect()
}

#[test]
fn no_launch_lacks_the_hardening() {
    for (facts, runtime) in every_runtime() {
        for gpus in [0, 1] {
            let mut run = wants_all(&facts, gpus);
            // What a launch leaves out changes nothing of it.
            for run in [run.clone(), {
                run.user = None;
                run.mounts.clear();
                run.env.clear();
                run.secret_env.clear();
                run.tmpfs.clear();
                run.unlimited_memlock = false;
                run.read_only_root = false;
                run
            }] {
                let words = run_arguments(&runtime, &facts, &run).unwrap();
                let told = format!(" {} ", words.join(" "));
                for hard in [
                    " --pull=never ",
                    " --cap-drop ALL ",
                    " --security-opt no-new-privileges ",
                    " --pids-limit 16384 ",
                    " --init ",
                    " --log-driver none ",
                    " --publish 127.0.0.1:8000:8000 ",
                ] {
                    assert!(
                        told.contains(hard),
                        "{}: {hard} is not in {told}",
                        runtime.name
                    );
                }
                for soft in [
                    "--privileged",
                    "--cap-add",
                    "seccomp=",
                    "--ipc",
                    "--pid ",
                    "--rm",
                    " -v ",
                ] {
                    assert!(!told.contains(soft), "{soft} is in {told}");
                }
                // Docker's usual one cannot be set otherwise.
                let own_network = usize::from(runtime.name == "podman");
                assert_eq!(told.matches(" --network private ").count(), own_network);
                assert_eq!(told.matches("--net").count(), own_network);
                assert!(!told.contains("=HF_TOKEN") && !told.contains("HF_TOKEN="));
                assert_eq!(
                    told.contains("--gpus"),
                    runtime.name == "docker" && !runtime.cdi && gpus > 0
                );
            }
        }
    }
}

#[test]
fn only_an_image_by_digest_is_run() {
    let (facts, runtime) = every_runtime().swap_remove(0);
    for image in [
        "docker.io/x/y:latest",
        "docker.io/x/y",
        "docker.io/x/y@sha256:abc",
        "@sha256:0000000000000000000000000000000000000000000000000000000000000000",
        "--privileged@sha256:0000000000000000000000000000000000000000000000000000000000000000",
        "x y@sha256:0000000000000000000000000000000000000000000000000000000000000000",
    ] {
        let run = Run {
            image: image.to_owned(),
            ..wants_all(&facts, 0)
        };
        let error = run_arguments(&runtime, &facts, &run).unwrap_err();
        assert!(
            matches!(error, ContainerError::FloatingImage { .. }),
            "{image}"
        );
    }
}

#[test]
fn what_the_command_line_cannot_carry_is_refused() {
    let (facts, runtime) = every_runtime().swap_remove(0);
    let refused = |change: &dyn Fn(&mut Run)| {
        let mut run = wants_all(&facts, 0);
        change(&mut run);
        match run_arguments(&runtime, &facts, &run) {
            Err(error @ ContainerError::Unspeakable { .. }) => error.to_string(),
            other => panic!("{other:?}"),
        }
    };
    let told = [
        refused(&|run| run.mounts[0].source = "/models/a,b".into()),
        refused(&|run| run.mounts[0].source = "models".into()),
        refused(&|run| run.mounts[0].target = "/a\"b".to_owned()),
        refused(&|run| run.env = [("A".to_owned(), "x\ny".to_owned())].into()),
        refused(&|run| run.env = [("A=B".to_owned(), String::new())].into()),
        refused(&|run| run.secret_env = ["DOCKER_HOST".to_owned()].into()),
        refused(&|run| run.secret_env = ["PATH".to_owned()].into()),
        refused(&|run| run.args = vec!["a\u{7}".to_owned()]),
        refused(&|run| run.name = "--privileged".to_owned()),
        refused(&|run| run.user = Some("0 --privileged".to_owned())),
        refused(&|run| run.cpus = Some("$(x)".to_owned())),
        refused(&|run| run.entrypoint = vec!["[\"sh\"]".to_owned()]),
        refused(&|run| run.tmpfs = vec!["run".to_owned()]),
    ];
    insta::assert_snapshot!(told.join("\n"), @r#"
    the path `/models/a,b` cannot be given to a container: container runtimes take no `,` or `"` in the path of a mount
    the path `models` cannot be given to a container: it is not absolute
    the path `/a\"b` cannot be given to a container: container runtimes take no `,` or `"` in the path of a mount
    the value of `A` cannot be given to a container: it has control characters in it
    the variable `A=B` cannot be given to a container: only letters, digits and `_.-` can stand there
    a secret called `DOCKER_HOST` cannot be given to a container: the name means something to the container runtime's own program: give it another one
    a secret called `PATH` cannot be given to a container: the name means something to the container runtime's own program: give it another one
    argument `a\u{7}` cannot be given to a container: it has control characters in it
    the name `--privileged` cannot be given to a container: only letters, digits and `_.-` can stand there
    the user cannot be given to a container: write numbers, for example `2000:0`
    the processors cannot be given to a container: write numbers and ranges, for example `0-7,16-23`
    its program cannot be given to a container: podman reads it as a list
    the path `run` cannot be given to a container: it is not absolute
    "#);
}

#[test]
fn limits_are_asked_for_only_as_far_as_they_can_be_given() {
    let (facts, mut runtime) = every_runtime().swap_remove(0);
    runtime.default_ulimits = vec!["nofile=1024:1024".to_owned(), "memlock=1:1".to_owned()];
    let ulimits = |runtime: &ContainerRuntime, run: &Run| -> Vec<String> {
        let words = run_arguments(runtime, &facts, run).unwrap();
        let pairs = words.windows(2).filter(|pair| pair[0] == "--ulimit");
        pairs.map(|pair| pair[1].clone()).collect()
    };
    let mut run = wants_all(&facts, 0);
    // One limit replaces all that podman gives by itself, so those are said again.
    assert_eq!(
        ulimits(&runtime, &run),
        ["nofile=1024:1024", "memlock=8388608:8388608"]
    );
    insta::assert_snapshot!(run_warnings(&runtime, &run).join("\n"), @"the engine wants to lock memory without limit; podman can give it 8 MiB");
    runtime.memlock_limit_bytes = None;
    assert_eq!(
        ulimits(&runtime, &run),
        ["nofile=1024:1024", "memlock=-1:-1"]
    );
    assert_eq!(run_warnings(&runtime, &run), [""; 0]);
    run.unlimited_memlock = false;
    assert_eq!(ulimits(&runtime, &run), [""; 0]);
    runtime.init = false;
    insta::assert_snapshot!(run_warnings(&runtime, &run).join("\n"), @"podman has no init program for containers: processes that the engine leaves behind are not reaped (install catatonit for podman, tini for docker)");
}

#[test]
fn selinux_is_stepped_aside_only_where_it_enforces() {
    let (facts, mut runtime) = every_runtime().swap_remove(0);
    let asks = |runtime: &ContainerRuntime| {
        let words = run_arguments(runtime, &facts, &wants_all(&facts, 0)).unwrap();
        words.contains(&"label=disable".to_owned())
    };
    assert!(!asks(&runtime));
    runtime.selinux = true;
    assert!(asks(&runtime));
}

/// Read once: a property looks at hundreds of commands.
static A_MACHINE: LazyLock<(Facts, ContainerRuntime)> =
    LazyLock::new(|| every_runtime().swap_remove(0));

proptest::proptest! {
    #[test]
    fn what_is_not_refused_arrives_as_it_is(
        name in "\\PC{0,8}",
        value in "\\PC{0,12}|-{1,2}[a-z]{1,9}(=\\PC{0,4})?",
        argument in ".{0,12}|--privileged",
    ) {
        let (facts, runtime) = &*A_MACHINE;
        let run = Run {
            env: [(name.clone(), value.clone())].into(),
            args: vec![argument.clone()],
            entrypoint: Vec::new(),
            ..wants_all(facts, 0)
        };
        if let Ok(words) = run_arguments(runtime, facts, &run) {
            let image = words.iter().position(|word| *word == run.image).unwrap();
            proptest::prop_assert_eq!(&words[image + 1..], std::slice::from_ref(&argument));
            let given = format!("{name}={value}");
            let at = words[..image].iter().position(|word| *word == given).unwrap();
            proptest::prop_assert_eq!(&words[at - 1], "--env");
            proptest::prop_assert!(!words.concat().contains(char::is_control));
        }
    }
}

#[test]
fn names_that_steer_the_runtimes_own_program_carry_no_secret() {
    for name in [
        "LD_PRELOAD",
        "https_proxy",
        "NETAVARK_FW",
        "GCONV_PATH",
        "HOSTALIASES",
    ] {
        assert!(check::is_the_runtimes(name), "{name}");
    }
    for name in ["HF_TOKEN", "API_KEY", "NETWORK_KEY", "GO_TOKEN"] {
        assert!(!check::is_the_runtimes(name), "{name}");
    }
}
