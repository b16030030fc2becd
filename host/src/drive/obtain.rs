//! From a plan to results, and to an engine that can be started.

use std::{sync::Arc, time::Instant};

use engine_provider_api::{Act, Facts, Plan, PreparedEngine, Step};

use super::{
    Chosen, DriveError, Host, Planned, Request,
    again::Made,
    plan::{artifacts_of, prepare},
    room,
};
use crate::{
    act::{self, Artifacts, Outlook},
    container::Images,
    fault::Failure,
    narrate::{Actor, Narrator, Work},
    resolve,
};

const ACTOR: Actor = Actor::EngineProvisioner;

/// An engine with everything it needs, not started.
pub struct Obtained {
    /// The pool, its policy, its provider.
    pub chosen: Chosen,
    /// The engine as it is started.
    pub engine: PreparedEngine,
    /// What the steps gave.
    pub artifacts: Artifacts,
    /// The machine as it was planned for.
    pub facts: Facts,
    /// What its steps were given.
    pub(super) context: act::Context,
    /// What it was made of.
    pub(super) made: Arc<Made>,
}

impl Host {
    /// Carries out a plan: everything is obtained, verified and cached, nothing is started.
    pub async fn obtain(
        &self,
        mut planned: Planned,
        request: &Request,
    ) -> Result<Obtained, Failure> {
        if planned.foreign {
            return Err(DriveError::ForeignFacts.into());
        }
        let narrator = planned.chosen.narrator.clone();
        let span = narrator.begin(Work::Prepare, "", &planned.chosen.wanted.pool.id);
        planned.tell_as(span.narrator());
        let mut obtained = Box::pin(self.obtain_within(planned, request)).await;
        if let Ok(obtained) = &mut obtained {
            let version = obtained.engine.engine_version.clone();
            let known = |narrator: &Narrator| {
                let narrator = narrator.with(|it| it.engine_version = Some(version.clone()));
                narrator.concerns();
                narrator
            };
            known(span.narrator());
            obtained.chosen.narrator = known(&narrator);
            obtained.context.narrator = obtained.chosen.narrator.clone();
        }
        span.end(obtained.as_ref().err().map(|failure| &**failure));
        obtained
    }

    async fn obtain_within(
        &self,
        planned: Planned,
        request: &Request,
    ) -> Result<Obtained, Failure> {
        let start = Instant::now();
        let narrator = planned.chosen.narrator.clone();
        let pool = planned.chosen.wanted.pool.id.clone();
        tell(&planned);
        let told = planned.warnings();
        let Planned { pins, context, .. } = &planned;
        pins.need_no_network(context, &planned.plan, &planned.expected)?;
        refuse_hopeless(&planned).await?;
        let planned = self.with_tools(planned, request).await?;
        let (plan, _) = resolve::plan(&planned.context, &planned.plan).await?;
        refuse_what_cannot_fit(&planned, &plan).await?;
        let artifacts = act::run_all(&planned.context, &plan).await?;
        let engine = prepare(&planned.chosen, &planned.facts, &plan, artifacts.clone()).await?;
        for warning in engine
            .warnings
            .iter()
            .filter(|warning| !told.contains(warning))
        {
            narrator.warn(ACTOR, "notice", &pool, warning);
        }
        let human = format!("engine {} is prepared", engine.engine_version);
        narrator.done(ACTOR, "complete", &pool, human, start.elapsed());
        let made = Made::new(
            request,
            planned.chosen.wanted.clone(),
            planned.pins,
            [planned.written, plan],
        );
        Ok(Obtained {
            made: Arc::new(made),
            chosen: planned.chosen,
            engine,
            artifacts,
            facts: planned.facts,
            context: planned.context,
        })
    }

    /// Obtains what was obtained before once more, since its runtime has this image no longer: it was
    /// removed behind our back. Everything else is still there and costs nothing.
    pub(super) async fn obtain_again(
        &self,
        obtained: &Obtained,
        image: &str,
    ) -> Result<(PreparedEngine, Artifacts), Failure> {
        let narrator = &obtained.chosen.narrator;
        let human = format!("{image} was removed since it was pulled: pulling it again");
        narrator.warn(ACTOR, "image-gone", image, human);
        Images::of(&obtained.context.store).forget(image)?;
        let plan = &obtained.made.resolved;
        let artifacts = act::run_all(&obtained.context, plan).await?;
        let engine = prepare(&obtained.chosen, &obtained.facts, plan, artifacts.clone()).await?;
        Ok((engine, artifacts))
    }

    /// Sees to the tools first. A machine that got new ones is looked at and planned for again: a
    /// provider may plan otherwise with Ninja and a compiler than without.
    async fn with_tools(&self, planned: Planned, request: &Request) -> Result<Planned, Failure> {
        let missing = planned.plan.steps.iter().filter(|step| {
            matches!(step.act, Act::RequireTools(_))
                && planned.expected[&step.id].outlook != Outlook::Cached
        });
        let mut installed = false;
        for step in missing {
            act::run(&planned.context, step, &Artifacts::new()).await?;
            installed = true;
        }
        if installed {
            self.plan(planned.chosen, request).await
        } else {
            Ok(planned)
        }
    }
}

/// Refuses a model that the GPUs have no room for, where its source has only now said what it is: the plan
/// did not ask, or not wait.
async fn refuse_what_cannot_fit(planned: &Planned, plan: &Plan) -> Result<(), Failure> {
    let is_news = |step: &Step| {
        let expected = &planned.expected[&step.id];
        matches!(step.act, Act::StageModel(_))
            && expected.artifact.model.is_none()
            && matches!(expected.outlook, Outlook::Fetch { .. })
    };
    if !plan.steps.iter().any(is_news) {
        return Ok(());
    }
    let Planned { chosen, facts, .. } = planned;
    let artifacts = artifacts_of(&act::expected(&planned.context, plan)?);
    let engine = prepare(chosen, facts, plan, artifacts.clone()).await?;
    let crowded = room::check(&engine, plan, &chosen.wanted.pool, facts, &artifacts);
    crowded.map_err(DriveError::NoRoom)?;
    Ok(())
}

/// Lets a step that cannot succeed fail before anything else is done.
async fn refuse_hopeless(planned: &Planned) -> Result<(), Failure> {
    let hopeless = |step: &&Step| {
        let outlook = &planned.expected[&step.id].outlook;
        matches!(
            outlook,
            Outlook::Unsupported { .. }
                | Outlook::Refused { .. }
                | Outlook::Fetch {
                    refused: Some(_),
                    ..
                }
                | Outlook::Install { allowed: false, .. }
        )
    };
    let inputs = artifacts_of(&planned.expected);
    for step in planned.plan.steps.iter().filter(hopeless) {
        act::run(&planned.context, step, &inputs).await?;
    }
    Ok(())
}

/// Tells what is about to be done and what was decided.
fn tell(planned: &Planned) {
    let pool = &planned.chosen.wanted.pool;
    let narrator = &planned.chosen.narrator;
    let human = format!(
        "pool {}: {} from {}, model {}",
        pool.id, pool.engine, planned.chosen.mode, planned.engine.model.id
    );
    narrator.say(ACTOR, "start", &pool.id, human);
    for warning in planned.warnings() {
        narrator.warn(ACTOR, "notice", &pool.id, warning);
    }
}
