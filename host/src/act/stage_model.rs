//! The model: the work is the model room's.

use std::sync::Arc;

use engine_provider_api::{Artifact, StageModel, Step};

use super::{ActError, Context, Expected, Outlook};
use crate::model::{self, ModelError, Stage};

/// What the model room is given.
pub(crate) fn stage(context: &Context, act: &StageModel) -> Stage {
    model::keep_secrets_of(context.narrator.secrets(), act);
    Stage {
        store: context.store.clone(),
        net: context.net.clone(),
        narrator: context.narrator.clone(),
        cancel: context.cancel.clone(),
        base: context.base.clone(),
        run_as: context.policy.engine_identity(),
        environment: Arc::clone(&context.environment),
        models: context.models.clone(),
        unverified: context.policy.allow_unverified_model(&act.reference).err(),
        verify: context.verify,
        versions: Arc::clone(&context.model_versions),
        refresh: context.refresh_models,
        revive: false,
    }
}

pub(super) fn expected(
    context: &Context,
    step: &Step,
    act: &StageModel,
) -> Result<Expected, ActError> {
    let (artifact, outlook) =
        model::expected(&stage(context, act), act).map_err(|source| failed(step, source))?;
    let outlook = match outlook {
        model::Outlook::There => Outlook::Cached,
        model::Outlook::Unpack | model::Outlook::Copy => Outlook::Copy,
        model::Outlook::Fetch(from) => Outlook::Fetch {
            from,
            size_bytes: artifact.size_bytes,
            refused: None,
        },
        model::Outlook::Unsupported(why) => Outlook::Unsupported { why },
    };
    Ok(Expected { artifact, outlook })
}

pub(super) async fn run(
    context: &Context,
    step: &Step,
    act: &StageModel,
) -> Result<Artifact, ActError> {
    model::stage(&stage(context, act), act)
        .await
        .map_err(|source| failed(step, source))
}

pub(crate) fn failed(step: &Step, source: ModelError) -> ActError {
    if source.is_cancelled() {
        return ActError::cancelled(step);
    }
    ActError::Model {
        step: step.id.clone(),
        source: Box::new(source),
    }
}
