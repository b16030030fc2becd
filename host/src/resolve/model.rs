//! A reference to a model becomes what it is now: here already, or as its source says.

use engine_provider_api::{StageModel, Step};

use crate::{
    act::{self, ActError, Context},
    model,
    narrate::Actor,
};

/// Asks the source of a model what it is, once per run: files, sizes, digests. One that is in the catalog
/// is not asked for; where its reference may mean something else by now, it is said what it means here.
pub(super) async fn model(
    context: &Context,
    step: &Step,
    act: &StageModel,
) -> Result<(), ActError> {
    let resolved = model::resolve(&act::model_stage(context, act), act).await;
    if let Some(name) = resolved.map_err(|error| act::model_failed(step, error))? {
        let human = format!(
            "{} is {}, as resolved on {}",
            name.reference,
            name.pinned,
            name.resolved.strftime("%F")
        );
        let narrator = &context.narrator;
        narrator.say(Actor::ModelProvisioner, "resolve", &name.reference, human);
    }
    Ok(())
}
