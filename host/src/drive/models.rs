//! Models without a pool: what `host model` does.

use std::{path::Path, sync::Arc};

use engine_provider_api::{Act, Facts, Plan, StageModel, Step};

use super::Host;
use crate::{
    act,
    engine::{self, EngineError},
    model::{self, Models, Stage, Verify, catalog::InUse},
    net::Net,
    policy::Policy,
    store::Store,
};

impl Host {
    /// What staging one model needs, with the network that its reference names.
    #[must_use]
    pub fn model_stage(&self, policy: Policy, step: &StageModel, base: &Path) -> Stage {
        model::keep_secrets_of(self.narrator.secrets(), step);
        let plan = Plan {
            steps: vec![Step {
                id: "model".to_owned(),
                after: Vec::new(),
                act: Act::StageModel(step.clone()),
            }],
            ..Plan::default()
        };
        let planned = act::planned_hosts(&plan, &Facts::default(), &self.environment);
        let run_as = policy.engine_identity();
        let unverified = policy.allow_unverified_model(&step.reference).err();
        let gate = act::PlanGate::new(Arc::new(policy), planned);
        Stage {
            store: Store::open(&self.home),
            net: Net::new(&self.environment, Arc::new(gate)),
            narrator: self.narrator.clone(),
            cancel: self.cancel.clone(),
            base: base.to_owned(),
            run_as,
            environment: Arc::new(self.environment.clone()),
            models: Models::default(),
            unverified,
            verify: Verify::Changed,
            versions: Arc::default(),
            refresh: false,
            revive: true,
        }
    }

    /// What the engines of this installation read: models and results.
    pub fn paths_in_use(&self) -> Result<Vec<InUse>, EngineError> {
        let engines = engine::instances(&self.home)?;
        let uses = engines.into_iter().flat_map(|engine| {
            let pool = engine.pool_id;
            engine.uses.into_iter().map(move |path| InUse {
                path,
                pool: pool.clone(),
            })
        });
        Ok(uses.collect())
    }
}
