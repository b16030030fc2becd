//! A program run for what it prints.
//!
//! | ingredient of the key | why |
//! |---|---|
//! | `program` | digest of the result it lies in, and the path inside |
//! | `argument` | each of them |
//! | `environment` | what the plan sets, where it sets any |
//! | `driver`, `gpus` | where it asks about devices |

use std::{collections::BTreeMap, path::PathBuf, time::Duration};

use engine_provider_api::{Artifact, ArtifactState, Observe, Output as Printed, Step};

use super::{
    ACTOR, ActError, Artifacts, Context, Expected, Outlook, begin, command,
    fill::{self, Values},
    publish,
};
use crate::{
    process::{Child, Exited, LogFile, Network, Output, Privileges, Spec},
    store::{Begin, Entry, Ingredients, Kind},
};

/// Bytes kept of each stream.
const OUTPUT_LIMIT_BYTES: u64 = 1 << 20;

/// Exit codes of programs that did not start: not executable, and a library or interpreter is missing.
const NOT_STARTED: [i32; 2] = [126, 127];

/// What the answer depends on; `None` while the program is not there.
fn ingredients(context: &Context, act: &Observe, inputs: &Artifacts) -> Option<Ingredients> {
    let (_, artifact, inside) = fill::locate(&act.program, inputs)?;
    if artifact.state != ArtifactState::Obtained {
        return None;
    }
    let digest = artifact
        .digest
        .clone()
        .or_else(|| fill::identity(&context.store, artifact))?;
    let mut all = Ingredients::new()
        .with("program", format!("{digest}{inside}"))
        .with("argument", &act.args);
    if !act.env.is_empty() {
        all.add("environment", &act.env);
    }
    if act.asks_devices {
        let gpus = &context.facts.gpus;
        let names: Vec<&str> = gpus.devices.iter().map(|gpu| gpu.uuid.as_str()).collect();
        all.add("driver", &gpus.driver);
        all.add("gpus", names);
    }
    Some(all)
}

pub(super) fn expected(
    context: &Context,
    step: &Step,
    act: &Observe,
    inputs: &Artifacts,
) -> Result<Expected, ActError> {
    let key = ingredients(context, act, inputs).map(|all| all.key(Kind::Observe));
    let entry = match &key {
        Some(key) => context
            .store
            .find(key)
            .map_err(|source| ActError::store(step, source))?,
        None => None,
    };
    Ok(match entry {
        Some(entry) => Expected {
            artifact: artifact(&entry),
            outlook: Outlook::Cached,
        },
        None => Expected {
            artifact: Artifact::default(),
            outlook: Outlook::Run,
        },
    })
}

fn artifact(entry: &Entry) -> Artifact {
    Artifact {
        state: ArtifactState::Obtained,
        output: serde_json::from_value(entry.manifest.result.clone()).ok(),
        ..Artifact::default()
    }
}

pub(super) async fn run(
    context: &Context,
    step: &Step,
    act: &Observe,
    inputs: &Artifacts,
) -> Result<Artifact, ActError> {
    let ingredients = ingredients(context, act, inputs).ok_or_else(|| ActError::Plan {
        reason: format!("`{}` observes a program that is not there", step.id),
    })?;
    let work = match begin(context, Kind::Observe, step, ingredients, &step.id).await? {
        Begin::Hit(entry) => return Ok(artifact(&entry)),
        Begin::Work(work) => work,
    };
    let scratch = work
        .scratch(context.run_as(), &[])
        .map_err(|source| ActError::store(step, source))?;
    let values = Values {
        context,
        step,
        inputs,
        work: None,
    };
    let program = PathBuf::from(values.fill(&act.program)?);
    let args = act
        .args
        .iter()
        .map(|template| values.fill(template))
        .collect::<Result<Vec<_>, _>>()?;
    let mut env = BTreeMap::from([
        ("PATH".to_owned(), command::PATH.to_owned()),
        ("LC_ALL".to_owned(), "C.UTF-8".to_owned()),
        ("HOME".to_owned(), scratch.to_string_lossy().into_owned()),
    ]);
    for (name, template) in &act.env {
        env.insert(name.clone(), values.fill(template)?);
    }
    let answer = context
        .store
        .temporary("answer")
        .map_err(|source| ActError::store(step, source))?;
    let file = |name| LogFile {
        path: answer.path().join(name),
        limit_bytes: OUTPUT_LIMIT_BYTES,
    };
    let (stdout, stderr) = (file("stdout"), file("stderr"));
    let spec = Spec {
        program,
        args,
        env,
        directory: scratch,
        identity: context.run_as(),
        network: Network::None,
        privileges: Privileges::Fixed,
        output: Output::Apart {
            stdout: stdout.clone(),
            stderr: stderr.clone(),
        },
        child: Child::Step,
    };
    let shown = spec.display();
    context
        .narrator
        .say(ACTOR, "observe", &step.id, format!("asking {shown}"));
    let limit = Duration::from_millis(act.timeout_ms);
    let exited = command::to_end(context, step, spec, Some(limit), None).await?;
    let printed = Printed {
        exit: match exited {
            Exited::Code(code) => Some(code),
            Exited::Signal(_) => None,
        },
        stdout: command::read_log(&stdout.path, OUTPUT_LIMIT_BYTES),
        stderr: command::read_log(&stderr.path, OUTPUT_LIMIT_BYTES),
    };
    if printed.exit.is_none_or(|code| NOT_STARTED.contains(&code)) {
        // Killed from outside, perhaps, or a library is missing that is installed tomorrow: an answer,
        // but not one to remember.
        return Ok(Artifact {
            state: ArtifactState::Obtained,
            output: Some(printed),
            ..Artifact::default()
        });
    }
    publish(step, work, printed)
        .await
        .map(|entry| artifact(&entry))
}
