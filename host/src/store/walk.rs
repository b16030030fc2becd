//! Walks through trees that others may be changing, from descriptor to descriptor.

use std::{
    ffi::OsStr,
    os::{
        fd::{AsFd as _, BorrowedFd, OwnedFd},
        unix::ffi::OsStrExt as _,
    },
    path::Path,
};

use rustix::{
    fs::{AtFlags, FileType, Mode, OFlags, Stat},
    io::Errno,
};

use super::StoreError;

/// Something met on a walk: `name` in `directory`, however it is called by now.
pub(super) struct Found<'a> {
    pub(super) directory: BorrowedFd<'a>,
    pub(super) name: &'a OsStr,
    pub(super) path: &'a Path,
    pub(super) stat: Stat,
}

impl Found<'_> {
    pub(super) fn kind(&self) -> FileType {
        FileType::from_raw_mode(self.stat.st_mode)
    }
}

/// Visits a tree, directories before what is in them. Goes from descriptor to descriptor: a
/// directory that is replaced by a link meanwhile does not lead the walk elsewhere.
pub(super) fn walk(
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
