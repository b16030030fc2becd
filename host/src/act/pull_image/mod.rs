//! A container image, by digest.
//!
//! The registry is asked first: digest, sizes and configuration are known, compared and checked
//! against this machine before a layer is fetched. The layers are the runtime's to pull, by the
//! digest of this platform's manifest; afterwards the runtime must show exactly that image. Then it
//! is recorded ([`Images`]), and no later run asks anybody.
//!
//! | file | job |
//! |---|---|
//! | `wanted` | what a step wants, on this machine |
//! | `fits` | whether the image can work here: driver, disk |
//! | `pull` | the runtime's command |
//! | `fault` | what its failure means |
//! | `lend` | credentials for a runtime that does not find them itself |
//! | `verify` | whether the runtime has what it was told to pull |
//! | `require_cuda` | `NVIDIA_REQUIRE_CUDA`, read |

mod error;
mod fault;
mod fits;
mod lend;
mod pull;
mod require_cuda;
mod verify;
mod wanted;

use engine_provider_api::{Artifact, ArtifactState, Image, PullImage, Step};
use jiff::Timestamp;

pub use error::ImageError;
pub use fault::PullFault;
pub use wanted::Registries;
pub(crate) use wanted::Wanted;

use super::{ACTOR, ActError, Context, Expected, FLIGHT_LIMIT, Outlook};
use crate::{
    container::{ImageRecord, Images, RemoteImage},
    store::{self, Holder, Lock, Patience, human_bytes},
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
    })
}

pub(super) async fn run(
    context: &Context,
    step: &Step,
    act: &PullImage,
) -> Result<Artifact, ActError> {
    let wanted = Wanted::new(context, &act.image).map_err(|error| ActError::image(step, error))?;
    let record = obtain(context, step, &wanted, Purpose::Run, &act.narration.start).await?;
    Ok(artifact(&wanted, &record))
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
    if let Some(record) = wanted.record(context, step)? {
        say_present(context, &record);
        return Ok(record);
    }
    let _flight = flight(context, step, wanted).await?;
    if let Some(record) = wanted.record(context, step)? {
        say_present(context, &record);
        return Ok(record);
    }
    let failed = |error| ActError::image(step, error);
    let remote = wanted.describe(context).await.map_err(failed)?;
    fits::check(context, step, wanted, purpose, &remote)?;
    let local = wanted.local(&remote);
    let word = if word.is_empty() { "pull" } else { word };
    let human = format!(
        "pulling {local} with {}: {}",
        wanted.runtime.name,
        human_bytes(remote.size_bytes()),
    );
    context.narrator.say(ACTOR, word, local.to_string(), human);
    pull::pull(context, step, wanted, &remote, &local).await?;
    verify::verify(context, wanted, &remote, &local)
        .await
        .map_err(failed)?;
    let record = ImageRecord {
        asked: wanted.reference.to_string(),
        platform: wanted.platform.to_string(),
        storage: wanted.storage.clone(),
        index: remote.index.as_ref().map(ToString::to_string),
        configuration_digest: remote.configuration_digest.to_string(),
        size_bytes: remote.size_bytes(),
        image: wanted.image(&remote),
        pulled: Timestamp::now(),
    };
    Images::of(&context.store)
        .keep(&record, &wanted.names(&remote))
        .map_err(|source| ActError::store(step, source))?;
    let human = format!("{local} is here");
    context
        .narrator
        .say(ACTOR, "pulled", local.to_string(), human);
    Ok(record)
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
    let on_wait = |holder: Option<&Holder>| {
        let who = holder.map_or_else(|| "another process".to_owned(), ToString::to_string);
        let human = format!("{}: waiting for {who}, which pulls the same image", step.id);
        context.narrator.say(ACTOR, "wait", &step.id, human);
    };
    let patience = Patience {
        limit: FLIGHT_LIMIT,
        cancel: &context.cancel,
        on_wait: &on_wait,
    };
    let name = Images::lock_name(&wanted.reference, &wanted.platform, &wanted.storage);
    let doing = format!("pulling {}", wanted.reference);
    store::lock(&context.store.lock_path(&name), &doing, patience)
        .await
        .map_err(|source| ActError::store(step, source))
}
