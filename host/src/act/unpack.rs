//! Archives, read as they stream. Names, kinds and sizes are checked before anything is written.

use std::{
    fs::{self, File},
    io::{self, Read},
    path::{Component, Path, PathBuf},
};

use flate2::read::MultiGzDecoder;
use tar::{Archive, Entry, EntryType};

use crate::store::{self, StoreError};

/// Bytes that an archive may unpack to.
const CONTENT_LIMIT_BYTES: u64 = 64 << 30;

/// Entries that an archive may have.
const ENTRY_LIMIT: usize = 2_000_000;

/// Why an archive is not unpacked.
#[derive(Debug)]
pub(super) enum Refusal {
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

/// Unpacks a gzip-compressed tar archive into an empty directory. Blocks.
pub(super) fn tar_gz(archive: &Path, into: &Path) -> Result<(), Refusal> {
    each_entry(archive, |name, entry| match entry.header().entry_type() {
        EntryType::Directory => Ok(store::make_directory(&into.join(name))?),
        EntryType::Regular | EntryType::Continuous | EntryType::Symlink => {
            // Does not write through links that earlier entries made.
            let inside = entry
                .unpack_in(into)
                .map_err(|error| written(&into.join(name), error))?;
            if inside {
                Ok(())
            } else {
                Err(Refusal::Archive(format!(
                    "`{}` leads out of it",
                    name.display()
                )))
            }
        }
        EntryType::XGlobalHeader => Ok(()),
        other => Err(Refusal::Archive(format!(
            "`{}` is of a kind ({other:?}) that is not accepted",
            name.display()
        ))),
    })
}

/// Where the git objects of a source distribution go: a bare repository with nothing else of it.
///
/// Only objects, packs and the list of shallow commits are taken, by name; configuration, hooks and
/// alternates of the archive are not looked at. Blocks. Gives the number of files taken.
pub(super) fn git_objects(
    archive: &Path,
    git_directory: &str,
    repository: &Path,
) -> Result<usize, Refusal> {
    make_bare(repository)?;
    let mut taken = 0;
    each_entry(archive, |name, entry| {
        let mut parts = name.components();
        // The one directory that everything in a source distribution lies in.
        parts.next();
        let Ok(inside) = parts.as_path().strip_prefix(git_directory) else {
            return Ok(());
        };
        if entry.header().entry_type() != EntryType::Regular || !is_object(inside) {
            return Ok(());
        }
        let target = repository.join(inside);
        if let Some(parent) = target.parent() {
            store::make_directory(parent)?;
        }
        let mut file = File::create(&target).map_err(|error| written(&target, error))?;
        io::copy(entry, &mut file).map_err(|error| written(&target, error))?;
        taken += 1;
        Ok(())
    })?;
    if taken == 0 {
        return Err(Refusal::Archive(format!(
            "it has no git objects in `{git_directory}`"
        )));
    }
    Ok(taken)
}

fn make_bare(repository: &Path) -> Result<(), Refusal> {
    for directory in ["objects/info", "objects/pack", "refs/heads"] {
        store::make_directory(&repository.join(directory))?;
    }
    let config = "[core]\n\trepositoryformatversion = 0\n\tbare = true\n";
    for (name, text) in [("HEAD", "ref: refs/heads/main\n"), ("config", config)] {
        let path = repository.join(name);
        fs::write(&path, text).map_err(|error| written(&path, error))?;
    }
    Ok(())
}

/// Whether a path in a git directory is a loose object, a pack with its index, or the list of
/// shallow commits.
fn is_object(path: &Path) -> bool {
    let Some(path) = path.to_str() else {
        return false;
    };
    let digits = |text: &str, lengths: &[usize]| {
        lengths.contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_hexdigit())
    };
    let parts: Vec<&str> = path.split('/').collect();
    match parts.as_slice() {
        ["shallow"] => true,
        ["objects", "pack", name] => name
            .strip_prefix("pack-")
            .and_then(|name| name.strip_suffix(".pack").or(name.strip_suffix(".idx")))
            .is_some_and(|name| digits(name, &[40, 64])),
        ["objects", first, rest] => digits(first, &[2]) && digits(rest, &[38, 62]),
        _ => false,
    }
}

fn each_entry(
    path: &Path,
    mut take: impl FnMut(&Path, &mut Entry<'_, Limited<MultiGzDecoder<File>>>) -> Result<(), Refusal>,
) -> Result<(), Refusal> {
    let file = File::open(path).map_err(|source| StoreError::io("open", path, source))?;
    let mut archive = Archive::new(Limited {
        inner: MultiGzDecoder::new(file),
        left: CONTENT_LIMIT_BYTES,
    });
    archive.set_preserve_permissions(false);
    archive.set_preserve_mtime(false);
    let damaged = |error: io::Error| Refusal::Archive(format!("it is damaged: {error}"));
    for (number, entry) in archive.entries().map_err(damaged)?.enumerate() {
        if number >= ENTRY_LIMIT {
            return Err(Refusal::Archive(format!(
                "it has more than {ENTRY_LIMIT} entries"
            )));
        }
        let mut entry = entry.map_err(damaged)?;
        let name = entry.path().map_err(damaged)?.into_owned();
        take(&clean(&name)?, &mut entry)?;
    }
    Ok(())
}

/// A name without `.` parts; refused where it is absolute or climbs.
fn clean(name: &Path) -> Result<PathBuf, Refusal> {
    let mut clean = PathBuf::new();
    for part in name.components() {
        match part {
            Component::Normal(part) => clean.push(part),
            Component::CurDir => {}
            _ => {
                return Err(Refusal::Archive(format!(
                    "`{}` leads out of it",
                    name.display()
                )));
            }
        }
    }
    Ok(clean)
}

/// A failure while writing an entry: of the disk, unless the archive itself broke off.
fn written(path: &Path, error: io::Error) -> Refusal {
    match error.kind() {
        io::ErrorKind::UnexpectedEof | io::ErrorKind::InvalidData | io::ErrorKind::InvalidInput => {
            Refusal::Archive(format!("it is damaged: {error}"))
        }
        _ => Refusal::Store(StoreError::io("write", path, error)),
    }
}

/// A reader that fails when more comes out of it than is accepted.
struct Limited<R> {
    inner: R,
    left: u64,
}

impl<R: Read> Read for Limited<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buffer)?;
        self.left = self.left.checked_sub(count as u64).ok_or_else(|| {
            io::Error::new(
                io::ErrorKind::InvalidData,
                format!("it unpacks to more than {CONTENT_LIMIT_BYTES} bytes"),
            )
        })?;
        Ok(count)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A gzip-compressed tar archive with these entries: kind, name, content or link target.
    pub(in crate::act) fn archive(entries: &[(EntryType, &str, &str)]) -> Vec<u8> {
        let gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        let mut builder = tar::Builder::new(gzip);
        for (kind, name, content) in entries {
            let mut header = tar::Header::new_gnu();
            header.set_entry_type(*kind);
            header.set_mode(0o755);
            // Past the builder's own checks: hostile names are what is tested.
            header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
            let body = if kind.is_file() {
                content.as_bytes()
            } else {
                b""
            };
            header.set_size(body.len() as u64);
            if !kind.is_file() && !content.is_empty() {
                header.set_link_name(content).unwrap();
            }
            header.set_cksum();
            builder.append(&header, body).unwrap();
        }
        builder.into_inner().unwrap().finish().unwrap()
    }

    fn unpack(entries: &[(EntryType, &str, &str)]) -> (tempfile::TempDir, Result<(), Refusal>) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.tar.gz");
        fs::write(&path, archive(entries)).unwrap();
        let into = directory.path().join("into");
        fs::create_dir(&into).unwrap();
        let result = tar_gz(&path, &into);
        (directory, result)
    }

    #[test]
    fn an_ordinary_archive_is_unpacked() {
        let (directory, result) = unpack(&[
            (EntryType::Directory, "top/", ""),
            (EntryType::Regular, "top/bin/engine", "x"),
            (EntryType::Symlink, "top/engine", "bin/engine"),
        ]);
        result.unwrap();
        let engine = directory.path().join("into/top/engine");
        assert_eq!(fs::read(engine).unwrap(), b"x");
    }

    #[test]
    fn hostile_archives_write_nothing_outside() {
        let cases: [&[(EntryType, &str, &str)]; 5] = [
            &[(EntryType::Regular, "../escaped", "x")],
            &[(EntryType::Regular, "/escaped", "x")],
            &[
                (EntryType::Symlink, "link", ".."),
                (EntryType::Regular, "link/escaped", "x"),
            ],
            &[(EntryType::Link, "hard", "/etc/passwd")],
            &[(EntryType::Char, "device", "")],
        ];
        for entries in cases {
            let (directory, result) = unpack(entries);
            assert!(result.is_err(), "{entries:?}");
            assert!(!directory.path().join("escaped").exists(), "{entries:?}");
        }
    }

    #[test]
    fn a_cut_archive_is_damaged_and_not_a_full_disk() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.tar.gz");
        let whole = archive(&[(EntryType::Regular, "a", &"x".repeat(100_000))]);
        fs::write(&path, &whole[..whole.len() / 2]).unwrap();
        let result = tar_gz(&path, directory.path());
        assert!(matches!(result, Err(Refusal::Archive(_))), "{result:?}");
    }

    #[test]
    fn only_objects_are_taken_from_a_git_directory() {
        let digits = "0".repeat(38);
        let taken = [
            "shallow".to_owned(),
            format!("objects/ab/{digits}"),
            format!("objects/pack/pack-{digits}00.pack"),
            format!("objects/pack/pack-{digits}00.idx"),
        ];
        for path in &taken {
            assert!(is_object(Path::new(path)), "{path}");
        }
        for path in [
            "config",
            "hooks/post-checkout",
            "objects/info/alternates",
            "objects/info/http-alternates",
            "refs/heads/main",
            "HEAD",
            "objects/ab/../x",
            "commondir",
        ] {
            assert!(!is_object(Path::new(path)), "{path}");
        }
    }
}
