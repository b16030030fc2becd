//! Ways to build, tried in order.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use engine_provider_api::{Attempt, BuildStep, Command, Progress, Step, When};
use regex::Regex;

use super::{index, site::Site};
use crate::{
    act::{
        ACTOR, ActError, Artifacts, CommandFailure, Context,
        command::{self, Job, PATH},
        fill::{self, Values},
        meter::Meter,
    },
    process::{Exited, Network, Privileges},
    store::Room,
};

/// Tries one attempt after the other; gives the number of the one that succeeded.
pub(super) async fn all(
    context: &Context,
    step: &Step,
    act: &BuildStep,
    inputs: &Artifacts,
    site: &Site,
) -> Result<u32, ActError> {
    let mut failed: Option<Box<CommandFailure>> = None;
    for (number, attempt) in act.attempts.iter().enumerate() {
        if let Some(failure) = &failed {
            if !applies(attempt.when.as_ref(), failure) {
                continue;
            }
            tell_retry(context, act, attempt, failure);
        }
        let netrc = index::netrc(context, act);
        let room = site
            .ready(context.run_as(), act, netrc.as_deref())
            .map_err(|source| ActError::store(step, source))?;
        let values = Values {
            context,
            step,
            inputs,
            work: Some(&room.work),
        };
        match one_attempt(&values, &room, act, attempt, number > 0).await {
            Ok(()) => {
                site.take(context, step, act).await?;
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
        Exited::Code(code) => Some(code),
        Exited::Signal(_) => None,
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
pub(in crate::act) fn failed_word(act: &BuildStep, command: &str) -> String {
    act.attempts
        .iter()
        .flat_map(|attempt| &attempt.commands)
        .find(|other| other.id == command && !other.narration.failed.is_empty())
        .map_or_else(
            || "build-failed".to_owned(),
            |command| command.narration.failed.clone(),
        )
}

/// Tells that a command starts, in the words that it brought; one without words is a detail.
fn tell_start(context: &Context, attempt: &Attempt, command: &Command, again: bool) {
    let narration = &command.narration;
    let action = match narration.retry.as_str() {
        word if again && !word.is_empty() => word,
        _ => narration.start.as_str(),
    };
    if action.is_empty() {
        return;
    }
    let mut human = format!("running {}", command.id);
    if again && !attempt.title.is_empty() {
        human = format!("{human} {}", attempt.title);
    }
    context.narrator.say(ACTOR, action, &command.id, human);
}

async fn one_attempt(
    values: &Values<'_>,
    room: &Room,
    act: &BuildStep,
    attempt: &Attempt,
    again: bool,
) -> Result<(), ActError> {
    for command in &attempt.commands {
        let job = job(values, room, act, command)?;
        tell_start(values.context, attempt, command, again);
        command::run(values.context, job).await?;
    }
    Ok(())
}

/// A command, filled in.
fn job<'a>(
    values: &Values<'a>,
    room: &Room,
    act: &BuildStep,
    command: &'a Command,
) -> Result<Job<'a>, ActError> {
    let mut env = environment(values, room, act);
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
            None => room.work.clone(),
        },
        identity: values.context.run_as(),
        privileges: Privileges::Fixed,
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
/// directories of its tools, a language that patterns can be written for, places to write, and the
/// package index where its host may be reached.
fn environment(values: &Values<'_>, room: &Room, act: &BuildStep) -> BTreeMap<String, String> {
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
        ("HOME", room.home.to_string_lossy().into_owned()),
        ("TMPDIR", room.temporary.to_string_lossy().into_owned()),
    ];
    env.extend(fixed.map(|(name, value)| (name.to_owned(), value)));
    index::tell(values.context, act, &mut env);
    env
}
