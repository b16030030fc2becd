//! Access to an artifact's blobs, had again when it has ended.
//!
//! A token service is asked only after a registry has refused something: so the artifact's manifest is
//! asked for once more, by the digest that it had. What comes back proves that it is still there, and
//! its blobs are named by their digests.

use std::sync::Arc;

use futures_util::future::{BoxFuture, FutureExt as _};
use reqwest::header::AUTHORIZATION;
use tokio_util::sync::CancellationToken;

use super::{Inquirer, RegistryError, client::Wanted};
use crate::{
    config::environment::Environment,
    container::{Endpoint, Reference, Runtime},
    narrate::Secrets,
    net::{Digest, Net, NotRenewed, Renew, Source},
};

/// Who asks whom for an artifact. Its blobs, which may be fetched at the same time, share one.
pub(super) struct Access {
    net: Net,
    environment: Environment,
    secrets: Secrets,
    runtime: Runtime,
    cancel: CancellationToken,
    image: Reference,
    endpoint: Endpoint,
    manifest: Digest,
    /// What was had last, for whichever blob; held while it is had again.
    latest: tokio::sync::Mutex<Option<Source>>,
}

/// Access to one blob.
pub(super) struct BlobAccess {
    pub(super) artifact: Arc<Access>,
    pub(super) blob: Digest,
}

impl Access {
    pub(super) fn new(
        inquirer: &Inquirer<'_>,
        image: &Reference,
        endpoint: &Endpoint,
        manifest: &Digest,
    ) -> Self {
        Self {
            net: inquirer.net.clone(),
            environment: inquirer.environment.clone(),
            secrets: inquirer.secrets.clone(),
            runtime: inquirer.runtime,
            cancel: inquirer.cancel.clone(),
            image: image.clone(),
            endpoint: endpoint.clone(),
            manifest: manifest.clone(),
            latest: tokio::sync::Mutex::default(),
        }
    }

    /// Where a blob can be had: for what another blob was given since, else for something new.
    async fn source(&self, blob: &Digest, refused: &Source) -> Result<Source, RegistryError> {
        let inquirer = Inquirer {
            net: &self.net,
            environment: &self.environment,
            secrets: &self.secrets,
            runtime: self.runtime,
            cancel: &self.cancel,
        };
        let mut latest = self.latest.lock().await;
        if let Some(latest) = latest.as_ref()
            && latest.headers.get(AUTHORIZATION) != refused.headers.get(AUTHORIZATION)
        {
            return Ok(Source {
                url: refused.url.clone(),
                ..latest.clone()
            });
        }
        let mut session = inquirer.open(&self.image, &self.endpoint).await?;
        session.manifest(Wanted::Digest(&self.manifest)).await?;
        let source = session.blob(blob)?;
        *latest = Some(source.clone());
        Ok(source)
    }
}

impl Renew for BlobAccess {
    fn renew<'a>(&'a self, refused: &'a Source) -> BoxFuture<'a, Result<Source, NotRenewed>> {
        async move { Ok(self.artifact.source(&self.blob, refused).await?) }.boxed()
    }
}
