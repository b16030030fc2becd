//! All steps of a plan, independent ones at the same time.

use std::collections::BTreeSet;

use engine_provider_api::{Act, Artifact, Plan, Step};
use futures_util::stream::{FuturesUnordered, StreamExt as _};

use super::{
    ACTOR, ActError, Artifacts, Context, blocking, build, check, clear_extractions, run, spare,
};

/// Carries a plan out; gives the result of every step. Sources that are not needed are not fetched: what is
/// given of them is what they would be.
///
/// The first failure cancels the rest: their process trees are gone before it is returned. What was
/// finished until then stays in the store.
pub async fn run_all(context: &Context, plan: &Plan) -> Result<Artifacts, ActError> {
    let order = check(plan)?;
    let context = Context {
        cancel: context.cancel.child_token(),
        ..context.clone()
    };
    sweep(&context).await;
    let mut waiting: BTreeSet<usize> = (0..plan.steps.len()).collect();
    let mut done: BTreeSet<usize> = BTreeSet::new();
    let mut artifacts = Artifacts::new();
    for (source, artifact) in spare::take(&context, plan, &order).await? {
        waiting.remove(&source);
        done.insert(source);
        artifacts.insert(plan.steps[source].id.clone(), artifact);
    }
    let mut running = FuturesUnordered::new();
    let mut failure: Option<ActError> = None;
    loop {
        if failure.is_none() {
            let ready: Vec<usize> = waiting
                .iter()
                .copied()
                .filter(|step| order.needs(*step).is_subset(&done))
                .collect();
            for number in ready {
                waiting.remove(&number);
                let (context, inputs) = (context.clone(), artifacts.clone());
                let step = &plan.steps[number];
                running.push(async move { (number, told(&context, step, &inputs).await) });
            }
        }
        match running.next().await {
            None => break,
            Some((number, Ok(artifact))) => {
                done.insert(number);
                artifacts.insert(plan.steps[number].id.clone(), artifact);
            }
            Some((_, Err(error))) => {
                context.cancel.cancel();
                // What was merely cancelled says nothing about why.
                if failure.as_ref().is_none_or(ActError::is_cancelled) {
                    failure = Some(error);
                }
            }
        }
    }
    match failure {
        Some(error) => Err(error),
        None => {
            // What commands of a killed host still wrote to at the start.
            sweep(&context).await;
            Ok(artifacts)
        }
    }
}

/// Removes what crashed runs left. What cannot be removed is in nobody's way.
async fn sweep(context: &Context) {
    let store = context.store.clone();
    let _ = blocking(move || store.sweep()).await;
    clear_extractions(&context.home).await;
}

/// Runs a step and tells its failure.
async fn told(context: &Context, step: &Step, inputs: &Artifacts) -> Result<Artifact, ActError> {
    if context.cancel.is_cancelled() {
        return Err(ActError::cancelled(step));
    }
    let result = run(context, step, inputs).await;
    if let Err(error) = &result
        && !error.is_cancelled()
        && let Some(action) = failed_word(step, error)
    {
        context.narrator.fail(ACTOR, &action, &step.id, error);
    }
    result
}

/// The word for a step that failed; the model room tells its own failures.
fn failed_word(step: &Step, error: &ActError) -> Option<String> {
    let given = |word: &str, own: &str| Some(if word.is_empty() { own } else { word }.to_owned());
    match (&step.act, error) {
        (Act::StageModel(_), _) => None,
        (Act::Build(act), ActError::Command { failure, .. }) => {
            Some(build::failed_word(act, &failure.id))
        }
        (Act::Build(_), _) => given("", "build-failed"),
        (Act::Checkout(act), _) => given(&act.narration.failed, "checkout-failed"),
        (Act::Download(act), _) => given(&act.narration.failed, "download-failed"),
        (Act::RequireTools(_), _) => given("", "preflight-failed"),
        (Act::Observe(_), _) => given("", "observe-failed"),
        (Act::PullImage(act), _) => given(&act.narration.failed, "pull-failed"),
        (Act::ExtractImage(act), _) => given(&act.narration.failed, "extract-failed"),
        (Act::InstallPackages(act), _) => given(&act.narration.failed, "install-failed"),
    }
}
