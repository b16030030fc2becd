//! A container image, by digest.

use engine_provider_api::{Artifact, PullImage, Step};

use super::{ActError, Context, Expected, Outlook};

pub(super) fn expected(
    _context: &Context,
    _step: &Step,
    _act: &PullImage,
) -> Result<Expected, ActError> {
    Ok(Expected {
        artifact: Artifact::default(),
        outlook: Outlook::Unsupported {
            why: "not yet".to_owned(),
        },
    })
}

pub(super) async fn run(
    _context: &Context,
    step: &Step,
    _act: &PullImage,
) -> Result<Artifact, ActError> {
    Err(ActError::Plan {
        reason: format!("`{}` cannot be done yet", step.id),
    })
}
