//! Directories for another user: handed over, and within reach.

use std::{
    fs,
    io::{self, Write as _},
    os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _},
    path::Path,
};

use super::{
    StoreError,
    tree::{make_directory, remove_tree, unsound},
};
use crate::process::Identity;

/// Creates an empty directory, in one that only this process's user writes to, and hands it over.
pub(super) fn make_for(path: &Path, owner: Option<Identity>) -> Result<(), StoreError> {
    fs::DirBuilder::new()
        .mode(0o755)
        .create(path)
        .map_err(|source| StoreError::io("create", path, source))?;
    match owner {
        None => Ok(()),
        // Nobody else could put anything in its place yet.
        Some(owner) => std::os::unix::fs::lchown(path, Some(owner.uid), Some(owner.gid))
            .map_err(|source| StoreError::io("change the owner of", path, source)),
    }
}

/// Writes a text for whoever runs commands, under a relative path in a directory that was just handed
/// over to them and that nobody uses yet.
pub fn write_for(
    root: &Path,
    relative: &Path,
    text: &str,
    mode: u32,
    owner: Option<Identity>,
) -> Result<(), StoreError> {
    let mut directory = root.to_owned();
    for part in relative.parent().unwrap_or(Path::new("")) {
        directory.push(part);
        if !directory.is_dir() {
            make_for(&directory, owner)?;
        }
    }
    let path = root.join(relative);
    fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(mode)
        .open(&path)
        .and_then(|mut file| file.write_all(text.as_bytes()))
        .map_err(|source| StoreError::io("write", &path, source))?;
    match owner {
        None => Ok(()),
        Some(owner) => std::os::unix::fs::lchown(&path, Some(owner.uid), Some(owner.gid))
            .map_err(|source| StoreError::io("change the owner of", &path, source)),
    }
}

/// A directory that outlives runs, for whoever runs commands or engines now; `None`: this process's
/// user. Its parent must be writable for this process's user alone.
///
/// One that belongs to somebody else, left from a time when another user ran them, is made anew:
/// nobody gets to read, or run, what another user put there.
pub fn make_place(path: &Path, owner: Option<Identity>) -> Result<(), StoreError> {
    if let Some(parent) = path.parent() {
        make_directory(parent)?;
    }
    if let Some(owner) = owner {
        ensure_reachable(path, owner)?;
    }
    let wanted = owner.map_or(rustix::process::geteuid().as_raw(), |owner| owner.uid);
    let is_link = fs::symlink_metadata(path).is_ok_and(|metadata| metadata.is_symlink());
    match fs::metadata(path) {
        Ok(metadata) if metadata.is_dir() && metadata.uid() == wanted => return Ok(()),
        // An administrator's, to another disk.
        Ok(metadata) if is_link => {
            let reason = format!(
                "is a link to something of user {}, and user {wanted} needs a directory there",
                metadata.uid()
            );
            return Err(unsound(path, &reason));
        }
        Ok(_) => remove_tree(path)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound && !is_link => {}
        Err(error) => return Err(StoreError::io("read", path, error)),
    }
    match make_for(path, owner) {
        // Somebody else, doing the same.
        Err(StoreError::Io { source, .. }) if source.kind() == io::ErrorKind::AlreadyExists => {
            Ok(())
        }
        other => other,
    }
}

/// Checks that a user can pass through every directory above `path`.
///
/// Looks at owner, group and mode; access lists are not asked.
pub fn ensure_reachable(path: &Path, identity: Identity) -> Result<(), StoreError> {
    for directory in path.ancestors().skip(1) {
        let Ok(metadata) = fs::metadata(directory) else {
            continue;
        };
        let bit = if metadata.uid() == identity.uid {
            0o100
        } else if metadata.gid() == identity.gid {
            0o010
        } else {
            0o001
        };
        if identity.uid != 0 && metadata.mode() & bit == 0 {
            return Err(StoreError::Unreachable {
                path: directory.to_owned(),
                uid: identity.uid,
            });
        }
    }
    Ok(())
}

/// Refuses a directory for root's own files where somebody else may put other things in its place, on
/// the way to it too. Root alone is asked: others could only be led to what they may write anyway.
pub(crate) fn ensure_owned(path: &Path) -> Result<(), StoreError> {
    if !rustix::process::geteuid().is_root() {
        return Ok(());
    }
    let real = path.ancestors().find_map(|there| there.canonicalize().ok());
    let real = real.unwrap_or_default();
    for directory in path.ancestors().chain(real.ancestors()) {
        let Ok(metadata) = fs::metadata(directory) else {
            continue;
        };
        let (mode, owner) = (metadata.mode(), metadata.uid());
        // In a sticky directory nobody touches what is root's.
        let is_open = mode & 0o022 != 0 && mode & 0o1000 == 0;
        if owner != 0 || is_open {
            return Err(StoreError::Foreign {
                path: directory.to_owned(),
                owner,
            });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    const SOMEBODY: Identity = Identity {
        uid: 64_123,
        gid: 64_123,
    };

    #[test]
    fn a_place_of_another_user_is_made_anew_and_ones_own_is_kept() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let directory = tempfile::Builder::new()
            .permissions(fs::Permissions::from_mode(0o755))
            .tempdir()
            .unwrap();
        let place = directory.path().join("cache/ccache");
        let owner = || fs::metadata(&place).unwrap().uid();
        make_place(&place, Some(SOMEBODY)).unwrap();
        fs::write(place.join("planted"), "x").unwrap();
        make_place(&place, Some(SOMEBODY)).unwrap();
        assert!(place.join("planted").exists());
        // Root runs the commands from now on.
        make_place(&place, None).unwrap();
        assert_eq!((owner(), place.join("planted").exists()), (0, false));
        fs::write(place.join("secret"), "x").unwrap();
        make_place(&place, Some(SOMEBODY)).unwrap();
        assert_eq!(owner(), SOMEBODY.uid);
        assert!(!place.join("secret").exists());
    }

    #[test]
    fn root_writes_nowhere_that_another_user_can_lead_elsewhere() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let directory = tempfile::tempdir().unwrap();
        let own = directory.path().join("own");
        make_directory(&own).unwrap();
        ensure_owned(&own.join("not/yet/there")).unwrap();
        let foreign = directory.path().join("foreign");
        make_directory(&foreign.join("below")).unwrap();
        std::os::unix::fs::chown(&foreign, Some(SOMEBODY.uid), None).unwrap();
        std::os::unix::fs::symlink(&own, foreign.join("link")).unwrap();
        for path in ["", "below", "below/not/there", "link", "link/x"] {
            let error = ensure_owned(&foreign.join(path)).unwrap_err();
            assert!(
                matches!(&error, StoreError::Foreign { path, owner } if *path == foreign && *owner == SOMEBODY.uid),
                "{path}: {error}"
            );
        }
        // A way to it through somebody else's link.
        std::os::unix::fs::symlink(&foreign, directory.path().join("way")).unwrap();
        ensure_owned(&directory.path().join("way/below")).unwrap_err();
        fs::set_permissions(&own, fs::Permissions::from_mode(0o777)).unwrap();
        ensure_owned(&own.join("x")).unwrap_err();
    }

    #[test]
    fn a_directory_closed_to_a_user_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let closed = directory.path().join("closed");
        make_directory(&closed.join("store")).unwrap();
        fs::set_permissions(&closed, fs::Permissions::from_mode(0o700)).unwrap();
        let identity = Identity {
            uid: 64_123,
            gid: 64_123,
        };
        let error = ensure_reachable(&closed.join("store"), identity).unwrap_err();
        assert!(
            matches!(&error, StoreError::Unreachable { path, .. } if path.ends_with("closed") || closed.starts_with(path)),
            "{error}"
        );
    }
}
