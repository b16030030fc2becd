//! Directories in `tmp/` that belong to one run.
//!
//! Each has a name that is used once and is locked (flock) for as long as it is used; one that
//! nobody holds is rubbish of a crash. A host that is killed takes its commands with it, but not in
//! the same instant: what they still write goes to a directory that nobody gets after them.

use std::{
    fs::{self, File, Permissions},
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
    time::Duration,
};

use super::{Store, StoreError, document, lock::try_hold, tree};

/// Random characters of a name.
const RANDOM: usize = 16;

/// Names tried. Another one is needed only when a sweep met the directory before it was locked.
const TRIES: u32 = 16;

/// A directory of one run, removed when this is dropped.
#[derive(Debug)]
pub(crate) struct Temporary {
    path: PathBuf,
    kept: bool,
    _held: Held,
}

/// A directory that nobody else works in or removes while this is there.
#[derive(Debug)]
pub(crate) struct Held(File);

impl Drop for Held {
    fn drop(&mut self) {
        // It is closed next, which unlocks it a little later: see `Lock::drop`.
        let _ = self.0.unlock();
    }
}

impl Temporary {
    /// The directory: it exists, is empty and belongs to this process's user.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Moves it elsewhere on the same file system, where it stays.
    pub(super) fn move_to(mut self, target: &Path) -> Result<(), StoreError> {
        fs::rename(&self.path, target)
            .map_err(|source| StoreError::io("publish", target, source))?;
        self.kept = true;
        Ok(())
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if !self.kept {
            // Not reported: whatever is left is swept by a later run.
            let _ = tree::remove_tree(&self.path);
        }
    }
}

/// Longest time that writing a small file beside its place can take.
const WRITING_LIMIT: Duration = Duration::from_secs(60 * 60);

impl Store {
    /// A new directory for this run alone; `name` is how its name begins.
    pub(crate) fn temporary(&self, name: &str) -> Result<Temporary, StoreError> {
        let parent = self.root.join("tmp");
        tree::make_directory(&parent)?;
        for _ in 0..TRIES {
            let path = tempfile::Builder::new()
                .prefix(&format!("{name}."))
                .rand_bytes(RANDOM)
                .permissions(Permissions::from_mode(0o755))
                .tempdir_in(&parent)
                .map_err(|source| StoreError::io("create a directory in", &parent, source))?
                .keep();
            if let Some(held) = hold(&path)? {
                return Ok(Temporary {
                    path,
                    kept: false,
                    _held: held,
                });
            }
        }
        Err(StoreError::Unsound {
            path: parent,
            reason: "somebody removes what is created in it".to_owned(),
        })
    }

    /// Removes what crashed runs left in `tmp/` and half made in its final place; what somebody works in is left alone. Gives the
    /// number of directories removed.
    ///
    /// What cannot be removed, because a command of a killed host still writes to it, is in nobody's
    /// way: a later run removes it.
    pub fn sweep(&self) -> Result<usize, StoreError> {
        sweep_writings(&self.blobs());
        self.sweep_unfinished();
        let Ok(directory) = fs::read_dir(self.root.join("tmp")) else {
            return Ok(0);
        };
        let mut removed = 0;
        for entry in directory.flatten() {
            if let Ok(Some(_held)) = hold(&entry.path())
                && tree::remove_tree(&entry.path()).is_ok()
            {
                removed += 1;
            }
        }
        Ok(removed)
    }
}

/// Removes files that a killed run was writing beside the blobs. Nobody holds them, so their age has to
/// tell. One that cannot be removed is in nobody's way.
fn sweep_writings(directory: &Path) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let is_writing = entry
            .file_name()
            .as_encoded_bytes()
            .starts_with(document::WRITING.as_bytes());
        let age = entry.metadata().and_then(|it| it.modified()).ok();
        let is_old = age
            .and_then(|since| since.elapsed().ok())
            .is_some_and(|age| age > WRITING_LIMIT);
        if is_writing && is_old {
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// Locks a directory; `None` where somebody else has, or it is no directory any more.
pub(crate) fn hold(path: &Path) -> Result<Option<Held>, StoreError> {
    let flags = rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::DIRECTORY;
    let opened = fs::OpenOptions::new()
        .read(true)
        .custom_flags(flags.bits().cast_signed())
        .open(path);
    let Ok(directory) = opened else {
        return Ok(None);
    };
    if !try_hold(&directory).map_err(|source| StoreError::io("lock", path, source))? {
        return Ok(None);
    }
    let held = Held(directory);
    let same = |here: fs::Metadata| {
        held.0
            .metadata()
            .is_ok_and(|held| (held.dev(), held.ino()) == (here.dev(), here.ino()))
    };
    // Whoever held it before may have removed it.
    Ok(fs::symlink_metadata(path).is_ok_and(same).then_some(held))
}
