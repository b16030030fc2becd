//! Releases of Triton: which image, and which driver it takes.

use engine_provider_api::{Facts, Gpu, ImageName, Pool, ProviderError};
use engine_provider_kit::{container, gpu};

use crate::options::Backend;

const REPOSITORY: &str = "nvcr.io/nvidia/tritonserver";
/// Release that is taken where a pool names none.
const RELEASE: &str = "26.07";

/// Oldest driver for an image, by NVIDIA's support matrix. An image that is not listed says itself
/// what it needs, before its layers are fetched.
const DRIVERS: &[(&str, &str)] = &[
    ("26.07-trtllm-python-py3", "590.44.01"),
    ("26.07-vllm-python-py3", "610.43.02"),
];

/// The image of a pool: that of its back end, where the pool names none.
pub(crate) fn image(pool: &Pool, backend: Option<Backend>) -> Result<ImageName, ProviderError> {
    let kind = match backend {
        Some(Backend::Vllm) => "vllm-python-py3",
        Some(Backend::TensorrtLlm) => "trtllm-python-py3",
        _ => "py3",
    };
    let usual = ImageName {
        repository: REPOSITORY.to_owned(),
        tag: Some(format!("{RELEASE}-{kind}")),
        digest: None,
    };
    container::image(pool, &usual)
}

/// Refuses a driver that is older than the image needs: 10 GB would be fetched for nothing.
pub(crate) fn check_driver(
    image: &ImageName,
    gpus: &[&Gpu],
    facts: &Facts,
) -> Result<(), ProviderError> {
    let tag = image.tag.as_deref().unwrap_or_default();
    let row = DRIVERS.iter().find(|(other, _)| *other == tag);
    let (Some((_, least)), Some(driver)) = (row, &facts.gpus.driver) else {
        return Ok(());
    };
    if gpus.is_empty() || image.repository != REPOSITORY || numbers(driver) >= numbers(least) {
        return Ok(());
    }
    let message =
        format!("{tag} of Triton needs driver {least} or newer, and this machine has {driver}");
    Err(ProviderError::unavailable(message)
        .hint(format!("update the GPU driver to {least} or newer"))
        .hint("or set `provisioning.container.tag` to an older release"))
}

fn numbers(version: &str) -> Vec<u32> {
    let number = |part: &str| part.parse().unwrap_or(0);
    version.split('.').map(number).collect()
}

/// Why these GPUs cannot be used, where they cannot.
pub(crate) fn check_vendor(gpus: &[&Gpu]) -> Result<(), ProviderError> {
    match gpus.first() {
        Some(first) if first.vendor != "nvidia" => {
            let message = format!("Triton runs on NVIDIA's GPUs, and this is {}", first.name);
            Err(gpu::allow_processor(ProviderError::unavailable(message)))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn driver_versions_are_compared_by_numbers() {
        assert!(numbers("590.48") > numbers("590.44.01"));
        assert!(numbers("610.43.02") > numbers("590.44.01"));
        assert!(numbers("1000.1") > numbers("610.43.02"));
    }
}
