//! What a model must be, compared with what its source says, before anything is fetched and after.

use engine_provider_api::{ModelShape, StageModel};

use super::{
    ModelError, Request,
    source::{RemoteFile, Resolved},
    tree,
};
use crate::{
    net::Digest,
    store::{Blob, StoreError},
};

impl Request {
    /// A single file that is here under the digest that was asked for, whoever had it before.
    pub(super) fn blob_here(&self, step: &StageModel) -> Result<Option<Blob>, StoreError> {
        match (&self.digest, step.shape) {
            (Some(Digest::Sha256(sha256)), ModelShape::File) => self.store.blob(sha256),
            _ => Ok(None),
        }
    }

    /// The SHA-256 of a model, where its source says that of every file.
    pub(super) fn sha256_of(&self, step: &StageModel, resolved: &Resolved) -> Option<String> {
        let of = |file: &RemoteFile| file.content_digest()?.sha256().map(str::to_owned);
        match (&*resolved.files, step.shape) {
            ([one], ModelShape::File) => match &self.digest {
                Some(digest) => digest.sha256().map(str::to_owned),
                None => of(one),
            },
            (files, _) => {
                let all: Option<Vec<String>> = files.iter().map(of).collect();
                let all = all?;
                let names = files.iter().map(|file| file.name.as_str());
                Some(tree::digest(names.zip(all.iter().map(String::as_str))))
            }
        }
    }

    /// Compares what is wanted with what the source says, where both say it, before anything is fetched.
    pub(super) fn compare(&self, step: &StageModel, resolved: &Resolved) -> Result<(), ModelError> {
        let said = match (&*resolved.files, step.shape) {
            ([one], ModelShape::File) => one.content_digest().cloned(),
            _ => self.sha256_of(step, resolved).map(Digest::Sha256),
        };
        said.map_or(Ok(()), |said| self.compare_with(said))
    }

    /// Refuses a model that is not what is wanted, whatever the algorithm.
    pub(super) fn must_be(&self, actual: Digest) -> Result<(), ModelError> {
        match &self.digest {
            Some(expected) if *expected != actual => Err(ModelError::Mismatch {
                path: self.reference.to_string().into(),
                expected: expected.clone(),
                actual,
            }),
            _ => Ok(()),
        }
    }

    /// Compares digests of the same algorithm.
    pub(super) fn compare_with(&self, actual: Digest) -> Result<(), ModelError> {
        match &self.digest {
            Some(expected)
                if std::mem::discriminant(expected) == std::mem::discriminant(&actual) =>
            {
                self.must_be(actual)
            }
            _ => Ok(()),
        }
    }
}
