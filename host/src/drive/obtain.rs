//! From a plan to results, and to an engine that can be started.

use std::time::Instant;

use engine_provider_api::{Act, Facts, Plan, PreparedEngine, Step};

use super::{
    Chosen, DriveError, Host, Planned, Request,
    plan::{artifacts_of, prepare},
};
use crate::{
    act::{self, Artifacts, Outlook},
    container::Images,
    fault::Failure,
    narrate::Actor,
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
    /// The plan that was carried out.
    plan: Plan,
    /// What its steps were given.
    context: act::Context,
}

impl Host {
    /// Carries out a plan: everything is obtained, verified and cached, nothing is started.
    pub async fn obtain(&self, planned: Planned, request: &Request) -> Result<Obtained, Failure> {
        if planned.foreign {
            return Err(DriveError::ForeignFacts.into());
        }
        let start = Instant::now();
        let narrator = planned.chosen.narrator.clone();
        let pool = planned.chosen.wanted.pool.id.clone();
        tell(&planned);
        let told = planned.warnings();
        refuse_hopeless(&planned).await?;
        let planned = self.with_tools(planned, request).await?;
        let (plan, _) = resolve::plan(&planned.context, &planned.plan).await?;
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
        Ok(Obtained {
            chosen: planned.chosen,
            engine,
            artifacts,
            facts: planned.facts,
            plan,
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
        let artifacts = act::run_all(&obtained.context, &obtained.plan).await?;
        let engine = prepare(
            &obtained.chosen,
            &obtained.facts,
            &obtained.plan,
            artifacts.clone(),
        )
        .await?;
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

/// Lets a step that cannot succeed fail before anything else is done.
async fn refuse_hopeless(planned: &Planned) -> Result<(), Failure> {
    let hopeless = |step: &&Step| {
        let outlook = &planned.expected[&step.id].outlook;
        matches!(
            outlook,
            Outlook::Unsupported { .. }
                | Outlook::Refused { .. }
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
