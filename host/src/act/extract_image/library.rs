//! Whether this machine's C library is new enough for a program that was made elsewhere.

use std::{fs, path::Path};

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
        /// The program, or a library beside it.
        file: String,
        /// Version it needs.
        needs: String,
        /// Version here; empty: this machine has another C library.
        has: String,
    },
}

/// Checks a program and the libraries that lie beside it. `has`: version of glibc here.
pub(super) fn check(program: &Path, has: &str) -> Result<(), Problem> {
    if !program.is_file() {
        return Err(Problem::Missing);
    }
    let mut newest = needed(program)?.map(|version| (version, program.to_owned()));
    let beside = program
        .parent()
        .and_then(|parent| fs::read_dir(parent).ok());
    for entry in beside.into_iter().flatten().flatten() {
        let path = entry.path();
        let is_library = path.to_string_lossy().contains(".so");
        if !is_library || !entry.file_type().is_ok_and(|kind| kind.is_file()) {
            continue;
        }
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
    // Facts that do not know it cannot refuse.
    if has.is_empty() || Glibc::parse(has).is_some_and(|has| has >= needs) {
        return Ok(());
    }
    let name = file.file_name().unwrap_or_default();
    Err(Problem::TooNew {
        file: name.to_string_lossy().into_owned(),
        needs: needs.to_string(),
        has: has.to_owned(),
    })
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

    #[test]
    fn a_program_for_a_newer_c_library_is_refused_with_both_versions() {
        let shell = fs::canonicalize(which("git")).unwrap();
        check(&shell, "99.0").unwrap();
        check(&shell, "").unwrap();
        let problem = check(&shell, "2.2").unwrap_err();
        assert!(
            matches!(&problem, Problem::TooNew { needs, has, .. } if Glibc::parse(needs) > Glibc::parse(has)),
            "{problem:?}"
        );
    }

    #[test]
    fn what_is_no_program_is_named_and_scripts_need_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("x");
        assert!(matches!(check(&path, "2.36"), Err(Problem::Missing)));
        fs::write(&path, "#!/bin/sh\n").unwrap();
        check(&path, "2.2").unwrap();
        fs::write(&path, "text").unwrap();
        assert!(matches!(check(&path, "2.36"), Err(Problem::NoProgram(_))));
    }
}
