//! Directories of results: created, handed over, checked, sealed, hashed, removed.
//!
//! What a build left behind was written by a program that nobody trusts, possibly while this
//! process is root: nothing here follows a symbolic link.

use std::{
    fs::{self, File, Metadata},
    io::{self, Read as _},
    os::unix::fs::{
        DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _,
    },
    path::{Component, Path, PathBuf},
};

use sha2::{Digest as _, Sha256};

use super::{StoreError, key::hex};
use crate::process::Identity;

/// Creates a directory and its parents, readable for everybody: engines run as another user.
pub(crate) fn make_directory(path: &Path) -> Result<(), StoreError> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o755)
        .create(path)
        .map_err(|source| StoreError::io("create", path, source))
}

/// Removes a directory or file and everything in it; nothing there is fine.
pub fn remove_tree(path: &Path) -> Result<(), StoreError> {
    let result = match fs::symlink_metadata(path) {
        Ok(metadata) if metadata.is_dir() => fs::remove_dir_all(path).or_else(|error| {
            // Builds make read-only directories; the owner may open them.
            if error.kind() != io::ErrorKind::PermissionDenied {
                return Err(error);
            }
            open_directories(path)?;
            fs::remove_dir_all(path)
        }),
        Ok(_) => fs::remove_file(path),
        Err(error) => Err(error),
    };
    match result {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(StoreError::io("remove", path, error))
        }
        _ => Ok(()),
    }
}

/// Removes every file and directory of this name from a tree.
pub(crate) fn remove_named(root: &Path, name: &str) -> Result<(), StoreError> {
    let failed = |source| StoreError::io("read", root, source);
    for entry in fs::read_dir(root).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        if entry.file_name() == name {
            remove_tree(&entry.path())?;
        } else if entry.file_type().map_err(failed)?.is_dir() {
            remove_named(&entry.path(), name)?;
        }
    }
    Ok(())
}

fn open_directories(path: &Path) -> io::Result<()> {
    fs::set_permissions(path, fs::Permissions::from_mode(0o700))?;
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            open_directories(&entry.path())?;
        }
    }
    Ok(())
}

/// Gives a file or tree to a user; links themselves, not what they point to.
pub fn give_to(path: &Path, identity: Identity) -> Result<(), StoreError> {
    walk(path, &mut |path, _| {
        std::os::unix::fs::lchown(path, Some(identity.uid), Some(identity.gid))
            .map_err(|source| StoreError::io("change the owner of", path, source))
    })
}

/// Checks and seals the files of a finished result: they are read-only, belong to this process's
/// user, and no link leads out of `root`.
pub(crate) fn seal(root: &Path) -> Result<(), StoreError> {
    let me = (rustix::process::geteuid(), rustix::process::getegid());
    walk(root, &mut |path, metadata| {
        if metadata.is_symlink() {
            return check_link(root, path);
        }
        if !metadata.is_file() && !metadata.is_dir() {
            return Err(unsound(path, "is neither file, directory nor link"));
        }
        if metadata.uid() != me.0.as_raw() {
            std::os::unix::fs::lchown(path, Some(me.0.as_raw()), Some(me.1.as_raw()))
                .map_err(|source| StoreError::io("change the owner of", path, source))?;
        }
        let executable = metadata.mode() & 0o111 != 0;
        let mode = match (metadata.is_dir(), executable) {
            (true, _) => 0o755,
            (false, true) => 0o555,
            (false, false) => 0o444,
        };
        fs::set_permissions(path, fs::Permissions::from_mode(mode))
            .map_err(|source| StoreError::io("change the mode of", path, source))
    })
}

/// Refuses a link that is absolute or climbs out of `root`.
fn check_link(root: &Path, link: &Path) -> Result<(), StoreError> {
    let target = fs::read_link(link).map_err(|source| StoreError::io("read", link, source))?;
    let inside = link
        .parent()
        .and_then(|parent| parent.strip_prefix(root).ok());
    let mut depth = inside.map_or(0, |inside| inside.components().count());
    for component in target.components() {
        match component {
            Component::Normal(_) => depth += 1,
            Component::CurDir => {}
            Component::ParentDir if depth > 0 => depth -= 1,
            _ => {
                let reason = format!("is a link out of the result, to {}", target.display());
                return Err(unsound(link, &reason));
            }
        }
    }
    Ok(())
}

/// The path `relative` below `root`, if no link on the way leads elsewhere and something is there.
pub(crate) fn inside(root: &Path, relative: &Path) -> Result<PathBuf, StoreError> {
    let mut path = root.to_owned();
    for component in relative.components() {
        match component {
            Component::Normal(name) => path.push(name),
            Component::CurDir => continue,
            _ => return Err(unsound(relative, "is not a path inside")),
        }
        let metadata =
            fs::symlink_metadata(&path).map_err(|source| StoreError::io("find", &path, source))?;
        if metadata.is_symlink() && path != root.join(relative) {
            return Err(unsound(&path, "is a link on the way to a result"));
        }
    }
    Ok(path)
}

fn unsound(path: &Path, reason: &str) -> StoreError {
    StoreError::Unsound {
        path: path.to_owned(),
        reason: reason.to_owned(),
    }
}

/// Writes everything of the file system that `path` lies on to disk.
///
/// One call for a tree of thousands of files; costs what is not yet written, of others too.
pub fn sync_tree(path: &Path) -> Result<(), StoreError> {
    let failed = |source| StoreError::io("sync", path, source);
    let directory = File::open(path).map_err(failed)?;
    rustix::fs::syncfs(&directory).map_err(|error| failed(error.into()))
}

/// SHA-256 of a file's content as 64 hexadecimal digits. Blocks.
pub fn digest_file(path: &Path) -> Result<String, StoreError> {
    let failed = |source| StoreError::io("read", path, source);
    let mut file = fs::OpenOptions::new()
        .read(true)
        .custom_flags(rustix::fs::OFlags::NONBLOCK.bits().cast_signed())
        .open(path)
        .map_err(failed)?;
    let mut hasher = Sha256::new();
    let mut buffer = vec![0; 256 * 1024];
    loop {
        match file.read(&mut buffer).map_err(failed)? {
            0 => return Ok(hex(&hasher.finalize())),
            count => hasher.update(&buffer[..count]),
        }
    }
}

/// SHA-256 over the names, modes and contents of a tree, as 64 hexadecimal digits. Blocks.
pub fn digest_tree(root: &Path) -> Result<String, StoreError> {
    let mut lines = Vec::new();
    walk(root, &mut |path, metadata| {
        let name = path.strip_prefix(root).unwrap_or(path).display();
        if metadata.is_symlink() {
            let target =
                fs::read_link(path).map_err(|source| StoreError::io("read", path, source))?;
            lines.push(format!("l {name} {}", target.display()));
        } else if metadata.is_file() {
            let sign = if metadata.mode() & 0o111 == 0 {
                '-'
            } else {
                'x'
            };
            lines.push(format!("{sign} {name} {}", digest_file(path)?));
        }
        Ok(())
    })?;
    lines.sort_unstable();
    Ok(hex(&Sha256::digest(lines.join("\n").as_bytes())))
}

/// Bytes of all files of a tree.
pub(crate) fn size_of_tree(root: &Path) -> Result<u64, StoreError> {
    let mut size = 0;
    walk(root, &mut |_, metadata| {
        size += if metadata.is_file() {
            metadata.len()
        } else {
            0
        };
        Ok(())
    })?;
    Ok(size)
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

/// Visits a tree, directories before what is in them, without following links.
fn walk(
    path: &Path,
    visit: &mut impl FnMut(&Path, &Metadata) -> Result<(), StoreError>,
) -> Result<(), StoreError> {
    let failed = |source| StoreError::io("read", path, source);
    let metadata = fs::symlink_metadata(path).map_err(failed)?;
    visit(path, &metadata)?;
    if metadata.is_dir() {
        for entry in fs::read_dir(path).map_err(failed)? {
            walk(&entry.map_err(failed)?.path(), visit)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn links_inside_a_result_stay_and_links_out_of_it_are_refused() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().join("r");
        make_directory(&root.join("lib")).unwrap();
        fs::write(root.join("lib/a.so.1"), "x").unwrap();
        symlink("a.so.1", root.join("lib/a.so")).unwrap();
        symlink("../lib/a.so", root.join("lib/b.so")).unwrap();
        seal(&root).unwrap();
        for target in ["/etc/passwd", "../../x", "a/../../../x"] {
            symlink(target, root.join("lib/bad")).unwrap();
            let error = seal(&root).unwrap_err();
            assert!(
                matches!(error, StoreError::Unsound { .. }),
                "{target}: {error}"
            );
            fs::remove_file(root.join("lib/bad")).unwrap();
        }
    }

    #[test]
    fn an_output_behind_a_linked_directory_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        symlink("/etc", directory.path().join("build")).unwrap();
        let error = inside(directory.path(), Path::new("build/passwd")).unwrap_err();
        assert!(matches!(error, StoreError::Unsound { .. }), "{error}");
        let error = inside(directory.path(), Path::new("../x")).unwrap_err();
        assert!(matches!(error, StoreError::Unsound { .. }), "{error}");
    }

    #[test]
    fn sealed_files_are_read_only_keep_their_x_bit_and_can_be_removed() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().join("r");
        make_directory(&root).unwrap();
        fs::write(root.join("program"), "x").unwrap();
        fs::set_permissions(root.join("program"), fs::Permissions::from_mode(0o4775)).unwrap();
        fs::write(root.join("text"), "x").unwrap();
        seal(&root).unwrap();
        let mode = |name| fs::metadata(root.join(name)).unwrap().mode() & 0o7777;
        assert_eq!((mode("program"), mode("text")), (0o555, 0o444));
        remove_tree(&root).unwrap();
        remove_tree(&root).unwrap();
        assert!(!root.exists());
    }

    #[test]
    fn the_digest_of_a_tree_sees_names_contents_and_x_bits() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("a");
        fs::write(&file, "1").unwrap();
        let first = digest_tree(directory.path()).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
        let second = digest_tree(directory.path()).unwrap();
        fs::write(&file, "2").unwrap();
        let third = digest_tree(directory.path()).unwrap();
        assert_ne!(first, second);
        assert_ne!(second, third);
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
