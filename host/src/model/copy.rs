//! A file's content in the store: its blocks shared where the file system can, else copied.

use std::{
    fs::{self, File},
    io::{Read as _, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::Path,
};

use super::access::readable;
use crate::{
    process::Identity,
    store::{self, Blob, Store, StoreError},
};

/// Makes a blob of a file that was hashed before, unless it is one that this user can read. Others cannot
/// read the copy either: its owner kept it from them. Blocks.
pub(super) fn into_store(
    store: &Store,
    path: &Path,
    sha256: &str,
    user: Option<Identity>,
) -> Result<Blob, StoreError> {
    if let Some(blob) = store.blob(sha256)?
        && readable(&blob.path, user)
    {
        return Ok(blob);
    }
    let partial = store.prepare_partial(sha256)?;
    clone_or_copy(store, path, &partial)?;
    if store.digest_of(&partial)? != sha256 {
        store::remove_tree(&partial)?;
        return Err(StoreError::Unsound {
            path: path.to_owned(),
            reason: "changed while it was copied".to_owned(),
        });
    }
    let origin = path.display().to_string();
    match user {
        Some(user) => store.publish_blob_for(&partial, sha256, &origin, user.gid),
        None => store.publish_blob(&partial, sha256, &origin),
    }
}

/// Shares the blocks of a file with a new one; false, and the new one empty, where the file systems
/// cannot.
pub(super) fn share_blocks(from: &Path, to: &Path) -> Result<bool, StoreError> {
    let (source, target) = open_both(from, to)?;
    Ok(rustix::fs::ioctl_ficlone(&target, &source).is_ok())
}

/// Shares the blocks where the file system can, else copies.
pub(super) fn clone_or_copy(store: &Store, from: &Path, to: &Path) -> Result<(), StoreError> {
    let failed = |source| StoreError::io("copy", from, source);
    let (source, mut target) = open_both(from, to)?;
    if rustix::fs::ioctl_ficlone(&target, &source).is_ok() {
        return Ok(());
    }
    store::ensure_space(to, source.metadata().map_err(failed)?.len())?;
    let mut source = store.watching(source, from).map_err(failed)?;
    // Read and written here: which of both failed is then known.
    let mut buffer = vec![0; 1 << 20];
    loop {
        let count = source.read(&mut buffer);
        match count.map_err(|error| StoreError::of_reading(from, error))? {
            0 => return Ok(()),
            count => target
                .write_all(&buffer[..count])
                .map_err(|error| StoreError::io("write", to, error))?,
        }
    }
}

fn open_both(from: &Path, to: &Path) -> Result<(File, File), StoreError> {
    let source = File::open(from).map_err(|source| StoreError::io("copy", from, source))?;
    let target = fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(to)
        .map_err(|error| StoreError::io("write", to, error))?;
    Ok((source, target))
}
