//! Engines in containers: which image, what is mounted, what it is called afterwards.
//!
//! What every engine shares stands here; entrypoint, arguments and environment stay in its provider,
//! and name, hardening, devices and published ports are the host's.

use std::collections::BTreeMap;

use engine_provider_api::{
    Act, ImageName, Mount, Narration, Pool, PrepareRequest, ProviderError, PullImage, Step,
};

/// Step that pulls the engine's image.
pub const PULL: &str = "pull-image";
/// Version of an engine whose image has not been looked up yet.
pub const LATER: &str = "(known after pull)";
/// Least size of `/dev/shm` for engines whose processes exchange tensors through it: 1 GiB.
pub const SHM_BYTES: u64 = 1 << 30;

/// The image of a pool, with the provider's for what the pool leaves out.
///
/// A pool that names another repository names a tag or digest too: what is right for one repository
/// means nothing in another, and nothing floats. A digest without a tag stands alone.
pub fn image(pool: &Pool, usual: &ImageName) -> Result<ImageName, ProviderError> {
    let given = pool.provisioning.container.clone().unwrap_or_default();
    if let Some(repository) = &given.image {
        check_repository(repository)?;
    }
    if let Some(digest) = &given.digest {
        check_digest(digest)?;
    }
    let repository = given
        .image
        .clone()
        .unwrap_or_else(|| usual.repository.clone());
    if given.tag.is_some() || given.digest.is_some() {
        return Ok(ImageName {
            repository,
            tag: given.tag,
            digest: given.digest,
        });
    }
    if repository != usual.repository {
        let message = format!("`{repository}` is named without a tag or digest");
        let hint = "set `provisioning.container.tag`, or better `provisioning.container.digest`";
        return Err(ProviderError::invalid("provisioning.container.image", message).hint(hint));
    }
    Ok(usual.clone())
}

/// Whether the pool leaves the choice of the image to the provider.
#[must_use]
pub fn is_usual(pool: &Pool) -> bool {
    let given = pool.provisioning.container.as_ref();
    given.is_none_or(|given| given.image.is_none() && given.tag.is_none() && given.digest.is_none())
}

fn check_repository(repository: &str) -> Result<(), ProviderError> {
    let invalid = |message: String| ProviderError::invalid("provisioning.container.image", message);
    let (registry, path) = repository.split_once('/').unwrap_or(("", repository));
    if let Some((name, digest)) = repository.split_once('@') {
        return Err(invalid(format!("`{repository}` holds a digest"))
            .hint(format!("write `image: {name}` and `digest: {digest}`")));
    }
    if let Some((name, tag)) = path.split_once(':') {
        let slash = if registry.is_empty() { "" } else { "/" };
        return Err(invalid(format!("`{repository}` holds a tag")).hint(format!(
            "write `image: {registry}{slash}{name}` and `tag: {tag}`"
        )));
    }
    if !registry.contains(['.', ':']) && registry != "localhost" {
        return Err(
            invalid(format!("`{repository}` names no registry")).hint(format!(
                "write `docker.io/{repository}`, if that is where it is"
            )),
        );
    }
    Ok(())
}

fn check_digest(digest: &str) -> Result<(), ProviderError> {
    let hexadecimal = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    match digest.strip_prefix("sha256:") {
        Some(digits) if digits.len() == 64 && digits.bytes().all(hexadecimal) => Ok(()),
        _ => Err(ProviderError::invalid(
            "provisioning.container.digest",
            format!("`{digest}` is no digest"),
        )
        .hint("write `sha256:` and 64 hexadecimal digits")),
    }
}

/// The step that obtains the image.
#[must_use]
pub fn pull(image: ImageName) -> Step {
    Step {
        id: PULL.to_owned(),
        after: Vec::new(),
        act: Act::PullImage(PullImage {
            image,
            narration: Narration {
                start: "image-pull".to_owned(),
                ..Narration::default()
            },
        }),
    }
}

/// What a step obtained, at an absolute path inside. It cannot be written there.
#[must_use]
pub fn mount(step: &str, target: &str) -> Mount {
    Mount {
        source: format!("{{{step}.path}}").into(),
        target: target.to_owned(),
    }
}

/// A directory that outlives the container and can be written, at an absolute path inside.
#[must_use]
pub fn cache(name: &str, target: &str) -> Mount {
    Mount {
        source: format!("{{cache.{name}}}").into(),
        target: target.to_owned(),
    }
}

/// The digest of the image that runs; [`LATER`] while it is not known.
#[must_use]
pub fn version(request: &PrepareRequest) -> String {
    let digest = request.image(PULL).map(|image| image.digest.as_str());
    let known = digest.filter(|digest| !digest.is_empty());
    known.unwrap_or(LATER).to_owned()
}

/// What is recorded of the image, as far as it is known: `image`, `version` and `revision`, the last
/// two as the image's own labels say them.
#[must_use]
pub fn record(request: &PrepareRequest) -> BTreeMap<String, String> {
    let Some(image) = request.image(PULL) else {
        return BTreeMap::new();
    };
    let revision = image.labels.get("org.opencontainers.image.revision");
    let said = [
        ("image", Some(image.reference.as_str())),
        ("version", image.version()),
        ("revision", revision.map(String::as_str)),
    ];
    said.into_iter()
        .filter_map(|(name, value)| Some((name, value.filter(|value| !value.is_empty())?)))
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const DIGEST: &str = "sha256:1111111111111111111111111111111111111111111111111111111111111111";

    fn pool(container: serde_json::Value) -> Pool {
        let pool = json!({
            "id": "chat", "engine": "toy", "provisioning": { "container": container },
        });
        serde_json::from_value(pool).unwrap()
    }

    fn usual() -> ImageName {
        ImageName {
            repository: "docker.io/toy/toy".to_owned(),
            tag: Some("v1".to_owned()),
            digest: None,
        }
    }

    fn chosen(container: serde_json::Value) -> (String, Option<String>, bool) {
        let image = image(&pool(container), &usual()).unwrap();
        (image.repository, image.tag, image.digest.is_some())
    }

    #[test]
    fn what_a_pool_leaves_out_is_the_providers() {
        let toy = || "docker.io/toy/toy".to_owned();
        assert_eq!(chosen(json!({})), (toy(), Some("v1".to_owned()), false));
        assert_eq!(
            chosen(json!({ "tag": "v2" })),
            (toy(), Some("v2".to_owned()), false)
        );
        // The provider's tag says nothing about another digest.
        assert_eq!(chosen(json!({ "digest": DIGEST })), (toy(), None, true));
        assert!(is_usual(&pool(json!({ "runtime": "docker" }))));
        assert!(!is_usual(&pool(json!({ "tag": "v1" }))));
    }

    #[test]
    fn nothing_floats_and_every_refusal_says_what_to_write() {
        let refusal = |container: serde_json::Value| {
            let error = image(&pool(container), &usual()).unwrap_err();
            let hint = error.hints[0].text.clone();
            (error.message, hint)
        };
        let pair = |message: &str, hint: &str| (message.to_owned(), hint.to_owned());
        assert_eq!(
            refusal(json!({ "image": "localhost:5000/mine" })).0,
            "`localhost:5000/mine` is named without a tag or digest"
        );
        assert_eq!(
            refusal(json!({ "image": "ghcr.io/a/b:v3" })),
            pair(
                "`ghcr.io/a/b:v3` holds a tag",
                "write `image: ghcr.io/a/b` and `tag: v3`"
            )
        );
        assert_eq!(
            refusal(json!({ "image": "ghcr.io/a/b@sha256:1" })),
            pair(
                "`ghcr.io/a/b@sha256:1` holds a digest",
                "write `image: ghcr.io/a/b` and `digest: sha256:1`"
            )
        );
        assert_eq!(
            refusal(json!({ "image": "toy/toy", "tag": "v2" })),
            pair(
                "`toy/toy` names no registry",
                "write `docker.io/toy/toy`, if that is where it is"
            )
        );
        assert_eq!(
            refusal(json!({ "digest": "1234" })).0,
            "`1234` is no digest"
        );
    }
}
