//! A model whose files are here becomes an entry of the catalog: its tree is made, its document written
//! last.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use engine_provider_api::{ModelShape, StageModel};
use jiff::Timestamp;

use super::{
    ModelError, Reference, Request, Stage,
    catalog::{Catalog, Entry, EntryFile, Name, Provenance, State, Trust, Writing},
    names::{Key, slug},
    tree,
};
use crate::store::{Blob, Lock, StoreError};

/// Digits of the digest in an id.
const DIGITS: usize = 12;

/// What is known of a model before it has its place in the catalog.
pub(super) struct Draft {
    /// Name for people, of which the id is made.
    pub(super) name: String,
    /// A reference that never means anything else.
    pub(super) pinned: String,
    /// Versions of its files, where that leaves them open and their place keeps older ones.
    pub(super) versions: BTreeMap<String, String>,
    /// Its files, sorted by name.
    pub(super) files: Vec<EntryFile>,
    /// A user's own directory or file that it is, where it is one.
    pub(super) place: Option<PathBuf>,
    pub(super) revision: Option<String>,
    pub(super) licence: Option<String>,
    pub(super) provenance: Provenance,
}

impl Draft {
    /// A model that is here, under one more reference.
    pub(super) fn of_entry(request: &Request, entry: Entry) -> Self {
        Self {
            name: entry.id,
            pinned: request.reference.to_string(),
            versions: BTreeMap::new(),
            // What lies with the user stays there, under this reference too.
            place: entry
                .files
                .iter()
                .all(|file| file.place.is_some())
                .then_some(entry.path),
            files: entry.files,
            revision: entry.revision,
            licence: entry.licence,
            provenance: entry.provenance,
        }
    }

    /// A single blob that is here.
    pub(super) fn of_blob(request: &Request, blob: Blob, trust: Trust) -> Self {
        Self {
            name: request.file_name(),
            pinned: request.reference.to_string(),
            versions: BTreeMap::new(),
            provenance: Provenance {
                origin: request.origin(),
                from: vec![blob.origin.clone()],
                trust,
            },
            files: vec![EntryFile {
                name: request.file_name(),
                ..blob.into()
            }],
            place: None,
            revision: None,
            licence: None,
        }
    }
}

/// `NAME-DIGITS`, and more where that is taken: the same content may be here in the store and as files of a
/// user's own.
fn free_id(all: &[Entry], name: &str, sha256: &str, in_place: bool) -> String {
    let plain = format!("{}-{}", slug(name), &sha256[..DIGITS]);
    let is_free = |id: &String| !all.iter().any(|entry| entry.id == *id);
    let kind = if in_place { "file" } else { "copy" };
    let numbered = (2_u32..).map(|number| format!("{plain}-{kind}-{number}"));
    let mut candidates = [plain.clone(), format!("{plain}-{kind}")]
        .into_iter()
        .chain(numbered);
    candidates.find(is_free).expect("numbers do not end")
}

/// Whether files lie with the user.
fn in_place(files: &[EntryFile]) -> bool {
    files.iter().any(|file| file.place.is_some())
}

/// Writes a model down, as the one that its reference means from now on. It is held until the run ends.
pub(super) async fn publish(
    stage: &Stage,
    request: &Request,
    step: &StageModel,
    draft: Draft,
) -> Result<Entry, ModelError> {
    let failed = |source| request.failed(source);
    let catalog = Catalog::of(&request.store);
    let right = catalog.writing(&stage.cancel).await.map_err(failed)?;
    let key = Key::new(stage, request, step);
    let shown = request.reference.to_string();
    let also = request
        .digest
        .as_ref()
        .filter(|digest| digest.sha256().is_none());
    let also = also.map(ToString::to_string);
    let publishing = Publishing {
        catalog: catalog.clone(),
        right,
        key,
        shown,
        step: step.clone(),
        shape: step.shape,
        also,
    };
    let (entry, lock) = super::blocking(move || publishing.write(draft))
        .await
        .map_err(failed)?;
    if entry.facts.is_none() {
        tell_why(stage, &entry);
    }
    if let Some(lock) = lock {
        stage.models.keep(&entry.id, lock);
    }
    Ok(entry)
}

/// Says what is wrong with a model that cannot be read as one: its engine would, much later.
fn tell_why(stage: &Stage, entry: &Entry) {
    if let Err(error) = super::facts::of_path(&entry.path) {
        let human = format!("this may be no model: {}", crate::narrate::chain(&error));
        stage
            .narrator
            .warn(super::ACTOR, "describe", &entry.id, human);
    }
}

struct Publishing {
    catalog: Catalog,
    right: Writing,
    key: Key,
    shown: String,
    step: StageModel,
    shape: ModelShape,
    also: Option<String>,
}

impl Publishing {
    /// Makes the tree, writes the document and holds the model. Blocks.
    fn write(self, draft: Draft) -> Result<(Entry, Option<Lock>), StoreError> {
        let single = self.shape == ModelShape::File && draft.files.len() == 1;
        let sha256 = match &*draft.files {
            [one] if single => one.sha256.clone(),
            files => tree::digest(files.iter().map(|file| (&*file.name, &*file.sha256))),
        };
        let path = match (&draft.place, &*draft.files) {
            (Some(place), _) => place.clone(),
            (None, [one]) if single => match &one.place {
                Some(place) => place.clone(),
                None => self.catalog.store().blob_path(&one.sha256),
            },
            (None, files) => {
                let root = tree::make(&self.catalog, &self.right, &sha256, files)?;
                match self.shape {
                    ModelShape::Directory => root,
                    // An engine that reads a file finds the others beside the first.
                    ModelShape::File => root.join(&files[0].name),
                }
            }
        };
        let entries = self.catalog.entries()?;
        let entry = self.entry(&entries, draft, sha256, path);
        self.catalog.write(&self.right, &entry)?;
        self.update_others(&entries, &entry)?;
        // As long as the catalog is ours nobody removes it: a moment later a clean-up may.
        let lock = self.catalog.hold(&entry.id)?;
        Ok((entry, lock))
    }

    fn entry(&self, all: &[Entry], draft: Draft, sha256: String, path: PathBuf) -> Entry {
        let now = Timestamp::now();
        let digest = format!("sha256:{sha256}");
        let is_in_place = in_place(&draft.files);
        let known = all.iter().find(|entry| {
            entry.digest == digest
                && entry.shape == self.shape
                && in_place(&entry.files) == is_in_place
                && (!is_in_place || entry.path == path)
        });
        let id = known.map_or_else(
            || free_id(all, &draft.name, &sha256, is_in_place),
            |known| known.id.clone(),
        );
        let name = Name {
            reference: self.shown.clone(),
            pinned: Reference::parse(&draft.pinned)
                .map_or(draft.pinned, |reference| reference.to_string()),
            versions: draft.versions,
            resolved: now,
            quant: self.step.quant.clone(),
            include: self.step.include.clone(),
            exclude: self.step.exclude.clone(),
            key: self.key.as_str().to_owned(),
        };
        let replaced = all.iter().filter(|entry| self.replaces(entry, &path));
        let replaced = replaced.filter(|entry| entry.digest != digest);
        let others = known.into_iter().chain(replaced);
        let others = others.flat_map(|entry| &entry.names);
        let mut names: Vec<Name> = others
            .filter(|other| other.key != name.key)
            .cloned()
            .collect();
        names.push(name);
        Entry {
            id,
            names,
            shape: self.shape,
            digest,
            also: self
                .also
                .clone()
                .or(known.and_then(|entry| entry.also.clone())),
            size_bytes: draft.files.iter().map(|file| file.size_bytes).sum(),
            files: draft.files,
            revision: draft
                .revision
                .or(known.and_then(|entry| entry.revision.clone())),
            licence: draft
                .licence
                .or(known.and_then(|entry| entry.licence.clone())),
            facts: super::facts::of_path(&path).ok().flatten(),
            path,
            state: State::Active,
            added: known.map_or(now, |entry| entry.added),
            // Who has vouched for these bytes has done so wherever they are had again.
            provenance: known
                .map(|entry| entry.provenance.clone())
                .filter(|known| known.trust < draft.provenance.trust)
                .unwrap_or(draft.provenance),
        }
    }

    /// Whether an entry was a user's own file or directory at this path, which is something else by now.
    fn replaces(&self, other: &Entry, path: &Path) -> bool {
        in_place(&other.files) && other.shape == self.shape && other.path == path
    }

    /// A reference means one model: where it meant another, that one loses it. What lay where this lies is
    /// no more.
    fn update_others(&self, all: &[Entry], entry: &Entry) -> Result<(), StoreError> {
        for other in all.iter().filter(|other| other.id != entry.id) {
            if self.replaces(other, &entry.path) {
                self.catalog.forget(&self.right, &other.id)?;
            } else if other.name(self.key.as_str()).is_some() {
                let mut other = other.clone();
                other.names.retain(|name| name.key != self.key.as_str());
                self.catalog.write(&self.right, &other)?;
            }
        }
        Ok(())
    }
}
