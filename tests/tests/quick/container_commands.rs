//! The whole command of every provider in a container, on every kind of machine, under both runtimes.
//!
//! Each is kept whole in `snapshots/`, one file for each provider, to be read when it changes. To write
//! them anew: `INSTA_UPDATE=always cargo test -p e2e --test quick container_commands`. What no command may
//! be without is asserted as well, so that no snapshot can lose it.
//!
//! The images are the providers' own, the models are this machine's and tiny, the machines are written down;
//! nothing is pulled or run.

use std::{fmt::Write as _, fs};

use e2e::{Machine, Run, engines_with_models, facts};
use serde_json::{Value, json};

/// A kind of machine, its record, and what follows from it.
struct Kind {
    name: &'static str,
    facts: &'static str,
    runtimes: &'static [&'static str],
    /// `gpu` of the pool.
    gpu: &'static str,
    /// `devices` of the pool.
    devices: &'static [&'static str],
    /// Values of `--device` that a container gets.
    given: &'static [&'static str],
}

const BOTH: &[&str] = &["podman", "docker"];

const MACHINES: [Kind; 6] = [
    Kind {
        name: "the processor",
        facts: "podman-cpu",
        runtimes: BOTH,
        gpu: "prefer",
        devices: &[],
        given: &[],
    },
    Kind {
        name: "one GPU",
        facts: "podman-one-gpu",
        runtimes: BOTH,
        gpu: "require",
        devices: &[],
        given: &["nvidia.com/gpu=0"],
    },
    Kind {
        name: "two GPUs",
        facts: "podman-two-gpus",
        runtimes: BOTH,
        gpu: "require",
        devices: &[],
        given: &[
            "nvidia.com/gpu=GPU-11111111-2222-3333-4444-555555555555",
            "nvidia.com/gpu=GPU-66666666-7777-8888-9999-aaaaaaaaaaaa",
        ],
    },
    Kind {
        name: "a MIG slice",
        facts: "podman-mig",
        runtimes: BOTH,
        gpu: "require",
        devices: &["MIG-6a1b2c3d-0001-5e4f-9a8b-7c6d5e4f3a2b"],
        given: &["nvidia.com/gpu=0:0"],
    },
    Kind {
        name: "one GPU that has no name for containers",
        facts: "docker-old-one-gpu",
        runtimes: &["docker"],
        gpu: "require",
        devices: &[],
        given: &[],
    },
    Kind {
        name: "a GPU that must be there and is not",
        facts: "podman-cpu",
        runtimes: BOTH,
        gpu: "require",
        devices: &[],
        given: &[],
    },
];

/// What no launch is without.
const HARDENING: [&str; 6] = [
    " --pull=never ",
    " --cap-drop ALL ",
    " --security-opt no-new-privileges ",
    " --init ",
    " --pids-limit ",
    " --publish 127.0.0.1:",
];

/// A pool that leaves everything to the provider but the model.
fn pool(engine: &str, model: &str, kind: &Kind, runtime: &str) -> Value {
    json!({
        "id": "chat",
        "engine": engine,
        "model": "echo",
        "devices": kind.devices,
        "gpu": kind.gpu,
        "provisioning": {
            "mode": "container",
            "model": {"ref": model},
            "container": {"runtime": runtime},
        },
    })
}

/// The record of a machine; where podman comes first, with a docker of today beside it.
fn record(machine: &Machine, kind: &Kind) -> String {
    let text = fs::read_to_string(facts(kind.facts)).unwrap();
    let mut facts: Value = serde_json::from_str(&text).unwrap();
    if kind.runtimes == BOTH {
        facts["containers"]["runtimes"][1] = json!({
            "name": "docker", "path": "/usr/bin/docker", "version": "28.2.2",
            "server_version": "28.2.2", "rootless": false, "cdi": true, "init": true,
            "nvidia_runtime": true, "selinux": false, "storage": "docker:1",
        });
    }
    let path = machine.write("facts.json", &facts.to_string());
    path.to_str().unwrap().to_owned()
}

/// Asserts what holds of every command, whosever engine it runs.
fn assert_sound(words: &[&str], kind: &Kind, runtime: &str) {
    let what = format!("on {} under {runtime}: {words:#?}", kind.name);
    let image = words.iter().position(|word| word.contains("@sha256:"));
    // What follows is the engine's own, which may have a flag of the same name.
    let of_runtime = &words[..image.unwrap_or_else(|| panic!("no image by digest {what}"))];
    let options = of_runtime.join(" ");
    for hard in HARDENING {
        assert!(options.contains(hard), "no {hard} {what}");
    }
    let read_only = match runtime {
        "podman" => ",ro=true",
        _ => ",readonly",
    };
    assert!(options.contains(read_only), "{what}");
    assert!(options.contains(" --user "), "{what}");
    for loose in ["--privileged", "--cap-add", "--pid=", "--ipc"] {
        assert!(!options.contains(loose), "{loose} {what}");
    }
    let own_network = usize::from(runtime == "podman");
    assert_eq!(
        options.matches("--network private").count(),
        own_network,
        "{what}"
    );
    assert_eq!(options.matches("--net").count(), own_network, "{what}");
    let has_no_name = kind.facts == "docker-old-one-gpu";
    assert_eq!(options.contains("--gpus"), has_no_name, "{what}");
    let given: Vec<&str> = of_runtime
        .windows(2)
        .filter(|pair| pair[0] == "--device")
        .map(|pair| pair[1])
        .collect();
    assert_eq!(given, kind.given, "{what}");
}

/// The image that is pulled, and the command with a line for each flag, its values behind it.
fn lines(plan: &Value) -> String {
    let steps = plan["steps"].as_array().unwrap();
    let pull = steps
        .iter()
        .find(|step| step["kind"] == "pull-image")
        .unwrap();
    let command = &plan["run"]["command"];
    assert_eq!(command["env"], json!({}), "{command:#}");
    let program = command["bin"].as_str().unwrap();
    let mut text = format!("pulls {}\n\n{program}", pull["detail"].as_str().unwrap());
    let mut of_image = false;
    for word in words(command) {
        let is_image = word.contains("@sha256:");
        text += if word.starts_with('-') || is_image || of_image {
            "\n  "
        } else {
            " "
        };
        of_image = is_image;
        match word.is_empty() || word.contains(char::is_whitespace) {
            true => write!(text, "{word:?}").unwrap(),
            false => text += word,
        }
    }
    text
}

fn words(command: &Value) -> Vec<&str> {
    let words = command["args"].as_array().unwrap().iter();
    words.map(|word| word.as_str().unwrap()).collect()
}

/// What a run says to whoever asked for what it refuses.
fn refusal(run: &Run) -> String {
    format!("exit code {}\n{}", run.code, run.stderr.trim_end())
}

/// All commands of a provider, held against what is known of them.
fn assert_is_run_as_before(engine: &str) {
    let machine = Machine::new();
    let mut models = engines_with_models(machine.root()).into_iter();
    let (_, model) = models.find(|(name, _)| *name == engine).unwrap();
    let mut all = String::new();
    for kind in &MACHINES {
        let facts = record(&machine, kind);
        for runtime in kind.runtimes {
            machine.write_pool(&pool(engine, &model, kind, runtime));
            // What a registry says today is no matter here.
            let run = machine.run(&["plan", "--offline", "--facts", &facts, "--json"]);
            // TGI's own image runs on GPUs only.
            let wants_gpu = kind.gpu == "require" || engine == "tgi";
            let shown = match wants_gpu && kind.facts == "podman-cpu" {
                true => refusal(&run.code(5)),
                false => {
                    let plan = run.code(0).json();
                    let command = &plan["run"]["command"];
                    assert_eq!(command["bin"], format!("/usr/bin/{runtime}"));
                    assert_sound(&words(command), kind, runtime);
                    lines(&plan)
                }
            };
            writeln!(all, "## On {}, {runtime}\n\n{shown}\n", kind.name).unwrap();
        }
    }
    machine.assert_untouched();
    insta::with_settings!({
        description => format!("What a container of {engine} is run with, a line for each flag."),
        omit_expression => true,
        prepend_module_to_snapshot => false,
    }, {
        insta::assert_snapshot!(format!("run_of_{engine}"), machine.normal(&all));
    });
}

#[test]
fn llamacpp_is_run_like_this() {
    assert_is_run_as_before("llamacpp");
}

#[test]
fn vllm_is_run_like_this() {
    assert_is_run_as_before("vllm");
}

#[test]
fn tgi_is_run_like_this() {
    assert_is_run_as_before("tgi");
}

#[test]
fn triton_is_run_like_this() {
    assert_is_run_as_before("triton");
}
