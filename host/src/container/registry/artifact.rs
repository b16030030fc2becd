//! Artifacts that are no images, models above all: a manifest whose layers are files.

use std::{collections::BTreeMap, sync::Arc};

use super::{
    Descriptor, Found, Inquirer, PlaceFailure, Platform, RegistryError,
    access::{Access, BlobAccess},
    find,
    manifest::CONFIGURATION_LIMIT_BYTES,
};
use crate::{
    container::{Endpoint, Reference, Registries},
    net::{Digest, Renewal, Source},
};

/// An artifact as its registry describes it; nothing of it is here.
#[derive(Debug, Clone)]
pub(crate) struct RemoteArtifact {
    /// Digest of its manifest.
    pub(crate) digest: Digest,
    /// Its configuration, where it is a kind that is read.
    pub(crate) config: Option<Vec<u8>>,
    /// What it is made of, each with where it can be had.
    pub(crate) layers: Vec<(Descriptor, Source)>,
    /// What its manifest says besides.
    pub(crate) annotations: BTreeMap<String, String>,
}

impl Inquirer<'_> {
    /// Describes an artifact, asking mirrors and the registry in their order. A digest is asked for as
    /// it is, whatever tag the reference has besides. Of an index, the artifact for this platform, else
    /// the one that is for none. Configurations of kinds that `reads` accepts come with it.
    ///
    /// What the sources carry to prove who we are is valid for some minutes; they are renewed.
    pub(crate) async fn artifact(
        &self,
        artifact: &Reference,
        platform: &Platform,
        reads: fn(&str) -> bool,
    ) -> Result<RemoteArtifact, RegistryError> {
        let artifact = match artifact.digest() {
            Some(digest) => artifact.with_digest(digest),
            None => artifact.clone(),
        };
        let registries = Registries::read(self.environment)?;
        let mut failures = Vec::new();
        for endpoint in registries.endpoints(&artifact)? {
            match self
                .artifact_at(&artifact, &endpoint, platform, reads)
                .await
            {
                Ok(remote) => return Ok(remote),
                Err(error) if error.is_final() => return Err(error),
                Err(error) => failures.push(PlaceFailure {
                    place: endpoint.reference.to_string(),
                    error: Box::new(error),
                }),
            }
        }
        Err(RegistryError::of_places(&artifact, failures))
    }

    async fn artifact_at(
        &self,
        artifact: &Reference,
        endpoint: &Endpoint,
        platform: &Platform,
        reads: fn(&str) -> bool,
    ) -> Result<RemoteArtifact, RegistryError> {
        let mut session = self.open(artifact, endpoint).await?;
        let Found {
            digest,
            config,
            layers,
            annotations,
            ..
        } = find(&mut session, artifact, platform).await?;
        let read = reads(&config.media_type) && config.size <= CONFIGURATION_LIMIT_BYTES;
        let body = match read {
            true => Some(session.small_blob(&config).await?),
            false => None,
        };
        let access = Arc::new(Access::new(self, artifact, endpoint, &digest));
        let layers: Result<_, RegistryError> = layers
            .into_iter()
            .map(|layer| {
                let mut source = session.blob(&layer.digest)?;
                source.renewal = Some(Renewal::new(BlobAccess {
                    artifact: Arc::clone(&access),
                    blob: layer.digest.clone(),
                }));
                Ok((layer, source))
            })
            .collect();
        Ok(RemoteArtifact {
            digest,
            config: body,
            layers: layers?,
            annotations,
        })
    }
}
