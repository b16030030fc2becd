//! Directories of results: created, handed over, checked, sealed, hashed, removed.
//!
//! What a build left behind was written by a program that nobody trusts, possibly while this
//! process is root: nothing here follows a symbolic link.

use std::{
    fs::{self, File},
    io::{self, Read as _},
    os::{
        fd::AsRawFd as _,
        unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _},
    },
    path::{Path, PathBuf},
};

use rustix::fs::{FileType, Mode, OFlags};
use sha2::{Digest as _, Sha256};

use super::{
    StoreError,
    key::hex,
    link::check_link_but,
    walk::walk,
    watch::{Watch, Watched},
};

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

/// Checks and seals the files of a finished result that nobody else can write to: they are
/// read-only, are nowhere else too, and no link leads out of `root`.
pub(crate) fn seal(root: &Path) -> Result<(), StoreError> {
    seal_but(root, &[])
}

/// The same, but links may lead to these programs, given as canonical paths.
pub(super) fn seal_but(root: &Path, also: &[PathBuf]) -> Result<(), StoreError> {
    walk(root, &mut |found| {
        let mode = match found.kind() {
            FileType::Symlink => return check_link_but(root, found.path, also),
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
    digest_watched(path, None)
}

/// The same, watched.
pub(super) fn digest_watched(path: &Path, watch: Option<&dyn Watch>) -> Result<String, StoreError> {
    let failed = |source| StoreError::of_reading(path, source);
    let file = fs::OpenOptions::new()
        .read(true)
        .custom_flags(rustix::fs::OFlags::NONBLOCK.bits().cast_signed())
        .open(path)
        .map_err(failed)?;
    let size_bytes = file.metadata().map_err(failed)?.len();
    let mut file = Watched::new(file, path, size_bytes, watch);
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

/// Paths of all files of a tree.
pub(crate) fn files_of(root: &Path) -> Result<Vec<PathBuf>, StoreError> {
    let mut files = Vec::new();
    walk(root, &mut |found| {
        if found.kind() == FileType::RegularFile {
            files.push(found.path.to_owned());
        }
        Ok(())
    })?;
    Ok(files)
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

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt as _, symlink};

    use super::*;

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
    fn what_is_opened_for_removal_ends_at_links() {
        let directory = tempfile::tempdir().unwrap();
        let outside = directory.path().join("outside");
        make_directory(&outside).unwrap();
        let root = directory.path().join("r");
        make_directory(&root.join("closed")).unwrap();
        symlink(&outside, root.join("link")).unwrap();
        fs::set_permissions(root.join("closed"), fs::Permissions::from_mode(0o100)).unwrap();
        open_directories(&root).unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o777;
        assert_eq!(mode(&root.join("closed")), 0o700);
        assert_eq!(mode(&outside), 0o755);
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
}
