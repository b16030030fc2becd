//! A file that another program's cache has already: compared with its digest, then shared, not copied.
//!
//! | what can be done | when |
//! |---|---|
//! | a second name for the same file (hard link) | same file system, and its mode lets the engine's user read it |
//! | shared blocks (reflink) | the file system can |
//! | used where it is | the engine reads a single file, and its user can read that there |
//! | copied | otherwise |
//!
//! The user's file keeps its mode, owner and content.

use std::path::{Path, PathBuf};

use super::{
    ACTOR, ModelError, Request, Stage,
    access::{readable, readable_by_mode},
    blocking,
    catalog::EntryFile,
    copy::{clone_or_copy, share_blocks},
    source::{RemoteFile, git_blob},
};
use crate::store::{self, FileIdentity, Store, StoreError};

/// Takes a file from another program's cache, where it is there and is what it should be; and says where
/// that was.
pub(super) async fn file(
    stage: &Stage,
    request: &Request,
    file: &RemoteFile,
    sha256: Option<&str>,
) -> Result<Option<(EntryFile, String)>, ModelError> {
    let Some(Ok(local)) = file.local.as_ref().map(|local| local.canonicalize()) else {
        return Ok(None);
    };
    let sha256 = match (sha256, &file.git_blob) {
        (Some(sha256), _) => sha256.to_owned(),
        (None, Some(blob)) => match sha256_by_git(&local, blob).await {
            Some(sha256) => sha256,
            None => return Ok(None),
        },
        (None, None) => return Ok(None),
    };
    let shown = local.to_string_lossy().into_owned();
    let say = |action: &str, human: String| stage.narrator.say(ACTOR, action, &shown, human);
    say(
        "verify",
        format!("verifying {shown}, which is here already"),
    );
    let adoption = Adoption {
        store: request.store.clone(),
        linkable: readable_by_mode(&local, stage.run_as),
        readable: readable(&local, stage.run_as),
        in_place: request.single_file,
        local,
        sha256: sha256.clone(),
    };
    let taken = blocking(move || adoption.take()).await;
    match taken.map_err(|source| request.failed(source))? {
        Some(taken) => {
            say(
                "verified",
                format!("{shown} is sha256:{sha256}: nothing to download"),
            );
            Ok(Some((taken, shown)))
        }
        None => {
            let human = format!("{shown} is not what it should be: downloading instead");
            stage.narrator.warn(ACTOR, "verify", &shown, human);
            Ok(None)
        }
    }
}

/// The SHA-256 of a file that is what git calls it: small, since large ones have a SHA-256 of their own.
async fn sha256_by_git(local: &Path, blob: &str) -> Option<String> {
    let (local, blob) = (local.to_owned(), blob.to_owned());
    blocking(move || match git_blob::differs(&local, &blob) {
        Ok(None) => store::digest_file(&local).ok(),
        _ => None,
    })
    .await
}

struct Adoption {
    store: Store,
    local: PathBuf,
    sha256: String,
    /// Whether its mode lets the engine's user read it, wherever it lies.
    linkable: bool,
    /// Whether the engine's user can read it where it lies.
    readable: bool,
    /// Whether it may stay where it is.
    in_place: bool,
}

impl Adoption {
    /// Blocks for as long as hashing takes.
    fn take(&self) -> Result<Option<EntryFile>, StoreError> {
        let witness = match self.store.witness(&self.local) {
            Ok(witness) => witness,
            // Not ours to read: then it is fetched.
            Err(StoreError::Io { .. }) => return Ok(None),
            Err(error) => return Err(error),
        };
        if witness.sha256 != self.sha256 {
            return Ok(None);
        }
        if self.linkable
            && let Ok(blob) = self.store.adopt_blob(&witness)
        {
            return Ok(Some(blob.into()));
        }
        let partial = self.store.prepare_partial(&self.sha256)?;
        if share_blocks(&self.local, &partial)? {
            // Its owner may have written to it since it was hashed.
            if !FileIdentity::of(&self.local)?.has_content_of(witness.identity) {
                store::remove_tree(&partial)?;
                return Ok(None);
            }
            return self.publish(&partial).map(Some);
        }
        if self.readable && self.in_place {
            return Ok(Some(EntryFile {
                name: String::new(),
                sha256: witness.sha256,
                size_bytes: witness.size_bytes,
                place: Some(self.local.clone()),
            }));
        }
        clone_or_copy(&self.store, &self.local, &partial)?;
        if self.store.digest_of(&partial)? != self.sha256 {
            store::remove_tree(&partial)?;
            return Ok(None);
        }
        self.publish(&partial).map(Some)
    }

    fn publish(&self, partial: &Path) -> Result<EntryFile, StoreError> {
        let origin = self.local.display().to_string();
        let blob = self.store.publish_blob(partial, &self.sha256, &origin)?;
        Ok(blob.into())
    }
}
