//! What is planned and prepared for machines that were written down, and what is refused.

use std::fmt::Write as _;

use engine_provider_api::{
    Act, Artifact, ArtifactState, Command, ContainerLaunch, EngineProvisioner as _, ErrorCode,
    Facts, Launch, Mode, Output, Plan, Pool, PrepareRequest, PreparedEngine, ProviderError,
    Template,
};
use engine_provider_kit::{
    example,
    flags::Refusal,
    machine,
    testing::{self, join, merge, told, with_flags},
};
use insta::assert_snapshot;
use serde_json::{Value, json};

use crate::{LlamaCpp, diagnoses, flags, options, source::PINNED};

mod modes;
mod planned;
mod prepared;
mod refused;

/// A pool that serves the haiku model, with these fields over it.
fn pool(fields: Value) -> Pool {
    let least = json!({
        "id": "default",
        "engine": "llamacpp",
        "provisioning": { "model": { "ref": "builtin:haiku" } },
    });
    testing::pool(least, fields)
}

fn with_cmake(flags: &[&str]) -> Value {
    json!({ "provisioning": { "source": { "build": { "cmake_flags": flags } } } })
}

/// The mode that the pool names, as the host would find it.
fn mode_of(pool: &Pool) -> Mode {
    pool.provisioning.mode.unwrap_or(Mode::Source)
}

fn try_plan(pool: Pool, facts: &Facts) -> Result<Plan, ProviderError> {
    let mode = mode_of(&pool);
    testing::plan(&LlamaCpp, pool, mode, facts)
}

fn plan(pool: Pool, facts: &Facts) -> Plan {
    try_plan(pool, facts).expect("the pool can be planned")
}

fn refusal(fields: Value, facts: &Facts) -> ProviderError {
    try_plan(pool(fields), facts).expect_err("the pool is refused")
}

/// What the program of an obtained build said.
struct Said {
    version: &'static str,
    devices: &'static str,
    help: &'static str,
}

const KNOWN: &str = include_str!("flags-0c1e57098bba.txt");
const NO_DEVICE: Said = Said {
    version: "version: 0.5.0-dev (build 0, commit 0c1e57098bba)\nbuilt with GNU 12.2.0 for Linux x86_64\n",
    devices: "Available devices:\n  (none)\n",
    help: KNOWN,
};
const ONE_CUDA: Said = Said {
    devices: "Available devices:\n  CUDA0: NVIDIA GeForce RTX 3090 (24576 MiB, 23900 MiB free)\n",
    ..NO_DEVICE
};

fn request(pool: Pool, facts: &Facts, said: Option<&Said>) -> PrepareRequest {
    let output = |stdout: &str, stderr: &str| Artifact {
        state: ArtifactState::Obtained,
        output: Some(Output {
            exit: Some(0),
            stdout: stdout.to_owned(),
            stderr: stderr.to_owned(),
        }),
        ..Artifact::default()
    };
    let mut artifacts = std::collections::BTreeMap::from([(
        crate::MODEL.to_owned(),
        Artifact {
            path: Some("/models/model.gguf".to_owned()),
            size_bytes: Some(4 << 30),
            ..Artifact::default()
        },
    )]);
    if let Some(said) = said {
        let clone = Artifact {
            commit: Some(PINNED.to_owned()),
            ..Artifact::default()
        };
        artifacts.insert(crate::CLONE.to_owned(), clone);
        artifacts.insert(crate::VERSION.to_owned(), output("", said.version));
        artifacts.insert(crate::DEVICES.to_owned(), output(said.devices, ""));
        artifacts.insert(crate::HELP.to_owned(), output(said.help, ""));
    }
    PrepareRequest {
        requires: Vec::new(),
        mode: mode_of(&pool),
        pool,
        facts: facts.clone(),
        artifacts,
    }
}

fn prepare(pool: Pool, facts: &Facts, said: Option<&Said>) -> PreparedEngine {
    LlamaCpp
        .prepare(&request(pool, facts, said))
        .expect("the pool can be prepared")
}

fn show_plan(plan: &Plan) -> String {
    let mut text = String::new();
    for step in &plan.steps {
        let _ = write!(text, "{} ({})", step.id, step.act.kind());
        match &step.act {
            Act::RequireTools(act) => {
                for tool in &act.tools {
                    let _ = write!(text, " {}", tool.name);
                }
            }
            Act::Checkout(act) => {
                let mirrors = serde_json::to_string(&act.mirrors).unwrap();
                let _ = write!(text, " {}\n  from {mirrors}", act.commit);
            }
            Act::Build(act) => {
                let labels = serde_json::to_string(&act.labels).unwrap();
                let _ = write!(text, " native={} {labels}", act.native);
                for attempt in &act.attempts {
                    let _ = write!(text, "\n  attempt {}", attempt.title);
                    let _ = write!(text, ", when={}", attempt.when.is_some());
                    for command in &attempt.commands {
                        let _ = write!(text, "\n    {}", show_command(command));
                    }
                }
            }
            Act::Observe(act) => {
                let _ = write!(text, " {} {}", act.program, join(&act.args));
            }
            Act::StageModel(act) => {
                let _ = write!(text, " {}", act.reference);
            }
            other => {
                let mut other = serde_json::to_value(other).unwrap();
                let fields = other.as_object_mut().unwrap();
                fields.retain(|name, _| name != "kind" && name != "narration");
                let _ = write!(text, " {other}");
            }
        }
        text.push('\n');
    }
    text + &testing::advice(&plan.notes, &plan.warnings)
}

fn show_command(command: &Command) -> String {
    let line = join(&command.args).replace(" -D", "\n        -D");
    let mut text = format!("{}: {line}", command.id);
    if command.id == "cmake-configure" {
        for (name, value) in &command.env {
            let _ = write!(text, "\n        {name}={value}");
        }
    }
    text
}

fn show_engine(engine: &PreparedEngine) -> String {
    let mut text = format!("{}\n", engine.engine_version);
    let (program, args, env) = match &engine.launch {
        Launch::Process(launch) => (launch.program.to_string(), &launch.args, &launch.env),
        Launch::Container(launch) => (show_container(launch), &launch.args, &launch.env),
        Launch::External(launch) => return text + &launch.url,
    };
    let line = join(args).replace(" --", "\n  --");
    let _ = writeln!(text, "{program} {line}");
    let env: Vec<String> = env
        .iter()
        .map(|(name, value)| format!("{name}={value}"))
        .collect();
    let _ = writeln!(text, "env {env:?}, mask {:?}", engine.device_mask);
    let _ = writeln!(
        text,
        "slots {}, vram {:?}, evidence on {:?}",
        engine.slots_total,
        engine.resources.vram_bytes,
        engine
            .gpu_evidence
            .as_ref()
            .map(|evidence| &evidence.devices)
    );
    text + &testing::advice(&[], &engine.warnings)
}

/// All of it but arguments and environment.
fn show_container(launch: &ContainerLaunch) -> String {
    let mut rest = serde_json::to_value(launch).unwrap();
    let fields = rest.as_object_mut().unwrap();
    fields.retain(|name, _| name != "args" && name != "env");
    format!("{rest}\n ")
}
