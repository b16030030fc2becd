//! Every flag that a container is run with, whosever engine it is, is one that the real programs know.

use std::collections::BTreeSet;

use e2e::{ContainerKind, Containers, Machine, engines_with_models, facts};
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
fn pool(engine: &str, model: &str) -> Value {
    json!({
        "id": "default",
        "engine": engine,
        "model": "echo",
        "gpu": "prefer",
        "provisioning": {
            "mode": "container",
            "model": {"ref": model},
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

/// The options of every provider's containers on every machine, with the runtime and what they are told of.
fn all_options() -> Vec<(ContainerKind, String, Vec<String>)> {
    let machine = Machine::new();
    let mut all = Vec::new();
    for (engine, model) in engines_with_models(machine.root()) {
        machine.write_pool(&pool(engine, &model));
        // Its image runs on GPUs only.
        let refused = |name: &str| engine == "tgi" && name == "podman-cpu";
        for (name, kind) in MACHINES.into_iter().filter(|(name, _)| !refused(name)) {
            let options = options(&machine, name, kind);
            all.push((kind, format!("{engine} on {name}"), options));
        }
    }
    all
}

#[test]
fn every_flag_is_known_to_the_real_programs() {
    let machine = Machine::new();
    let known = ContainerKind::BOTH.map(|kind| {
        let help = Containers::new(kind, machine.root()).run(&["run", "--help"]);
        let words = help.split(|letter: char| letter.is_whitespace() || letter == ',');
        let flags = words.filter(|word| word.starts_with("--"));
        (kind, flags.map(str::to_owned).collect::<BTreeSet<_>>())
    });
    for (kind, what, options) in all_options() {
        let (_, known) = known.iter().find(|(known, _)| *known == kind).unwrap();
        assert_eq!(options[0], "run");
        let flags = options.iter().filter(|word| word.starts_with("--"));
        for flag in flags.map(|word| word.split('=').next().unwrap()) {
            assert!(
                known.contains(flag),
                "{} has no {flag}: {what}",
                kind.name()
            );
        }
    }
}

#[test]
fn no_launch_lacks_the_hardening() {
    for (kind, what, options) in all_options() {
        let told = format!(" {} ", options.join(" "));
        for hard in [
            " --pull=never ",
            " --cap-drop ALL ",
            " --security-opt no-new-privileges ",
            " --init ",
            " --pids-limit ",
            " --publish 127.0.0.1:",
            ",readonly ",
            " --user ",
        ] {
            // Podman says the same of a mount in other words.
            let hard = match kind {
                ContainerKind::Podman => hard.replace(",readonly", ",ro=true"),
                ContainerKind::Docker => hard.to_owned(),
            };
            assert!(told.contains(&hard), "{what}: no {hard} in {told}");
        }
        assert_eq!(
            told.contains(" --gpus "),
            what.ends_with("docker-old-one-gpu"),
            "{told}"
        );
        assert!(
            !told.contains("--privileged") && !told.contains("--cap-add"),
            "{told}"
        );
    }
}
