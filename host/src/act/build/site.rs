//! Where a build works, and how what it leaves becomes the result.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use engine_provider_api::{BuildStep, Step};

use super::Built;
use crate::{
    act::{ActError, Context, blocking, fill},
    process::Identity,
    store::{self, Entry, FixedWork, Room, StoreError, Work},
};

/// Directories of a working directory that is thrown away.
const HOME: &str = ".home";
const TEMPORARY: &str = ".tmp";

/// A result in the making.
pub(super) enum Site {
    /// In a directory that is thrown away; outputs are copied.
    Elsewhere(Work),
    /// Where it stays.
    InPlace(FixedWork),
}

impl Site {
    /// Empty directories for an attempt, with the texts that its commands read and, in their home,
    /// the credentials that they may use.
    pub(super) fn ready(
        &self,
        owner: Option<Identity>,
        act: &BuildStep,
        netrc: Option<&str>,
    ) -> Result<Room, StoreError> {
        let room = match self {
            Self::Elsewhere(work) => {
                let scratch = work.scratch(owner, &[HOME, TEMPORARY])?;
                Room {
                    home: scratch.join(HOME),
                    temporary: scratch.join(TEMPORARY),
                    work: scratch,
                }
            }
            Self::InPlace(work) => work.ready(owner)?,
        };
        for (name, text) in &act.inputs {
            store::write_for(&room.work, Path::new(name), text, 0o644, owner)?;
        }
        if let Some(text) = netrc {
            store::write_for(&room.home, Path::new(".netrc"), text, 0o600, owner)?;
        }
        Ok(room)
    }

    /// Makes the outputs of commands that succeeded the result.
    pub(super) async fn take(
        &self,
        context: &Context,
        step: &Step,
        act: &BuildStep,
    ) -> Result<(), ActError> {
        match self {
            Self::Elsewhere(work) => copy_outputs(context, step, act, work).await,
            Self::InPlace(_) => Ok(()),
        }
    }

    /// Checks, measures and publishes the result.
    pub(super) async fn keep(
        self,
        context: &Context,
        step: &Step,
        act: &BuildStep,
        attempt: u32,
        commits: BTreeMap<String, String>,
    ) -> Result<Entry, ActError> {
        let owner = context.run_as();
        let outputs: Vec<PathBuf> = act.outputs.iter().map(PathBuf::from).collect();
        let tools = tools(context, act);
        let labels = act.labels.clone();
        let passed_environment = context.passed_environment().into_keys().collect();
        let kept = blocking(move || -> Result<_, StoreError> {
            let tree = match &self {
                Self::Elsewhere(work) => {
                    store::seal(&work.tree())?;
                    work.tree()
                }
                Self::InPlace(work) => {
                    if let Some(missing) = work.settle(&outputs, owner, &tools)? {
                        return Ok(Err(missing));
                    }
                    work.tree()
                }
            };
            let built = Built {
                attempt,
                labels,
                passed_environment,
                commits,
                digest: store::digest_tree(&tree)?,
                size_bytes: store::size_of_tree(&tree)?,
            };
            let built = serde_json::to_value(built).expect("results are plain data");
            match self {
                Self::Elsewhere(work) => work.publish(built),
                Self::InPlace(work) => work.publish(built),
            }
            .map(Ok)
        })
        .await;
        match kept {
            Ok(Ok(entry)) => Ok(entry),
            Ok(Err(path)) => Err(missing(step, path)),
            Err(source) => Err(ActError::store(step, source)),
        }
    }
}

fn missing(step: &Step, path: PathBuf) -> ActError {
    ActError::Output {
        step: step.id.clone(),
        path,
    }
}

/// Programs that the result may link to: a virtual environment leads to its interpreter. They are
/// part of the key.
fn tools(context: &Context, act: &BuildStep) -> Vec<PathBuf> {
    fill::names(act, "tool")
        .into_iter()
        .filter_map(|name| context.tools.get(name))
        .filter_map(|tool| std::fs::canonicalize(tool.path).ok())
        .collect()
}

/// Copies the outputs into the result.
async fn copy_outputs(
    context: &Context,
    step: &Step,
    act: &BuildStep,
    work: &Work,
) -> Result<(), ActError> {
    for output in act.outputs.iter().map(PathBuf::from) {
        let (outputs, path) = (work.outputs(context.run_as()), output.clone());
        match blocking(move || outputs.take(&path)).await {
            Err(StoreError::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => {
                return Err(missing(step, output));
            }
            other => other.map_err(|source| ActError::store(step, source))?,
        }
    }
    Ok(())
}
