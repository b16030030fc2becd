//! A model behind a URL: fetched once, verified, trusted by digest or by first use.

use std::{path::PathBuf, time::Duration};

use engine_provider_api::Artifact;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use url::Url;

use super::{
    ACTOR, ModelError, Outlook, Request, Stage, Staged, blocking, builtin::lock_blob, state,
};
use crate::{
    net::{self, Digest, NetError, Transfer},
    store::{self, Blob, SCHEMA, StoreError},
};

/// Longest wait for another process that stages the same model.
pub(super) const FLIGHT_LIMIT: Duration = Duration::from_secs(6 * 60 * 60);

/// What a URL gave the first time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct FirstUse {
    url: String,
    sha256: String,
    /// The SHA-512 that was expected and held, where one was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    sha512: Option<String>,
    fetched: jiff::Timestamp,
}

pub(super) fn expected(request: &Request, url: &Url) -> Result<(Artifact, Outlook), ModelError> {
    let sha256 = known_sha256(request, url)?;
    let blob = match &sha256 {
        Some(sha256) => request
            .store
            .blob(sha256)
            .map_err(|source| request.failed(source))?,
        None => None,
    };
    let artifact = Artifact {
        state: state(blob.is_some()),
        path: sha256.as_ref().map(|sha256| {
            let path = request.store.blob_path(sha256);
            path.to_string_lossy().into_owned()
        }),
        digest: sha256.map(|sha256| format!("sha256:{sha256}")),
        size_bytes: blob.as_ref().map(|blob| blob.size_bytes),
        ..Artifact::default()
    };
    let outlook = match blob {
        Some(_) => Outlook::There,
        None => Outlook::Fetch(net::shown(url)),
    };
    Ok((artifact, outlook))
}

pub(super) async fn stage(
    stage: &Stage,
    request: &Request,
    url: &Url,
) -> Result<Staged, ModelError> {
    if let Some(password) = url.password() {
        stage.narrator.secrets().register(password);
    }
    let failed = |source| request.failed(source);
    let known = known_sha256(request, url)?;
    let name = known.clone().unwrap_or_else(|| url_name(url));
    let _lock = lock_blob(stage, request, &name).await.map_err(failed)?;
    // Whoever held the lock may have fetched it.
    let known = known_sha256(request, url)?;
    let store = request.store.clone();
    let sha256 = known.clone();
    let there = blocking(move || sha256.map_or(Ok(None), |sha256| store.blob(&sha256)))
        .await
        .map_err(failed)?;
    let blob = match there {
        Some(blob) => blob,
        None => fetch(stage, request, url, known.as_deref(), &name).await?,
    };
    if let Some(identity) = stage.run_as {
        store::ensure_reachable(&blob.path, identity).map_err(failed)?;
    }
    Ok(blob.into())
}

async fn fetch(
    stage: &Stage,
    request: &Request,
    url: &Url,
    known: Option<&str>,
    name: &str,
) -> Result<Blob, ModelError> {
    let target = net::shown(url);
    let narrator = &stage.narrator;
    narrator.say(ACTOR, "download", &target, format!("downloading {target}"));
    let failed = |source| request.failed(source);
    let first = known.map(|sha256| Digest::Sha256(sha256.to_owned()));
    let transfer = Transfer {
        url: url.clone(),
        named_by: None,
        digest: request.digest.clone().or(first),
        size_bytes: None,
        limit_bytes: None,
        partial: request.store.prepare_partial(name).map_err(failed)?,
        task: "download".to_owned(),
    };
    let start = std::time::Instant::now();
    let fetched = match stage.net.fetch(&transfer, narrator, &stage.cancel).await {
        Ok(fetched) => fetched,
        Err(error) => return Err(failure(request, url, error)),
    };
    let size = store::human_bytes(fetched.size_bytes);
    let human = format!("downloaded {size} from {target}");
    narrator.done(ACTOR, "downloaded", &target, human, start.elapsed());
    match &transfer.digest {
        Some(digest) => {
            narrator.say(ACTOR, "verify", &target, format!("comparing with {digest}"));
            narrator.say(ACTOR, "verified", &target, format!("{target} is {digest}"));
        }
        None => narrator.warn(
            ACTOR,
            "verify",
            &target,
            format!(
                "no checksum was given: trusting what {target} gave now; to make sure, set \
                 `provisioning.model.checksum: sha256:{}`",
                fetched.sha256
            ),
        ),
    }
    keep(request, url, fetched, &target).await.map_err(failed)
}

/// Publishes what was fetched, then writes down what the URL gave.
async fn keep(
    request: &Request,
    url: &Url,
    fetched: net::Fetched,
    origin: &str,
) -> Result<Blob, StoreError> {
    let first = FirstUse {
        url: origin.to_owned(),
        sha256: fetched.sha256.clone(),
        sha512: match &request.digest {
            Some(Digest::Sha512(hex)) => Some(hex.clone()),
            _ => None,
        },
        fetched: jiff::Timestamp::now(),
    };
    let record = record_path(request, url);
    let store = request.store.clone();
    let origin = origin.to_owned();
    blocking(move || {
        let blob = store.publish_blob(&fetched.path, &fetched.sha256, &origin)?;
        store::write_document(&record, SCHEMA, 0o644, &first)?;
        Ok(blob)
    })
    .await
}

fn failure(request: &Request, url: &Url, source: NetError) -> ModelError {
    let wrong = matches!(source, NetError::Mismatch { .. } | NetError::Size { .. });
    if wrong && request.digest.is_none() {
        ModelError::Changed {
            url: net::shown(url),
            record: record_path(request, url),
            source: Box::new(source),
        }
    } else {
        ModelError::Net {
            reference: request.reference.to_string(),
            source: Box::new(source),
        }
    }
}

/// The SHA-256 that the model must have, or had the first time.
fn known_sha256(request: &Request, url: &Url) -> Result<Option<String>, ModelError> {
    if let Some(Digest::Sha256(sha256)) = &request.digest {
        return Ok(Some(sha256.clone()));
    }
    let first: Option<FirstUse> = store::read_document(&record_path(request, url), SCHEMA)
        .map_err(|source| request.failed(source))?;
    let wanted = request.digest.as_ref().map(Digest::hex);
    Ok(first
        .filter(|first| wanted.is_none() || wanted == first.sha512.as_deref())
        .map(|first| first.sha256))
}

fn record_path(request: &Request, url: &Url) -> PathBuf {
    let name = format!("url-{}.json", url_name(url));
    request.store.blobs().join(name)
}

fn url_name(url: &Url) -> String {
    store::hex(&Sha256::digest(url.as_str().as_bytes()))[..32].to_owned()
}
