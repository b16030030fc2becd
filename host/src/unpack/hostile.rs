//! What must hold of every archive there can be.

use std::{
    fs,
    os::unix::fs::{MetadataExt as _, PermissionsExt as _},
    path::{Component, Path},
};

use engine_provider_api::Unpack;

use super::{Programs, archive, tar};

/// Links that are followed, of one; the kernel follows fewer.
const LINKS: usize = 256;

/// Unpacks bytes, `None` as a plain tar stream, into a directory of its own and asserts that nothing of it
/// is outside, that no link leads out, now or later, that a file has one name, that nobody's rights are
/// taken, and that a refusal leaves nothing. Gives whether it was unpacked.
///
/// # Panics
///
/// When one of these does not hold.
pub(crate) fn unpack_hostile(how: Option<Unpack>, bytes: &[u8]) -> bool {
    let around = tempfile::tempdir().expect("a directory can be made");
    let into = around.path().join("into");
    fs::create_dir(&into).expect("it is new");
    let file = around.path().join("archive");
    let unpacked = match how {
        None => tar(bytes, &into),
        Some(how) => {
            fs::write(&file, bytes).expect("it can be written");
            archive(how, &file, &into, Programs::Kept)
        }
    };
    let beside = fs::read_dir(around.path()).expect("it is there").count();
    assert_eq!(
        beside,
        1 + usize::from(how.is_some()),
        "something lies outside"
    );
    if how.is_some() {
        let now = fs::read(&file).expect("it is there");
        assert_eq!(now, bytes, "the archive itself was written to");
    }
    if unpacked.is_err() {
        let left = fs::read_dir(&into).expect("it is there").count();
        assert_eq!(left, 0, "something is left of what was refused");
        return false;
    }
    let root = into.canonicalize().expect("it is there");
    hold(&root, &root);
    true
}

fn hold(root: &Path, directory: &Path) {
    for entry in fs::read_dir(directory).expect("it was made readable") {
        let path = entry.expect("it can be read").path();
        let metadata = fs::symlink_metadata(&path).expect("it is there");
        if metadata.is_symlink() {
            assert!(stays(root, &path), "{} leads out", path.display());
            if let Ok(leads_to) = path.canonicalize() {
                assert!(leads_to.starts_with(root), "{} leads out", path.display());
            }
            continue;
        }
        let special = metadata.permissions().mode() & 0o7000;
        assert_eq!(special, 0, "{} has special rights", path.display());
        if metadata.is_dir() {
            hold(root, &path);
        } else {
            assert!(metadata.is_file(), "{} is no file", path.display());
            let names = metadata.nlink();
            assert_eq!(names, 1, "{} has other names", path.display());
        }
    }
}

/// Whether a link leads to places below the root alone, step by step and link by link: also one to nothing,
/// behind which something may lie later. One that leads in circles leads nowhere.
fn stays(root: &Path, link: &Path) -> bool {
    let above = link.parent().expect("it lies in the root");
    let mut at = above
        .strip_prefix(root)
        .expect("it lies in the root")
        .to_owned();
    let target = |link: &Path| fs::read_link(link).expect("it is a link");
    let mut steps = vec![target(link)];
    for _ in 0..LINKS {
        let Some(next) = steps.pop() else { return true };
        for (index, part) in next.components().enumerate() {
            match part {
                Component::CurDir => {}
                Component::ParentDir if at.pop() => {}
                Component::Normal(name) => at.push(name),
                _ => return false,
            }
            let here = root.join(&at);
            if fs::symlink_metadata(&here).is_ok_and(|it| it.is_symlink()) {
                at.pop();
                steps.push(next.components().skip(index + 1).collect());
                steps.push(target(&here));
                break;
            }
        }
    }
    true
}
