//! An image that the runtime has though this home did not pull it: somebody's own `podman pull`, an
//! archive that was loaded where there is no network, another home's.
//!
//! The runtime is asked by digest, or by the tag where no registry says what that is now. What it shows
//! is all that is known then: no sizes of layers, and no index, whose digest a runtime shows like any
//! other.

use std::{collections::BTreeMap, time::Duration};

use engine_provider_api::Step;
use jiff::Timestamp;
use serde::Deserialize;

use super::{Purpose, Wanted, verify};
use crate::{
    act::{ActError, Context},
    container::{self, Endpoint, ImageRecord, Images, Reference, Registries, RemoteImage, Runtime},
    net::Digest,
    process::{self, Answer, ProcessError, Question},
};

/// Longest time that a runtime may take to show an image.
const LIMIT: Duration = Duration::from_secs(60);

/// What a runtime shows of an image; podman and docker agree on these.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
struct Shown {
    id: String,
    repo_digests: Option<Vec<String>>,
    os: String,
    architecture: String,
    variant: String,
    size: u64,
    config: Configured,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
struct Configured {
    user: String,
    env: Option<Vec<String>>,
    entrypoint: Option<Vec<String>>,
    labels: Option<BTreeMap<String, String>>,
}

impl Wanted<'_> {
    /// What is known of the image, asked of the runtime where nothing is written down; what it shows
    /// is written down. `None`: it is not here.
    pub(crate) async fn here(
        &self,
        context: &Context,
        step: &Step,
    ) -> Result<Option<ImageRecord>, ActError> {
        if let Some(record) = self.record(context, step)? {
            return Ok(Some(record));
        }
        let Some((remote, size_bytes)) = self.look(context).await else {
            return Ok(None);
        };
        let names = match self.reference.digest() {
            // What its tag is has been compared with nothing.
            Some(digest) if context.registries.known(self).is_none() => {
                vec![self.reference.with_digest(digest)]
            }
            _ => self.names(&remote),
        };
        // Somebody else's: it stays, whatever it is used for here.
        self.write_down(context, step, &remote, size_bytes, &names, Purpose::Run)
            .map(Some)
    }

    /// Writes down that the runtime has the image, under these names, and what it was brought for.
    pub(super) fn write_down(
        &self,
        context: &Context,
        step: &Step,
        remote: &RemoteImage,
        size_bytes: u64,
        names: &[Reference],
        purpose: Purpose,
    ) -> Result<ImageRecord, ActError> {
        let record = ImageRecord {
            asked: self.reference.to_string(),
            platform: self.platform.to_string(),
            storage: self.storage.clone(),
            index: remote.index.as_ref().map(ToString::to_string),
            configuration_digest: remote.configuration_digest.to_string(),
            size_bytes,
            image: self.image(remote),
            pulled: Timestamp::now(),
            for_files: purpose == Purpose::Extract,
        };
        Images::of(&context.store)
            .keep(&record, names)
            .map_err(|source| ActError::store(step, source))?;
        Ok(record)
    }

    /// Asks the runtime; a runtime that does not answer has no image as far as this goes.
    async fn look(&self, context: &Context) -> Option<(RemoteImage, u64)> {
        // What the registry has said during this run is more than the runtime shows.
        if let Some(remote) = context.registries.known(self) {
            let local = self.local(&remote);
            let verified = verify::verify(context, self, &remote, &local).await;
            let size_bytes = remote.size_bytes();
            return verified.is_ok().then_some((remote, size_bytes));
        }
        for place in self.places(context) {
            let name = match self.reference.digest() {
                Some(digest) => place.with_digest(digest),
                None => place.clone(),
            };
            let Ok(answer) = inspect(context, self, &name).await else {
                continue;
            };
            let shown = parse(&answer.stdout).filter(|_| answer.exited.success());
            let found = shown.and_then(|shown| self.understood(shown, place));
            if found.is_some() {
                return found;
            }
        }
        None
    }

    /// What the runtime may know the image as: docker knows it by the place that it was pulled from.
    fn places(&self, context: &Context) -> Vec<Reference> {
        let mut places = vec![self.reference.clone()];
        if Runtime::of(self.runtime) == Runtime::Docker {
            let endpoints = Registries::read(&context.environment)
                .and_then(|registries| registries.endpoints(&self.reference))
                .unwrap_or_default();
            let others = endpoints.into_iter().map(|endpoint| endpoint.reference);
            places.extend(others.filter(|other| *other != self.reference));
        }
        places
    }

    /// The image that is shown, where it is the one that is wanted, for this machine, and has a digest
    /// by which it can be run.
    fn understood(&self, shown: Shown, place: Reference) -> Option<(RemoteImage, u64)> {
        if !self
            .platform
            .runs(&shown.os, &shown.architecture, &shown.variant)
        {
            return None;
        }
        let names = shown.repo_digests.unwrap_or_default();
        let digest = names
            .iter()
            .filter_map(|name| Reference::parse(name).ok())
            .filter(|name| name.repository() == place.repository())
            .filter_map(|name| name.digest().cloned())
            .find(|digest| {
                self.reference
                    .digest()
                    .is_none_or(|wanted| wanted == digest)
            })?;
        let id = shown.id.strip_prefix("sha256:").unwrap_or(&shown.id);
        let remote = RemoteImage {
            endpoint: Endpoint {
                reference: place,
                insecure: false,
            },
            plain_http: false,
            index: None,
            digest,
            configuration_digest: Digest::parse(&format!("sha256:{id}")).ok()?,
            layers: Vec::new(),
            labels: shown.config.labels.unwrap_or_default(),
            env: shown.config.env.unwrap_or_default(),
            user: shown.config.user,
            entrypoint: shown.config.entrypoint.unwrap_or_default(),
        };
        Some((remote, shown.size))
    }
}

/// Asks the runtime what it has of this name.
pub(super) async fn inspect(
    context: &Context,
    wanted: &Wanted<'_>,
    name: &Reference,
) -> Result<Answer, ProcessError> {
    let question = Question {
        program: wanted.runtime.path.clone().into(),
        args: ["image", "inspect", &name.to_string()]
            .map(str::to_owned)
            .to_vec(),
        env: container::environment(&context.environment),
        identity: None,
        limit: LIMIT,
    };
    process::ask(&question).await
}

fn parse(shown: &str) -> Option<Shown> {
    let all: Vec<Shown> = serde_json::from_str(shown).ok()?;
    all.into_iter().next()
}

#[cfg(test)]
mod tests {
    use engine_provider_api::ContainerRuntime;
    use serde_json::{Value, json};

    use super::*;
    use crate::container::Platform;

    fn understood(asked: &str, shown: Value) -> Option<(RemoteImage, u64)> {
        let runtime = ContainerRuntime::default();
        let reference = Reference::parse(asked).unwrap();
        let wanted = Wanted {
            reference: reference.clone(),
            runtime: &runtime,
            platform: Platform::of_machine("x86_64"),
            storage: "/s".to_owned(),
        };
        wanted.understood(parse(&json!([shown]).to_string())?, reference)
    }

    fn shown() -> Value {
        let (one, two) = ("1".repeat(64), "2".repeat(64));
        json!({
            "Id": "c".repeat(64),
            "RepoDigests": [format!("other.test/x@sha256:{one}"), format!("a.test/b@sha256:{two}")],
            "Os": "linux", "Architecture": "amd64", "Size": 5,
            "Config": {"User": "2000:0", "Env": null, "Entrypoint": ["/x"], "Labels": {"l": "v"}},
        })
    }

    #[test]
    fn what_a_runtime_shows_is_the_image_where_name_digest_and_platform_are() {
        let two = "2".repeat(64);
        for asked in [
            "a.test/b:1".to_owned(),
            format!("a.test/b@sha256:{two}"),
            format!("a.test/b:1@sha256:{two}"),
        ] {
            let (image, size) = understood(&asked, shown()).unwrap();
            assert_eq!((image.digest.hex(), size), (two.as_str(), 5), "{asked}");
            assert_eq!((image.user.as_str(), &*image.labels["l"]), ("2000:0", "v"));
            assert_eq!(image.entrypoint, ["/x"]);
        }
        let one = format!("a.test/b@sha256:{}", "1".repeat(64));
        assert_eq!(understood(&one, shown()), None);
        let mut elsewhere = shown();
        elsewhere["Architecture"] = json!("arm64");
        assert_eq!(understood("a.test/b:1", elsewhere), None);
        // One that was loaded without a digest cannot be run by one.
        let mut without = shown();
        without["RepoDigests"] = json!([]);
        assert_eq!(understood("a.test/b:1", without), None);
    }
}
