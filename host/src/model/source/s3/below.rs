//! What lies below a prefix: what there is now, or the versions that a lock file has.

use engine_provider_api::ModelShape;
use futures_util::{StreamExt as _, TryStreamExt as _, stream};

use super::{
    super::{Place, RemoteFile, Resolved, choose::choose, inside::is_inside},
    AT_ONCE, S3Error, account,
    bucket::{Bucket, Object},
    file, listing, one,
};
use crate::model::asked::is_hidden;

/// A file below a prefix.
struct Below {
    key: String,
    /// Path from the prefix on.
    name: String,
    /// The version that it must be; `None`: what there is now.
    version: Option<String>,
}

pub(super) async fn resolve(
    place: &Place<'_>,
    name: &str,
    prefix: &str,
) -> Result<Resolved, S3Error> {
    let prefix = match prefix {
        "" => String::new(),
        prefix => format!("{prefix}/"),
    };
    let mut bucket = Bucket::open(account(place), name).await?;
    let (wanted, picked_from) = match place.versions.is_empty() {
        true => listed(place, &mut bucket, &prefix).await?,
        false => (locked(place, &mut bucket, &prefix).await?, Vec::new()),
    };
    // Collected first: a stream that holds this closure could not cross threads.
    let asked: Vec<_> = wanted
        .iter()
        .map(|file| bucket.describe_here(&file.key, file.version.as_deref()))
        .collect();
    let objects: Vec<Object> = stream::iter(asked).buffered(AT_ONCE).try_collect().await?;
    if let ([object], ModelShape::File) = (&objects[..], place.shape) {
        return Ok(Resolved {
            picked_from,
            ..one(place, name, &bucket, object)?
        });
    }
    let named = objects.iter().zip(&wanted);
    let files: Result<Vec<RemoteFile>, S3Error> = named
        .map(|(object, wanted)| file(&bucket, object, &wanted.name))
        .collect();
    Ok(Resolved {
        reference: place.written.to_owned(),
        pinned: place.written.to_owned(),
        revision: Some(listing(&objects)),
        licence: None,
        files: files?,
        picked_from,
    })
}

/// What lies below a prefix now and is wanted, sorted, and what it was picked from.
async fn listed(
    place: &Place<'_>,
    bucket: &mut Bucket<'_>,
    prefix: &str,
) -> Result<(Vec<Below>, Vec<String>), S3Error> {
    let what = bucket.what(prefix);
    let mut wanted = Vec::new();
    for (key, _) in bucket.list(prefix).await? {
        let relative = key.strip_prefix(prefix).unwrap_or(&key);
        // A key that ends so stands for a directory in consoles.
        let is_none = relative.is_empty() || relative.ends_with('/') || is_hidden(relative);
        if is_none || !place.wants(relative) {
            continue;
        }
        if !is_inside(relative) {
            return Err(S3Error::Name { key });
        }
        wanted.push(Below {
            name: relative.to_owned(),
            version: None,
            key,
        });
    }
    wanted.sort_by(|one, other| one.name.cmp(&other.name));
    let mut picked_from = Vec::new();
    if place.shape == ModelShape::File && !wanted.is_empty() {
        let names: Vec<&str> = wanted.iter().map(|file| file.name.as_str()).collect();
        let chosen = choose(place, &what, &names)?;
        wanted.retain(|file| chosen.names.contains(&file.name));
        picked_from = chosen.from;
    }
    match wanted.is_empty() {
        true => Err(bucket.nothing(what)),
        false => Ok((wanted, picked_from)),
    }
}

/// What a lock file has below a prefix, whatever lies there by now.
async fn locked(
    place: &Place<'_>,
    bucket: &mut Bucket<'_>,
    prefix: &str,
) -> Result<Vec<Below>, S3Error> {
    let files = place.versions.iter().map(|(name, version)| Below {
        key: format!("{prefix}{name}"),
        name: name.clone(),
        version: version.clone(),
    });
    let files: Vec<Below> = files.collect();
    if let Some(bad) = files.iter().find(|file| !is_inside(&file.name)) {
        return Err(S3Error::Name {
            key: bad.key.clone(),
        });
    }
    if let Some(first) = files.first() {
        // Where the bucket is.
        bucket
            .describe(&first.key, first.version.as_deref())
            .await?;
    }
    Ok(files)
}
