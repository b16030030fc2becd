//! A tag becomes the digest it has: here already, or as its registry says, or, where that says nothing,
//! as the runtime has it.

use engine_provider_api::{Act, ExtractImage, ImageName, Plan, PullImage, Step};

use super::Answer;
use crate::{
    act::{ActError, Context, ImageError, WantedImage},
    container::ImageRecord,
    fault::{Exit, Fault as _},
    narrate::Actor,
};

/// The digest of an image's tag, and the advice to pin it. An image that the runtime has is not
/// asked for; of any other the registry says, once per run, what it is and how large.
pub(super) async fn image(
    context: &Context,
    step: &Step,
    name: &ImageName,
) -> Result<Option<Answer>, ActError> {
    let wanted = match WantedImage::new(context, name) {
        Ok(wanted) => wanted,
        // The step itself says so, in its place.
        Err(ImageError::Runtime(_)) => return Ok(None),
        Err(error) => return Err(ActError::image(step, error)),
    };
    let by_tag = context.refresh_images && wanted.reference.digest().is_none();
    let known = match wanted.reference.digest() {
        // What has a digest is the same image wherever it is.
        Some(_) => wanted.here(context, step).await?,
        None => wanted.record(context, step)?,
    };
    let digest = match known {
        Some(record) if !by_tag => record.image.digest,
        _ => match wanted.describe(context).await {
            Ok(remote) => remote.digest.to_string(),
            Err(error) => match here_by_tag(context, step, &wanted, &error).await? {
                Some(record) => record.image.digest,
                None => return Err(ActError::image(step, error)),
            },
        },
    };
    if wanted.reference.digest().is_some() {
        return Ok(None);
    }
    wanted.resolved_to(context, &digest);
    let tagged = wanted.reference.to_string();
    let tag = wanted.reference.tag().unwrap_or_default();
    let human = format!("{tagged} is {digest}");
    context
        .narrator
        .say(Actor::EngineProvisioner, "resolve", &tagged, human);
    let advice = format!(
        "tag `{tag}` of {} may name another image tomorrow; to keep this one, write \
         `digest: {digest}` in the pool's container settings",
        wanted.reference.repository()
    );
    Ok(Some(Answer::Image { digest, advice }))
}

/// The image that the runtime has by this tag, where its registry may not be asked, or not reached.
async fn here_by_tag(
    context: &Context,
    step: &Step,
    wanted: &WantedImage<'_>,
    error: &ImageError,
) -> Result<Option<ImageRecord>, ActError> {
    let unasked = matches!(error.exit(), Exit::Refused | Exit::Network);
    if !unasked || context.refresh_images || wanted.reference.digest().is_some() {
        return Ok(None);
    }
    wanted.here(context, step).await
}

/// Sees which of a plan's images the runtime has already, though this home did not pull them, so that
/// they count as present. Asks no registry.
pub async fn look_here(context: &Context, plan: &Plan) -> Result<(), ActError> {
    for step in &plan.steps {
        let (Act::PullImage(PullImage { image, .. })
        | Act::ExtractImage(ExtractImage { image, .. })) = &step.act
        else {
            continue;
        };
        // One without a runtime says so itself, in its place.
        if let Ok(wanted) = WantedImage::new(context, image)
            && wanted.reference.digest().is_some()
        {
            wanted.here(context, step).await?;
        }
    }
    Ok(())
}
