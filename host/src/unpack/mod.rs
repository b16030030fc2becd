//! Archives of strangers, unpacked into an empty directory or refused with a reason.
//!
//! Whatever the format, entries go through one [`Tree`], which decides by name, kind and size before
//! anything is written:
//!
//! * a name is relative, climbs nowhere, has no control characters and comes once;
//! * files, directories, links inside the tree: nothing else. A hard link becomes a copy;
//! * symbolic links are made last, so that nothing is ever written through one, and each is followed
//!   to see that it stays inside;
//! * modes are ours: executable or not, where programs are wanted at all. No set-user-id bit, no owner;
//! * content, number and depth of entries are limited, and so is the growth over the archive's own
//!   size ([`limit`]).
//!
//! Archives of models ([`data`]) have no links and no programs, fewer entries, and may hold more.
//!
//! On refusal nothing of it stays in the directory.

mod git;
mod hostile;
mod limit;
mod stream;
mod tree;
mod zip;

use std::{
    fs::{self, File},
    io::{self, Read, Seek as _},
    path::Path,
};

use engine_provider_api::Unpack;
use flate2::read::MultiGzDecoder;
use lzma_rust2::XzReader;

pub(crate) use git::git_objects;
pub(crate) use hostile::unpack_hostile;
use limit::Limits;
pub(crate) use tree::{Programs, Tree};

use crate::store::{self, Store, StoreError};

/// Memory that an xz stream may ask for, in KiB: four times what `xz -9` needs.
const XZ_MEMORY_KIB: u32 = 256 << 10;

/// Bytes that are read at once of an archive that is large.
const READ_BYTES: usize = 256 << 10;

/// Why an archive is not unpacked.
#[derive(Debug)]
pub(crate) enum Refusal {
    /// Something is wrong with it.
    Archive(String),
    /// Its content cannot be written.
    Store(StoreError),
}

impl From<StoreError> for Refusal {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

fn refuse<T>(reason: impl Into<String>) -> Result<T, Refusal> {
    Err(Refusal::Archive(reason.into()))
}

/// Unpacks an archive file into an empty directory. Blocks. On failure the directory is empty again.
pub(crate) fn archive(
    how: Unpack,
    archive: &Path,
    into: &Path,
    programs: Programs,
) -> Result<(), Refusal> {
    let (file, size_bytes) = open(archive)?;
    let limits = Limits::of_archive(size_bytes);
    let tree = || Tree::new(into, programs, limits);
    let unpacked = match how {
        Unpack::TarGz => stream::tar(MultiGzDecoder::new(file), tree()),
        Unpack::TarXz => {
            let reader = XzReader::new_mem_limit(io::BufReader::new(file), true, XZ_MEMORY_KIB);
            stream::tar(reader, tree())
        }
        Unpack::TarZst => match zstd::Decoder::new(file) {
            Ok(reader) => stream::tar(reader, tree()),
            Err(error) => refuse(format!("it is damaged: {error}")),
        },
        Unpack::Zip => zip::unpack(file, tree()),
    };
    empty_on_failure(into, unpacked)
}

/// Unpacks an archive of data into an empty directory: tar, compressed or not as its first bytes say, without
/// links and programs. Told to whom the store tells what it reads, and ended by them. Blocks. On failure the
/// directory is empty again.
pub(crate) fn data(store: &Store, archive: &Path, into: &Path) -> Result<(), Refusal> {
    let failed = |source| StoreError::io("read", archive, source);
    let (mut file, size_bytes) = open(archive)?;
    let mut first = [0; 4];
    let count = file.read(&mut first).map_err(failed)?;
    file.rewind().map_err(failed)?;
    let file = store.watching(file, archive).map_err(failed)?;
    let file = io::BufReader::with_capacity(READ_BYTES, file);
    let tree = Tree::of_data(into, Limits::of_data(size_bytes));
    let unpacked = match &first[..count] {
        [0x1f, 0x8b, ..] => stream::tar(MultiGzDecoder::new(file), tree),
        [0x28, 0xb5, 0x2f, 0xfd] => match zstd::Decoder::with_buffer(file) {
            Ok(reader) => stream::tar(reader, tree),
            Err(error) => refuse(format!("it is damaged: {error}")),
        },
        _ => stream::tar(file, tree),
    };
    empty_on_failure(into, unpacked)
}

/// Unpacks a tar stream that is not compressed, programs and all, into an empty directory. Blocks. On
/// failure the directory is empty again.
pub(crate) fn tar(reader: impl Read, into: &Path) -> Result<(), Refusal> {
    let tree = Tree::new(into, Programs::Kept, Limits::ABSOLUTE);
    empty_on_failure(into, stream::tar(reader, tree))
}

fn empty_on_failure(directory: &Path, unpacked: Result<(), Refusal>) -> Result<(), Refusal> {
    if unpacked.is_err() {
        for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
            // What stays is thrown away with the work that the directory is part of.
            let _ = store::remove_tree(&entry.path());
        }
    }
    unpacked
}

/// Opens an archive; gives its size too.
fn open(path: &Path) -> Result<(File, u64), StoreError> {
    let failed = |source| StoreError::io("open", path, source);
    let file = File::open(path).map_err(failed)?;
    let size_bytes = file.metadata().map_err(failed)?.len();
    Ok((file, size_bytes))
}

#[cfg(test)]
pub(crate) mod tests;
