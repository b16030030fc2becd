//! A layer that is an archive becomes the files in it, each a blob of its own.
//!
//! The archive is compared with its digest before it is opened, and unpacked by the rules of every archive,
//! stricter by two: no links and nothing executable. It does not stay; what was in it is written down, so
//! that it is not fetched again while all of that is here.

use std::path::Path;

use engine_provider_api::{ModelShape, StageModel};
use serde::{Deserialize, Serialize};

use super::{
    ACTOR, ModelError, Request, Stage,
    asked::is_hidden,
    blocking,
    builtin::lock_blob,
    fetch::{self, Got, Wanted},
    known::Verify,
    source::inside::is_inside,
};
use crate::{
    net::Digest,
    store::{self, Blob, SCHEMA, Store, StoreError, Temporary},
    unpack::{self, Refusal},
};

/// What is known of an archive that was unpacked.
#[derive(Debug, Serialize, Deserialize)]
struct Content {
    files: Vec<ContentFile>,
}

#[derive(Debug, Serialize, Deserialize)]
struct ContentFile {
    name: String,
    sha256: String,
}

/// Makes sure that the files of an archive are blobs, and gives them. Its lock is given back before others
/// are waited for.
pub(super) async fn files(
    stage: &Stage,
    request: &Request,
    step: &StageModel,
    wanted: Wanted<'_>,
) -> Result<Vec<Got>, ModelError> {
    let failed = |source| request.failed(source);
    let digest = wanted.file.digest.as_ref();
    let digest = digest.expect("an archive is a layer, which has a digest");
    let _lock = lock_blob(stage, request, digest.hex())
        .await
        .map_err(failed)?;
    let (store, of, verify) = (request.store.clone(), digest.clone(), stage.verify);
    let here = blocking(move || here(&store, &of, verify)).await;
    let files = match here.map_err(failed)? {
        Some(files) => files,
        None => fetched(stage, request, wanted, digest).await?,
    };
    let got = files.into_iter();
    let got: Vec<Got> = got
        .map(|(name, blob)| Got::of(name, blob, wanted.trust()))
        .collect();
    match step.shape {
        ModelShape::Directory => Ok(got),
        ModelShape::File => Ok(vec![only(request, wanted, got)?]),
    }
}

/// The one file of an archive, for an engine that reads a file: it lies nowhere below.
fn only(request: &Request, wanted: Wanted<'_>, mut got: Vec<Got>) -> Result<Got, ModelError> {
    let count = got.len();
    let (Some(mut only), 1) = (got.pop(), count) else {
        let reason = format!("it has {count} files, and the engine reads one");
        return Err(refused(request, wanted, reason));
    };
    let name = &mut only.file.name;
    *name = name.rsplit('/').next().unwrap_or_default().to_owned();
    let ending = |name: &str| name.rsplit_once('.').map(|(_, ending)| ending.to_owned());
    if ending(name) != ending(&wanted.file.name) {
        let reason = format!("it has a file `{name}`, which is not what its name says");
        return Err(refused(request, wanted, reason));
    }
    Ok(only)
}

/// What an archive had in it, where all of that is here and sound. Blocks for as long as hashing takes.
fn here(
    store: &Store,
    archive: &Digest,
    verify: Verify,
) -> Result<Option<Vec<(String, Blob)>>, StoreError> {
    let content: Option<Content> = match store::read_document(&notes(store, archive), SCHEMA) {
        Err(StoreError::Damaged { .. }) => None,
        other => other?,
    };
    let Some(content) = content else {
        return Ok(None);
    };
    let blob = |file: ContentFile| {
        let blob = match verify {
            Verify::All => store.rehash_blob(&file.sha256)?,
            Verify::Changed => store.blob(&file.sha256)?,
        };
        Ok(blob.map(|blob| (file.name, blob)))
    };
    content.files.into_iter().map(blob).collect()
}

fn notes(store: &Store, archive: &Digest) -> std::path::PathBuf {
    store
        .blobs()
        .join(format!("archive-{}.json", archive.hex()))
}

async fn fetched(
    stage: &Stage,
    request: &Request,
    wanted: Wanted<'_>,
    digest: &Digest,
) -> Result<Vec<(String, Blob)>, ModelError> {
    let failed = |source| request.failed(source);
    let archive = fetch::transferred(stage, request, wanted, None, digest.hex()).await?;
    let (target, from) = (wanted.target(), archive.from.join(", "));
    let human = format!("unpacking {}", wanted.file.name);
    stage.narrator.say(ACTOR, "unpack", &target, human);
    let store = request.store.clone();
    let unpacked = blocking(move || {
        let into = store.temporary("model")?;
        let unpacked = unpack::data(&store, &archive.path, into.path());
        // One that is refused now is refused always, and one that is unpacked is not needed.
        store::remove_tree(&archive.path)?;
        unpacked.map(|()| into)
    });
    let into = match unpacked.await {
        Err(_) if stage.cancel.is_cancelled() => {
            let what = format!("the content of {target}");
            return Err(failed(StoreError::Cancelled { what }));
        }
        Err(Refusal::Archive(reason)) => return Err(refused(request, wanted, reason)),
        Err(Refusal::Store(source)) => return Err(failed(source)),
        Ok(into) => into,
    };
    let mut files = Vec::new();
    for name in names(into.path()).map_err(failed)? {
        if !is_inside(&name) {
            let reason = format!(
                "it has a file `{}`, which cannot be kept",
                name.escape_debug()
            );
            return Err(refused(request, wanted, reason));
        }
        files.push(kept(stage, request, &into, name, &from).await?);
    }
    let content = Content {
        files: files
            .iter()
            .map(|(name, blob)| ContentFile {
                name: name.clone(),
                sha256: blob.sha256.clone(),
            })
            .collect(),
    };
    store::write_document(&notes(&request.store, digest), SCHEMA, 0o644, &content)
        .map_err(failed)?;
    Ok(files)
}

/// Names of the files of a directory, sorted; hidden ones are no part of a model.
fn names(root: &Path) -> Result<Vec<String>, StoreError> {
    let mut names = Vec::new();
    for path in store::files_of(root)? {
        let inside = path.strip_prefix(root).expect("it was found below");
        let name = inside
            .to_str()
            .expect("what is unpacked has printable names");
        if !is_hidden(name) {
            names.push(name.to_owned());
        }
    }
    names.sort_unstable();
    Ok(names)
}

/// Hashes a file that was unpacked and makes it a blob, unless the same is here.
async fn kept(
    stage: &Stage,
    request: &Request,
    into: &Temporary,
    name: String,
    origin: &str,
) -> Result<(String, Blob), ModelError> {
    let failed = |source| request.failed(source);
    let path = into.path().join(&name);
    let (store, file) = (request.store.clone(), path.clone());
    let hashed = blocking(move || store.digest_of(&file)).await;
    let sha256 = hashed.map_err(failed)?;
    let _lock = lock_blob(stage, request, &sha256).await.map_err(failed)?;
    let (store, origin) = (request.store.clone(), origin.to_owned());
    let blob = blocking(move || match store.blob(&sha256)? {
        Some(blob) => Ok(blob),
        None => store.publish_blob(&path, &sha256, &origin),
    });
    Ok((name, blob.await.map_err(failed)?))
}

fn refused(request: &Request, wanted: Wanted<'_>, reason: String) -> ModelError {
    ModelError::Archive {
        reference: request.reference.to_string(),
        name: wanted.file.name.clone(),
        reason,
    }
}

#[cfg(test)]
mod tests;
