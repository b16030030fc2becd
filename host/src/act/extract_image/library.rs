//! Whether this machine's C library is new enough for a program that was made elsewhere.

use std::{
    ffi::OsStr,
    fs,
    path::{Path, PathBuf},
};

use crate::{
    provider::elf::{self, Glibc},
    store::StoreError,
};

/// Why a program cannot run here.
#[derive(Debug)]
pub(super) enum Problem {
    /// It is not there.
    Missing,
    /// It cannot be read.
    Store(StoreError),
    /// It is no program.
    NoProgram(String),
    /// It takes symbols from a newer C library.
    TooNew {
        /// The program, or a library that was taken out with it: its path in the image.
        file: String,
        /// Version it needs.
        needs: String,
        /// Version here; empty: this machine has another C library.
        has: String,
    },
}

/// Checks a program, by its path below what was taken out, and every library that was taken out with it:
/// it may load each of them. `has`: version of glibc here.
pub(super) fn check(tree: &Path, program: &Path, has: &str) -> Result<(), Problem> {
    let program = tree.join(program);
    if !program.is_file() {
        return Err(Problem::Missing);
    }
    let mut newest = needed(&program)?.map(|version| (version, program));
    // Facts that do not know it cannot refuse.
    if has.is_empty() {
        return Ok(());
    }
    for path in libraries(tree)? {
        // What is no library, in spite of its name, is not loaded.
        if let Ok(Some(version)) = needed(&path)
            && newest.as_ref().is_none_or(|(known, _)| version > *known)
        {
            newest = Some((version, path));
        }
    }
    let Some((needs, file)) = newest else {
        return Ok(());
    };
    if Glibc::parse(has).is_some_and(|has| has >= needs) {
        return Ok(());
    }
    let inside = file.strip_prefix(tree).unwrap_or(&file);
    Err(Problem::TooNew {
        file: format!("/{}", inside.display()),
        needs: needs.to_string(),
        has: has.to_owned(),
    })
}

/// Files below a directory that are called as libraries are, links aside: what they lead to lies there too.
fn libraries(tree: &Path) -> Result<Vec<PathBuf>, Problem> {
    let mut found = Vec::new();
    let mut directories = vec![tree.to_owned()];
    while let Some(directory) = directories.pop() {
        let failed = |source| Problem::Store(StoreError::io("read", &directory, source));
        for entry in fs::read_dir(&directory).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let kind = entry.file_type().map_err(failed)?;
            if kind.is_dir() {
                directories.push(entry.path());
            } else if kind.is_file() && is_called_library(&entry.file_name()) {
                found.push(entry.path());
            }
        }
    }
    Ok(found)
}

/// `libx.so` and `libx.so.1.2`.
fn is_called_library(name: &OsStr) -> bool {
    let name = name.to_string_lossy();
    name.ends_with(".so") || name.contains(".so.")
}

/// The newest version that a file takes symbols from; `None` where it takes none, as scripts do.
fn needed(path: &Path) -> Result<Option<Glibc>, Problem> {
    let failed = |source| Problem::Store(StoreError::io("read", path, source));
    let file = fs::File::open(path).map_err(failed)?;
    let mut start = [0; 2];
    let count = std::io::Read::read(&mut &file, &mut start).map_err(failed)?;
    if start[..count] == *b"#!" {
        return Ok(None);
    }
    let data = object::ReadCache::new(file);
    elf::needed_glibc(&data).map_err(|problem| Problem::NoProgram(problem.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::act::tests::which;

    /// A directory with this machine's git in it, which takes symbols from its C library.
    fn tree_with(path: &str) -> tempfile::TempDir {
        let tree = tempfile::tempdir().unwrap();
        let target = tree.path().join(path);
        fs::create_dir_all(target.parent().unwrap()).unwrap();
        fs::copy(fs::canonicalize(which("git")).unwrap(), target).unwrap();
        tree
    }

    #[test]
    fn a_program_for_a_newer_c_library_is_refused_with_both_versions() {
        let tree = tree_with("app/server");
        let check = |has| super::check(tree.path(), Path::new("app/server"), has);
        check("99.0").unwrap();
        check("").unwrap();
        let problem = check("2.2").unwrap_err();
        assert!(
            matches!(&problem, Problem::TooNew { file, needs, has } if file == "/app/server" && Glibc::parse(needs) > Glibc::parse(has)),
            "{problem:?}"
        );
    }

    #[test]
    fn so_is_a_library_wherever_it_was_taken_from() {
        for library in ["app/libx.so", "usr/local/cuda/lib64/libx.so.12"] {
            let tree = tree_with(library);
            fs::create_dir_all(tree.path().join("app")).unwrap();
            fs::write(tree.path().join("app/server"), "#!/bin/sh\n").unwrap();
            let check = |has| super::check(tree.path(), Path::new("app/server"), has);
            check("99.0").unwrap();
            let problem = check("2.2").unwrap_err();
            assert!(
                matches!(&problem, Problem::TooNew { file, .. } if *file == format!("/{library}")),
                "{problem:?}"
            );
        }
    }

    #[test]
    fn what_lies_there_and_is_no_library_is_not_looked_at() {
        for other in ["app/helper", "app/libx.so.d/helper", "app/libx.so-notes"] {
            let tree = tree_with(other);
            fs::write(tree.path().join("app/server"), "#!/bin/sh\n").unwrap();
            fs::write(tree.path().join("app/script.so"), "INPUT(libx.so.1)").unwrap();
            super::check(tree.path(), Path::new("app/server"), "2.2").unwrap();
        }
    }

    #[test]
    fn what_is_no_program_is_named_and_scripts_need_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("x");
        let check = |has| super::check(directory.path(), Path::new("x"), has);
        assert!(matches!(check("2.36"), Err(Problem::Missing)));
        fs::write(&path, "#!/bin/sh\n").unwrap();
        check("2.2").unwrap();
        fs::write(&path, "text").unwrap();
        assert!(matches!(check("2.36"), Err(Problem::NoProgram(_))));
    }
}
