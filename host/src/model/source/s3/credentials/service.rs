//! Services of the machine that give out keys: a container's, and an instance's metadata service.

use std::time::Duration;

use jiff::Timestamp;
use reqwest::{
    Method,
    header::{AUTHORIZATION, HeaderMap},
};
use serde::Deserialize;
use url::Url;

use super::{Signer, headers_of, read_token, secret, unasked};
use crate::{
    model::source::s3::{
        Account, S3Error,
        sign::{Key, encode},
    },
    net::{Answer, NetError},
};

/// Longest wait for a container's service.
const CONTAINER_LIMIT: Duration = Duration::from_secs(5);

/// Longest wait for each answer of the instance's metadata service. Where there is none, this is what
/// every use of a public bucket costs.
const INSTANCE_LIMIT: Duration = Duration::from_secs(1);

/// Keys as services give them out.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Given {
    access_key_id: String,
    secret_access_key: String,
    #[serde(default)]
    token: Option<String>,
    #[serde(default)]
    expiration: Option<Timestamp>,
}

fn read_given(answer: &Answer, from: &str) -> Result<Signer, S3Error> {
    let no_keys = |reason: String| S3Error::NoKeys {
        from: from.to_owned(),
        reason,
    };
    if answer.status != 200 {
        return Err(no_keys(format!("it answered {}", answer.status)));
    }
    // What the parser says beyond the place may quote a secret.
    let given: Given = serde_json::from_slice(&answer.body)
        .map_err(|error| no_keys(format!("its answer is none, line {}", error.line())))?;
    Ok(Signer {
        key: Key {
            id: given.access_key_id,
            secret: given.secret_access_key,
            token: given.token,
        },
        from: from.to_owned(),
        expires: given.expiration,
    })
}

pub(super) async fn container(account: &Account<'_>, url: &str) -> Result<Signer, S3Error> {
    let from = "the container's credential service";
    let setting = |reason: &str| S3Error::Setting {
        setting: "AWS_CONTAINER_CREDENTIALS_FULL_URI",
        reason: reason.to_owned(),
    };
    let url = Url::parse(url).map_err(|_| setting("is no URL"))?;
    let environment = account.environment;
    let token = match environment.path("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE") {
        Some(file) => Some(read_token(&file)?),
        None => environment
            .get("AWS_CONTAINER_AUTHORIZATION_TOKEN")
            .map(str::to_owned),
    };
    let mut headers = HeaderMap::new();
    if let Some(token) = token {
        account.secrets.register(&token);
        headers.insert(AUTHORIZATION, secret(&token));
    }
    let cancel = account.cancel;
    let answer = account
        .net
        .nearby(Method::GET, &url, &headers, CONTAINER_LIMIT, cancel);
    let answer = answer.await.map_err(|source| unasked(from, source))?;
    read_given(&answer, from)
}

/// Asks the metadata service (IMDSv2); `None` where there is none, or no role.
pub(super) async fn instance(account: &Account<'_>, base: &str) -> Result<Option<Signer>, S3Error> {
    let from = "the instance's metadata service";
    let url = |path: &str| {
        Url::parse(&format!("{base}/latest/{path}")).map_err(|_| S3Error::Setting {
            setting: "AWS_EC2_METADATA_SERVICE_ENDPOINT",
            reason: "is no URL".to_owned(),
        })
    };
    let ask = async |method, url: &Url, headers: &HeaderMap| {
        let cancel = account.cancel;
        account
            .net
            .nearby(method, url, headers, INSTANCE_LIMIT, cancel)
            .await
    };
    let lifetime = ("x-aws-ec2-metadata-token-ttl-seconds", "21600");
    let headers = headers_of(&[lifetime]);
    let token = match ask(Method::PUT, &url("api/token")?, &headers).await {
        Ok(answer) if answer.status == 200 => String::from_utf8_lossy(&answer.body).into_owned(),
        Err(error @ NetError::Cancelled { .. }) => return Err(unasked(from, error)),
        // Most machines are no cloud's.
        _ => return Ok(None),
    };
    account.secrets.register(&token);
    let headers = headers_of(&[("x-aws-ec2-metadata-token", token.trim())]);
    let roles = "meta-data/iam/security-credentials/";
    let asked = ask(Method::GET, &url(roles)?, &headers).await;
    let role = match asked.map_err(|source| unasked(from, source))? {
        Answer {
            status: 200, body, ..
        } => String::from_utf8_lossy(&body).into_owned(),
        _ => return Ok(None),
    };
    let role = encode(role.lines().next().unwrap_or_default().trim());
    let asked = ask(Method::GET, &url(&format!("{roles}{role}"))?, &headers).await;
    read_given(&asked.map_err(|source| unasked(from, source))?, from).map(Some)
}
