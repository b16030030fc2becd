//! Tar archives, as they stream.

use std::{
    io::{self, Read},
    path::{Path, PathBuf},
};

use tar::{Archive, Entry, EntryType};

use super::{
    Refusal, Tree,
    limit::{Limits, Meter, Metered},
    refuse,
    tree::{clean, text},
};

/// An entry of a stream.
pub(super) type StreamEntry<'a, R> = Entry<'a, Metered<R>>;

/// Unpacks a stream into a tree.
pub(super) fn tar(reader: impl Read, mut tree: Tree) -> Result<(), Refusal> {
    each_entry(reader, tree.limits(), |name, entry| {
        let kind = entry.header().entry_type();
        match kind {
            EntryType::Directory => tree.directory(name),
            EntryType::Regular | EntryType::Continuous => {
                let executable = entry.header().mode().is_ok_and(|mode| mode & 0o111 != 0);
                tree.file(name, executable, entry)
            }
            EntryType::Symlink => tree.symlink(name, &target(name, entry)?),
            // Its target is named from the top of the archive.
            EntryType::Link => tree.hard_link(name, &clean(&target(name, entry)?)?),
            other => refuse(format!(
                "`{}` is {}, which is not accepted",
                text(name),
                kind_in_words(other)
            )),
        }
    })?;
    tree.finish()
}

/// Gives every entry that is something, under its cleaned name. What is not read of it is skipped.
pub(super) fn each_entry<R: Read>(
    reader: R,
    limits: Limits,
    mut take: impl FnMut(&Path, &mut StreamEntry<'_, R>) -> Result<(), Refusal>,
) -> Result<(), Refusal> {
    let meter = Meter::new(limits);
    let mut archive = Archive::new(Metered {
        inner: reader,
        meter: meter.clone(),
    });
    let damaged = |error: io::Error| match meter.verdict() {
        Some(verdict) => Refusal::Archive(verdict),
        None => Refusal::Archive(format!("it is damaged: {error}")),
    };
    for (number, entry) in archive.entries().map_err(damaged)?.enumerate() {
        if number >= limits.entries {
            return refuse(format!("it has more than {} entries", limits.entries));
        }
        let mut entry = entry.map_err(damaged)?;
        meter.content();
        // Says something about all that follow, which nothing here wants to know.
        if entry.header().entry_type() != EntryType::XGlobalHeader {
            let name = clean(&entry.path().map_err(damaged)?)?;
            if is_sparse(&mut entry).map_err(damaged)? {
                return refuse(format!(
                    "`{}` is a sparse file, which is not accepted",
                    text(&name)
                ));
            }
            take(&name, &mut entry).map_err(|refusal| match (meter.verdict(), refusal) {
                (Some(verdict), _) => Refusal::Archive(verdict),
                (None, refusal) => refusal,
            })?;
        }
        io::copy(&mut entry, &mut io::sink()).map_err(damaged)?;
        meter.over();
    }
    Ok(())
}

/// Whether an entry is a sparse file in the newer form, which calls itself a usual one: what is read of
/// it is a map of its holes and then its content, under a made-up name.
fn is_sparse<R: Read>(entry: &mut StreamEntry<'_, R>) -> io::Result<bool> {
    let Some(extensions) = entry.pax_extensions()? else {
        return Ok(false);
    };
    for extension in extensions {
        if extension?.key_bytes().starts_with(b"GNU.sparse.") {
            return Ok(true);
        }
    }
    Ok(false)
}

fn target<R: Read>(name: &Path, entry: &StreamEntry<'_, R>) -> Result<PathBuf, Refusal> {
    match entry.link_name() {
        Ok(Some(target)) => Ok(target.into_owned()),
        _ => refuse(format!("`{}` is a link to nothing", text(name))),
    }
}

fn kind_in_words(kind: EntryType) -> String {
    match kind {
        EntryType::Char | EntryType::Block => "a device".to_owned(),
        EntryType::Fifo => "a pipe".to_owned(),
        EntryType::GNUSparse => "a sparse file".to_owned(),
        other => format!("an entry of type {:?}", char::from(other.as_byte())),
    }
}
