//! A directory that is filled from an archive, entry by entry. The rules are in the module above.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    io::{self, Read, Write as _},
    os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _, symlink},
    path::{Component, Path, PathBuf},
};

use super::{Refusal, limit::Limits, refuse};
use crate::store::{self, StoreError};

/// Directories that may lie in each other: removing a tree goes down them one by one.
const DEPTH: usize = 64;

/// Longest name of an entry, in bytes.
const NAME_BYTES: usize = 1024;

/// Longest part of a name (`NAME_MAX` of every usual file system).
const PART_BYTES: usize = 255;

/// Whether files may be executable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Programs {
    /// Those that are in the archive.
    Kept,
    /// None: nothing that is only data is ever run.
    Refused,
}

/// A directory in the making; nobody else may write to it.
pub(crate) struct Tree {
    root: PathBuf,
    programs: Programs,
    takes_links: bool,
    limits: Limits,
    left_bytes: u64,
    entries: usize,
    files: BTreeSet<PathBuf>,
    /// Symbolic links to be made, by name.
    links: BTreeMap<PathBuf, PathBuf>,
}

impl Tree {
    /// Begins to fill an empty directory.
    pub(super) fn new(root: &Path, programs: Programs, limits: Limits) -> Self {
        Self {
            root: root.to_owned(),
            programs,
            takes_links: true,
            limits,
            left_bytes: limits.content_bytes,
            entries: 0,
            files: BTreeSet::new(),
            links: BTreeMap::new(),
        }
    }

    /// One that takes no links and no programs.
    pub(super) fn of_data(root: &Path, limits: Limits) -> Self {
        Self {
            takes_links: false,
            ..Self::new(root, Programs::Refused, limits)
        }
    }

    pub(super) fn limits(&self) -> Limits {
        self.limits
    }

    /// A directory; it may be named more than once.
    pub(crate) fn directory(&mut self, name: &Path) -> Result<(), Refusal> {
        self.admit(name)?;
        self.make_directory(name)
    }

    /// A file with the content that a reader gives.
    pub(crate) fn file(
        &mut self,
        name: &Path,
        executable: bool,
        content: &mut impl Read,
    ) -> Result<(), Refusal> {
        self.admit_once(name)?;
        let path = self.prepare(name)?;
        let failed = |error| written(&path, error);
        let mut file = fs::OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&path)
            .map_err(failed)?;
        self.fill(&path, &mut file, content)?;
        let mode = match (self.programs, executable) {
            (Programs::Kept, true) => 0o755,
            _ => 0o644,
        };
        file.set_permissions(fs::Permissions::from_mode(mode))
            .map_err(failed)?;
        self.files.insert(name.to_owned());
        Ok(())
    }

    /// A symbolic link; where it leads is checked once everything is there.
    pub(crate) fn symlink(&mut self, name: &Path, target: &Path) -> Result<(), Refusal> {
        self.check_takes_links(name)?;
        self.admit_once(name)?;
        if target.as_os_str().is_empty() || is_unprintable(target) {
            return refuse(format!("`{}` is a link to nothing", text(name)));
        }
        if target.is_absolute() {
            return out(name, target);
        }
        self.prepare(name)?;
        self.links.insert(name.to_owned(), target.to_owned());
        Ok(())
    }

    /// A second name for an earlier entry, given from the top of the archive: a copy of it.
    pub(crate) fn hard_link(&mut self, name: &Path, first: &Path) -> Result<(), Refusal> {
        self.check_takes_links(name)?;
        if let Some(target) = self.links.get(first).cloned() {
            return self.symlink(name, &target);
        }
        if !self.files.contains(first) {
            return refuse(format!(
                "`{}` is a link to `{}`, which is no earlier file of it",
                text(name),
                text(first)
            ));
        }
        let path = self.root.join(first);
        let failed = |source| StoreError::io("read", &path, source);
        let mut file = fs::File::open(&path).map_err(failed)?;
        let mode = file.metadata().map_err(failed)?.permissions().mode();
        self.file(name, mode & 0o111 != 0, &mut file)
    }

    /// Makes the links and follows each.
    pub(crate) fn finish(self) -> Result<(), Refusal> {
        for (name, target) in &self.links {
            let path = self.root.join(name);
            symlink(target, &path).map_err(|error| written(&path, error))?;
        }
        for (name, target) in &self.links {
            match store::check_link(&self.root, &self.root.join(name)) {
                Err(StoreError::Unsound { .. }) => return out(name, target),
                other => other?,
            }
        }
        if self.files.is_empty() {
            return refuse("there is no file in it");
        }
        Ok(())
    }

    fn check_takes_links(&self, name: &Path) -> Result<(), Refusal> {
        match self.takes_links {
            true => Ok(()),
            false => refuse(format!("`{}` is a link, which is not accepted", text(name))),
        }
    }

    fn admit(&mut self, name: &Path) -> Result<(), Refusal> {
        self.count(1)?;
        let behind = name
            .ancestors()
            .find(|above| self.links.contains_key(*above));
        match behind {
            Some(link) if link == name => twice(name),
            Some(link) => refuse(format!(
                "`{}` lies behind link `{}`",
                text(name),
                text(link)
            )),
            None => Ok(()),
        }
    }

    fn count(&mut self, entries: usize) -> Result<(), Refusal> {
        self.entries += entries;
        if self.entries > self.limits.entries {
            return refuse(format!("it has more than {} entries", self.limits.entries));
        }
        Ok(())
    }

    /// For what is no directory: its name comes once.
    fn admit_once(&mut self, name: &Path) -> Result<(), Refusal> {
        if name.as_os_str().is_empty() {
            return refuse("an entry has no name");
        }
        self.admit(name)?;
        match fs::symlink_metadata(self.root.join(name)) {
            Ok(_) => twice(name),
            Err(_) => Ok(()),
        }
    }

    /// Makes the directory that something lies in; gives its own path.
    fn prepare(&mut self, name: &Path) -> Result<PathBuf, Refusal> {
        self.make_directory(name.parent().unwrap_or(Path::new("")))?;
        Ok(self.root.join(name))
    }

    fn make_directory(&mut self, name: &Path) -> Result<(), Refusal> {
        if let Some(file) = name.ancestors().find(|above| self.files.contains(*above)) {
            return refuse(format!("`{}` is a file and a directory in it", text(file)));
        }
        // One short entry may name dozens of directories that are not there yet.
        let above = name.ancestors().filter(|it| !it.as_os_str().is_empty());
        let missing = above.take_while(|above| !self.root.join(above).exists());
        self.count(missing.count())?;
        Ok(store::make_directory(&self.root.join(name))?)
    }

    fn fill(
        &mut self,
        path: &Path,
        file: &mut fs::File,
        content: &mut impl Read,
    ) -> Result<(), Refusal> {
        let mut buffer = vec![0; 128 * 1024];
        loop {
            let count = match content.read(&mut buffer) {
                Ok(0) => return Ok(()),
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return refuse(format!("it is damaged: {error}")),
            };
            match self.left_bytes.checked_sub(count as u64) {
                Some(left) => self.left_bytes = left,
                None => return refuse(self.limits.too_much()),
            }
            file.write_all(&buffer[..count])
                .map_err(|error| StoreError::io("write", path, error))?;
        }
    }
}

fn twice<T>(name: &Path) -> Result<T, Refusal> {
    refuse(format!("`{}` is in it twice", text(name)))
}

fn out<T>(name: &Path, target: &Path) -> Result<T, Refusal> {
    refuse(format!(
        "`{}` is a link out of it, to `{}`",
        text(name),
        text(target)
    ))
}

/// A name without `.` parts; refused where it is absolute, climbs or cannot be shown.
pub(super) fn clean(name: &Path) -> Result<PathBuf, Refusal> {
    if is_unprintable(name) {
        return refuse(format!("`{}` is no name for a file", text(name)));
    }
    let mut clean = PathBuf::new();
    for part in name.components() {
        match part {
            Component::Normal(part) if part.len() > PART_BYTES => {
                return refuse(format!("`{}` is too long", text(name)));
            }
            Component::Normal(part) => clean.push(part),
            Component::CurDir => {}
            _ => return refuse(format!("`{}` leads out of it", text(name))),
        }
    }
    let depth = clean.components().count();
    if depth > DEPTH || clean.as_os_str().len() > NAME_BYTES {
        return refuse(format!("`{}` is too long", text(name)));
    }
    Ok(clean)
}

fn is_unprintable(name: &Path) -> bool {
    name.to_str()
        .is_none_or(|name| name.chars().any(char::is_control))
}

/// A name as it may be shown: no control characters, not endless.
pub(super) fn text(name: &Path) -> String {
    const SHOWN: usize = 120;
    let name = name.to_string_lossy();
    let mut shown: String = name.escape_debug().take(SHOWN).collect();
    if name.len() > SHOWN {
        shown.push('…');
    }
    shown
}

/// A failure while writing an entry: of the disk, unless the archive itself broke off.
pub(super) fn written(path: &Path, error: io::Error) -> Refusal {
    match error.kind() {
        io::ErrorKind::UnexpectedEof | io::ErrorKind::InvalidData | io::ErrorKind::InvalidInput => {
            Refusal::Archive(format!("it is damaged: {error}"))
        }
        _ => Refusal::Store(StoreError::io("write", path, error)),
    }
}
