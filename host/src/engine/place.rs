//! Opening a directory one component at a time, so that nobody else's link leads elsewhere.
//!
//! Opening a path with `O_NOFOLLOW` guards its last component only: a link further up is followed
//! whoever has made it. Here every link on the way must belong to this process's user or to root;
//! what its owner wants is the operator's wish.

use std::{
    ffi::{OsStr, OsString},
    io,
    os::fd::OwnedFd,
    os::unix::ffi::OsStringExt,
    path::{Component, Path, PathBuf},
};

use rustix::fs::{FileType, Mode, OFlags, fstat, mkdirat, openat, readlinkat};

/// Links followed in one path at most, as many as the kernel follows (path_resolution(7)).
const LINK_LIMIT: usize = 40;

/// What to do about a component that is not there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Missing {
    /// It is made.
    Create,
    /// It is an error.
    Fail,
}

/// Opens a directory, given as an absolute path, as a place to work in (`O_PATH`).
pub(super) fn open(path: &Path, missing: Missing) -> io::Result<OwnedFd> {
    let mut place = root()?;
    let mut walked = PathBuf::from("/");
    let mut rest = names(path);
    let mut links = 0;
    while let Some(name) = rest.pop() {
        let entry = step(&place, &name, missing)?;
        let status = fstat(&entry)?;
        match FileType::from_raw_mode(status.st_mode) {
            FileType::Directory => {
                walked.push(&name);
                place = entry;
            }
            FileType::Symlink => {
                links += 1;
                if links > LINK_LIMIT {
                    return Err(rustix::io::Errno::LOOP.into());
                }
                refuse_stranger(&walked.join(&name), status.st_uid)?;
                let target = readlinkat(&entry, c"", Vec::new())?.into_bytes();
                let target = PathBuf::from(OsString::from_vec(target));
                if target.is_absolute() {
                    place = root()?;
                    walked = PathBuf::from("/");
                }
                rest.extend(names(&target));
            }
            _ => return Err(rustix::io::Errno::NOTDIR.into()),
        }
    }
    Ok(place)
}

fn root() -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(rustix::fs::open("/", flags, Mode::empty())?)
}

/// Names to step through, the first one last.
fn names(path: &Path) -> Vec<OsString> {
    let mut names: Vec<OsString> = path
        .components()
        .filter(|part| matches!(part, Component::Normal(_) | Component::ParentDir))
        .map(|part| part.as_os_str().to_owned())
        .collect();
    names.reverse();
    names
}

/// The entry itself, a link included.
fn step(place: &OwnedFd, name: &OsStr, missing: Missing) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let open = || openat(place, name, flags, Mode::empty());
    match open() {
        Err(rustix::io::Errno::NOENT) if missing == Missing::Create => {
            match mkdirat(place, name, Mode::from_raw_mode(0o755)) {
                // Another process may have made it meanwhile.
                Ok(()) | Err(rustix::io::Errno::EXIST) => Ok(open()?),
                Err(error) => Err(error.into()),
            }
        }
        opened => Ok(opened?),
    }
}

fn refuse_stranger(link: &Path, owner: u32) -> io::Result<()> {
    let own = rustix::process::geteuid().as_raw();
    if owner == own || owner == 0 {
        return Ok(());
    }
    Err(io::Error::other(format!(
        "`{}` is a link of user id {owner}, and other people's links are not followed here",
        link.display()
    )))
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink};

    use super::*;

    fn inode(place: &OwnedFd) -> u64 {
        fstat(place).unwrap().st_ino
    }

    #[test]
    fn what_is_missing_is_made_and_the_operator_s_own_links_lead_on() {
        use std::os::unix::fs::MetadataExt;
        let root = tempfile::tempdir().unwrap();
        let deep = root.path().join("a/b/c");
        assert!(open(&deep, Missing::Fail).is_err());
        let made = open(&deep, Missing::Create).unwrap();
        assert_eq!(inode(&made), fs::metadata(&deep).unwrap().ino());
        symlink("a/b", root.path().join("relative")).unwrap();
        symlink(root.path().join("relative"), root.path().join("absolute")).unwrap();
        for name in ["relative/c", "absolute/c", "a/../absolute/./c"] {
            let found = open(&root.path().join(name), Missing::Fail).unwrap();
            assert_eq!(inode(&found), inode(&made), "{name}");
        }
    }

    #[test]
    fn circles_and_files_on_the_way_are_errors() {
        let root = tempfile::tempdir().unwrap();
        symlink("circle", root.path().join("circle")).unwrap();
        fs::write(root.path().join("file"), "").unwrap();
        for name in ["circle/x", "file/x"] {
            assert!(
                open(&root.path().join(name), Missing::Create).is_err(),
                "{name}"
            );
        }
    }

    #[test]
    fn a_link_of_somebody_else_is_followed_nowhere_on_the_way() {
        if !rustix::process::geteuid().is_root() {
            // Making a link somebody else's takes root.
            assert!(refuse_stranger(Path::new("/x"), 1).is_err());
            return;
        }
        let root = tempfile::tempdir().unwrap();
        let (elsewhere, link) = (root.path().join("elsewhere"), root.path().join(".runtime"));
        fs::create_dir(&elsewhere).unwrap();
        symlink(&elsewhere, &link).unwrap();
        std::os::unix::fs::lchown(&link, Some(65_534), Some(65_534)).unwrap();
        let error = open(&link.join("engines"), Missing::Create).unwrap_err();
        assert!(
            error.to_string().contains("a link of user id 65534"),
            "{error}"
        );
        assert_eq!(fs::read_dir(&elsewhere).unwrap().count(), 0);
    }
}
