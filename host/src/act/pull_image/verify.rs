//! Whether the runtime has what it was told to pull.

use serde::Deserialize;

use super::{ImageError, Wanted, present};
use crate::{
    act::Context,
    container::{Reference, RemoteImage},
};

/// What a runtime shows of an image; podman and docker agree on these.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
struct Shown {
    id: String,
    repo_digests: Option<Vec<String>>,
}

/// Asks the runtime for the image by its digest and compares what it shows.
pub(super) async fn verify(
    context: &Context,
    wanted: &Wanted<'_>,
    remote: &RemoteImage,
    local: &Reference,
) -> Result<(), ImageError> {
    let unverified = |reason: String| ImageError::Unverified {
        image: local.to_string(),
        runtime: wanted.runtime.name.clone(),
        reason,
    };
    let answer = present::inspect(context, wanted, local)
        .await
        .map_err(|error| unverified(crate::narrate::chain(&error)))?;
    if !answer.exited.success() {
        let last = answer.stderr.lines().next_back().unwrap_or_default();
        return Err(unverified(last.to_owned()));
    }
    compare(&answer.stdout, remote, local).map_err(unverified)
}

fn compare(shown: &str, remote: &RemoteImage, local: &Reference) -> Result<(), String> {
    let shown: Vec<Shown> = serde_json::from_str(shown)
        .map_err(|error| format!("its answer cannot be understood: {error}"))?;
    let Some(shown) = shown.into_iter().next() else {
        return Err("it shows no such image".to_owned());
    };
    // Podman's own `.Digest` may be another repository's or the index's.
    let digests = shown.repo_digests.unwrap_or_default();
    let has_digest = digests
        .iter()
        .any(|name| Reference::parse(name).is_ok_and(|name| name == *local));
    if !has_digest {
        return Err(format!("it knows it as {}", digests.join(", ")));
    }
    // The id is the digest of the configuration; docker's newer store uses the manifest's.
    let id = shown.id.strip_prefix("sha256:").unwrap_or(&shown.id);
    let known = [
        Some(&remote.configuration_digest),
        Some(&remote.digest),
        remote.index.as_ref(),
    ];
    if known.into_iter().flatten().any(|digest| digest.hex() == id) {
        return Ok(());
    }
    Err(format!(
        "its id is {id}, and the registry says {}",
        remote.configuration_digest
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{container::Endpoint, net::Digest};

    fn digest(digit: &str) -> Digest {
        Digest::parse(&format!("sha256:{}", digit.repeat(64))).unwrap()
    }

    fn remote() -> RemoteImage {
        RemoteImage {
            endpoint: Endpoint {
                reference: Reference::parse("a/b:1").unwrap(),
                insecure: false,
            },
            plain_http: false,
            index: None,
            digest: digest("a"),
            configuration_digest: digest("c"),
            layers: Vec::new(),
            labels: Default::default(),
            env: Vec::new(),
            user: String::new(),
            entrypoint: Vec::new(),
        }
    }

    fn compared(id: &str, names: &[&str]) -> Result<(), String> {
        let shown = serde_json::json!([{"Id": id, "RepoDigests": names, "Digest": "sha256:x"}]);
        let local = Reference::parse("a/b").unwrap().with_digest(&digest("a"));
        compare(&shown.to_string(), &remote(), &local)
    }

    #[test]
    fn sizes_that_no_image_has_are_added_without_harm() {
        let layers = vec![(digest("b"), u64::MAX), (digest("d"), 5)];
        let remote = RemoteImage { layers, ..remote() };
        assert_eq!(remote.size_bytes(), u64::MAX);
    }

    #[test]
    fn the_asked_repository_must_have_the_digest_and_the_id_must_fit() {
        let (a, b, c) = ("a".repeat(64), "b".repeat(64), "c".repeat(64));
        let name = format!("a/b@sha256:{a}");
        assert_eq!(compared(&c, &[&name]), Ok(()));
        assert_eq!(
            compared(&format!("sha256:{c}"), &[&format!("docker.io/{name}")]),
            Ok(())
        );
        assert_eq!(compared(&format!("sha256:{a}"), &["x/y@z", &name]), Ok(()));
        assert!(compared(&b, &[&name]).unwrap_err().contains("its id is"));
        assert!(compared(&c, &[&format!("other/b@sha256:{a}")]).is_err());
        assert!(compared(&c, &[&format!("a/b@sha256:{b}")]).is_err());
        assert!(compare("[]", &remote(), &Reference::parse("a/b").unwrap()).is_err());
        assert!(compare("", &remote(), &Reference::parse("a/b").unwrap()).is_err());
    }
}
