//! A program of the distribution's packages.

use engine_provider_api::{Artifact, InstallPackages, Step};

use super::{ActError, Context, Expected, Outlook};

pub(super) fn expected(
    _context: &Context,
    _step: &Step,
    _act: &InstallPackages,
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
    _act: &InstallPackages,
) -> Result<Artifact, ActError> {
    Err(ActError::Plan {
        reason: format!("`{}` cannot be done yet", step.id),
    })
}
