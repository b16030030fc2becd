//! Zip archives.

use std::{
    fs::File,
    io::{self, Read as _},
    path::PathBuf,
};

use ::zip::{ZipArchive, read::ZipFile, result::ZipError};

use super::{
    Refusal, Tree, refuse,
    tree::{clean, text},
};

/// Bits of a Unix mode that say what kind of file it is (inode(7)).
const KIND: u32 = 0o170_000;

/// Longest target of a symbolic link.
const TARGET_BYTES: u64 = 4096;

/// Unpacks a zip archive into a tree.
pub(super) fn unpack(file: File, mut tree: Tree) -> Result<(), Refusal> {
    let limits = tree.limits();
    let mut archive = ZipArchive::new(io::BufReader::new(file)).map_err(damaged)?;
    if archive.len() > limits.entries {
        return refuse(format!("it has more than {} entries", limits.entries));
    }
    if archive.has_duplicate_names() {
        return refuse("a name is in it twice");
    }
    for number in 0..archive.len() {
        let entry = archive.by_index(number).map_err(damaged)?;
        take(entry, &mut tree)?;
    }
    tree.finish()
}

fn take<R: io::Read + io::Seek>(mut entry: ZipFile<'_, R>, tree: &mut Tree) -> Result<(), Refusal> {
    let Ok(written) = std::str::from_utf8(entry.name_raw()) else {
        return refuse("a name in it is no text");
    };
    let directory = written.ends_with('/');
    let name = clean(&PathBuf::from(written))?;
    if entry.encrypted() {
        return refuse(format!("`{}` is encrypted", text(&name)));
    }
    let mode = entry.unix_mode().unwrap_or(0);
    match mode & KIND {
        _ if directory => tree.directory(&name),
        // Nothing, where the archive was not made on Unix.
        0 | 0o100_000 => tree.file(&name, mode & 0o111 != 0, &mut entry),
        0o040_000 => tree.directory(&name),
        0o120_000 => {
            let mut target = String::new();
            let read = (&mut entry).take(TARGET_BYTES).read_to_string(&mut target);
            read.map_err(|error| Refusal::Archive(format!("it is damaged: {error}")))?;
            tree.symlink(&name, &PathBuf::from(target))
        }
        _ => refuse(format!(
            "`{}` is neither file, directory nor link",
            text(&name)
        )),
    }
}

fn damaged(error: ZipError) -> Refusal {
    match error {
        ZipError::Io(source) => Refusal::Archive(format!("it is damaged: {source}")),
        other => Refusal::Archive(format!("it cannot be read: {other}")),
    }
}
