//! What an engine finds on disk when it starts: its directories, the files placed for it, and whether
//! it may read what it is given.

use std::{collections::BTreeSet, fs, os::unix::fs::PermissionsExt, path::Path};

use super::{
    EngineError,
    access::{self, Owner},
    kind::Kind,
    launch,
    port::Ports,
    start::Start,
};
use crate::store::{StoreError, remove_tree};

impl Start<'_> {
    /// Makes the engine's directories; what an earlier start has placed is replaced. Refuses what the
    /// engine could not read.
    pub(super) fn make_places(&self) -> Result<(), EngineError> {
        let files = &self.files;
        match empty(files) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(StoreError::io("remove", files, error).into());
            }
            _ => {}
        }
        make_directory(files)?;
        make_own(&self.place.join("work"), Owner::Is(self.request.identity))?;
        // Of one whose end nobody has seen. A directory that is not there is as good.
        let _ = fs::remove_file(self.label().made_file());
        let (caches, owner) = self.caches()?;
        for cache in caches {
            make_own(&self.request.home.cache(&cache), owner)?;
        }
        Ok(())
    }

    /// Caches that are used, and whose they are.
    fn caches(&self) -> Result<(BTreeSet<String>, Owner), EngineError> {
        let Kind::Container(contained) = &self.kind else {
            let rendered = self.process(&self.numbers(None))?;
            return Ok((rendered.caches, Owner::Is(self.request.identity)));
        };
        let rendered = self.container(contained, None)?;
        let user = access::user_inside(contained);
        for mount in rendered.run.mounts.iter().filter(|mount| !mount.writable) {
            // Its own files are written later, and readable by everybody.
            if !mount.source.starts_with(&self.files) {
                access::check(&mount.source, &mount.target, user)?;
            }
        }
        if rendered.caches.is_empty() {
            return Ok((rendered.caches, Owner::Is(None)));
        }
        Ok((rendered.caches, access::owner_of_caches(contained)?))
    }

    pub(super) fn write_files(&self, ports: &Ports) -> Result<(), EngineError> {
        let files = &self.files;
        for file in &self.request.prepared.files {
            let path = launch::placed_path(files, &file.path)?;
            make_directory(path.parent().unwrap_or(files))?;
            fs::write(&path, self.text_of(file, Some(ports))?)
                .and_then(|()| fs::set_permissions(&path, fs::Permissions::from_mode(0o644)))
                .map_err(|source| StoreError::io("write", &path, source))?;
        }
        Ok(())
    }
}

/// Makes a directory that is the engine's user's. What is there already stays if it is theirs; what
/// another user could write in so far is made anew: nothing of it is to be trusted.
fn make_own(path: &Path, owner: Owner) -> Result<(), EngineError> {
    use std::os::unix::fs::{MetadataExt, lchown};
    let own = rustix::process::geteuid().as_raw();
    let Owner::Is(identity) = owner else {
        // Whom it was given to is one of this user's own subordinate users.
        return if path.is_dir() {
            Ok(())
        } else {
            make_directory(path)
        };
    };
    let wanted = identity.map_or(own, |identity| identity.uid);
    // A link here is the operator's: nobody else can write in the directories above.
    match fs::metadata(path) {
        Ok(found) if found.is_dir() && found.uid() == wanted => return Ok(()),
        _ => remove_tree(path)?,
    }
    make_directory(path)?;
    if let Some(identity) = identity.filter(|_| wanted != own) {
        lchown(path, Some(identity.uid), Some(identity.gid))
            .map_err(|source| StoreError::io("change the owner of", path, source))?;
    }
    Ok(())
}

/// Removes a directory with all that is in it; one that is empty stays.
fn empty(path: &Path) -> std::io::Result<()> {
    match fs::read_dir(path)?.next() {
        Some(_) => fs::remove_dir_all(path),
        None => Ok(()),
    }
}

fn make_directory(path: &Path) -> Result<(), EngineError> {
    fs::create_dir_all(path)
        .and_then(|()| fs::set_permissions(path, fs::Permissions::from_mode(0o755)))
        .map_err(|source| StoreError::io("create", path, source).into())
}
