//! What a registry says of an image before its layers are fetched (OCI distribution specification).
//!
//! Reads manifests and configurations, never layers: those of images are the runtime's to pull, those
//! of other artifacts the transfer engine's. Everything
//! goes through `net/`, so that policy is asked about every host; everything is compared with its
//! digest before it is believed.
//!
//! | file | job |
//! |---|---|
//! | `access` | access to blobs, when it has ended |
//! | `artifact` | artifacts that are no images |
//! | `client` | one registry: its requests |
//! | `token` | proving who we are |
//! | `challenge` | what a registry asks for when it refuses |
//! | `manifest` | documents: index, manifest, configuration |
//! | `platform` | which of an index's images is this machine's |
//! | `error` | what can go wrong |

mod access;
mod artifact;
mod challenge;
mod client;
mod error;
mod manifest;
mod platform;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
mod token;

use std::collections::BTreeMap;

use tokio_util::sync::CancellationToken;

pub(crate) use artifact::RemoteArtifact;
pub use error::{PlaceFailure, RegistryError};
pub(crate) use manifest::Descriptor;
pub use platform::Platform;

use self::{
    client::{Session, Wanted},
    manifest::{Configuration, Manifest},
};
use super::{Endpoint, Reference, Registries, Runtime, credentials};
use crate::{
    config::environment::Environment,
    narrate::Secrets,
    net::{Digest, Net},
};

/// Indexes that may lie in each other.
const NESTING: usize = 3;

/// Asks registries.
#[derive(Clone, Copy)]
pub struct Inquirer<'a> {
    /// Reaches them.
    pub net: &'a Net,
    /// Where credentials and registries.conf are found.
    pub environment: &'a Environment,
    /// Told every secret.
    pub secrets: &'a Secrets,
    /// Whose own credentials come first.
    pub runtime: Runtime,
    /// Ends it.
    pub cancel: &'a CancellationToken,
}

/// An image as its registry describes it; nothing of it is here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemoteImage {
    /// The place that said so.
    pub endpoint: Endpoint,
    /// Whether that was asked without encryption.
    pub plain_http: bool,
    /// Digest of the index that lists it, where there is one.
    pub index: Option<Digest>,
    /// Digest of this platform's manifest.
    pub digest: Digest,
    /// Digest of its configuration, which podman and docker call the image's id.
    pub configuration_digest: Digest,
    /// Layers, lowest first: digest and compressed size.
    pub layers: Vec<(Digest, u64)>,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// Environment, as `NAME=value`.
    pub env: Vec<String>,
    /// User it runs as; empty: root.
    pub user: String,
    /// What it runs.
    pub entrypoint: Vec<String>,
}

impl RemoteImage {
    /// Bytes of all layers as they are fetched; a registry may say anything.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        let sizes = self.layers.iter().map(|(_, size)| *size);
        sizes.fold(0, u64::saturating_add)
    }

    /// A variable of its environment.
    #[must_use]
    pub fn variable(&self, name: &str) -> Option<&str> {
        let mut all = self.env.iter();
        all.find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='))
    }
}

impl Inquirer<'_> {
    /// Describes an image for a platform, asking mirrors and the registry in their order. With a tag
    /// the tag is asked for, whatever digest the reference has besides.
    pub async fn describe(
        &self,
        image: &Reference,
        platform: &Platform,
    ) -> Result<RemoteImage, RegistryError> {
        let endpoints = Registries::read(self.environment)?.endpoints(image)?;
        self.describe_at_first(image, endpoints, platform).await
    }

    /// The same by places whose repositories were not tried before; `None` where there are no others.
    pub async fn describe_elsewhere(
        &self,
        image: &Reference,
        platform: &Platform,
        tried: &[String],
    ) -> Result<Option<RemoteImage>, RegistryError> {
        let mut endpoints = Registries::read(self.environment)?.endpoints(image)?;
        endpoints.retain(|endpoint| !tried.contains(&endpoint.reference.repository()));
        if endpoints.is_empty() {
            return Ok(None);
        }
        let found = self.describe_at_first(image, endpoints, platform);
        found.await.map(Some)
    }

    async fn describe_at_first(
        &self,
        image: &Reference,
        endpoints: Vec<Endpoint>,
        platform: &Platform,
    ) -> Result<RemoteImage, RegistryError> {
        let mut failures = Vec::new();
        for endpoint in endpoints {
            let place = endpoint.reference.to_string();
            match self.describe_at(image, endpoint, platform).await {
                Ok(remote) => return Ok(remote),
                Err(error) if error.is_final() => return Err(error),
                Err(error) => failures.push(PlaceFailure {
                    place,
                    error: Box::new(error),
                }),
            }
        }
        Err(RegistryError::of_places(image, failures))
    }

    async fn describe_at(
        &self,
        image: &Reference,
        endpoint: Endpoint,
        platform: &Platform,
    ) -> Result<RemoteImage, RegistryError> {
        let mut session = self.open(image, &endpoint).await?;
        let Found {
            index,
            digest,
            config,
            layers,
            ..
        } = find(&mut session, image, platform).await?;
        let configuration = session.configuration(&config).await?;
        platform.check(image, &configuration)?;
        let plain_http = session.is_plain();
        Ok(remote(
            endpoint,
            plain_http,
            index,
            digest,
            &config,
            layers,
            configuration,
        ))
    }
}

impl<'a> Inquirer<'a> {
    /// Begins to ask a place, with the credentials for it.
    async fn open<'b>(
        &'b self,
        image: &Reference,
        endpoint: &'b Endpoint,
    ) -> Result<Session<'b>, RegistryError>
    where
        'a: 'b,
    {
        let found = credentials::find(
            self.environment,
            self.secrets,
            self.runtime,
            &endpoint.reference,
        )
        .await?;
        let vouched = image.hosts().into_iter().next();
        Session::new(self, endpoint, vouched, found)
    }
}

/// A manifest that is no index.
struct Found {
    index: Option<Digest>,
    digest: Digest,
    config: Descriptor,
    layers: Vec<Descriptor>,
    annotations: BTreeMap<String, String>,
}

/// The manifest for a platform, through the indexes that lead to it.
async fn find(
    session: &mut Session<'_>,
    image: &Reference,
    platform: &Platform,
) -> Result<Found, RegistryError> {
    let target = &session.endpoint.reference;
    let wanted = match (target.tag(), target.digest()) {
        (Some(tag), _) => Wanted::Tag(tag),
        (None, Some(digest)) => Wanted::Digest(digest),
        (None, None) => Wanted::Tag("latest"),
    };
    let (mut manifest, mut digest) = session.manifest(wanted).await?;
    let mut index = None;
    for _ in 0..NESTING {
        let Manifest::Index(entries) = &manifest else {
            break;
        };
        let entry = platform.choose(image, entries)?.digest.clone();
        index = index.or(Some(digest));
        (manifest, digest) = session.manifest(Wanted::Digest(&entry)).await?;
    }
    match manifest {
        Manifest::Image {
            config,
            layers,
            annotations,
        } => Ok(Found {
            index,
            digest,
            config,
            layers,
            annotations,
        }),
        Manifest::Index(_) => Err(RegistryError::Malformed {
            what: target.to_string(),
            reason: "its indexes lie in each other too deeply".to_owned(),
        }),
    }
}

fn remote(
    endpoint: Endpoint,
    plain_http: bool,
    index: Option<Digest>,
    digest: Digest,
    config: &Descriptor,
    layers: Vec<Descriptor>,
    configuration: Configuration,
) -> RemoteImage {
    let run = configuration.config;
    RemoteImage {
        endpoint,
        plain_http,
        index,
        digest,
        configuration_digest: config.digest.clone(),
        layers: layers
            .into_iter()
            .map(|layer| (layer.digest, layer.size))
            .collect(),
        labels: run.labels.unwrap_or_default(),
        env: run.env.unwrap_or_default(),
        user: run.user,
        entrypoint: run.entrypoint.unwrap_or_default(),
    }
}
