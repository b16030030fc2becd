//! A container image, by digest.
//!
//! The registry is asked first: digest, sizes and configuration are known, compared and checked
//! against this machine before a layer is fetched. The layers are the runtime's to pull, by the
//! digest of this platform's manifest; afterwards the runtime must show exactly that image. Then it
//! is recorded ([`ImageRecord`]), and no later run asks anybody. An image that the runtime has already,
//! whoever brought it, is recorded likewise, and no registry is asked.
//!
//! | file | job |
//! |---|---|
//! | `wanted` | what a step wants, on this machine |
//! | `fits` | whether the image can work here: driver, disk |
//! | `present` | what the runtime has already |
//! | `pull` | the runtime's command |
//! | `fault` | what its failure means |
//! | `staging` | where layers arrive |
//! | `lend` | credentials for a runtime that does not find them itself |
//! | `verify` | whether the runtime has what it was told to pull |
//! | `require_cuda` | `NVIDIA_REQUIRE_CUDA`, read |

mod error;
mod fault;
mod fits;
mod lend;
mod present;
mod pull;
mod require_cuda;
mod staging;
mod verify;
mod wanted;

use engine_provider_api::{Artifact, ArtifactState, Image, PullImage, Step};

pub use error::ImageError;
pub use fault::PullFault;
pub use wanted::Registries;
pub(crate) use wanted::Wanted;

use self::staging::Staging;
use super::{ACTOR, ActError, Context, Expected, Outlook, Turn, take_turn, turn::FLIGHT_LIMIT};
use crate::{
    container::{ImageRecord, Images, Reference, RemoteImage},
    store::{Lock, human_bytes},
};

/// What an image is obtained for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    /// Containers of it are run.
    Run,
    /// Files are taken out of it.
    Extract,
}

pub(super) fn expected(
    context: &Context,
    step: &Step,
    act: &PullImage,
) -> Result<Expected, ActError> {
    let wanted = match Wanted::new(context, &act.image) {
        Ok(wanted) => wanted,
        Err(ImageError::Runtime(error)) => {
            return Ok(Expected {
                artifact: Artifact::default(),
                outlook: Outlook::Unsupported {
                    why: error.to_string(),
                },
            });
        }
        Err(error) => return Err(ActError::image(step, error)),
    };
    let outlook = outlook(context, step, &wanted)?;
    if let Some(record) = wanted.record(context, step)? {
        return Ok(Expected {
            artifact: artifact(&wanted, &record),
            outlook,
        });
    }
    let remote = context.registries.known(&wanted);
    Ok(Expected {
        artifact: Artifact {
            digest: remote.as_ref().map(|remote| remote.digest.to_string()),
            size_bytes: remote.as_ref().map(RemoteImage::size_bytes),
            image: Some(match &remote {
                Some(remote) => wanted.image(remote),
                None => Image {
                    tag: wanted.reference.tag().map(str::to_owned),
                    ..Image::default()
                },
            }),
            ..Artifact::default()
        },
        outlook,
    })
}

/// What has to be done for an image.
pub(super) fn outlook(
    context: &Context,
    step: &Step,
    wanted: &Wanted<'_>,
) -> Result<Outlook, ActError> {
    if wanted.record(context, step)?.is_some() {
        return Ok(Outlook::Cached);
    }
    let remote = context.registries.known(wanted);
    Ok(Outlook::Fetch {
        from: vec![match &remote {
            Some(remote) => {
                let place = &remote.endpoint.reference;
                place.with_digest(&remote.digest).to_string()
            }
            None => wanted.reference.to_string(),
        }],
        size_bytes: remote.as_ref().map(RemoteImage::size_bytes),
        refused: None,
    })
}

pub(super) async fn run(
    context: &Context,
    step: &Step,
    act: &PullImage,
) -> Result<Artifact, ActError> {
    let wanted = Wanted::new(context, &act.image).map_err(|error| ActError::image(step, error))?;
    let obtained = obtain(context, step, &wanted, Purpose::Run, &act.narration.start).await?;
    Ok(artifact(&wanted, &obtained))
}

/// Sees that the runtime has the image, and gives what is known of it. `word`: the plan's own for the
/// start; empty: the host's.
pub(super) async fn obtain(
    context: &Context,
    step: &Step,
    wanted: &Wanted<'_>,
    purpose: Purpose,
    word: &str,
) -> Result<ImageRecord, ActError> {
    let here = |record: ImageRecord| {
        say_present(context, &record);
        if purpose == Purpose::Extract || !record.for_files {
            return Ok(record);
        }
        let claimed = Images::of(&context.store).claim(&record);
        claimed.map_err(|source| ActError::store(step, source))
    };
    if let Some(record) = wanted.record(context, step)? {
        return here(record);
    }
    let _flight = flight(context, step, wanted).await?;
    if let Some(record) = wanted.here(context, step).await? {
        return here(record);
    }
    let failed = |error| ActError::image(step, error);
    let remote = wanted.describe(context).await.map_err(failed)?;
    let staging = Staging::of(context, wanted).await;
    fits::check(context, step, wanted, purpose, &remote, &staging)?;
    let word = if word.is_empty() { "pull" } else { word };
    let (remote, local) = pull_from_any(context, step, wanted, remote, &staging, word).await?;
    verify::verify(context, wanted, &remote, &local)
        .await
        .map_err(failed)?;
    let names = wanted.names(&remote);
    let size_bytes = remote.size_bytes();
    let record = wanted.write_down(context, step, &remote, size_bytes, &names, purpose)?;
    let human = format!("{local} is here");
    context
        .narrator
        .say(ACTOR, "pulled", local.to_string(), human);
    Ok(record)
}

/// Pulls from the place that described the image, else from the next one that has it: a mirror may know
/// an image and not give its layers.
async fn pull_from_any(
    context: &Context,
    step: &Step,
    wanted: &Wanted<'_>,
    mut remote: RemoteImage,
    staging: &Staging,
    word: &str,
) -> Result<(RemoteImage, Reference), ActError> {
    let mut tried = Vec::new();
    loop {
        let local = wanted.local(&remote);
        let human = format!(
            "pulling {local} with {}: {}",
            wanted.runtime.name,
            human_bytes(remote.size_bytes()),
        );
        context.narrator.say(ACTOR, word, local.to_string(), human);
        context.narrator.makes();
        let Err(error) = pull::pull(context, step, wanted, &remote, &local, staging).await else {
            return Ok((remote, local));
        };
        tried.push(remote.endpoint.reference.repository());
        let next = match is_the_places_fault(&error) {
            true => wanted.elsewhere(context, &remote, &tried).await,
            false => None,
        };
        let Some(next) = next else {
            return Err(error);
        };
        let place = remote.endpoint.reference.repository();
        let human = format!("{place} did not give the image: {}", error.brief());
        context.narrator.warn(ACTOR, "mirror-failed", &place, human);
        remote = next;
    }
}

/// Whether another place may give what this one did not.
fn is_the_places_fault(error: &ActError) -> bool {
    use PullFault::{Damaged, Network, NotFound, Tls, Unauthorized};
    let ActError::Image { source, .. } = error else {
        return false;
    };
    match &**source {
        ImageError::Pull { fault, .. } => {
            matches!(fault, Damaged | Network | NotFound | Tls | Unauthorized)
        }
        _ => false,
    }
}

fn say_present(context: &Context, record: &ImageRecord) {
    let human = format!("{} is here already", record.image.reference);
    context
        .narrator
        .say(ACTOR, "cached", &record.image.reference, human);
}

fn artifact(wanted: &Wanted<'_>, record: &ImageRecord) -> Artifact {
    Artifact {
        state: ArtifactState::Obtained,
        digest: Some(record.image.digest.clone()),
        size_bytes: Some(record.size_bytes),
        image: Some(Image {
            // The same image may have been pulled by another tag.
            tag: wanted.reference.tag().map(str::to_owned),
            ..record.image.clone()
        }),
        ..Artifact::default()
    }
}

/// Takes the lock of an image: steps of several pools and hosts may want the same one.
async fn flight(context: &Context, step: &Step, wanted: &Wanted<'_>) -> Result<Lock, ActError> {
    let turn = Turn {
        of: "image",
        lock: &Images::lock_name(&wanted.reference, &wanted.platform, &wanted.storage),
        doing: &format!("pulling {}", wanted.reference),
        limit: FLIGHT_LIMIT,
        waiting: &|who| format!("{}: waiting for {who}, which pulls the same image", step.id),
    };
    take_turn(context, step, turn).await
}
