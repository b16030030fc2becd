//! Results that may not be moved, such as virtual environments: made where they stay.
//!
//! Commands write into the directory that will be the result, as the unprivileged user. Nothing looks
//! for it there before its manifest exists, which is written last. Then everything in it is taken over
//! by this process's user, from the top down, so that whoever made it cannot change what was checked.
//! A directory without manifest that nobody makes is rubbish of a crash: it is moved aside before it is
//! removed, so that what a dying command still writes does not go into its successor.

use std::{
    fs,
    os::{
        fd::AsRawFd as _,
        unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _},
    },
    path::{Path, PathBuf},
};

use jiff::Timestamp;
use rustix::fs::{AtFlags, FileType, Mode, OFlags};

use super::{
    Begin, Entry, Ingredients, Key, Kind, Lock, Manifest, Patience, SCHEMA, Store, StoreError, Use,
    document,
    entry::{Claim, MANIFEST, TREE},
    lock::try_lock,
    place, tree,
    tree::unsound,
    walk::{Found, walk},
    write_document,
};
use crate::process::Identity;

const HOME: &str = "home";
const TEMPORARY: &str = "tmp";

/// A result in the making, in its final place. Dropped without [`FixedWork::publish`], everything is
/// thrown away.
#[derive(Debug)]
pub struct FixedWork {
    store: Store,
    key: Key,
    name: String,
    ingredients: Ingredients,
    /// Given away when it is published.
    used: Option<Use>,
    _lock: Lock,
}

/// Where commands work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Room {
    /// Their working directory.
    pub work: PathBuf,
    /// Their home directory.
    pub home: PathBuf,
    /// Their directory for temporary files.
    pub temporary: PathBuf,
}

impl Store {
    /// Like [`Store::begin`], for a result that is made in its final place.
    pub async fn begin_in_place(
        &self,
        kind: Kind,
        name: &str,
        ingredients: Ingredients,
        doing: &str,
        patience: Patience<'_>,
    ) -> Result<Begin<FixedWork>, StoreError> {
        let key = ingredients.key(kind);
        Ok(match self.claim(&key, doing, patience).await? {
            Claim::Hit(entry) => Begin::Hit(entry),
            Claim::Make(lock, used) => Begin::Work(FixedWork {
                store: self.clone(),
                key,
                name: name.to_owned(),
                ingredients,
                used: Some(used),
                _lock: lock,
            }),
        })
    }

    /// Moves a directory aside, if it is there, and removes it. What cannot be removed at once is
    /// swept by a later run.
    pub(super) fn discard(&self, directory: &Path) -> Result<(), StoreError> {
        if fs::symlink_metadata(directory).is_err() {
            return Ok(());
        }
        let aside = self.temporary("rubbish")?;
        let target = aside.path().join("it");
        match fs::rename(directory, &target) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(StoreError::io("move aside", directory, error))
            }
            _ => Ok(()),
        }
    }

    /// Removes results without manifest that nobody makes.
    pub(super) fn sweep_unfinished(&self) {
        for kind in Kind::ALL {
            let directory = self.root().join(kind.as_str());
            for entry in fs::read_dir(&directory).into_iter().flatten().flatten() {
                let path = entry.path();
                let unfinished = || !path.join(MANIFEST).exists();
                let Some(name) = path.file_name().and_then(|name| name.to_str()) else {
                    continue;
                };
                let lock = self.lock_path(&format!("{}-{name}", kind.as_str()));
                if unfinished()
                    && let Ok(Some(_lock)) = try_lock(&lock, "removing what a crash left")
                    && unfinished()
                {
                    let _ = self.discard(&path);
                }
            }
        }
    }
}

impl FixedWork {
    /// The directory that is the result, once it is published.
    #[must_use]
    pub fn tree(&self) -> PathBuf {
        self.directory().join(TREE)
    }

    fn directory(&self) -> PathBuf {
        self.store.directory_of(&self.key)
    }

    /// Empty directories for commands, owned by who runs them. Asked for again, they are made anew.
    pub fn ready(&self, owner: Option<Identity>) -> Result<Room, StoreError> {
        let directory = self.directory();
        self.store.discard(&directory)?;
        tree::make_directory(&directory)?;
        let room = Room {
            work: self.tree(),
            home: directory.join(HOME),
            temporary: directory.join(TEMPORARY),
        };
        if let Some(owner) = owner {
            place::ensure_reachable(&room.work, owner)?;
        }
        for path in [&room.work, &room.home, &room.temporary] {
            place::make_for(path, owner)?;
        }
        Ok(room)
    }

    /// Takes over what commands left: only these outputs stay, read-only and this process's user's
    /// own. `owner` is who ran the commands; links may lead to `also`, canonical paths of programs
    /// outside. Gives an output that is missing. Blocks.
    pub fn settle(
        &self,
        outputs: &[PathBuf],
        owner: Option<Identity>,
        also: &[PathBuf],
    ) -> Result<Option<PathBuf>, StoreError> {
        let root = self.tree();
        take_over(&root, owner)?;
        let missing = |output: &&PathBuf| fs::symlink_metadata(root.join(output)).is_err();
        if let Some(missing) = outputs.iter().find(missing) {
            return Ok(Some(missing.clone()));
        }
        keep_only(&root, Path::new(""), outputs)?;
        tree::seal_but(&root, also)?;
        Ok(None)
    }

    /// Writes everything to disk and, last, the manifest. Blocks while it syncs.
    pub fn publish(mut self, result: serde_json::Value) -> Result<Entry, StoreError> {
        let directory = self.directory();
        for name in [HOME, TEMPORARY] {
            tree::remove_tree(&directory.join(name))?;
        }
        let content = self.tree();
        tree::sync_tree(&content)?;
        let manifest = Manifest {
            key: self.key.clone(),
            name: self.name.clone(),
            ingredients: self.ingredients.clone(),
            created: Timestamp::now(),
            has_tree: true,
            result,
        };
        write_document(&directory.join(MANIFEST), SCHEMA, 0o444, &manifest)?;
        document::sync_directory(&directory)?;
        if let Some(used) = self.used.take() {
            self.store.keep(&self.key, used);
        }
        Ok(Entry {
            path: content,
            manifest,
        })
    }
}

impl Drop for FixedWork {
    fn drop(&mut self) {
        if self.used.is_some() {
            // Not reported: whatever is left is swept by a later run.
            let _ = self.store.discard(&self.directory());
        }
    }
}

/// Makes everything in a tree this process's user's own. Goes down from the top: what lies in a
/// directory that was taken over cannot be exchanged any more. A file with another name elsewhere,
/// for example in a cache, is replaced by a copy.
fn take_over(root: &Path, owner: Option<Identity>) -> Result<(), StoreError> {
    let own = rustix::process::geteuid();
    walk(root, &mut |found| {
        let theirs = owner.map_or(own.as_raw(), |owner| owner.uid);
        let uid = found.stat.st_uid;
        if uid != theirs && uid != own.as_raw() {
            let reason = format!("belongs to user {uid}, not to user {theirs}, who made it");
            return Err(unsound(found.path, &reason));
        }
        if uid != own.as_raw() {
            let failed = |error: rustix::io::Errno| {
                StoreError::io("change the owner of", found.path, error.into())
            };
            let (user, group) = (Some(own), Some(rustix::process::getegid()));
            let flags = AtFlags::SYMLINK_NOFOLLOW;
            rustix::fs::chownat(found.directory, found.name, user, group, flags).map_err(failed)?;
        }
        match found.kind() {
            FileType::Directory => open_for_owner(found),
            FileType::RegularFile if found.stat.st_nlink > 1 => make_single(found.path),
            _ => Ok(()),
        }
    })
}

fn open_for_owner(found: &Found<'_>) -> Result<(), StoreError> {
    let failed = |source| StoreError::io("change the mode of", found.path, source);
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let handle = rustix::fs::openat(found.directory, found.name, flags, Mode::empty())
        .map_err(|error| failed(error.into()))?;
    let itself = format!("/proc/self/fd/{}", handle.as_raw_fd());
    fs::set_permissions(itself, fs::Permissions::from_mode(0o755)).map_err(failed)
}

/// Replaces a file by a copy of it. The directory is this process's user's own.
fn make_single(path: &Path) -> Result<(), StoreError> {
    let failed = |source| StoreError::io("copy", path, source);
    let mut from = fs::OpenOptions::new()
        .read(true)
        .custom_flags(OFlags::NOFOLLOW.bits().cast_signed())
        .open(path)
        .map_err(failed)?;
    let metadata = from.metadata().map_err(failed)?;
    let parent = path.parent().unwrap_or(Path::new("/"));
    let mut copy = tempfile::NamedTempFile::new_in(parent).map_err(failed)?;
    if rustix::fs::ioctl_ficlone(copy.as_file(), &from).is_err() {
        std::io::copy(&mut from, copy.as_file_mut()).map_err(failed)?;
    }
    let mode = fs::Permissions::from_mode(metadata.mode() & 0o777);
    copy.as_file().set_permissions(mode).map_err(failed)?;
    // Compiled Python modules remember the time of their source.
    let times = fs::FileTimes::new().set_modified(metadata.modified().map_err(failed)?);
    copy.as_file().set_times(times).map_err(failed)?;
    copy.persist(path)
        .map(drop)
        .map_err(|error| failed(error.error))
}

/// Removes what is neither an output, nor in one, nor on the way to one.
fn keep_only(root: &Path, inside: &Path, outputs: &[PathBuf]) -> Result<(), StoreError> {
    let directory = root.join(inside);
    let failed = |source| StoreError::io("read", &directory, source);
    for entry in fs::read_dir(&directory).map_err(failed)? {
        let name = inside.join(entry.map_err(failed)?.file_name());
        let path = root.join(&name);
        if outputs.contains(&name) {
            continue;
        }
        let on_the_way = outputs.iter().any(|output| output.starts_with(&name));
        let is_directory = fs::symlink_metadata(&path).is_ok_and(|metadata| metadata.is_dir());
        match (on_the_way, is_directory) {
            (true, true) => keep_only(root, &name, outputs)?,
            (true, false) => {
                return Err(unsound(&path, "is a link or file on the way to a result"));
            }
            (false, _) => tree::remove_tree(&path)?,
        }
    }
    Ok(())
}
