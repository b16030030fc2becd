//! Every flag that a container is run with is one that the real programs know.

use std::collections::BTreeSet;

use e2e::{ContainerKind, Containers, Machine, facts};
use serde_json::{Value, json};

/// Recorded machines with the runtime that would be used on each.
const MACHINES: [(&str, ContainerKind); 7] = [
    ("podman-cpu", ContainerKind::Podman),
    ("podman-one-gpu", ContainerKind::Podman),
    ("podman-two-gpus", ContainerKind::Podman),
    ("podman-mig", ContainerKind::Podman),
    ("podman-one-gpu", ContainerKind::Docker),
    ("docker-one-gpu", ContainerKind::Docker),
    ("docker-old-one-gpu", ContainerKind::Docker),
];

/// What a launch may ask a runtime for, all of it.
fn pool() -> Value {
    json!({
        "id": "default",
        "engine": "llamacpp",
        "gpu": "prefer",
        "provisioning": {
            "mode": "container",
            "model": {"ref": "builtin:haiku"},
            "env": {"HF_TOKEN": "{secret.HF_TOKEN}", "PLAIN": "value"},
            "container": {"cpus": "0-1", "numa_nodes": "0", "shm_bytes": 1 << 30},
        },
    })
}

/// Words of the command up to the image.
fn options(machine: &Machine, name: &str, kind: ContainerKind) -> Vec<String> {
    let arguments = [
        "plan",
        "--facts",
        &facts(name),
        "--container-runtime",
        kind.name(),
        "--json",
    ];
    let plan = machine.run(&arguments).code(0).json();
    let words = plan["run"]["command"]["args"].as_array().unwrap().clone();
    let words = words
        .into_iter()
        .map(|word| word.as_str().unwrap().to_owned());
    words
        .take_while(|word| !word.contains("@sha256:"))
        .collect()
}

#[test]
fn every_flag_is_known_to_the_real_programs() {
    let machine = Machine::new();
    machine.write_pool(&pool());
    for (name, kind) in MACHINES {
        let containers = Containers::new(kind, machine.root());
        let known = containers.run(&["run", "--help"]);
        let known: BTreeSet<&str> = known
            .split(|letter: char| letter.is_whitespace() || letter == ',')
            .filter(|word| word.starts_with("--"))
            .collect();
        let options = options(&machine, name, kind);
        assert_eq!(options[0], "run");
        let flags = options.iter().filter(|word| word.starts_with("--"));
        for flag in flags.map(|word| word.split('=').next().unwrap()) {
            assert!(known.contains(flag), "{} run has no {flag}", kind.name());
        }
    }
}

#[test]
fn no_launch_lacks_the_hardening() {
    let machine = Machine::new();
    machine.write_pool(&pool());
    for (name, kind) in MACHINES {
        let told = format!(" {} ", options(&machine, name, kind).join(" "));
        for hard in [
            " --pull=never ",
            " --cap-drop ALL ",
            " --security-opt no-new-privileges ",
            " --init ",
            " --pids-limit ",
            " --publish 127.0.0.1:",
            ",readonly --user ",
        ] {
            // Podman says the same of a mount in other words.
            let hard = match kind {
                ContainerKind::Podman => hard.replace(",readonly", ",ro=true"),
                ContainerKind::Docker => hard.to_owned(),
            };
            assert!(told.contains(&hard), "{name}: no {hard} in {told}");
        }
        assert_eq!(
            told.contains(" --gpus "),
            name == "docker-old-one-gpu",
            "{told}"
        );
        assert!(
            !told.contains("--privileged") && !told.contains("--cap-add"),
            "{told}"
        );
    }
}
