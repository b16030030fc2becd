//! What is planned and prepared for machines that were written down, and what is refused.

use std::fmt::Write as _;

use engine_provider_api::{
    Act, Artifact, Facts, Image, Launch, Mode, Plan, Pool, PreparedEngine, ProviderError,
};
use engine_provider_kit::{
    machine,
    testing::{self, join, with_flags},
};
use insta::assert_snapshot;
use regex::Regex;
use serde_json::{Value, json};

use crate::{Vllm, diagnoses};

mod planned;
mod prepared;
mod refused;

/// A pool that serves a model of the hub, with these fields over it.
fn pool(fields: Value) -> Pool {
    let least = json!({
        "id": "chat",
        "engine": "vllm",
        "provisioning": { "model": { "ref": "hf:Qwen/Qwen2.5-0.5B-Instruct" } },
    });
    testing::pool(least, fields)
}

fn try_plan(fields: Value, mode: Mode, facts: &Facts) -> Result<Plan, ProviderError> {
    testing::plan(&Vllm, pool(fields), mode, facts)
}

fn plan(fields: Value, mode: Mode, facts: &Facts) -> String {
    let plan = try_plan(fields, mode, facts).expect("the pool can be planned");
    let mut text = String::new();
    for step in &plan.steps {
        let _ = write!(text, "{}:", step.id);
        match &step.act {
            Act::PullImage(pull) => {
                let image = &pull.image;
                let _ = write!(text, " {}", image.repository);
                let _ = write!(text, " {:?} {:?}", image.tag, image.digest);
            }
            Act::RequireTools(tools) => {
                for tool in &tools.tools {
                    let _ = write!(text, " {}", tool.name);
                }
            }
            Act::Build(build) => {
                let _ = write!(text, " {:?} {:?}", build.network, build.labels);
                for command in &build.attempts[0].commands {
                    let _ = write!(text, "\n  {} {}", command.program, join(&command.args));
                }
            }
            Act::StageModel(model) => {
                let _ = write!(text, " {} as {:?}", model.reference, model.shape);
            }
            other => panic!("unexpected {}", other.kind()),
        }
        text.push('\n');
    }
    text + &testing::advice(&plan.notes, &plan.warnings)
}

/// The engine of a pool whose model has 1 GiB and whose image, if it has one, was pulled.
fn prepare(fields: Value, mode: Mode, facts: &Facts) -> PreparedEngine {
    let model = Artifact {
        path: Some("/store/model".to_owned()),
        size_bytes: Some(1 << 30),
        ..Artifact::default()
    };
    let image = Artifact {
        image: Some(Image {
            reference: "docker.io/vllm/vllm-openai@sha256:1234".to_owned(),
            digest: "sha256:1234".to_owned(),
            tag: Some("v0.30.0".to_owned()),
            ..Image::default()
        }),
        ..Artifact::default()
    };
    let artifacts = [("model-fetch", model), ("pull-image", image)];
    let artifacts = artifacts.map(|(step, artifact)| (step.to_owned(), artifact));
    testing::prepare(&Vllm, pool(fields), mode, facts, artifacts.into())
        .expect("the pool can be prepared")
}

fn show(engine: &PreparedEngine) -> String {
    let mut text = format!("{}\n", engine.engine_version);
    let (env, args) = match &engine.launch {
        Launch::Container(launch) => {
            for mount in &launch.mounts {
                let _ = writeln!(text, "{} at {}", mount.source, mount.target);
            }
            let _ = writeln!(
                text,
                "user {:?}, shm {}, port {}, read-only root {}",
                launch.user, launch.shm_bytes, launch.port, launch.read_only_root
            );
            let _ = write!(text, "{}", launch.entrypoint.join(" "));
            (&launch.env, &launch.args)
        }
        Launch::Process(launch) => {
            let _ = write!(text, "{}", launch.program);
            (&launch.env, &launch.args)
        }
        Launch::External(launch) => return format!("{text}{}\n", launch.url),
    };
    let _ = writeln!(text, " {}", join(args).replace(" --", "\n  --"));
    for (name, value) in env {
        let _ = writeln!(text, "{name}={value}");
    }
    let _ = writeln!(
        text,
        "mask {:?}, slots {}, vram {:?} MiB, proof {}\nrecord {:?}",
        engine.device_mask,
        engine.slots_total,
        engine.resources.vram_bytes.map(|bytes| bytes >> 20),
        engine.gpu_evidence.is_some(),
        engine.build_record
    );
    text + &testing::advice(&[], &engine.warnings)
}

fn refusal(fields: Value, mode: Mode, facts: &Facts) -> String {
    let error = try_plan(fields, mode, facts).expect_err("the pool is refused");
    testing::told(&error)
}
