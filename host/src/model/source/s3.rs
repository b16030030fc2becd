//! Objects of S3 and of servers that speak its protocol: `s3://BUCKET/KEY`, `s3://BUCKET/PREFIX/`.
//!
//! Endpoint, region and keys come from where AWS's own tools look. What is asked here is small: what
//! an object is, and what a prefix has. Files are fetched like any other, from URLs that carry their
//! signature and are valid for some hours. An own signer of a hundred lines does that; a client
//! library would open connections past the policy's gate, and bring a second HTTP client.
//!
//! | file | job |
//! |---|---|
//! | `profile` | files of AWS's tools |
//! | `settings` | endpoint, region, URLs |
//! | `credentials` | whose keys |
//! | `sign` | signatures |
//! | `document` | answers in XML |
//! | `access` | signatures that have ended |
//! | `bucket` | the conversation with one bucket |
//! | `below` | what lies below a prefix |
//! | `error` | what can go wrong |
//!
//! An object's digest is the SHA-256 that its server keeps, where it keeps one of the whole object.
//! Else its version or its `ETag` says whether it is still the same, and its first content is trusted.
//! What lies below a prefix is had again in the versions that a lock file has, whatever was added, replaced
//! or deleted there since.

mod access;
mod below;
mod bucket;
mod credentials;
mod document;
mod error;
mod profile;
mod settings;
mod sign;

use engine_provider_api::ModelShape;
use futures_util::{StreamExt as _, stream};
use tokio_util::sync::CancellationToken;

pub use self::error::S3Error;
use self::{
    bucket::{Bucket, Object},
    profile::Profile,
    settings::Settings,
};
use super::{NoChoice, Place, RemoteFile, Resolved, inside::is_inside, missing_parts, parts_of};
use crate::{
    config::environment::Environment,
    model::ModelError,
    narrate::Secrets,
    net::{Digest, Net},
};

/// Objects that are asked about at the same time.
const AT_ONCE: usize = 8;

/// What asking needs.
#[derive(Clone, Copy)]
struct Account<'a> {
    net: &'a Net,
    environment: &'a Environment,
    secrets: &'a Secrets,
    cancel: &'a CancellationToken,
}

/// Hosts that are asked for an object, and for the keys to it. Settings that cannot be read name none;
/// resolving says what is wrong with them.
pub(crate) fn hosts(environment: &Environment, bucket: &str) -> Vec<String> {
    let account = Account {
        // Nothing is asked.
        net: &Net::new(
            environment,
            std::sync::Arc::new(|_: &str, _: Option<&str>| Ok(())),
        ),
        environment,
        secrets: &Secrets::default(),
        cancel: &CancellationToken::new(),
    };
    let Ok(profile) = Profile::read(environment) else {
        return Vec::new();
    };
    let Ok(settings) = Settings::new(environment, &profile) else {
        return Vec::new();
    };
    let mut hosts = credentials::hosts(&account, &profile, &settings);
    let url = settings.url(bucket, "").ok();
    hosts.extend(url.and_then(|url| url.host_str().map(str::to_owned)));
    hosts
}

/// Asks what an object or a prefix is. An engine that reads a directory is given everything below the
/// key; one that reads a file, the object, or the only one below a prefix that it can read.
pub(super) async fn resolve(
    place: &Place<'_>,
    bucket: &str,
    key: &str,
    version: Option<&str>,
) -> Result<Resolved, ModelError> {
    let found = match (place.shape, key.strip_suffix('/')) {
        (ModelShape::File, None) if !key.is_empty() => object(place, bucket, key, version).await,
        (_, prefix) => below::resolve(place, bucket, prefix.unwrap_or(key)).await,
    };
    found.map_err(|source| ModelError::S3 {
        reference: place.written.to_owned(),
        source: Box::new(source),
    })
}

async fn object(
    place: &Place<'_>,
    name: &str,
    key: &str,
    version: Option<&str>,
) -> Result<Resolved, S3Error> {
    let mut bucket = Bucket::open(account(place), name).await?;
    let Some(keys) = parts_of(key) else {
        let object = bucket.describe(key, version).await?;
        return one(place, name, &bucket, &object);
    };
    if version.is_some() {
        let (name, total) = (last(key).to_owned(), keys.len());
        return Err(NoChoice::Version { name, total }.into());
    }
    // Where it is, shows with the one that was named; what it lacks, without it.
    bucket.describe(key, locked_version(place, key)).await?;
    let objects = parts(place, &bucket, &keys).await?;
    let files = objects.iter().map(|it| file(&bucket, it, last(&it.key)));
    Ok(Resolved {
        reference: place.written.to_owned(),
        pinned: place.written.to_owned(),
        revision: Some(listing(&objects)),
        licence: None,
        files: files.collect::<Result<_, _>>()?,
        picked_from: Vec::new(),
    })
}

/// Every part of a split model; refused where one is not there.
async fn parts(
    place: &Place<'_>,
    bucket: &Bucket<'_>,
    keys: &[String],
) -> Result<Vec<Object>, S3Error> {
    // Collected first: a stream that holds this closure could not cross threads.
    let asked: Vec<_> = keys
        .iter()
        .map(|key| bucket.describe_here(key, locked_version(place, key)))
        .collect();
    let answers: Vec<_> = stream::iter(asked).buffered(AT_ONCE).collect().await;
    let (mut objects, mut missing) = (Vec::new(), Vec::new());
    for (key, answer) in keys.iter().zip(answers) {
        match answer {
            Ok(object) => objects.push(object),
            Err(S3Error::NoObject { .. }) => missing.push(last(key).to_owned()),
            Err(error) => return Err(error),
        }
    }
    if missing.is_empty() {
        return Ok(objects);
    }
    let above = keys[0].rsplit_once('/').map_or("", |(above, _)| above);
    let what = bucket.what(above);
    Err(missing_parts(what, last(&keys[0]), keys.len(), missing).into())
}

/// The version of a part that a lock file has.
fn locked_version<'a>(place: &Place<'a>, key: &str) -> Option<&'a str> {
    place.versions.get(last(key))?.as_deref()
}

/// The last part of a key.
fn last(key: &str) -> &str {
    key.rsplit('/').next().unwrap_or(key)
}

fn one(
    place: &Place<'_>,
    bucket_name: &str,
    bucket: &Bucket<'_>,
    object: &Object,
) -> Result<Resolved, S3Error> {
    let key = &object.key;
    let file_name = last(key);
    if !is_inside(file_name) {
        return Err(S3Error::Name { key: key.clone() });
    }
    Ok(Resolved {
        reference: place.written.to_owned(),
        pinned: match &object.version {
            Some(version) => format!("s3://{bucket_name}/{key}?versionId={version}"),
            None => format!("s3://{bucket_name}/{key}"),
        },
        revision: object.version.clone().or_else(|| object.etag.clone()),
        licence: None,
        files: vec![RemoteFile {
            // The pinned reference says it.
            kept_as: None,
            ..file(bucket, object, file_name)?
        }],
        picked_from: Vec::new(),
    })
}

fn file(bucket: &Bucket<'_>, object: &Object, name: &str) -> Result<RemoteFile, S3Error> {
    Ok(RemoteFile {
        name: name.to_owned(),
        sources: vec![bucket.source(object)?],
        size_bytes: Some(object.size_bytes),
        digest: object.digest.clone(),
        version: object.version.clone().or_else(|| object.etag.clone()),
        kept_as: object.version.clone(),
        local: None,
        git_blob: None,
        is_archive: false,
    })
}

/// What changes when any object of a prefix does: a digest of their keys with version or `ETag`.
fn listing(objects: &[Object]) -> String {
    let lines: String = objects
        .iter()
        .map(|object| {
            let mark = object.version.as_ref().or(object.etag.as_ref());
            let mark = mark.map_or("", String::as_str);
            format!("{}\0{mark}\0{}\n", object.key, object.size_bytes)
        })
        .collect();
    Digest::of(lines.as_bytes()).to_string()
}

fn account<'a>(place: &Place<'a>) -> Account<'a> {
    Account {
        net: place.net,
        environment: place.environment,
        secrets: place.narrator.secrets(),
        cancel: place.cancel,
    }
}

#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
