//! One file per kind of step: what a plan names is done here, and nowhere else.
//!
//! | file | step | result |
//! |---|---|---|
//! | `require_tools` | `require-tools` | tools found, installed where that is allowed |
//! | `checkout` | `checkout` | a source tree at one commit |
//! | `download` | `download` | a file, or what was in an archive |
//! | `build` | `build` | the outputs of commands |
//! | `observe` | `observe` | what a program printed |
//! | `stage_model` | `stage-model` | the model file |
//! | `pull_image` | `pull-image` | a container image, by digest |
//! | `extract_image` | `extract-image` | files out of a container image |
//! | `install_packages` | `install-packages` | a program of the distribution's packages |
//!
//! [`expected`] says what a plan would give and what it would cost, doing nothing; [`run_all`] does
//! it: independent steps at the same time, the first failure ends the others with everything they
//! started. Both compute the same keys, so that a plan that was shown is the plan carried out.
//! Every file whose results are kept has a table of what its key is made of.

mod build;
mod check;
mod checkout;
mod command;
mod context;
mod credentials;
mod dag;
mod described;
mod download;
mod error;
mod extract_image;
mod fill;
mod git;
mod install_packages;
mod logs;
mod meter;
mod observe;
mod packages;
mod permit;
mod pull_image;
mod require_tools;
mod spare;
mod stage_model;
mod turn;

use std::collections::BTreeMap;

use engine_provider_api::{Act, Artifact, Plan, Step};

pub use check::check;
pub use command::CommandFailure;
pub use context::{Context, FindTool, Toolbox};
pub use dag::run_all;
pub use described::{Described, described};
pub use error::{ActError, MirrorFailure, MissingTool};
pub use logs::Logs;
pub(crate) use permit::allowed_hosts;
pub use permit::{PlanGate, planned_hosts};
pub use pull_image::{ImageError, PullFault, Registries};

pub(crate) use extract_image::clear_extractions;
pub(crate) use install_packages::{candidate as package_candidate, refresh_command};
pub(crate) use pull_image::Wanted as WantedImage;

pub(crate) use stage_model::{failed as model_failed, stage as model_stage};

pub(crate) use checkout::is_full_commit;
pub(crate) use git::{Git, Scheme, list_command, scheme_of, shown};
#[cfg(feature = "cli")]
pub(crate) use packages::Family;
pub use packages::PackageError;
pub(crate) use packages::is_at_least;

use turn::{Turn, begin, begin_in_place, take_turn};

use crate::{
    narrate::{Actor, Work},
    store::{self, Ingredients, Kind, Miss},
};

const ACTOR: Actor = Actor::EngineProvisioner;

/// Results by step.
pub type Artifacts = BTreeMap<String, Artifact>;

/// What a step would give and cost.
#[derive(Debug, Clone, PartialEq)]
pub struct Expected {
    /// The result, as far as it can be known.
    pub artifact: Artifact,
    /// What has to be done for it.
    pub outlook: Outlook,
}

/// What has to be done for a result.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
#[serde(tag = "do", rename_all = "kebab-case")]
pub enum Outlook {
    /// Nothing: it is there.
    Cached,
    /// It is fetched from one of these, best first.
    Fetch {
        /// URLs.
        from: Vec<String>,
        /// Bytes to fetch, where that is known.
        size_bytes: Option<u64>,
        /// Policy lets none of these be reached, and why, in one line: carrying out the plan fails here.
        #[serde(skip_serializing_if = "Option::is_none")]
        refused: Option<String>,
    },
    /// It is made by commands.
    Build {
        /// What changed since it was made the last time; `None`: it was never made here.
        because: Option<String>,
    },
    /// Packages are installed.
    Install {
        /// Tools that are missing.
        tools: Vec<String>,
        /// Packages that carry them.
        packages: Vec<String>,
        /// Whether that is allowed.
        allowed: bool,
    },
    /// Tools are missing and nothing says which package carries them.
    Missing {
        /// The tools.
        tools: Vec<String>,
    },
    /// A program is run for what it prints.
    Run,
    /// A file is copied or written into the store.
    Copy,
    /// Nothing: it is not here, and all that is made of it is.
    Spared,
    /// Policy does not allow it: carrying out the plan fails here, before anything else is done.
    Refused {
        /// What is not allowed and what would allow it, in one line.
        why: String,
    },
    /// It cannot be had: carrying out the plan fails here, before anything else is done.
    Unsupported {
        /// Why, in one line.
        why: String,
    },
}

/// Says what a step would give, from what earlier steps gave or would give. Does nothing.
pub fn expected_of(
    context: &Context,
    step: &Step,
    inputs: &Artifacts,
) -> Result<Expected, ActError> {
    let mut expected = match &step.act {
        Act::RequireTools(act) => require_tools::expected(context, act),
        Act::Checkout(act) => checkout::expected(context, step, act)?,
        Act::Download(act) => download::expected(context, step, act)?,
        Act::Build(act) => build::expected(context, step, act, inputs)?,
        Act::Observe(act) => observe::expected(context, step, act, inputs)?,
        Act::StageModel(act) => stage_model::expected(context, step, act)?,
        Act::PullImage(act) => pull_image::expected(context, step, act)?,
        Act::ExtractImage(act) => extract_image::expected(context, step, act)?,
        Act::InstallPackages(act) => install_packages::expected(context, act)?,
    };
    if let Outlook::Fetch { refused, .. } = &mut expected.outlook {
        *refused = permit::refused_fetch(context, step);
    }
    Ok(expected)
}

/// Says what every step of a plan would give. Does nothing.
pub fn expected(context: &Context, plan: &Plan) -> Result<BTreeMap<String, Expected>, ActError> {
    let order = check(plan)?;
    let mut artifacts = Artifacts::new();
    let mut all = BTreeMap::new();
    for index in order.order() {
        let step = &plan.steps[*index];
        let expected = expected_of(context, step, &artifacts)?;
        artifacts.insert(step.id.clone(), expected.artifact.clone());
        all.insert(step.id.clone(), expected);
    }
    for source in spare::spared(plan, &order, &all) {
        let expected = all.get_mut(&plan.steps[source].id);
        expected.expect("every step is expected").outlook = Outlook::Spared;
    }
    Ok(all)
}

/// Does one step, given what earlier steps gave.
pub async fn run(context: &Context, step: &Step, inputs: &Artifacts) -> Result<Artifact, ActError> {
    let span = context
        .narrator
        .begin(Work::Step, step.act.kind(), &step.id);
    let context = Context {
        narrator: span.narrator().clone(),
        ..context.clone()
    };
    span.end_with(carry_out(&context, step, inputs).await)
}

async fn carry_out(
    context: &Context,
    step: &Step,
    inputs: &Artifacts,
) -> Result<Artifact, ActError> {
    match &step.act {
        Act::RequireTools(act) => require_tools::run(context, step, act).await,
        Act::Checkout(act) => checkout::run(context, step, act).await,
        Act::Download(act) => download::run(context, step, act).await,
        Act::Build(act) => build::run(context, step, act, inputs).await,
        Act::Observe(act) => observe::run(context, step, act, inputs).await,
        Act::StageModel(act) => stage_model::run(context, step, act).await,
        Act::PullImage(act) => pull_image::run(context, step, act).await,
        Act::ExtractImage(act) => extract_image::run(context, step, act).await,
        Act::InstallPackages(act) => install_packages::run(context, step, act).await,
    }
}

/// Why a result is not there, in one line for `because`.
fn why(context: &Context, kind: Kind, step: &Step, ingredients: &Ingredients) -> Option<String> {
    match context
        .store
        .explain(kind, &context.name_of(step), ingredients)
    {
        Miss::First => None,
        changed => changed.reason(),
    }
}

/// Publishes finished work, away from the tasks: it is synced to disk.
async fn publish(
    step: &Step,
    work: store::Work,
    result: impl serde::Serialize,
) -> Result<crate::store::Entry, ActError> {
    let result = serde_json::to_value(result).expect("results are plain data");
    blocking(move || work.publish(result))
        .await
        .map_err(|source| ActError::store(step, source))
}

/// Runs something that reads or writes whole trees, away from the tasks.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(work)
        .await
        .expect("reading and writing files does not panic")
}

#[cfg(test)]
pub(crate) mod tests;
