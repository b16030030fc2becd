//! Commands that turn inputs into outputs.
//!
//! They run as the unprivileged user, without network unless hosts are named, in a directory that
//! is thrown away; only the outputs are kept.
//!
//! | ingredient of the key | why |
//! |---|---|
//! | `recipe` | version of how this file runs commands |
//! | `machine` | architecture and C library that programs are linked for |
//! | `ID program`, `ID argument`, `ID environment`, `ID directory` | each command of each attempt, before it is filled in; later attempts as `attempt N: ID …`, with `attempt N: condition` |
//! | `tool NAME` | path and version of each tool used |
//! | `input STEP` | key, commit or digest of each result used |
//! | `output` | what is kept |
//! | `network` | hosts that could be reached |
//! | `processor` | model features, where the result is tuned to it |
//! | `label` | what the provider records |
//!
//! Not in it: the number of jobs, where the store lies, variables that are passed through.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    time::Instant,
};

use engine_provider_api::{
    Artifact, ArtifactState, Attempt, BuildStep, Command, Progress, Step, When,
};
use regex::Regex;
use serde::{Deserialize, Serialize};

use super::{
    ACTOR, ActError, Artifacts, Context, Expected, Outlook, begin, blocking,
    command::{self, CommandFailure, Job, Meter, PATH},
    fill::{self, Values},
    publish, why,
};
use crate::{
    net::Url,
    process::Network,
    store::{self, Begin, Entry, Ingredients, Kind, StoreError, Work},
};

/// Counts up when commands are run in another way that changes what they make.
const RECIPE: u32 = 1;

/// What is remembered of a build.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Built {
    /// Number of the attempt that succeeded, from 0.
    attempt: u32,
    labels: BTreeMap<String, String>,
    /// SHA-256 over names, modes and contents.
    digest: String,
    size_bytes: u64,
}

/// What the result is made of; `None` while a tool or an input is not known.
fn ingredients(context: &Context, act: &BuildStep, inputs: &Artifacts) -> Option<Ingredients> {
    let os = &context.facts.os;
    let mut all = Ingredients::new()
        .with("recipe", RECIPE)
        .with("machine", format!("{} glibc {}", os.arch, os.glibc));
    for (number, attempt) in act.attempts.iter().enumerate() {
        let prefix = match number {
            0 => String::new(),
            number => format!("attempt {}: ", number + 1),
        };
        if let Some(when) = &attempt.when {
            all.add(format!("{prefix}condition"), when);
        }
        for command in &attempt.commands {
            let id = format!("{prefix}{}", command.id);
            all.add(format!("{id} program"), &command.program);
            all.add(format!("{id} argument"), &command.args);
            all.add(format!("{id} environment"), &command.env);
            all.add(format!("{id} directory"), &command.directory);
        }
    }
    for name in fill::names(act, "tool") {
        let tool = context.tools.get(name)?;
        all.add(
            format!("tool {name}"),
            format!("{} {}", tool.path, tool.version),
        );
    }
    for name in input_names(act) {
        let identity = fill::identity(&context.store, inputs.get(name)?)?;
        all.add(format!("input {name}"), identity);
    }
    all.add("output", &act.outputs);
    all.add("network", &act.network);
    if act.native {
        let cpu = &context.facts.cpu;
        all.add("processor", &cpu.features);
    }
    all.add("label", &act.labels);
    Some(all)
}

/// Steps whose results the commands refer to.
fn input_names(act: &BuildStep) -> std::collections::BTreeSet<&str> {
    act.attempts
        .iter()
        .flat_map(|attempt| &attempt.commands)
        .flat_map(fill::templates)
        .flat_map(|template| template.placeholders().unwrap_or_default())
        .filter_map(fill::step_of)
        .collect()
}

pub(super) fn expected(
    context: &Context,
    step: &Step,
    act: &BuildStep,
    inputs: &Artifacts,
) -> Result<Expected, ActError> {
    let unknown = Artifact {
        labels: act.labels.clone(),
        ..Artifact::default()
    };
    let Some(ingredients) = ingredients(context, act, inputs) else {
        return Ok(Expected {
            artifact: unknown,
            outlook: Outlook::Build { because: None },
        });
    };
    let key = ingredients.key(Kind::Build);
    let entry = context
        .store
        .find(&key)
        .map_err(|source| ActError::store(step, source))?;
    Ok(match entry {
        Some(entry) => Expected {
            artifact: artifact(&entry),
            outlook: Outlook::Cached,
        },
        None => Expected {
            artifact: Artifact {
                path: Some(context.store.path_of(&key).to_string_lossy().into_owned()),
                ..unknown
            },
            outlook: Outlook::Build {
                because: why(context, Kind::Build, step, &ingredients),
            },
        },
    })
}

fn artifact(entry: &Entry) -> Artifact {
    let built: Option<Built> = serde_json::from_value(entry.manifest.result.clone()).ok();
    let artifact = Artifact {
        state: ArtifactState::Obtained,
        path: Some(entry.path.to_string_lossy().into_owned()),
        ..Artifact::default()
    };
    match built {
        None => artifact,
        Some(built) => Artifact {
            digest: Some(format!("sha256:{}", built.digest)),
            size_bytes: Some(built.size_bytes),
            labels: built.labels,
            attempt: Some(built.attempt),
            ..artifact
        },
    }
}

pub(super) async fn run(
    context: &Context,
    step: &Step,
    act: &BuildStep,
    inputs: &Artifacts,
) -> Result<Artifact, ActError> {
    let ingredients = ingredients(context, act, inputs).ok_or_else(|| ActError::Plan {
        reason: format!("`{}` uses a tool or result that is not there", step.id),
    })?;
    let because = why(context, Kind::Build, step, &ingredients);
    let work = match begin(context, Kind::Build, step, ingredients, &step.id).await? {
        Begin::Hit(entry) => {
            let human = format!("{} was built before", step.id);
            context.narrator.say(ACTOR, "cached", &step.id, human);
            return Ok(artifact(&entry));
        }
        Begin::Work(work) => work,
    };
    if let Some(reason) = because {
        let human = format!("rebuild: {reason}");
        context.narrator.say(ACTOR, "rebuild", &step.id, human);
    }
    permit(context, step, act)?;
    make_caches(context, step, act)?;
    let start = Instant::now();
    let attempt = attempts(context, step, act, inputs, &work).await?;
    let entry = keep(step, act, work, attempt).await?;
    let human = format!("{} is built", step.id);
    context
        .narrator
        .done(ACTOR, "built", &step.id, human, start.elapsed());
    Ok(artifact(&entry))
}

fn permit(context: &Context, step: &Step, act: &BuildStep) -> Result<(), ActError> {
    for name in fill::names(act, "tool") {
        context
            .policy
            .allow_tool(name)
            .map_err(|refusal| ActError::refused(step, refusal))?;
    }
    for host in &act.network {
        let url = Url::parse(&format!("https://{host}/")).map_err(|_| ActError::Plan {
            reason: format!("`{host}` of `{}` is no host", step.id),
        })?;
        context
            .net
            .check_host(&url)
            .map_err(|source| ActError::net(step, source))?;
    }
    Ok(())
}

/// Creates the directories that outlive the build, for whoever builds.
fn make_caches(context: &Context, step: &Step, act: &BuildStep) -> Result<(), ActError> {
    let make = |name: &str| -> Result<(), StoreError> {
        let path = context.home.cache(name);
        store::make_directory(&path)?;
        let Some(user) = context.run_as() else {
            return Ok(());
        };
        store::ensure_reachable(&path, user)?;
        let metadata =
            fs::metadata(&path).map_err(|source| StoreError::io("read", &path, source))?;
        if metadata.uid() == user.uid {
            Ok(())
        } else {
            store::give_to(&path, user)
        }
    };
    fill::names(act, "cache")
        .into_iter()
        .try_for_each(make)
        .map_err(|source| ActError::store(step, source))
}

/// Tries one attempt after the other; gives the number of the one that succeeded.
async fn attempts(
    context: &Context,
    step: &Step,
    act: &BuildStep,
    inputs: &Artifacts,
    work: &Work,
) -> Result<u32, ActError> {
    let mut failed: Option<Box<CommandFailure>> = None;
    for (number, attempt) in act.attempts.iter().enumerate() {
        if let Some(failure) = &failed {
            if !applies(attempt.when.as_ref(), failure) {
                continue;
            }
            tell_retry(context, act, attempt, failure);
        }
        let scratch = work
            .scratch(context.run_as())
            .map_err(|source| ActError::store(step, source))?;
        let values = Values {
            context,
            step,
            inputs,
            work: Some(&scratch),
        };
        match one_attempt(&values, act, attempt, number > 0).await {
            Ok(()) => {
                take_outputs(step, act, work, &scratch)?;
                return Ok(u32::try_from(number).unwrap_or(u32::MAX));
            }
            // Another way to build does not help against a full disk.
            Err(ActError::Command { failure, .. }) if !failure.disk_full => failed = Some(failure),
            Err(error) => return Err(error),
        }
    }
    let failure = failed.expect("there is an attempt, and it failed");
    Err(ActError::Command {
        step: step.id.clone(),
        failure,
    })
}

/// Whether an attempt makes sense after this failure.
fn applies(when: Option<&When>, failure: &CommandFailure) -> bool {
    let Some(when) = when else { return true };
    let exit = match failure.exited {
        crate::process::Exited::Code(code) => Some(code),
        crate::process::Exited::Signal(_) => None,
    };
    let in_log = |pattern: &String| {
        let log = command::read_log(&failure.log, u64::MAX);
        Regex::new(pattern).is_ok_and(|pattern| pattern.is_match(&log))
    };
    when.exit.is_none_or(|wanted| exit == Some(wanted))
        && when.command.as_ref().is_none_or(|id| *id == failure.id)
        && when.log.as_ref().is_none_or(in_log)
}

fn tell_retry(context: &Context, act: &BuildStep, attempt: &Attempt, failure: &CommandFailure) {
    let human = format!("{failure}; trying {}", attempt.title);
    let action = failed_word(act, &failure.id);
    context.narrator.warn(ACTOR, &action, &failure.id, human);
}

/// The word for a command that failed.
pub(super) fn failed_word(act: &BuildStep, command: &str) -> String {
    act.attempts
        .iter()
        .flat_map(|attempt| &attempt.commands)
        .find(|other| other.id == command && !other.narration.failed.is_empty())
        .map_or_else(
            || "build-failed".to_owned(),
            |command| command.narration.failed.clone(),
        )
}

async fn one_attempt(
    values: &Values<'_>,
    act: &BuildStep,
    attempt: &Attempt,
    again: bool,
) -> Result<(), ActError> {
    for command in &attempt.commands {
        let job = job(values, act, command)?;
        let narration = &command.narration;
        let action = match (again, narration.retry.as_str(), narration.start.as_str()) {
            (true, word @ "", "") | (false, _, word @ "") => {
                debug_assert!(word.is_empty(), "the host's own word");
                "build"
            }
            (true, "", word) | (true, word, _) | (false, _, word) => word,
        };
        let mut human = format!("running {}", command.id);
        if again && !attempt.title.is_empty() {
            human = format!("{human} {}", attempt.title);
        }
        values
            .context
            .narrator
            .say(ACTOR, action, &command.id, human);
        command::run(values.context, job).await?;
    }
    Ok(())
}

/// A command, filled in.
fn job<'a>(
    values: &Values<'a>,
    act: &BuildStep,
    command: &'a Command,
) -> Result<Job<'a>, ActError> {
    let work = values.work.expect("a build has a working directory");
    let mut env = environment(values, act, work)?;
    for (name, template) in &command.env {
        env.insert(name.clone(), values.fill(template)?);
    }
    Ok(Job {
        step: values.step,
        id: &command.id,
        program: values.fill(&command.program)?.into(),
        args: command
            .args
            .iter()
            .map(|template| values.fill(template))
            .collect::<Result<_, _>>()?,
        env,
        directory: match &command.directory {
            Some(template) => values.fill(template)?.into(),
            None => work.to_owned(),
        },
        identity: values.context.run_as(),
        network: if act.network.is_empty() {
            Network::None
        } else {
            Network::Host
        },
        meter: command.progress.map(|progress| match progress {
            Progress::Counter => Meter::Counter,
            Progress::Percent => Meter::Percent,
        }),
        limit: None,
    })
}

/// What every command of a build sees: what policy passes through, a fixed `PATH` after the
/// directories of its tools, a language that patterns can be written for, and places to write.
fn environment(
    values: &Values<'_>,
    act: &BuildStep,
    work: &Path,
) -> Result<BTreeMap<String, String>, ActError> {
    let mut path: Vec<PathBuf> = Vec::new();
    let tools = fill::names(act, "tool")
        .into_iter()
        .filter_map(|name| values.context.tools.get(name))
        .filter_map(|tool| Some(Path::new(&tool.path).parent()?.to_owned()))
        .chain(PATH.split(':').map(PathBuf::from));
    for directory in tools {
        if !path.contains(&directory) {
            path.push(directory);
        }
    }
    let path: Vec<String> = path
        .iter()
        .map(|directory| directory.to_string_lossy().into_owned())
        .collect();
    let mut env = values.context.passed_environment();
    let fixed = [
        ("PATH", path.join(":")),
        ("LC_ALL", "C.UTF-8".to_owned()),
        ("HOME", make_place(values, work, ".home")?),
        ("TMPDIR", make_place(values, work, ".tmp")?),
    ];
    env.extend(fixed.map(|(name, value)| (name.to_owned(), value)));
    Ok(env)
}

/// A directory in the working directory, for whoever builds.
fn make_place(values: &Values<'_>, work: &Path, name: &str) -> Result<String, ActError> {
    let path = work.join(name);
    let made = match fs::symlink_metadata(&path) {
        Ok(_) => Ok(()),
        Err(_) => store::make_directory(&path).and_then(|()| match values.context.run_as() {
            Some(user) => store::give_to(&path, user),
            None => Ok(()),
        }),
    };
    made.map_err(|source| ActError::store(values.step, source))?;
    Ok(path.to_string_lossy().into_owned())
}

fn take_outputs(step: &Step, act: &BuildStep, work: &Work, scratch: &Path) -> Result<(), ActError> {
    for output in &act.outputs {
        let output = Path::new(output);
        match work.take(scratch, output) {
            Err(StoreError::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => {
                return Err(ActError::Output {
                    step: step.id.clone(),
                    path: output.to_owned(),
                });
            }
            other => other.map_err(|source| ActError::store(step, source))?,
        }
    }
    Ok(())
}

async fn keep(step: &Step, act: &BuildStep, work: Work, attempt: u32) -> Result<Entry, ActError> {
    let tree = work.tree();
    let measured = blocking(move || -> Result<_, StoreError> {
        store::seal(&tree)?;
        Ok((store::digest_tree(&tree)?, store::size_of_tree(&tree)?))
    })
    .await;
    let (digest, size_bytes) = measured.map_err(|source| ActError::store(step, source))?;
    let built = Built {
        attempt,
        labels: act.labels.clone(),
        digest,
        size_bytes,
    };
    publish(step, work, built).await
}
