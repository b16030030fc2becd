//! What a step asks for, read, and what refuses it before anything is looked at.

use std::sync::Arc;

use engine_provider_api::{ModelShape, StageModel};

use super::{
    Again, ModelError, Reference, Stage,
    catalog::{Entry, State, Trust},
    hashing::Hashing,
    own,
};
use crate::{
    net::{Digest, Url},
    store::{self, Store, StoreError},
};

/// A step, read.
#[derive(Clone)]
pub(super) struct Request {
    pub(super) reference: Reference,
    /// Where the file behind a URL can be had as well: then there is a digest.
    pub(super) mirrors: Vec<Url>,
    pub(super) digest: Option<Digest>,
    pub(super) store: Store,
    /// Whether the engine reads a file, and that is all there is.
    pub(super) single_file: bool,
    /// Words of `host model add` that name just this.
    pub(super) again: String,
}

impl Request {
    pub(super) fn new(stage: &Stage, step: &StageModel) -> Result<Self, ModelError> {
        let reference = Reference::parse(&step.reference)?;
        if step.shape == ModelShape::File {
            reference.check_format(&step.formats)?;
        }
        let digest = step
            .digest
            .as_deref()
            .map(Digest::parse)
            .transpose()
            .map_err(|source| ModelError::BadDigest {
                reference: step.reference.clone(),
                source,
            })?;
        let mirrors = mirrors(step, &reference)?;
        let store = match &step.cache_dir {
            Some(directory) => {
                let directory = stage.base.join(directory);
                store::ensure_owned(&directory).map_err(|source| ModelError::Store {
                    reference: step.reference.clone(),
                    source: Box::new(source),
                })?;
                Store::at(directory)
            }
            None => stage.store.clone(),
        };
        let shown = match &reference {
            Reference::File(path) => own::place(stage, path).to_string_lossy().into_owned(),
            other => other.to_string(),
        };
        let directory = step.cache_dir.as_ref().map(|directory| {
            let directory = stage.base.join(directory);
            directory.to_string_lossy().into_owned()
        });
        let again = Again {
            reference: &shown,
            shape: step.shape,
            quant: step.quant.as_deref(),
            include: &step.include,
            exclude: &step.exclude,
            directory: directory.as_deref(),
        };
        let again = again.to_string();
        let hashing = Hashing::new(&stage.narrator, &stage.cancel);
        Ok(Self {
            reference,
            mirrors,
            digest,
            store: store.watched(Arc::new(hashing)),
            single_file: step.shape == ModelShape::File,
            again,
        })
    }

    /// What a single file is called in its model.
    pub(super) fn file_name(&self) -> String {
        let text = self.reference.to_string();
        let last = text.rsplit(['/', ':']).next().unwrap_or_default();
        if last.is_empty() { "model" } else { last }.to_owned()
    }

    pub(super) fn refuse_retired(&self, stage: &Stage, entry: &Entry) -> Result<(), ModelError> {
        if entry.state == State::Retired && !stage.revive {
            return Err(ModelError::Retired {
                reference: self.reference.to_string(),
                id: entry.id.clone(),
                again: self.again.clone(),
            });
        }
        Ok(())
    }

    pub(super) fn refuse_unverified(&self, stage: &Stage, entry: &Entry) -> Result<(), ModelError> {
        match &stage.unverified {
            Some(refusal) if entry.provenance.trust == Trust::FirstUse => {
                Err(ModelError::Unverified {
                    reference: self.reference.to_string(),
                    source: Box::new(refusal.clone()),
                })
            }
            _ => Ok(()),
        }
    }

    /// The error for references that are understood and not served in the shape that is wanted.
    pub(super) fn unsupported(&self, step: &StageModel) -> Option<ModelError> {
        let served = match (&self.reference, step.shape) {
            (Reference::File(_), _) => true,
            (Reference::Builtin(_) | Reference::Url(_), shape) => shape == ModelShape::File,
            _ => true,
        };
        (!served).then(|| self.reference.unsupported(step))
    }

    /// Refuses options that would have no effect: nothing is picked where one thing is named.
    pub(super) fn refuse_idle(&self, step: &StageModel) -> Result<(), ModelError> {
        let picks = match &self.reference {
            Reference::HuggingFace(_) | Reference::Oci(_) => true,
            Reference::S3 { key, .. } => {
                step.shape == ModelShape::Directory || key.is_empty() || key.ends_with('/')
            }
            Reference::Builtin(_) | Reference::File(_) | Reference::Url(_) => false,
        };
        let given = [
            ("--quant", step.quant.is_some()),
            ("--include", !step.include.is_empty()),
            ("--exclude", !step.exclude.is_empty()),
        ];
        match given.into_iter().find(|(_, given)| *given && !picks) {
            Some((option, _)) => Err(ModelError::NothingToPick {
                reference: self.reference.to_string(),
                option,
            }),
            None => Ok(()),
        }
    }

    pub(super) fn failed(&self, source: StoreError) -> ModelError {
        ModelError::Store {
            reference: self.reference.to_string(),
            source: Box::new(source),
        }
    }
}

/// The mirrors of a step, read.
fn mirrors(step: &StageModel, reference: &Reference) -> Result<Vec<Url>, ModelError> {
    let bad = |reason| ModelError::BadMirrors {
        reference: reference.to_string(),
        reason,
    };
    if step.mirrors.is_empty() {
        return Ok(Vec::new());
    }
    if !matches!(reference, Reference::Url(_)) {
        return Err(bad("only a file behind an https URL has them"));
    }
    if step.digest.is_none() {
        return Err(bad(
            "without a checksum nothing tells whether they have the same file",
        ));
    }
    let url = |text: &String| match Reference::parse(text) {
        Ok(Reference::Url(url)) => Ok(url),
        _ => Err(bad("one of them is no https URL")),
    };
    step.mirrors.iter().map(url).collect()
}
