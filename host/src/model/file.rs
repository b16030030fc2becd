//! A user's own file: used in place, never changed.

use std::{
    fs::{self, File},
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use engine_provider_api::Artifact;

use super::{
    ACTOR, ModelError, Outlook, Request, Stage, Staged, blocking, builtin::lock_blob, shown_name,
    state,
};
use crate::{
    net::{Digest, hash_file},
    process::Identity,
    store::{self, Store, StoreError},
};

pub(super) fn expected(
    stage: &Stage,
    request: &Request,
    path: &Path,
) -> Result<(Artifact, Outlook), ModelError> {
    let path = stage.base.join(path);
    let size_bytes = check(&path)?;
    let in_place = readable(&path, stage.run_as);
    let artifact = Artifact {
        state: state(in_place),
        path: in_place.then(|| path.to_string_lossy().into_owned()),
        digest: request.digest.as_ref().map(ToString::to_string),
        size_bytes: Some(size_bytes),
        ..Artifact::default()
    };
    let outlook = if in_place {
        Outlook::There
    } else {
        Outlook::Copy
    };
    Ok((artifact, outlook))
}

pub(super) async fn stage(
    stage: &Stage,
    request: &Request,
    path: &Path,
) -> Result<Staged, ModelError> {
    let path = stage.base.join(path);
    let size_bytes = check(&path)?;
    verify(stage, request, &path).await?;
    if readable(&path, stage.run_as) {
        return Ok(Staged {
            path,
            digest: request.digest.as_ref().map(ToString::to_string),
            size_bytes,
        });
    }
    let name = shown_name(&path).into_owned();
    stage.narrator.say(
        ACTOR,
        "copy",
        path.to_string_lossy(),
        format!("copying {name} into the store: the engine's user cannot read it where it is"),
    );
    copy(stage, request, path).await
}

/// Compares a file with its expected digest, where there is one.
async fn verify(stage: &Stage, request: &Request, path: &Path) -> Result<(), ModelError> {
    let Some(expected) = request.digest.clone() else {
        return Ok(());
    };
    let target = path.to_string_lossy();
    let say = |action: &str, human: String| {
        stage.narrator.say(ACTOR, action, target.clone(), human);
    };
    say("verify", format!("verifying {}", path.display()));
    let (store, file, like) = (request.store.clone(), path.to_owned(), expected.clone());
    let actual = blocking(move || match like {
        Digest::Sha256(_) => Ok(Digest::Sha256(store.witness(&file)?.sha256)),
        Digest::Sha512(_) => hash_file(&file, &like),
    })
    .await
    .map_err(|source| request.failed(source))?;
    if actual == expected {
        say("verified", format!("{} is {expected}", path.display()));
        return Ok(());
    }
    Err(ModelError::Mismatch {
        path: path.to_owned(),
        expected,
        actual,
    })
}

async fn copy(stage: &Stage, request: &Request, path: PathBuf) -> Result<Staged, ModelError> {
    let store = request.store.clone();
    let source = path.clone();
    let witness = blocking(move || store.witness(&source))
        .await
        .map_err(|source| request.failed(source))?;
    let _lock = lock_blob(stage, request, &witness.sha256)
        .await
        .map_err(|source| request.failed(source))?;
    let store = request.store.clone();
    let sha256 = witness.sha256;
    let copied = blocking(move || copy_into(&store, &path, &sha256)).await;
    let blob = copied.map_err(|source| request.failed(source))?;
    if let Some(identity) = stage.run_as {
        store::ensure_reachable(&blob.path, identity).map_err(|source| request.failed(source))?;
    }
    Ok(blob.into())
}

fn copy_into(store: &Store, path: &Path, sha256: &str) -> Result<store::Blob, StoreError> {
    if let Some(blob) = store.blob(sha256)? {
        return Ok(blob);
    }
    let partial = store.prepare_partial(sha256)?;
    clone_or_copy(path, &partial)?;
    if store::digest_file(&partial)? != sha256 {
        store::remove_tree(&partial)?;
        return Err(StoreError::Unsound {
            path: path.to_owned(),
            reason: "changed while it was copied".to_owned(),
        });
    }
    store.publish_blob(&partial, sha256, &path.display().to_string())
}

/// Shares the blocks where the file system can, else copies.
pub(super) fn clone_or_copy(from: &Path, to: &Path) -> Result<(), StoreError> {
    let failed = |source| StoreError::io("copy", from, source);
    let mut source = File::open(from).map_err(failed)?;
    let mut target = fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(to)
        .map_err(failed)?;
    if rustix::fs::ioctl_ficlone(&target, &source).is_ok() {
        return Ok(());
    }
    store::ensure_space(to, source.metadata().map_err(failed)?.len())?;
    std::io::copy(&mut source, &mut target)
        .map(drop)
        .map_err(|error| StoreError::io("write", to, error))
}

/// Checks that there is a file with content; gives its size.
fn check(path: &Path) -> Result<u64, ModelError> {
    let not = |what| ModelError::NotAFile {
        path: path.to_owned(),
        what,
    };
    let metadata = fs::metadata(path).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => ModelError::Missing {
            path: path.to_owned(),
            shape: "file",
        },
        _ => ModelError::Store {
            reference: path.display().to_string(),
            source: Box::new(StoreError::io("read", path, error)),
        },
    })?;
    if metadata.is_dir() {
        return Err(not("a directory"));
    }
    if !metadata.is_file() {
        return Err(not("a device, pipe or socket"));
    }
    if metadata.len() == 0 {
        return Err(not("empty"));
    }
    Ok(metadata.len())
}

/// Whether a user can read a file, by owner, group and mode of it and of what it lies in.
fn readable(path: &Path, user: Option<Identity>) -> bool {
    let Some(user) = user else {
        return File::open(path).is_ok();
    };
    let Ok(path) = path.canonicalize() else {
        return false;
    };
    let Ok(metadata) = fs::metadata(&path) else {
        return false;
    };
    may(&metadata, Some(user), 0o4) && store::ensure_reachable(&path, user).is_ok()
}

/// Whether owner, group and mode allow a user to do what these bits say (4: read, 1: search).
pub(super) fn may(metadata: &fs::Metadata, user: Option<Identity>, bits: u32) -> bool {
    let Some(user) = user.filter(|user| user.uid != 0) else {
        return true;
    };
    let wanted = if metadata.uid() == user.uid {
        bits << 6
    } else if metadata.gid() == user.gid {
        bits << 3
    } else {
        bits
    };
    metadata.mode() & wanted == wanted
}
