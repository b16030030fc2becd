//! Models that are here already: found by reference or digest, and sound.

use engine_provider_api::{ModelShape, StageModel};

use super::{
    ModelError, Reference, Request, Stage, access,
    asked::check_formats,
    blocking,
    catalog::{Catalog, Entry, EntryFile, Origin},
    names::Key,
};
use crate::{
    net::Digest,
    store::{Store, StoreError},
};

/// How a model that is here was found.
pub(super) enum Known {
    /// It is sound.
    Sound(Box<Entry>),
    /// Files of it are damaged or gone: it has to be had again, from just there.
    Damaged(Box<Entry>),
}

/// The entry that a step means, by reference or by digest. Reads documents only.
pub(super) fn entry(
    stage: &Stage,
    request: &Request,
    step: &StageModel,
) -> Result<Option<Entry>, StoreError> {
    let catalog = Catalog::of(&request.store);
    let key = Key::new(stage, request, step);
    let mut entries = catalog.entries()?;
    let index = entries
        .iter()
        .position(|entry| {
            entry.name(key.as_str()).is_some() && request.agrees_with(entry) && fits(entry, step)
        })
        .or_else(|| {
            // A digest says all, wherever it was had; but the same file may be asked for in another shape.
            let is_it = |entry: &Entry| {
                entry.shape == step.shape
                    && request.is_digest_of(entry)
                    && may_stand_in(stage, request, entry)
            };
            entries.iter().position(is_it)
        });
    Ok(index.map(|index| entries.swap_remove(index)))
}

/// Whether a model that was had by another reference can be used for this one: always what lies in the
/// store; what lies with the user only while it looks the same and the engine's user can read it.
fn may_stand_in(stage: &Stage, request: &Request, entry: &Entry) -> bool {
    let mut places = entry.files.iter().filter_map(|file| {
        let place = file.place.as_ref()?;
        Some((file, place))
    });
    places.all(|(file, place)| {
        let witness = request.store.witnessed(place).ok().flatten();
        witness.is_some_and(|witness| witness.sha256 == file.sha256)
            && access::readable(place, stage.run_as)
    })
}

/// Whether an engine reads a file of this name: what was picked for another one may not.
fn fits(entry: &Entry, step: &StageModel) -> bool {
    let name = entry
        .files
        .first()
        .map(|file| file.name.to_ascii_lowercase());
    let ends = |format: &String| {
        let suffix = format!(".{}", format.to_ascii_lowercase());
        name.as_ref().is_some_and(|name| name.ends_with(&suffix))
    };
    step.formats.is_empty()
        || step.shape == ModelShape::Directory
        || entry.provenance.origin == Origin::Builtin
        || step.formats.iter().any(ends)
}

/// The model that a step means, if it is here: held from now on until the run ends, its files looked at.
/// With `verify` they are hashed again.
pub(super) async fn find(
    stage: &Stage,
    request: &Request,
    step: &StageModel,
) -> Result<Option<Known>, ModelError> {
    let failed = |source| request.failed(source);
    let Some(found) = entry(stage, request, step).map_err(failed)? else {
        return Ok(None);
    };
    let catalog = Catalog::of(&request.store);
    let (of, id) = (catalog.clone(), found.id.clone());
    let lock = blocking(move || of.hold(&id)).await;
    let Some(lock) = lock.map_err(failed)? else {
        return Ok(None);
    };
    // Whoever removed it may just have let go.
    let Some(found) = catalog.entry(&found.id).map_err(failed)? else {
        return Ok(None);
    };
    request.refuse_retired(stage, &found)?;
    request.refuse_unverified(stage, &found)?;
    found.check_formats(request, step)?;
    stage.models.keep(&found.id, lock);
    let (store, how) = (request.store.clone(), stage.verify);
    blocking(move || {
        let damaged = damaged(&store, &found, how)?;
        Ok(Some(match damaged.is_empty() {
            true => Known::Sound(Box::new(found)),
            false => Known::Damaged(Box::new(found)),
        }))
    })
    .await
    .map_err(failed)
}

/// Whether content is hashed again though it looks the same.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Verify {
    /// Only what looks different from when it was hashed.
    #[default]
    Changed,
    /// All of it.
    All,
}

/// Files of a model that are gone or not what they should be. Blocks for as long as hashing takes.
pub(super) fn damaged(
    store: &Store,
    entry: &Entry,
    how: Verify,
) -> Result<Vec<String>, StoreError> {
    let mut damaged = Vec::new();
    for file in &entry.files {
        if !is_sound(store, entry, file, how)? {
            damaged.push(file.name.clone());
        }
    }
    Ok(damaged)
}

fn is_sound(
    store: &Store,
    entry: &Entry,
    file: &EntryFile,
    how: Verify,
) -> Result<bool, StoreError> {
    let same =
        |blob: Option<crate::store::Blob>| blob.is_some_and(|blob| blob.sha256 == file.sha256);
    if let Some(place) = &file.place {
        if !place.exists() {
            return Ok(false);
        }
        return Ok(same(Some(match how {
            Verify::Changed => store.witness(place)?,
            Verify::All => store.witness_again(place)?,
        })));
    }
    let blob = match how {
        Verify::Changed => store.blob(&file.sha256)?,
        Verify::All => store.rehash_blob(&file.sha256)?,
    };
    let Some(blob) = blob else { return Ok(false) };
    Ok(entry.path == blob.path || super::tree::is_linked(entry, file, &blob))
}

impl Entry {
    /// Refuses a directory that was had for another engine, where this one cannot read it.
    pub(super) fn check_formats(
        &self,
        request: &Request,
        step: &StageModel,
    ) -> Result<(), ModelError> {
        let names = self.files.iter().map(|file| file.name.as_str());
        check_formats(request, step, &names.collect::<Vec<_>>())
    }
}

impl Request {
    /// Whether nothing that was asked for contradicts an entry.
    fn agrees_with(&self, entry: &Entry) -> bool {
        self.digest.is_none() || self.is_digest_of(entry)
    }

    fn is_digest_of(&self, entry: &Entry) -> bool {
        let wanted = self.digest.as_ref().map(Digest::to_string);
        wanted.is_some_and(|wanted| entry.is_known_as(&wanted))
    }

    /// What a reference's kind is called in the catalog.
    pub(super) fn origin(&self) -> Origin {
        match &self.reference {
            Reference::Builtin(_) => Origin::Builtin,
            Reference::File(_) => Origin::File,
            Reference::Url(_) => Origin::Url,
            Reference::HuggingFace { .. } => Origin::Hub,
            Reference::S3 { .. } => Origin::S3,
            Reference::Oci(_) => Origin::Oci,
        }
    }
}
