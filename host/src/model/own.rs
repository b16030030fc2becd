//! A user's own file or directory: used in place, never changed.
//!
//! It is hashed when it is first used and not again while its files look the same; then it is an entry of
//! the catalog like any other model, and a source that changed is noticed: taken as what it is now, said
//! aloud, or refused where a checksum says what it must be. Where the engine's user cannot read it, the
//! store gets a copy, which shares its blocks where the file system can.
//!
//! The digest of a directory is that of the text that coreutils print for it, so that anybody can compute
//! it:
//!
//! ```text
//! cd DIRECTORY && find -L . -type f -not -path '*/.*' -printf '%P\0' \
//!   | LC_ALL=C sort -z | xargs -0 sha256sum | sha256sum
//! ```
//!
//! A file that is one of several parts brings the others with it, or is refused where one is missing; its
//! digest is that of the list of all parts, as of a directory that has nothing else.
//!
//! Hidden files and directories are no part of a model: tools keep their notes there. Links may lead to
//! files inside; a container that is given the directory has nothing else.

mod look;
mod verify;

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use engine_provider_api::{Artifact, ModelShape, StageModel};
use jiff::Timestamp;

use super::{
    ACTOR, ModelError, Outlook, Request, Stage,
    access::readable,
    blocking,
    builtin::lock_blob,
    catalog::{self, Catalog, Entry, EntryFile, Origin, Provenance, State, Trust},
    copy,
    known::{self, Verify},
    names::Key,
    publish::{Draft, publish},
    shown_name, state, tree,
};
use crate::store::{Store, StoreError};
use look::Own;
use verify::{hash, hashed, verify};

/// Where a path of the user's leads, without parts that mean nothing.
pub(super) fn place(stage: &Stage, path: &Path) -> PathBuf {
    stage.base.join(path).components().collect()
}

/// What staging would give, told without reading a file of it.
pub(super) fn expected(
    stage: &Stage,
    request: &Request,
    step: &StageModel,
    path: &Path,
) -> Result<(Artifact, Outlook), ModelError> {
    let failed = |source| request.failed(source);
    let own = Own::look(place(stage, path), step, stage.run_as)?;
    let hashed = hashed(&request.store, &own).map_err(failed)?;
    let now = hashed.map(|files| digest(own.shape, &files));
    if let Some(now) = &now
        && let Some(entry) = entry(stage, request, step).map_err(failed)?
        && is_usable(stage, &request.store, &own, &entry, now).map_err(failed)?
    {
        request.refuse_retired(stage, &entry)?;
        return Ok((entry.artifact(), Outlook::There));
    }
    let wanted = request.digest.as_ref().map(ToString::to_string);
    let artifact = Artifact {
        state: state(own.readable),
        path: (own.readable).then(|| own.path.to_string_lossy().into_owned()),
        digest: wanted.or(now),
        size_bytes: Some(own.size_bytes),
        ..Artifact::default()
    };
    let outlook = match own.readable {
        true => Outlook::There,
        false => Outlook::Copy,
    };
    Ok((artifact, outlook))
}

/// Hashes what is not known yet, compares it with what it should be and was, and gives its entry: held
/// until the run ends.
pub(super) async fn stage(
    stage: &Stage,
    request: &Request,
    step: &StageModel,
    path: &Path,
) -> Result<Entry, ModelError> {
    let failed = |source| request.failed(source);
    let own = Own::look(place(stage, path), step, stage.run_as)?;
    let before = entry(stage, request, step).map_err(failed)?;
    let files = verify(stage, request, &own, before.as_ref()).await?;
    let now = digest(own.shape, &files);
    if let Some(entry) = before {
        if entry.digest == now {
            request.refuse_retired(stage, &entry)?;
        } else {
            warn_of_change(stage, request, &own, &entry, &now);
        }
        if is_kept(stage, request, &own, &entry, &now).map_err(failed)? {
            return Ok(entry);
        }
    }
    if own.readable {
        return publish(stage, request, step, draft(request, own, files)).await;
    }
    let catalog = Catalog::of(&request.store);
    let _staging = catalog.staging(&stage.cancel).await.map_err(failed)?;
    let files = copied(stage, request, &own, files).await?;
    publish(stage, request, step, draft(request, own, files)).await
}

/// Whether the entry stays as it is; then it is held.
fn is_kept(
    stage: &Stage,
    request: &Request,
    own: &Own,
    entry: &Entry,
    now: &str,
) -> Result<bool, StoreError> {
    // A checksum that held says more than a first use.
    let vouched = request.digest.is_none() || entry.provenance.trust == Trust::Checksum;
    if entry.state != State::Active
        || !vouched
        || !is_usable(stage, &request.store, own, entry, now)?
    {
        return Ok(false);
    }
    let lock = Catalog::of(&request.store).hold(&entry.id)?;
    Ok(lock.is_some_and(|lock| {
        stage.models.keep(&entry.id, lock);
        true
    }))
}

/// Digest and size of it as it is now: each of its files is read, unless it was hashed before.
pub(super) async fn measure(
    stage: &Stage,
    request: &Request,
    step: &StageModel,
    path: &Path,
) -> Result<(String, u64), ModelError> {
    let own = Own::look(place(stage, path), step, stage.run_as)?;
    let (shape, size_bytes) = (own.shape, own.size_bytes);
    let files = hash(stage, request, own).await?;
    Ok((digest(shape, &files), size_bytes))
}

/// What this path was when it was last used, whatever it is now.
fn entry(stage: &Stage, request: &Request, step: &StageModel) -> Result<Option<Entry>, StoreError> {
    let key = Key::new(stage, request, step);
    let entries = Catalog::of(&request.store).entries()?;
    let named = |entry: &Entry| entry.name(key.as_str()).is_some();
    Ok(entries.into_iter().find(named))
}

/// Whether an entry is what lies there now, where the engine's user can read it.
fn is_usable(
    stage: &Stage,
    store: &Store,
    own: &Own,
    entry: &Entry,
    now: &str,
) -> Result<bool, StoreError> {
    if entry.digest != now {
        return Ok(false);
    }
    if own.readable {
        return Ok(entry.path == own.path);
    }
    let is_copy = |file: &EntryFile| {
        file.place.is_none() && readable(&store.blob_path(&file.sha256), stage.run_as)
    };
    Ok(
        entry.files.iter().all(is_copy)
            && known::damaged(store, entry, Verify::Changed)?.is_empty(),
    )
}

/// `sha256:…` of a file, or of the listing of a directory.
fn digest(shape: ModelShape, files: &[EntryFile]) -> String {
    let sha256 = match (shape, files) {
        (ModelShape::File, [one]) => one.sha256.clone(),
        _ => tree::digest(files.iter().map(|file| (&*file.name, &*file.sha256))),
    };
    format!("sha256:{sha256}")
}

/// Nobody says what it must be: it is what it is, but whoever relied on what it was should know.
fn warn_of_change(stage: &Stage, request: &Request, own: &Own, before: &Entry, now: &str) {
    let human = format!(
        "{} changed since {}: it was {} and is {now} now",
        own.path.display(),
        catalog::moment(since(request, before)),
        before.digest
    );
    stage
        .narrator
        .warn(ACTOR, "changed", request.reference.to_string(), human);
}

/// When it was last found to be what it was.
fn since(request: &Request, before: &Entry) -> Timestamp {
    Catalog::of(&request.store).last_used(before)
}

/// Puts files into the store, under their digests.
async fn copied(
    stage: &Stage,
    request: &Request,
    own: &Own,
    files: Vec<EntryFile>,
) -> Result<Vec<EntryFile>, ModelError> {
    let name = shown_name(&own.path).into_owned();
    stage.narrator.makes();
    let human = format!(
        "copying {name} into the store for the engine's user, who cannot read it where it is"
    );
    stage
        .narrator
        .say(ACTOR, "copy", own.path.to_string_lossy(), human);
    let failed = |source| request.failed(source);
    let mut copies = Vec::new();
    for file in files {
        let _lock = lock_blob(stage, request, &file.sha256)
            .await
            .map_err(failed)?;
        let store = request.store.clone();
        let from = file.place.expect("it lies with the user");
        let user = stage.run_as;
        let blob = blocking(move || copy::into_store(&store, &from, &file.sha256, user)).await;
        copies.push(EntryFile {
            name: file.name,
            ..blob.map_err(failed)?.into()
        });
    }
    Ok(copies)
}

fn draft(request: &Request, own: Own, files: Vec<EntryFile>) -> Draft {
    let in_place = files.iter().all(|file| file.place.is_some());
    Draft {
        name: shown_name(&own.path).into_owned(),
        pinned: request.reference.to_string(),
        versions: BTreeMap::new(),
        files,
        revision: None,
        licence: None,
        provenance: Provenance {
            origin: Origin::File,
            from: vec![own.path.display().to_string()],
            trust: match request.digest {
                Some(_) => Trust::Checksum,
                None => Trust::FirstUse,
            },
        },
        place: in_place.then_some(own.path),
    }
}

#[cfg(test)]
mod tests;
