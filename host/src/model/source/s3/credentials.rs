//! Whose keys requests are signed with: looked for where AWS's own tools look, never asked for.
//!
//! | order | place |
//! |---|---|
//! | 1 | `AWS_NO_SIGN_REQUEST`: none |
//! | 2 | `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`, `AWS_SESSION_TOKEN`, unless `AWS_PROFILE` is set beside them |
//! | 3 | a web identity: `AWS_WEB_IDENTITY_TOKEN_FILE` and `AWS_ROLE_ARN`, exchanged at STS |
//! | 4 | the profile: its role (`role_arn`), the credentials file, its program (`credential_process`), the configuration |
//! | 5 | a container's service: `AWS_CONTAINER_CREDENTIALS_RELATIVE_URI` or `…_FULL_URI` |
//! | 6 | the instance's metadata service, unless `AWS_EC2_METADATA_DISABLED` |
//!
//! A role is taken on at STS by whoever its profile names: another profile, which may have a role of its
//! own, the environment, the container, the instance, or a web identity. Single sign-on and second
//! factors need a person and AWS's own tools.
//!
//! Without keys anywhere requests are not signed, which public buckets accept. Every secret is
//! registered before it is used.
//!
//! | file | job |
//! |---|---|
//! | `way` | which of these it is, without asking anybody |
//! | `service` | a container's and an instance's service |
//! | `sts` | roles and web identities |
//! | `program` | `credential_process` |

mod program;
mod service;
mod sts;
mod way;

use std::{fs, path::Path};

use futures_util::future::{BoxFuture, FutureExt as _};
use jiff::Timestamp;
use reqwest::header::{HeaderMap, HeaderValue};
use url::Url;

use self::way::Way;
use super::{Account, S3Error, profile::Profile, settings::Settings, sign::Key};
use crate::net::NetError;

/// Longest answer of a service that gives out keys.
const LIMIT_BYTES: u64 = 1 << 20;

/// Keys and where they are from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Signer {
    pub(super) key: Key,
    /// Where they are from, in words.
    pub(super) from: String,
    /// When they are no longer valid.
    pub(super) expires: Option<Timestamp>,
}

/// Hosts that are asked for keys.
pub(super) fn hosts(account: &Account<'_>, profile: &Profile, settings: &Settings) -> Vec<String> {
    let mut hosts = Vec::new();
    let mut add = |url: Option<Url>| {
        hosts.extend(url.and_then(|url| url.host_str().map(str::to_owned)));
    };
    let mut way = way::find(account.environment, profile).ok();
    while let Some(step) = way.take() {
        match step {
            Way::Container(url) | Way::Instance(url) => add(Url::parse(&url).ok()),
            Way::WebIdentity(_) => add(settings.sts().ok()),
            Way::Role { by, .. } => {
                add(settings.sts().ok());
                way = Some(*by);
            }
            Way::Nobody | Way::Known(_) | Way::Program { .. } => {}
        }
    }
    hosts
}

/// Finds the keys; `None`: requests are not signed.
pub(super) async fn find(
    account: &Account<'_>,
    profile: &Profile,
    settings: &Settings,
) -> Result<Option<Signer>, S3Error> {
    let way = way::find(account.environment, profile)?;
    follow(account, settings, &way).await
}

fn follow<'a>(
    account: &'a Account<'_>,
    settings: &'a Settings,
    way: &'a Way,
) -> BoxFuture<'a, Result<Option<Signer>, S3Error>> {
    async move {
        let signer = match way {
            Way::Nobody => None,
            Way::Known(signer) => Some(signer.clone()),
            Way::WebIdentity(identity) => Some(sts::exchange(account, settings, identity).await?),
            Way::Role { role, by } => {
                let base = follow(account, settings, by).await?;
                let base = base.ok_or_else(|| S3Error::NoKeys {
                    from: by.to_string(),
                    reason: format!("there are none to take on {} with", role.arn),
                })?;
                Some(sts::assume(account, settings, &base, role).await?)
            }
            Way::Program { from, command } => {
                let asked = program::ask(account.environment, from, command);
                let asked = account.cancel.run_until_cancelled(asked).await;
                let url = from.clone();
                Some(asked.ok_or_else(|| unasked(from, NetError::Cancelled { url }))??)
            }
            Way::Container(url) => Some(service::container(account, url).await?),
            Way::Instance(url) => service::instance(account, url).await?,
        };
        if let Some(signer) = &signer {
            account.secrets.register(&signer.key.secret);
            let tokens = signer.key.token.iter();
            tokens.for_each(|token| account.secrets.register(token));
        }
        Ok(signer)
    }
    .boxed()
}

fn read_token(file: &Path) -> Result<String, S3Error> {
    match fs::read_to_string(file) {
        Ok(text) => Ok(text.trim().to_owned()),
        Err(source) => Err(S3Error::Unreadable {
            path: file.to_owned(),
            source,
        }),
    }
}

fn headers_of(pairs: &[(&'static str, &str)]) -> HeaderMap {
    pairs
        .iter()
        .map(|(name, value)| (name.parse().expect("names are constants"), secret(value)))
        .collect()
}

/// A header that no log shows. What cannot stand in a header is left out, and refused then.
fn secret(text: &str) -> HeaderValue {
    let mut value = HeaderValue::from_str(text).unwrap_or(HeaderValue::from_static(""));
    value.set_sensitive(true);
    value
}

fn unasked(from: &str, source: NetError) -> S3Error {
    S3Error::Service {
        from: from.to_owned(),
        source: Box::new(source),
    }
}

#[cfg(test)]
mod tests;
