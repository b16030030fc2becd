//! Where files lie whose first bytes are looked at: on this machine, or elsewhere.

use std::{
    fs::{self, File},
    io::{ErrorKind, Read as _, Seek as _, SeekFrom},
    path::{Path, PathBuf},
};

use tokio_util::sync::CancellationToken;

use super::{FactsError, look::Place, pick::Part};
use crate::{
    model::source::RemoteFile,
    net::{Net, NetError, shown},
};

/// Files of a directory that are looked at by name.
const LIMIT_FILES: usize = 20_000;
/// Most parts of a model.
const LIMIT_PARTS: u64 = 4096;

/// Files of this machine.
pub(super) struct Local {
    names: Vec<String>,
    paths: Vec<PathBuf>,
    sizes: Vec<u64>,
}

impl Local {
    /// Opens a file, with its parts where it is one of several, or a directory.
    pub(super) fn open(path: &Path) -> Result<Self, FactsError> {
        let failed = |source| FactsError::Io {
            path: path.to_owned(),
            source,
        };
        let mut place = Self {
            names: Vec::new(),
            paths: Vec::new(),
            sizes: Vec::new(),
        };
        if fs::metadata(path).map_err(failed)?.is_dir() {
            for entry in fs::read_dir(path).map_err(failed)?.take(LIMIT_FILES) {
                place.add(&entry.map_err(failed)?.path())?;
            }
            return Ok(place);
        }
        let name = path.file_name().and_then(|name| name.to_str());
        match name
            .and_then(Part::of)
            .filter(|part| part.of <= LIMIT_PARTS)
        {
            Some(part) => {
                for number in 1..=part.of {
                    let sibling = path.with_file_name(part.sibling(number));
                    if !sibling.is_file() {
                        return Err(FactsError::Parts {
                            file: path.display().to_string(),
                            part: part.number,
                            of: part.of,
                            reason: format!("{} is missing", sibling.display()),
                        });
                    }
                    place.add(&sibling)?;
                }
            }
            None => place.add(path)?,
        }
        Ok(place)
    }

    fn add(&mut self, path: &Path) -> Result<(), FactsError> {
        let metadata = match fs::metadata(path) {
            Ok(metadata) => metadata,
            // A link to nothing is no file of the model.
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            Err(source) => {
                return Err(FactsError::Io {
                    path: path.to_owned(),
                    source,
                });
            }
        };
        let name = path.file_name().and_then(|name| name.to_str());
        if let (Some(name), true) = (name, metadata.is_file()) {
            self.names.push(name.to_owned());
            self.paths.push(path.to_owned());
            self.sizes.push(metadata.len());
        }
        Ok(())
    }
}

impl Place for Local {
    fn names(&self) -> Vec<&str> {
        self.names.iter().map(String::as_str).collect()
    }

    fn shown(&self, file: usize) -> String {
        self.paths[file].display().to_string()
    }

    fn size_bytes(&self, file: usize) -> Option<u64> {
        Some(self.sizes[file])
    }

    async fn more(&self, file: usize, bytes: &mut Vec<u8>, to: u64) -> Result<(), FactsError> {
        let path = &self.paths[file];
        let from = bytes.len() as u64;
        let mut read = || {
            let mut opened = File::open(path)?;
            opened.seek(SeekFrom::Start(from))?;
            opened.take(to.saturating_sub(from)).read_to_end(bytes)
        };
        read().map(drop).map_err(|source| FactsError::Io {
            path: path.clone(),
            source,
        })
    }
}

/// Files elsewhere.
pub(super) struct Remote<'a> {
    pub(super) net: &'a Net,
    pub(super) files: &'a [RemoteFile],
    pub(super) cancel: &'a CancellationToken,
}

impl Place for Remote<'_> {
    fn names(&self) -> Vec<&str> {
        self.files.iter().map(|file| file.name.as_str()).collect()
    }

    fn shown(&self, file: usize) -> String {
        let sources = &self.files[file].sources;
        match sources.first() {
            Some(source) => shown(&source.url),
            None => self.files[file].name.clone(),
        }
    }

    fn size_bytes(&self, file: usize) -> Option<u64> {
        self.files[file].size_bytes
    }

    async fn more(&self, file: usize, bytes: &mut Vec<u8>, to: u64) -> Result<(), FactsError> {
        let range = bytes.len() as u64..to.min(self.size_bytes(file).unwrap_or(to));
        let mut last = None;
        for source in &self.files[file].sources {
            match self
                .net
                .read_range(source, range.clone(), self.cancel)
                .await
            {
                Ok(more) => {
                    bytes.extend_from_slice(&more);
                    return Ok(());
                }
                Err(error @ NetError::Cancelled { .. }) => return Err(self.failed(file, error)),
                Err(error) => last = last.or(Some(error)),
            }
        }
        last.map_or(Ok(()), |error| Err(self.failed(file, error)))
    }
}

impl Remote<'_> {
    fn failed(&self, file: usize, source: NetError) -> FactsError {
        FactsError::Net {
            file: self.shown(file),
            source: Box::new(source),
        }
    }
}
