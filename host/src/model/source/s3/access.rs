//! Access to an object, had again when its URL's signature or the keys behind it have ended.

use futures_util::future::{BoxFuture, FutureExt as _};
use tokio_util::sync::CancellationToken;

use super::{
    Account, S3Error,
    bucket::{Bucket, Object},
};
use crate::{
    config::environment::Environment,
    narrate::Secrets,
    net::{Net, NotRenewed, Renew, Source},
};

/// Who asks for which object.
pub(super) struct Access {
    net: Net,
    environment: Environment,
    secrets: Secrets,
    cancel: CancellationToken,
    bucket: String,
    region: String,
    object: Object,
}

impl Access {
    pub(super) fn new(account: Account<'_>, bucket: &str, region: &str, object: &Object) -> Self {
        Self {
            net: account.net.clone(),
            environment: account.environment.clone(),
            secrets: account.secrets.clone(),
            cancel: account.cancel.clone(),
            bucket: bucket.to_owned(),
            region: region.to_owned(),
            object: object.clone(),
        }
    }

    /// Finds keys anew and asks what the object is: only the same one is signed for again.
    async fn source(&self) -> Result<Source, S3Error> {
        let account = Account {
            net: &self.net,
            environment: &self.environment,
            secrets: &self.secrets,
            cancel: &self.cancel,
        };
        let mut bucket = Bucket::open(account, &self.bucket).await?;
        bucket.be_in(&self.region);
        let Object { key, version, .. } = &self.object;
        let now = bucket.describe(key, version.as_deref()).await?;
        if now != self.object {
            return Err(S3Error::Changed {
                what: format!("s3://{}/{key}", self.bucket),
            });
        }
        bucket.source(&self.object)
    }
}

impl Renew for Access {
    fn renew<'a>(&'a self, _: &'a Source) -> BoxFuture<'a, Result<Source, NotRenewed>> {
        async move { Ok(self.source().await?) }.boxed()
    }
}
