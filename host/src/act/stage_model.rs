//! The model: the work is the model room's.

use engine_provider_api::{Artifact, StageModel, Step};

use super::{ActError, Context, Expected, Outlook};
use crate::model::{self, ModelError, Stage};

fn stage(context: &Context) -> Stage {
    Stage {
        store: context.store.clone(),
        net: context.net.clone(),
        narrator: context.narrator.clone(),
        cancel: context.cancel.clone(),
        base: context.base.clone(),
        run_as: context.policy.engine_identity(),
    }
}

pub(super) fn expected(
    context: &Context,
    step: &Step,
    act: &StageModel,
) -> Result<Expected, ActError> {
    let (artifact, outlook) =
        model::expected(&stage(context), act).map_err(|source| failed(step, source))?;
    let outlook = match outlook {
        model::Outlook::There => Outlook::Cached,
        model::Outlook::Unpack | model::Outlook::Copy => Outlook::Copy,
        model::Outlook::Fetch(url) => Outlook::Fetch {
            from: vec![url],
            size_bytes: artifact.size_bytes,
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
    model::stage(&stage(context), act)
        .await
        .map_err(|source| failed(step, source))
}

fn failed(step: &Step, source: ModelError) -> ActError {
    if source.is_cancelled() {
        return ActError::cancelled(step);
    }
    ActError::Model {
        step: step.id.clone(),
        source: Box::new(source),
    }
}
