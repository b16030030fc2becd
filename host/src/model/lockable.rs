//! What of a model can be locked: what it is now, as far as that is known without fetching it.

use engine_provider_api::{ModelShape, StageModel};

use super::{
    ModelError, Reference, Request, Stage, builtin, catalog::Entry, known, names::Key, own,
    source::Resolved,
};
use crate::net::Digest;

/// What a model is now.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Lockable {
    /// A reference that never means anything else, where its kind of place has such.
    pub pinned: Option<String>,
    /// Commit, version or `ETag`, where its place has one.
    pub revision: Option<String>,
    /// Digest of the file, or of the listing of a directory, where it is known.
    pub digest: Option<String>,
    /// Size of all of it, where it is known.
    pub size_bytes: Option<u64>,
    /// Its files, of a model that is fetched.
    pub files: Vec<LockableFile>,
}

/// A file of a model that is fetched.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LockableFile {
    /// Path in the model.
    pub name: String,
    /// Size, where it is known.
    pub size_bytes: Option<u64>,
    /// Digest, where it is known.
    pub digest: Option<String>,
    /// Version by which its place keeps it, where `pinned` does not say that.
    pub version: Option<String>,
}

/// What a step's model is now. One that is elsewhere was resolved before ([`super::resolve`]) or is in the
/// catalog, else nothing is known of it. Hashes a user's own files, unless that was done before and they
/// look the same.
pub async fn lockable(stage: &Stage, step: &StageModel) -> Result<Lockable, ModelError> {
    let request = Request::new(stage, step)?;
    match &request.reference {
        Reference::Builtin(name) => {
            let builtin = builtin::find(name)?;
            Ok(Lockable {
                digest: Some(format!("sha256:{}", builtin.sha256)),
                size_bytes: Some(builtin.bytes.len() as u64),
                ..Lockable::default()
            })
        }
        Reference::File(path) => {
            let (digest, size_bytes) = own::measure(stage, &request, step, path).await?;
            Ok(Lockable {
                digest: Some(digest),
                size_bytes: Some(size_bytes),
                ..Lockable::default()
            })
        }
        _ => {
            let key = Key::new(stage, &request, step);
            // What its source says now is newer than what it said when the model was fetched.
            if let Some(resolved) = stage.models.said(&key) {
                return Ok(of_resolved(&request, step, &resolved));
            }
            here(stage, &request, step)
        }
    }
}

/// What a step's model is in the catalog, whatever its source says; nothing where it is not there.
pub fn lockable_here(stage: &Stage, step: &StageModel) -> Result<Lockable, ModelError> {
    here(stage, &Request::new(stage, step)?, step)
}

fn here(stage: &Stage, request: &Request, step: &StageModel) -> Result<Lockable, ModelError> {
    let key = Key::new(stage, request, step);
    let entry = known::entry(stage, request, step);
    let entry = entry.map_err(|source| request.failed(source))?;
    Ok(entry.map_or_else(Lockable::default, |entry| of_entry(request, &entry, &key)))
}

fn of_resolved(request: &Request, step: &StageModel, resolved: &Resolved) -> Lockable {
    let digest = match (&*resolved.files, step.shape) {
        ([one], ModelShape::File) => one.content_digest().map(Digest::to_string),
        _ => request
            .sha256_of(step, resolved)
            .map(|sha256| format!("sha256:{sha256}")),
    };
    // Of an archive the model has what is in it.
    let listed = resolved.files.iter().filter(|_| !resolved.has_archives());
    let files = listed.map(|file| LockableFile {
        name: file.name.clone(),
        size_bytes: file.sure_size_bytes(),
        digest: file.digest.as_ref().map(Digest::to_string),
        version: file.kept_as.clone(),
    });
    Lockable {
        pinned: pin(request, &resolved.pinned),
        revision: resolved.revision.clone(),
        digest,
        size_bytes: resolved.sure_size_bytes(),
        files: files.collect(),
    }
}

fn of_entry(request: &Request, entry: &Entry, key: &Key) -> Lockable {
    let name = entry.name(key.as_str());
    let files = entry.files.iter().map(|file| LockableFile {
        name: file.name.clone(),
        size_bytes: Some(file.size_bytes),
        digest: Some(format!("sha256:{}", file.sha256)),
        version: name.and_then(|name| name.versions.get(&file.name).cloned()),
    });
    Lockable {
        pinned: name.and_then(|name| pin(request, &name.pinned)),
        revision: entry.revision.clone(),
        digest: Some(entry.digest.clone()),
        size_bytes: Some(entry.size_bytes),
        files: files.collect(),
    }
}

/// A URL may mean something else tomorrow: its digest is all that pins it.
fn pin(request: &Request, pinned: &str) -> Option<String> {
    (!matches!(request.reference, Reference::Url(_))).then(|| pinned.to_owned())
}
