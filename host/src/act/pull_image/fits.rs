//! Whether an image can work here, before its gigabytes are fetched.

use std::path::PathBuf;

use engine_provider_api::{GpuPolicy, Step};

use super::{
    ImageError, Purpose, Wanted,
    require_cuda::{Machine, Verdict, judge},
    staging::Staging,
};
use crate::{
    act::{ACTOR, ActError, Context},
    container::{self, Images, RemoteImage},
    store,
};

/// Refuses what cannot work; warns of what may not.
pub(super) fn check(
    context: &Context,
    step: &Step,
    wanted: &Wanted<'_>,
    purpose: Purpose,
    remote: &RemoteImage,
    staging: &Staging,
) -> Result<(), ActError> {
    if purpose == Purpose::Run {
        devices(context, wanted).map_err(|error| ActError::image(step, error))?;
    }
    driver(context, wanted, remote).map_err(|error| ActError::image(step, error))?;
    let storage = PathBuf::from(&wanted.storage);
    let mut places = std::iter::once(storage).chain(staging.place(context));
    let found = places.find_map(|place| no_space(wanted, remote, place));
    let told = found.map_or(Ok(()), |error| space(context, wanted, error));
    told.map_err(|error| ActError::image(step, error))
}

/// Whether the runtime can give the pool's GPUs to a container.
fn devices(context: &Context, wanted: &Wanted<'_>) -> Result<(), ImageError> {
    if context.pool.gpu != GpuPolicy::Require {
        return Ok(());
    }
    let gpus = container::gpus_of(&context.pool, &context.facts);
    container::gpu_arguments(wanted.runtime, &context.facts, &gpus)
        .map(|_| ())
        .map_err(ImageError::Runtime)
}

/// What the image asks of the driver.
fn driver(context: &Context, wanted: &Wanted<'_>, remote: &RemoteImage) -> Result<(), ImageError> {
    let gpus = &context.facts.gpus;
    let uses_gpus = context.pool.gpu != GpuPolicy::Forbid && !gpus.devices.is_empty();
    let switched_off = remote
        .variable("NVIDIA_DISABLE_REQUIRE")
        .is_some_and(|value| matches!(value, "1" | "true"));
    let Some(requires) = remote.variable("NVIDIA_REQUIRE_CUDA") else {
        return Ok(());
    };
    if !uses_gpus || switched_off {
        return Ok(());
    }
    let machine = Machine {
        cuda: gpus.cuda.as_deref(),
        driver: gpus.driver.as_deref(),
    };
    let Verdict::Refused { needs, has } = judge(requires, &machine) else {
        return Ok(());
    };
    let error = ImageError::Driver {
        image: wanted.local(remote).to_string(),
        needs,
        has,
    };
    if context.pool.gpu == GpuPolicy::Require {
        return Err(error);
    }
    let human = format!("{error}; it may not see the GPU");
    context
        .narrator
        .warn(ACTOR, "notice", &context.pool_id, human);
    Ok(())
}

/// Whether a place cannot take the image. Layers are kept unpacked, which takes at least what they take
/// compressed, and compressed where they arrive.
fn no_space(wanted: &Wanted<'_>, remote: &RemoteImage, place: PathBuf) -> Option<ImageError> {
    let needed_bytes = remote.size_bytes();
    // That of a daemon elsewhere is not here.
    let is_here = place.is_absolute() && place.exists();
    let free_bytes = store::free_bytes(&place).filter(|_| is_here)?;
    (free_bytes < needed_bytes).then(|| ImageError::Space {
        image: wanted.local(remote).to_string(),
        place,
        needed_bytes,
        free_bytes,
    })
}

/// Some layers may be here already where the runtime has another image of the repository: then there is
/// only a warning.
fn space(context: &Context, wanted: &Wanted<'_>, error: ImageError) -> Result<(), ImageError> {
    if !Images::of(&context.store).has_relative(&wanted.reference, &wanted.storage) {
        return Err(error);
    }
    let human = format!("{error}, unless layers of it are there already");
    context
        .narrator
        .warn(ACTOR, "notice", &context.pool_id, human);
    Ok(())
}
