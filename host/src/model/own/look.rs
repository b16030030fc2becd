//! What lies at a path of the user's, told without reading a file.

use std::{
    fs::{self, File, Metadata},
    io,
    path::{Path, PathBuf},
};

use engine_provider_api::{ModelShape, StageModel};

use super::super::{
    ModelError,
    access::{may, readable},
    shown_name, source,
};
use crate::{
    process::Identity,
    store::{self, StoreError},
};

/// Files that a directory may have and still be taken for a model.
const FILE_LIMIT: usize = 20_000;

/// A file or directory as it lies there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Own {
    pub(super) path: PathBuf,
    pub(super) shape: ModelShape,
    /// Names from the directory on, sorted by their bytes; of a file its own, or those of all parts that
    /// it is the first of.
    names: Vec<String>,
    pub(super) size_bytes: u64,
    /// Whether the engine's user can read all of it.
    pub(super) readable: bool,
}

impl Own {
    /// Looks at what an engine wants to read in this shape.
    pub(super) fn look(
        path: PathBuf,
        step: &StageModel,
        user: Option<Identity>,
    ) -> Result<Self, ModelError> {
        match step.shape {
            ModelShape::File => file(path, user),
            ModelShape::Directory => directory(path, step, user),
        }
    }

    /// Whether it is one file.
    pub(super) fn is_one_file(&self) -> bool {
        self.shape == ModelShape::File && self.names.len() == 1
    }

    /// Names of its files and where they lie.
    pub(super) fn files(&self) -> impl Iterator<Item = (&str, PathBuf)> {
        self.names.iter().map(|name| match self.shape {
            ModelShape::File if self.is_one_file() => (name.as_str(), self.path.clone()),
            ModelShape::File => (name.as_str(), self.path.with_file_name(name)),
            ModelShape::Directory => (name.as_str(), self.path.join(name)),
        })
    }
}

/// A file, with the others of its model where it is one of several parts.
fn file(path: PathBuf, user: Option<Identity>) -> Result<Own, ModelError> {
    let size_bytes = size_of(&path)?;
    let name = path.file_name().and_then(|name| name.to_str());
    let Some(names) = name.and_then(source::parts_of) else {
        return Ok(Own {
            names: vec![shown_name(&path).into_owned()],
            shape: ModelShape::File,
            size_bytes,
            readable: readable(&path, user),
            path,
        });
    };
    let places: Vec<PathBuf> = names.iter().map(|it| path.with_file_name(it)).collect();
    let missing = names.iter().zip(&places).filter(|(_, it)| !it.exists());
    let missing: Vec<String> = missing.map(|(name, _)| name.clone()).collect();
    if !missing.is_empty() {
        let above = path.parent().unwrap_or(&path).display().to_string();
        let source = source::missing_parts(above, &names[0], names.len(), missing);
        return Err(ModelError::Choice {
            reference: path.display().to_string(),
            source: Box::new(source),
        });
    }
    let sizes = places.iter().map(|place| size_of(place));
    Ok(Own {
        shape: ModelShape::File,
        size_bytes: sizes.sum::<Result<u64, _>>()?,
        readable: places.iter().all(|place| readable(place, user)),
        path: path.with_file_name(&names[0]),
        names,
    })
}

/// Size of a file with something in it.
fn size_of(path: &Path) -> Result<u64, ModelError> {
    let not = |what| ModelError::NotAFile {
        path: path.to_owned(),
        what,
    };
    let metadata = metadata(path, "file")?;
    if metadata.is_dir() {
        return Err(not("a directory"));
    }
    if !metadata.is_file() {
        return Err(not("a device, pipe or socket"));
    }
    match metadata.len() {
        0 => Err(not("empty")),
        size_bytes => Ok(size_bytes),
    }
}

fn directory(path: PathBuf, step: &StageModel, user: Option<Identity>) -> Result<Own, ModelError> {
    let not = |what| ModelError::NotADirectory {
        path: path.clone(),
        what,
    };
    let metadata = metadata(&path, "directory")?;
    if metadata.is_file() {
        return Err(not("a file"));
    }
    if !metadata.is_dir() {
        return Err(not("a device, pipe or socket"));
    }
    let root = path.canonicalize();
    let root = root.map_err(|error| failed(&path, error))?;
    let reachable = user.is_none_or(|user| store::ensure_reachable(&root, user).is_ok());
    let mut walk = Walk {
        root: &root,
        user,
        names: Vec::new(),
        size_bytes: 0,
        readable: reachable && may(&metadata, user, 0o5),
    };
    walk.directory(&root)?;
    if walk.names.is_empty() {
        return Err(not("empty"));
    }
    walk.names.sort_unstable();
    let what = path.display().to_string();
    let names = walk.names.iter().map(String::as_str);
    source::check_directory(&what, step, names).map_err(|source| ModelError::Choice {
        reference: what.clone(),
        source: Box::new(source),
    })?;
    Ok(Own {
        shape: ModelShape::Directory,
        names: walk.names,
        size_bytes: walk.size_bytes,
        readable: walk.readable,
        path,
    })
}

fn metadata(path: &Path, shape: &'static str) -> Result<Metadata, ModelError> {
    fs::metadata(path).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => ModelError::Missing {
            path: path.to_owned(),
            shape,
        },
        _ => failed(path, error),
    })
}

struct Walk<'a> {
    root: &'a Path,
    user: Option<Identity>,
    names: Vec<String>,
    size_bytes: u64,
    readable: bool,
}

impl Walk<'_> {
    fn directory(&mut self, directory: &Path) -> Result<(), ModelError> {
        let unread = |error| failed(directory, error);
        for entry in fs::read_dir(directory).map_err(unread)? {
            let entry = entry.map_err(unread)?;
            if entry.file_name().as_encoded_bytes().starts_with(b".") {
                continue;
            }
            let path = entry.path();
            let kind = entry.file_type().map_err(unread)?;
            if kind.is_dir() {
                let metadata = entry.metadata().map_err(unread)?;
                self.readable &= may(&metadata, self.user, 0o5);
                self.directory(&path)?;
            } else if kind.is_symlink() {
                let leads_to = path
                    .canonicalize()
                    .map_err(|_| unfit(&path, "is a link to nothing"))?;
                if !leads_to.starts_with(self.root) {
                    return Err(unfit(&path, "is a link out of the directory"));
                }
                self.file(&path)?;
            } else {
                self.file(&path)?;
            }
        }
        Ok(())
    }

    fn file(&mut self, path: &Path) -> Result<(), ModelError> {
        let metadata = fs::metadata(path).map_err(|error| failed(path, error))?;
        if metadata.is_dir() {
            return Err(unfit(path, "is a link to a directory"));
        }
        if !metadata.is_file() {
            return Err(unfit(path, "is a device, pipe or socket"));
        }
        let inside = path.strip_prefix(self.root).expect("it was found below");
        // coreutils write such names in another way.
        let name = inside
            .to_str()
            .filter(|name| !name.contains('\\') && !name.chars().any(char::is_control))
            .ok_or_else(|| unfit(path, "has a name that is no plain text"))?;
        if self.names.len() >= FILE_LIMIT {
            return Err(ModelError::NotADirectory {
                path: self.root.to_owned(),
                what: "full of other things",
            });
        }
        self.names.push(name.to_owned());
        self.size_bytes += metadata.len();
        self.readable &= self.can_read(path, &metadata);
        Ok(())
    }

    fn can_read(&self, path: &Path, metadata: &Metadata) -> bool {
        match self.user {
            None => File::open(path).is_ok(),
            user => may(metadata, user, 0o4),
        }
    }
}

fn unfit(path: &Path, reason: &'static str) -> ModelError {
    ModelError::Unfit {
        path: path.to_owned(),
        reason,
    }
}

fn failed(path: &Path, error: io::Error) -> ModelError {
    ModelError::Store {
        reference: path.display().to_string(),
        source: Box::new(StoreError::io("read", path, error)),
    }
}
