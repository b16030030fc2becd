//! Directories of results: created, handed over, checked, sealed, hashed, removed.
//!
//! What a build left behind was written by a program that nobody trusts, possibly while this
//! process is root: nothing here follows a symbolic link.

use std::{
    ffi::OsStr,
    fs::{self, File},
    io::{self, Read as _},
    os::{
        fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd},
        unix::{
            ffi::OsStrExt as _,
            fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _},
        },
    },
    path::Path,
};

use rustix::{
    fs::{AtFlags, FileType, Mode, OFlags, Stat},
    io::Errno,
    process::{Gid, Uid},
};
use sha2::{Digest as _, Sha256};

use super::{StoreError, key::hex, link::check_link};
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
            open_directories(path).map_err(io::Error::other)?;
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

/// Opens every directory for its owner.
fn open_directories(path: &Path) -> Result<(), StoreError> {
    walk(path, &mut |found| {
        if found.kind() != FileType::Directory {
            return Ok(());
        }
        let failed = |source| StoreError::io("change the mode of", found.path, source);
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let handle = rustix::fs::openat(found.directory, found.name, flags, Mode::empty())
            .map_err(|error| failed(error.into()))?;
        let itself = format!("/proc/self/fd/{}", handle.as_raw_fd());
        fs::set_permissions(itself, fs::Permissions::from_mode(0o700)).map_err(failed)
    })
}

/// Gives a file or tree to a user; links themselves, not what they point to.
///
/// Whoever may write to the tree meanwhile can have another part of it given away, never anything
/// outside.
pub fn give_to(path: &Path, identity: Identity) -> Result<(), StoreError> {
    walk(path, &mut |found| {
        rustix::fs::chownat(
            found.directory,
            found.name,
            Some(Uid::from_raw(identity.uid)),
            Some(Gid::from_raw(identity.gid)),
            AtFlags::SYMLINK_NOFOLLOW,
        )
        .map_err(|error| StoreError::io("change the owner of", found.path, error.into()))
    })
}

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

/// Checks and seals the files of a finished result that nobody else can write to: they are
/// read-only, are nowhere else too, and no link leads out of `root`.
pub(crate) fn seal(root: &Path) -> Result<(), StoreError> {
    walk(root, &mut |found| {
        let mode = match found.kind() {
            FileType::Symlink => return check_link(root, found.path),
            FileType::Directory => 0o755,
            FileType::RegularFile if found.stat.st_nlink > 1 => {
                return Err(unsound(found.path, "is the same file as another one"));
            }
            FileType::RegularFile if found.stat.st_mode & 0o111 != 0 => 0o555,
            FileType::RegularFile => 0o444,
            _ => return Err(unsound(found.path, "is neither file, directory nor link")),
        };
        fs::set_permissions(found.path, fs::Permissions::from_mode(mode))
            .map_err(|source| StoreError::io("change the mode of", found.path, source))
    })
}

pub(super) fn unsound(path: &Path, reason: &str) -> StoreError {
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
    walk(root, &mut |found| {
        let path = found.path;
        let name = path.strip_prefix(root).unwrap_or(path).display();
        match found.kind() {
            FileType::Symlink => {
                let target =
                    fs::read_link(path).map_err(|source| StoreError::io("read", path, source))?;
                lines.push(format!("l {name} {}", target.display()));
            }
            FileType::RegularFile => {
                let executable = found.stat.st_mode & 0o111 != 0;
                let sign = if executable { 'x' } else { '-' };
                lines.push(format!("{sign} {name} {}", digest_file(path)?));
            }
            _ => {}
        }
        Ok(())
    })?;
    lines.sort_unstable();
    Ok(hex(&Sha256::digest(lines.join("\n").as_bytes())))
}

/// Bytes of all files of a tree.
pub(crate) fn size_of_tree(root: &Path) -> Result<u64, StoreError> {
    let mut size = 0;
    walk(root, &mut |found| {
        if found.kind() == FileType::RegularFile {
            size += u64::try_from(found.stat.st_size).unwrap_or(0);
        }
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

/// Something met on a walk: `name` in `directory`, however it is called by now.
struct Found<'a> {
    directory: BorrowedFd<'a>,
    name: &'a OsStr,
    path: &'a Path,
    stat: Stat,
}

impl Found<'_> {
    fn kind(&self) -> FileType {
        FileType::from_raw_mode(self.stat.st_mode)
    }
}

/// Visits a tree, directories before what is in them. Goes from descriptor to descriptor: a
/// directory that is replaced by a link meanwhile does not lead the walk elsewhere.
fn walk(
    root: &Path,
    visit: &mut impl FnMut(&Found<'_>) -> Result<(), StoreError>,
) -> Result<(), StoreError> {
    let parent = root.parent().unwrap_or(Path::new("/"));
    let name = root.file_name().unwrap_or(OsStr::new("."));
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = rustix::fs::open(parent, flags, Mode::empty())
        .map_err(|error| StoreError::io("read", parent, error.into()))?;
    walk_at(directory.as_fd(), name, root, visit)
}

fn walk_at(
    directory: BorrowedFd<'_>,
    name: &OsStr,
    path: &Path,
    visit: &mut impl FnMut(&Found<'_>) -> Result<(), StoreError>,
) -> Result<(), StoreError> {
    let failed = |error: Errno| StoreError::io("read", path, error.into());
    let found = Found {
        directory,
        name,
        path,
        stat: rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW).map_err(failed)?,
    };
    visit(&found)?;
    if found.kind() != FileType::Directory {
        return Ok(());
    }
    let inner = open_directory(Some(directory), name).map_err(failed)?;
    for entry in rustix::fs::Dir::read_from(&inner).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let name = OsStr::from_bytes(entry.file_name().to_bytes());
        if name != "." && name != ".." {
            walk_at(inner.as_fd(), name, &path.join(name), visit)?;
        }
    }
    Ok(())
}

/// Opens a directory for reading; a link is not followed.
pub(super) fn open_directory(
    directory: Option<BorrowedFd<'_>>,
    name: &OsStr,
) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let from = directory.unwrap_or(rustix::fs::CWD);
    rustix::fs::openat(from, name, flags, Mode::empty())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    const SOMEBODY: Identity = Identity {
        uid: 64_123,
        gid: 64_123,
    };

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
    fn a_link_out_of_a_result_and_a_file_with_two_names_are_not_sealed() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().join("r");
        make_directory(&root).unwrap();
        symlink("/etc", root.join("bad")).unwrap();
        assert!(matches!(seal(&root), Err(StoreError::Unsound { .. })));
        fs::remove_file(root.join("bad")).unwrap();
        let other = directory.path().join("other");
        fs::write(&other, "x").unwrap();
        fs::set_permissions(&other, fs::Permissions::from_mode(0o600)).unwrap();
        fs::hard_link(&other, root.join("x")).unwrap();
        assert!(matches!(seal(&root), Err(StoreError::Unsound { .. })));
        assert_eq!(fs::metadata(&other).unwrap().mode() & 0o777, 0o600);
    }

    #[test]
    fn what_is_given_away_ends_at_links() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let directory = tempfile::tempdir().unwrap();
        let outside = directory.path().join("outside");
        fs::create_dir(&outside).unwrap();
        fs::write(outside.join("x"), "x").unwrap();
        let root = directory.path().join("r");
        make_directory(&root.join("a")).unwrap();
        symlink(&outside, root.join("a/link")).unwrap();
        symlink(outside.join("x"), root.join("file")).unwrap();
        give_to(&root, SOMEBODY).unwrap();
        let owner = |path: &Path| fs::symlink_metadata(path).unwrap().uid();
        assert_eq!(owner(&root.join("a/link")), SOMEBODY.uid);
        assert_eq!(owner(&outside), 0);
        assert_eq!(owner(&outside.join("x")), 0);
    }

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
