//! A model of several files: a directory of hard links to blobs, named by the digest of its listing.
//!
//! Made beside its place and renamed there whole. A link more changes a blob's `ctime`: what it looks like
//! is recorded anew, so that nothing is hashed again for it.

use std::{
    fmt::Write as _,
    fs,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

use sha2::{Digest as _, Sha256};

use super::catalog::{Catalog, Entry, EntryFile, Writing};
use crate::store::{self, Blob, StoreError};

/// The digest of a directory: of the text that coreutils print for it; see [`super::own`].
pub(super) fn digest<'a>(files: impl IntoIterator<Item = (&'a str, &'a str)>) -> String {
    let mut lines: Vec<(&str, &str)> = files.into_iter().collect();
    lines.sort_unstable();
    let mut text = String::new();
    for (name, sha256) in lines {
        writeln!(text, "{sha256}  {name}").expect("writing to a text does not fail");
    }
    store::hex(&Sha256::digest(text.as_bytes()))
}

/// Where the tree of a digest lies, or will lie.
pub(super) fn place(catalog: &Catalog, sha256: &str) -> PathBuf {
    catalog.trees().join(sha256)
}

/// Makes the tree of these files, unless it is there and whole. Blocks.
pub(super) fn make(
    catalog: &Catalog,
    _right: &Writing,
    sha256: &str,
    files: &[EntryFile],
) -> Result<PathBuf, StoreError> {
    let target = place(catalog, sha256);
    let store = catalog.store();
    let blobs = |file: &EntryFile| {
        Ok::<_, StoreError>(
            store
                .blob(&file.sha256)?
                .map(|blob| (target.join(&file.name), blob)),
        )
    };
    let linked = files.iter().map(blobs).collect::<Result<Vec<_>, _>>()?;
    let whole = |found: &Option<(PathBuf, Blob)>| matches!(found, Some((path, blob)) if same_file(path, blob));
    if linked.iter().all(whole) {
        return Ok(target);
    }
    let temporary = store.temporary("model")?;
    let tree = temporary.path().join("tree");
    store::make_directory(&tree)?;
    for file in files {
        let link = tree.join(&file.name);
        store::make_directory(link.parent().expect("it lies in the tree"))?;
        store.renaming_blob(&file.sha256, |blob| {
            fs::hard_link(blob, &link).map_err(|source| StoreError::io("link", &link, source))
        })?;
    }
    store::make_directory(&catalog.trees())?;
    // One that lacks something, from a disk that lost it.
    store::remove_tree(&target)?;
    store::sync_tree(&tree)?;
    fs::rename(&tree, &target).map_err(|source| StoreError::io("publish", &target, source))?;
    store::sync_directory(&catalog.trees())?;
    Ok(target)
}

/// Whether a file of a model's tree is the blob itself.
pub(super) fn is_linked(entry: &Entry, file: &EntryFile, blob: &Blob) -> bool {
    let root = entry.path.ancestors().find(|path| {
        path.parent()
            .is_some_and(|parent| parent.ends_with("models/trees"))
    });
    root.is_some_and(|root| same_file(&root.join(&file.name), blob))
}

fn same_file(path: &Path, blob: &Blob) -> bool {
    fs::symlink_metadata(path)
        .is_ok_and(|link| (link.dev(), link.ino()) == (blob.identity.device, blob.identity.inode))
}
