//! Git objects inside a source distribution.

use std::{
    fs::{self, File},
    io,
    path::Path,
};

use flate2::read::MultiGzDecoder;
use tar::EntryType;

use super::{Refusal, limit::Limits, open, stream, tree::written};
use crate::store;

/// Where the git objects of a source distribution go: a bare repository with nothing else of it.
///
/// Only objects, packs and the list of shallow commits are taken, by name; configuration, hooks and
/// alternates of the archive are not looked at. Blocks. Gives the number of files taken.
pub(crate) fn git_objects(
    archive: &Path,
    git_directory: &str,
    repository: &Path,
) -> Result<usize, Refusal> {
    make_bare(repository)?;
    let mut taken = 0;
    let (file, size_bytes) = open(archive)?;
    let limits = Limits::of_archive(size_bytes);
    stream::each_entry(MultiGzDecoder::new(file), limits, |name, entry| {
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

#[cfg(test)]
mod tests {
    use super::*;

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
