//! STS, which gives keys for roles: to who signs for it with keys of its own, or has a token of another
//! identity (AWS Security Token Service API reference, `AssumeRole`, `AssumeRoleWithWebIdentity`).

use std::path::Path;

use jiff::Timestamp;
use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderValue};

use super::{LIMIT_BYTES, Signer, read_token, unasked};
use crate::{
    model::source::s3::{
        Account, S3Error, document,
        settings::Settings,
        sign::{self, Key, Scope},
    },
    net::{Ask, Trust, form},
};

/// What we call ourselves where nobody says how.
const SESSION: &str = "engine-host";

const VERSION: (&str, &str) = ("Version", "2011-06-15");

/// A role to take on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Role {
    pub(super) arn: String,
    pub(super) session: Option<String>,
    /// What its owner wants to hear besides.
    pub(super) external_id: Option<String>,
    /// How long the keys are to last.
    pub(super) seconds: Option<String>,
}

/// A token of another identity, for which a role's keys are given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct WebIdentity {
    /// Path of the file that holds it; renewed there by whoever wrote it.
    pub(super) token_file: String,
    pub(super) role: String,
    pub(super) session: Option<String>,
}

/// Takes on a role with keys.
pub(super) async fn assume(
    account: &Account<'_>,
    settings: &Settings,
    base: &Signer,
    role: &Role,
) -> Result<Signer, S3Error> {
    let from = format!("role {}, taken on with {}", role.arn, base.from);
    let session = role.session.as_deref().unwrap_or(SESSION);
    let mut pairs = vec![
        ("Action", "AssumeRole"),
        VERSION,
        ("RoleArn", &role.arn),
        ("RoleSessionName", session),
    ];
    pairs.extend(role.external_id.as_deref().map(|id| ("ExternalId", id)));
    let seconds = role.seconds.as_deref();
    pairs.extend(seconds.map(|seconds| ("DurationSeconds", seconds)));
    let url = settings.sts()?;
    let text = form(&pairs);
    let kind = HeaderValue::from_static("application/x-www-form-urlencoded");
    let mut headers = HeaderMap::from_iter([(CONTENT_TYPE, kind)]);
    let scope = Scope {
        service: "sts",
        region: &settings.region,
        at: Timestamp::now(),
    };
    let request = ("POST", &url);
    sign::sign(&base.key, scope, request, &mut headers, text.as_bytes());
    ask(account, settings, from, &headers, &text).await
}

/// Exchanges a token for keys.
pub(super) async fn exchange(
    account: &Account<'_>,
    settings: &Settings,
    identity: &WebIdentity,
) -> Result<Signer, S3Error> {
    let token = read_token(Path::new(&identity.token_file))?;
    account.secrets.register(&token);
    let text = form(&[
        ("Action", "AssumeRoleWithWebIdentity"),
        VERSION,
        ("RoleArn", &identity.role),
        (
            "RoleSessionName",
            identity.session.as_deref().unwrap_or(SESSION),
        ),
        ("WebIdentityToken", &token),
    ]);
    let from = format!("web identity for {}", identity.role);
    ask(account, settings, from, &HeaderMap::new(), &text).await
}

async fn ask(
    account: &Account<'_>,
    settings: &Settings,
    from: String,
    headers: &HeaderMap,
    text: &str,
) -> Result<Signer, S3Error> {
    let url = settings.sts()?;
    let ask = Ask {
        url: &url,
        named_by: None,
        headers,
        trust: Trust::Transport,
        limit_bytes: LIMIT_BYTES,
    };
    let answer = account.net.submit(&ask, text, account.cancel).await;
    let answer = answer.map_err(|source| unasked(&from, source))?;
    if answer.status != 200 {
        let refused = document::read_refused(&answer.body);
        let reason = format!("{} {}: {}", answer.status, refused.code, refused.message);
        return Err(S3Error::NoKeys { from, reason });
    }
    let get = |name| {
        document::find(&answer.body, name).ok_or_else(|| S3Error::NoKeys {
            from: from.clone(),
            reason: format!("its answer has no {name}"),
        })
    };
    Ok(Signer {
        key: Key {
            id: get("AccessKeyId")?,
            secret: get("SecretAccessKey")?,
            token: Some(get("SessionToken")?),
        },
        expires: get("Expiration")?.parse().ok(),
        from,
    })
}
