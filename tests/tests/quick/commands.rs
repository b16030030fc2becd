//! The podman and docker commands that would run engines no test machine can run: the whole command on
//! a machine with one GPU, and what changes on others.

use e2e::{Machine, facts};
use insta::assert_snapshot;
use serde_json::{Value, json};

const ONE: &str = "podman-one-gpu";

/// The command on a recorded machine, one flag to a line. What the record lacks of docker it has from
/// the machine that has both.
fn command(engine: &str, on: &str, runtime: &str) -> Vec<String> {
    let machine = Machine::new();
    machine.write_pool(&json!({
        "id": "chat",
        "engine": engine,
        "model": "qwen",
        "gpu": "prefer",
        "provisioning": {
            "mode": "container",
            "container": match (engine, on) {
                // Its usual image is of no use without a GPU.
                ("tgi", "podman-cpu") => json!({ "tag": "3.3.7-intel-cpu" }),
                _ => json!({}),
            },
            "model": { "ref": "hf:Qwen/Qwen2.5-0.5B-Instruct" },
            "env": { "HF_TOKEN": "{secret.HF_TOKEN}" },
        },
    }));
    let read = |name: &str| -> Value {
        serde_json::from_slice(&std::fs::read(facts(name)).unwrap()).unwrap()
    };
    let mut record = read(on);
    record["containers"]["runtimes"] = read(ONE)["containers"]["runtimes"].take();
    let record = machine.write("facts.json", &record.to_string());
    let arguments = ["plan", "--json", "--container-runtime", runtime, "--facts"];
    let mut arguments = arguments.to_vec();
    arguments.push(record.to_str().unwrap());
    let plan = machine.run(&arguments).code(0).json();
    machine.assert_untouched();
    let command = &plan["run"]["command"];
    let words = command["args"].as_array().unwrap().iter();
    let mut lines = vec![command["bin"].as_str().unwrap().to_owned()];
    for word in words.map(|word| machine.normal(word.as_str().unwrap())) {
        let value = !word.starts_with('-');
        match lines.last_mut() {
            Some(line) if value && line.starts_with("--") && !line.contains([' ', '=']) => {
                line.push(' ');
                line.push_str(&word);
            }
            _ => lines.push(word),
        }
    }
    lines
}

/// What one command has and the other lacks, in their order.
fn change(from: &[String], to: &[String]) -> String {
    let gone = from.iter().filter(|line| !to.contains(line));
    let come = to.iter().filter(|line| !from.contains(line));
    let gone = gone.map(|line| format!("- {line}"));
    let come = come.map(|line| format!("+ {line}"));
    gone.chain(come).collect::<Vec<_>>().join("\n")
}

fn changes(engine: &str, runtime: &str) -> String {
    let one = command(engine, ONE, runtime);
    let others = ["podman-cpu", "podman-two-gpus", "podman-mig"];
    let others = others.map(|on| format!("{on}\n{}", change(&one, &command(engine, on, runtime))));
    others.join("\n\n")
}

#[test]
fn vllm_under_podman() {
    assert_snapshot!(command("vllm", ONE, "podman").join("\n"), @"");
    assert_snapshot!(changes("vllm", "podman"), @"");
}

#[test]
fn vllm_under_docker() {
    let podman = command("vllm", ONE, "podman");
    assert_snapshot!(change(&podman, &command("vllm", ONE, "docker")), @"");
    assert_snapshot!(changes("vllm", "docker"), @"");
}

#[test]
fn tgi_under_podman() {
    assert_snapshot!(command("tgi", ONE, "podman").join("\n"), @"");
    assert_snapshot!(changes("tgi", "podman"), @"");
}

#[test]
fn tgi_under_docker() {
    let podman = command("tgi", ONE, "podman");
    assert_snapshot!(change(&podman, &command("tgi", ONE, "docker")), @"");
    assert_snapshot!(changes("tgi", "docker"), @"");
}
