//! What commands left, copied into files of our own.
//!
//! The commands ran as another user, who may still have these files and directories open. So
//! everything is reached through descriptors, no link is followed, and what becomes the result are
//! new files that nobody else ever had: they are sealed and hashed, and stay what they were then.

use std::{
    ffi::OsStr,
    fs::{self, File},
    io,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::{
            ffi::OsStrExt as _,
            fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _},
        },
    },
    path::{Component, Path, PathBuf},
};

use rustix::{
    fs::{AtFlags, FileType, Mode, OFlags, Timespec, Timestamps},
    io::Errno,
};

use super::{
    StoreError,
    tree::{make_directory, remove_tree, unsound},
    walk::open_directory,
};

/// The way from a scratch directory into the result beside it.
#[derive(Debug, Clone)]
pub struct Outputs {
    pub(super) scratch: PathBuf,
    pub(super) tree: PathBuf,
    /// Who ran the commands, where that is another user.
    pub(super) owner: Option<u32>,
}

impl Outputs {
    /// Copies a file or directory into the result, under the same relative path. A link on the way
    /// is refused, and so is a file of anybody but who ran the commands. Blocks.
    pub fn take(&self, relative: &Path) -> Result<(), StoreError> {
        let target = self.tree.join(relative);
        if let Some(parent) = target.parent() {
            make_directory(parent)?;
        }
        let taking = Taking {
            owner: self.owner,
            without: None,
        };
        copy(&self.scratch, relative, &target, taking)
    }

    /// Makes a copy of a directory the result, without what is called `without`. Blocks.
    pub fn take_all(&self, directory: &Path, without: &str) -> Result<(), StoreError> {
        remove_tree(&self.tree)?;
        let taking = Taking {
            owner: self.owner,
            without: Some(without),
        };
        copy(&self.scratch, directory, &self.tree, taking)
    }
}

/// What is taken.
#[derive(Debug, Clone, Copy)]
struct Taking<'a> {
    /// Whose the files must be, where it is not this process's user who made them: another user's
    /// file was linked here.
    owner: Option<u32>,
    /// A name that is left out, wherever it is met.
    without: Option<&'a str>,
}

/// Copies `relative`, a file or directory below `root`, to `target`.
fn copy(root: &Path, relative: &Path, target: &Path, taking: Taking<'_>) -> Result<(), StoreError> {
    let mut directory = open_directory(None, root.as_os_str())
        .map_err(|error| StoreError::io("open", root, error.into()))?;
    let mut path = root.to_owned();
    let mut names = Vec::new();
    for component in relative.components() {
        match component {
            Component::Normal(name) => names.push(name),
            Component::CurDir => {}
            _ => return Err(unsound(relative, "is not a path inside")),
        }
    }
    let Some((last, on_the_way)) = names.split_last() else {
        return copy_directory(directory.as_fd(), root, target, taking);
    };
    for name in on_the_way {
        path.push(name);
        directory = open_directory(Some(directory.as_fd()), name).map_err(|error| match error {
            Errno::NOTDIR | Errno::LOOP => {
                unsound(&path, "is a link or file on the way to a result")
            }
            error => StoreError::io("find", &path, error.into()),
        })?;
    }
    copy_entry(directory.as_fd(), last, &path.join(last), target, taking)
}

fn copy_entry(
    directory: BorrowedFd<'_>,
    name: &OsStr,
    path: &Path,
    target: &Path,
    taking: Taking<'_>,
) -> Result<(), StoreError> {
    let failed = |error: Errno| StoreError::io("read", path, error.into());
    let found = rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW).map_err(failed)?;
    match FileType::from_raw_mode(found.st_mode) {
        FileType::Symlink => {
            let to = rustix::fs::readlinkat(directory, name, Vec::new()).map_err(failed)?;
            replace(target)?;
            std::os::unix::fs::symlink(OsStr::from_bytes(to.as_bytes()), target)
                .map_err(|source| StoreError::io("create", target, source))
        }
        FileType::Directory => {
            let inner = open_directory(Some(directory), name).map_err(failed)?;
            copy_directory(inner.as_fd(), path, target, taking)
        }
        FileType::RegularFile => {
            // Not blocking: it may be a pipe by now.
            let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
            let file = rustix::fs::openat(directory, name, flags, Mode::empty()).map_err(failed)?;
            copy_file(file, path, target, taking)
        }
        _ => Err(unsound(path, "is neither file, directory nor link")),
    }
}

fn copy_directory(
    directory: BorrowedFd<'_>,
    path: &Path,
    target: &Path,
    taking: Taking<'_>,
) -> Result<(), StoreError> {
    let failed = |error: Errno| StoreError::io("read", path, error.into());
    make_directory(target)?;
    for entry in rustix::fs::Dir::read_from(directory).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let name = OsStr::from_bytes(entry.file_name().to_bytes());
        let skipped = taking.without.is_some_and(|without| name == without);
        if name != "." && name != ".." && !skipped {
            let (from, to) = (path.join(name), target.join(name));
            copy_entry(directory, name, &from, &to, taking)?;
        }
    }
    Ok(())
}

fn copy_file(
    from: OwnedFd,
    path: &Path,
    target: &Path,
    taking: Taking<'_>,
) -> Result<(), StoreError> {
    let mut from = File::from(from);
    let metadata = from
        .metadata()
        .map_err(|source| StoreError::io("read", path, source))?;
    if !metadata.is_file() {
        return Err(unsound(path, "is neither file, directory nor link"));
    }
    if let Some(owner) = taking.owner.filter(|owner| *owner != metadata.uid()) {
        let reason = format!(
            "belongs to user {}, not to user {owner}, who made the result",
            metadata.uid()
        );
        return Err(unsound(path, &reason));
    }
    replace(target)?;
    let failed = |source| StoreError::io("write", target, source);
    let mut to = fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(target)
        .map_err(failed)?;
    // A clone shares the bytes until one of them is written; not every file system has it.
    if rustix::fs::ioctl_ficlone(&to, &from).is_err() {
        io::copy(&mut from, &mut to).map_err(failed)?;
    }
    let executable = metadata.mode() & 0o111 != 0;
    let mode = if executable { 0o555 } else { 0o444 };
    to.set_permissions(fs::Permissions::from_mode(mode))
        .map_err(failed)?;
    // Compiled Python modules remember the time of their source.
    let time = Timespec {
        tv_sec: metadata.mtime(),
        tv_nsec: metadata.mtime_nsec(),
    };
    let times = Timestamps {
        last_access: time,
        last_modification: time,
    };
    rustix::fs::futimens(&to, &times).map_err(|error| failed(error.into()))
}

/// Makes room for what an earlier output named as well.
fn replace(target: &Path) -> Result<(), StoreError> {
    match fs::remove_file(target) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(StoreError::io("replace", target, error))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    const ANYTHING: Taking<'_> = Taking {
        owner: None,
        without: None,
    };

    fn places() -> (tempfile::TempDir, PathBuf, PathBuf) {
        let directory = tempfile::tempdir().unwrap();
        let (from, to) = (directory.path().join("from"), directory.path().join("to"));
        fs::create_dir(&from).unwrap();
        fs::create_dir(&to).unwrap();
        (directory, from, to)
    }

    #[test]
    fn an_output_behind_a_linked_directory_is_refused() {
        let (_directory, from, to) = places();
        symlink("/etc", from.join("build")).unwrap();
        for relative in ["build/passwd", "../x"] {
            let relative = Path::new(relative);
            let error = copy(&from, relative, &to.join("x"), ANYTHING).unwrap_err();
            assert!(matches!(error, StoreError::Unsound { .. }), "{error}");
        }
        assert!(!to.join("x").exists());
    }

    #[test]
    fn a_file_that_is_linked_elsewhere_is_copied_and_the_other_left_alone() {
        let (directory, from, to) = places();
        let other = directory.path().join("other");
        fs::write(&other, "x").unwrap();
        fs::set_permissions(&other, fs::Permissions::from_mode(0o640)).unwrap();
        fs::hard_link(&other, from.join("out")).unwrap();
        copy(&from, Path::new("out"), &to.join("out"), ANYTHING).unwrap();
        // Writing to the old file, as whoever still has it open could, changes no result.
        fs::write(&other, "changed").unwrap();
        assert_eq!(fs::read_to_string(to.join("out")).unwrap(), "x");
        assert_eq!(fs::metadata(&other).unwrap().mode() & 0o777, 0o640);
        assert_eq!(fs::metadata(to.join("out")).unwrap().mode() & 0o777, 0o444);
    }

    #[test]
    fn a_file_of_somebody_else_that_was_linked_in_is_refused() {
        let (_directory, from, to) = places();
        fs::write(from.join("shadow"), "x").unwrap();
        let owner = fs::metadata(from.join("shadow")).unwrap().uid();
        let taking = Taking {
            owner: Some(owner + 1),
            ..ANYTHING
        };
        let error = copy(&from, Path::new("shadow"), &to.join("out"), taking).unwrap_err();
        assert!(error.to_string().contains("belongs to user"), "{error}");
        assert!(!to.join("out").exists());
    }

    #[test]
    fn directories_come_whole_without_what_is_left_out_and_pipes_are_refused() {
        let (_directory, from, to) = places();
        for name in ["a/.git", "a/lib/.git"] {
            fs::create_dir_all(from.join(name)).unwrap();
        }
        fs::write(from.join("a/lib/x"), "x").unwrap();
        fs::set_permissions(from.join("a/lib/x"), fs::Permissions::from_mode(0o700)).unwrap();
        symlink("lib/x", from.join("a/link")).unwrap();
        fs::write(from.join("a/lib/.git/config"), "x").unwrap();
        let taking = Taking {
            without: Some(".git"),
            ..ANYTHING
        };
        copy(&from, Path::new("a"), &to, taking).unwrap();
        assert_eq!(fs::read_to_string(to.join("link")).unwrap(), "x");
        let mode = fs::metadata(to.join("lib/x")).unwrap().mode() & 0o777;
        assert_eq!(mode, 0o555);
        assert!(!to.join(".git").exists() && !to.join("lib/.git").exists());

        let pipe = from.join("a/pipe");
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &pipe,
            FileType::Fifo,
            Mode::from_raw_mode(0o600),
            0,
        )
        .unwrap();
        let error = copy(&from, Path::new("a"), &to, taking).unwrap_err();
        assert!(matches!(error, StoreError::Unsound { .. }), "{error}");
    }
}
