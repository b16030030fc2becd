//! Commands that turn inputs into outputs.
//!
//! They run as the unprivileged user, without network unless hosts are named, in a directory that
//! is thrown away; only the outputs are kept. A result that may not be moved is made where it stays.
//!
//! A build whose `network` names the host of the package index sees that index in `PIP_INDEX_URL`, and
//! finds its credentials in `~/.netrc`.
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
//! | `text NAME` | digest of each text that commands read |
//! | `place` | where the store lies, for results that may not be moved: they name their own path |
//!
//! Not in it: the number of jobs, variables that are passed through.

mod attempt;
mod index;
mod key;
mod site;

use std::{collections::BTreeMap, time::Instant};

use engine_provider_api::{Artifact, ArtifactState, BuildStep, Step};
use serde::{Deserialize, Serialize};

pub(super) use attempt::failed_word;
use key::ingredients;
use site::Site;

use super::{
    ACTOR, ActError, Artifacts, Context, Expected, Outlook, begin, begin_in_place, fill, why,
};
use crate::{
    net::Url,
    store::{self, Begin, Entry, Kind},
};

/// What is remembered of a build.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Built {
    /// Number of the attempt that succeeded, from 0.
    attempt: u32,
    labels: BTreeMap<String, String>,
    /// Names of the variables that were passed through from the host's environment: in no key.
    #[serde(default)]
    passed_environment: Vec<String>,
    /// Commits of the sources that it was made of, by step. Absent in results of earlier versions.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    commits: BTreeMap<String, String>,
    /// SHA-256 over names, modes and contents.
    digest: String,
    size_bytes: u64,
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
            outlook: outlook(context, step, act, None),
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
            outlook: {
                let because = why(context, Kind::Build, step, &ingredients);
                outlook(context, step, act, because)
            },
        },
    })
}

/// Takes a result that is there, so that it stays until the run's end; whether it is.
pub(super) async fn take(
    context: &Context,
    step: &Step,
    act: &BuildStep,
    inputs: &Artifacts,
) -> Result<bool, ActError> {
    let Some(ingredients) = ingredients(context, act, inputs) else {
        return Ok(false);
    };
    let key = ingredients.key(Kind::Build);
    let taken = context.store.take(&key, &context.cancel).await;
    taken
        .map(|entry| entry.is_some())
        .map_err(|source| ActError::store(step, source))
}

/// What has to be done for a result that is not there.
fn outlook(context: &Context, step: &Step, act: &BuildStep, because: Option<String>) -> Outlook {
    match permit_network(context, step, act) {
        Err(error) => Outlook::Refused { why: error.brief() },
        Ok(()) => Outlook::Build { because },
    }
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
    let Some(ingredients) = ingredients(context, act, inputs) else {
        // It may be asked for before its inputs are there, to be refused early.
        permit_network(context, step, act)?;
        return Err(ActError::Plan {
            reason: format!("`{}` uses a tool or result that is not there", step.id),
        });
    };
    let because = why(context, Kind::Build, step, &ingredients);
    let begun = match act.fixed_path {
        false => begin(context, Kind::Build, step, ingredients, &step.id)
            .await?
            .map(Site::Elsewhere),
        true => begin_in_place(context, Kind::Build, step, ingredients, &step.id)
            .await?
            .map(Site::InPlace),
    };
    let site = match begun {
        Begin::Hit(entry) => {
            let human = format!("{} was built before", step.id);
            context.narrator.say(ACTOR, "cached", &step.id, human);
            return Ok(artifact(&entry));
        }
        Begin::Work(site) => site,
    };
    if let Some(reason) = because {
        let human = format!("rebuild: {reason}");
        context.narrator.say(ACTOR, "rebuild", &step.id, human);
    }
    permit(context, step, act)?;
    make_caches(context, step, act)?;
    let start = Instant::now();
    let attempt = attempt::all(context, step, act, inputs, &site).await?;
    let commits = key::commits(act, inputs);
    let entry = site.keep(context, step, act, attempt, commits).await?;
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
    permit_network(context, step, act)
}

fn permit_network(context: &Context, step: &Step, act: &BuildStep) -> Result<(), ActError> {
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
    let make = |name: &str| store::make_place(&context.home.cache(name), context.run_as());
    fill::names(act, "cache")
        .into_iter()
        .try_for_each(make)
        .map_err(|source| ActError::store(step, source))
}
