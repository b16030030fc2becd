//! Who may read a user's own files, told without becoming that user.

use std::{
    fs::{self, File},
    os::unix::fs::MetadataExt as _,
    path::Path,
};

use crate::{process::Identity, store};

/// Whether a user can read a file, by owner, group and mode of it and of what it lies in.
pub(super) fn readable(path: &Path, user: Option<Identity>) -> bool {
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

/// Whether a user could read a file under another name, in a directory that is open to it.
pub(super) fn readable_by_mode(path: &Path, user: Option<Identity>) -> bool {
    match user {
        None => File::open(path).is_ok(),
        user => fs::metadata(path).is_ok_and(|metadata| may(&metadata, user, 0o4)),
    }
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
