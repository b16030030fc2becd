//! Where models come from: a reference becomes a verified file that the engine's user can read.
//!
//! | reference | what happens |
//! |---|---|
//! | `builtin:NAME` | written from this program into the store |
//! | `file:PATH`, a path | used in place; copied into the store only where the engine's user could not read it; a file or, for engines that read one, a directory |
//! | `https://…` | fetched into the store, resumed and hashed while it streams |
//! | `hf:`, `s3:`, `oci:` | understood, refused in one line: not in this version |
//!
//! A user's own file is never changed. Without a checksum, what a URL gives first is trusted, said
//! aloud and written down: later it must be the same. A verified file is not hashed again while it
//! looks the same. `cache_dir` is a store of its own with the same layout.

mod builtin;
mod directory;
mod error;
mod file;
mod reference;
mod remote;

use std::path::{Path, PathBuf};

use engine_provider_api::{Artifact, ArtifactState, ModelShape, StageModel};
use tokio_util::sync::CancellationToken;

pub use builtin::{BUILTINS, Builtin};
pub use error::ModelError;
pub use reference::Reference;

use crate::{
    narrate::{Actor, Narrator},
    net::{Digest, Net},
    process::Identity,
    store::{Blob, Store},
};

const ACTOR: Actor = Actor::ModelProvisioner;

/// What staging needs.
#[derive(Clone)]
pub struct Stage {
    /// Where models are kept, unless the step names a `cache_dir`.
    pub store: Store,
    /// The transfer engine.
    pub net: Net,
    /// Told what happens.
    pub narrator: Narrator,
    /// Ends transfers and waits.
    pub cancel: CancellationToken,
    /// Directory that relative paths start from: the pool file's, else the working directory.
    pub base: PathBuf,
    /// Who will read the model; `None`: this process's user.
    pub run_as: Option<Identity>,
}

/// What staging would do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outlook {
    /// The file is there and needs nothing.
    There,
    /// It is written from this program.
    Unpack,
    /// A user's file is copied.
    Copy,
    /// It is fetched from this URL.
    Fetch(String),
    /// The reference is understood and not served; this says why.
    Unsupported(String),
}

/// Says what staging would do and what it would give, doing nothing.
pub fn expected(stage: &Stage, step: &StageModel) -> Result<(Artifact, Outlook), ModelError> {
    let request = Request::new(stage, step)?;
    if let Some(error) = request.unsupported(step) {
        // A plan shows it among all the rest; staging refuses it.
        let why = error.to_string();
        return Ok((Artifact::default(), Outlook::Unsupported(why)));
    }
    match &request.reference {
        Reference::Builtin(name) => {
            let builtin = builtin::find(name)?;
            let there = request.store.blob(&builtin.sha256());
            let there = there.map_err(|source| request.failed(source))?;
            let path = request.store.blob_path(&builtin.sha256());
            let artifact = Artifact {
                state: state(there.is_some()),
                path: Some(path.to_string_lossy().into_owned()),
                digest: Some(format!("sha256:{}", builtin.sha256())),
                size_bytes: Some(builtin.bytes.len() as u64),
                ..Artifact::default()
            };
            let outlook = there.map_or(Outlook::Unpack, |_| Outlook::There);
            Ok((artifact, outlook))
        }
        Reference::File(path) => match step.shape {
            ModelShape::File => file::expected(stage, &request, path),
            ModelShape::Directory => directory::expected(stage, &request, path),
        },
        Reference::Url(url) => remote::expected(&request, url),
        other => Err(other.unsupported(step)),
    }
}

/// Obtains a model and verifies it; its artifact is the file or directory. Told from `resolve` to `complete`.
pub async fn stage(stage: &Stage, step: &StageModel) -> Result<Artifact, ModelError> {
    let staged = stage_quietly(stage, step).await;
    if let Err(error) = &staged
        && !error.is_cancelled()
    {
        let narrator = &stage.narrator;
        narrator.fail(ACTOR, error.action(), &step.reference, error);
    }
    staged
}

async fn stage_quietly(stage: &Stage, step: &StageModel) -> Result<Artifact, ModelError> {
    let reference = &step.reference;
    let say = |action: &str, human: String| stage.narrator.say(ACTOR, action, reference, human);
    say("resolve", format!("resolving model {reference}"));
    let request = Request::new(stage, step)?;
    if let Some(error) = request.unsupported(step) {
        return Err(error);
    }
    say("ensure", format!("making sure that {reference} is here"));
    let staged = match &request.reference {
        Reference::Builtin(name) => builtin::stage(stage, &request, name).await?,
        Reference::File(path) => match step.shape {
            ModelShape::File => file::stage(stage, &request, path).await?,
            ModelShape::Directory => directory::stage(stage, &request, path).await?,
        },
        Reference::Url(url) => remote::stage(stage, &request, url).await?,
        other => return Err(other.unsupported(step)),
    };
    say("complete", format!("model is at {}", staged.path.display()));
    Ok(staged.artifact())
}

/// A step, read.
struct Request {
    reference: Reference,
    digest: Option<Digest>,
    store: Store,
}

impl Request {
    fn new(stage: &Stage, step: &StageModel) -> Result<Self, ModelError> {
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
        let store = match &step.cache_dir {
            Some(directory) => Store::at(stage.base.join(directory)),
            None => stage.store.clone(),
        };
        Ok(Self {
            reference,
            digest,
            store,
        })
    }

    /// The error for references that are understood and not served in the shape that is wanted.
    fn unsupported(&self, step: &StageModel) -> Option<ModelError> {
        let served = match (&self.reference, step.shape) {
            (Reference::File(_), _) => true,
            (Reference::Builtin(_) | Reference::Url(_), shape) => shape == ModelShape::File,
            _ => false,
        };
        (!served).then(|| self.reference.unsupported(step))
    }

    fn failed(&self, source: crate::store::StoreError) -> ModelError {
        ModelError::Store {
            reference: self.reference.to_string(),
            source: Box::new(source),
        }
    }
}

/// A file that may be used.
struct Staged {
    path: PathBuf,
    digest: Option<String>,
    size_bytes: u64,
}

impl Staged {
    fn artifact(self) -> Artifact {
        Artifact {
            state: ArtifactState::Obtained,
            path: Some(self.path.to_string_lossy().into_owned()),
            digest: self.digest,
            size_bytes: Some(self.size_bytes),
            ..Artifact::default()
        }
    }
}

impl From<Blob> for Staged {
    fn from(blob: Blob) -> Self {
        Self {
            digest: Some(format!("sha256:{}", blob.sha256)),
            path: blob.path,
            size_bytes: blob.size_bytes,
        }
    }
}

fn state(there: bool) -> ArtifactState {
    if there {
        ArtifactState::Obtained
    } else {
        ArtifactState::Expected
    }
}

/// The last part of a path, for names that people read.
fn shown_name(path: &Path) -> std::borrow::Cow<'_, str> {
    path.file_name()
        .unwrap_or(path.as_os_str())
        .to_string_lossy()
}

/// Runs something that reads or writes whole files, away from the tasks.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(work)
        .await
        .expect("reading and writing files does not panic")
}

#[cfg(test)]
mod tests;
