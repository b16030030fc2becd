//! A tag becomes the digest it has: here already, or as its registry says.

use engine_provider_api::{ImageName, Plan, Step};

use crate::{
    act::{ActError, Context, ImageError, WantedImage},
    narrate::Actor,
};

/// Gives an image its digest and a plan the advice to pin it. An image that the runtime has is not
/// asked for; of any other the registry says, once per run, what it is and how large.
pub(super) async fn image(
    context: &Context,
    step: &Step,
    name: &ImageName,
    plan: &mut Plan,
) -> Result<Option<String>, ActError> {
    let wanted = match WantedImage::new(context, name) {
        Ok(wanted) => wanted,
        // The step itself says so, in its place.
        Err(ImageError::Runtime(_)) => return Ok(None),
        Err(error) => return Err(ActError::image(step, error)),
    };
    let digest = match wanted.record(context, step)? {
        Some(record) => record.image.digest,
        None => {
            let described = wanted.describe(context).await;
            let remote = described.map_err(|error| ActError::image(step, error))?;
            remote.digest.to_string()
        }
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
    plan.warnings.push(format!(
        "tag `{tag}` of {} may name another image tomorrow; to keep this one, write \
         `digest: {digest}` in the pool's container settings",
        wanted.reference.repository()
    ));
    Ok(Some(digest))
}
