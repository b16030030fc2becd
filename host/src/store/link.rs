//! Links in results: none may lead out.

use std::{
    collections::VecDeque,
    ffi::OsString,
    fs,
    path::{Component, Path, PathBuf},
};

use super::{StoreError, tree::unsound};

/// Links followed for one path, as by the kernel (path_resolution(7)).
const HOPS: u32 = 40;

/// Refuses a link that is absolute or climbs out of `root`, be it through other links.
///
/// Walks the way the kernel would: the text alone does not tell, because `b/..` is another place
/// when `b` is a link. Nobody else may change the tree meanwhile.
pub(crate) fn check_link(root: &Path, link: &Path) -> Result<(), StoreError> {
    check_link_but(root, link, &[])
}

/// The same, but a link may lead to these, given as canonical paths.
pub(super) fn check_link_but(root: &Path, link: &Path, also: &[PathBuf]) -> Result<(), StoreError> {
    let read =
        |path: &Path| fs::read_link(path).map_err(|source| StoreError::io("read", path, source));
    let target = read(link)?;
    let out = || {
        let reason = format!("is a link out of the result, to {}", target.display());
        unsound(link, &reason)
    };
    let inside = link
        .parent()
        .and_then(|parent| parent.strip_prefix(root).ok());
    let mut position: Vec<OsString> = inside.ok_or_else(out)?.iter().map(Into::into).collect();
    let mut ahead: VecDeque<PathBuf> = parts(&target);
    let mut hops = 0;
    while let Some(part) = ahead.pop_front() {
        match part.components().next() {
            Some(Component::Normal(name)) => {
                position.push(name.to_owned());
                let path = root.join(position.iter().collect::<PathBuf>());
                // What is not there leads nowhere.
                if fs::symlink_metadata(&path).is_ok_and(|metadata| metadata.is_symlink()) {
                    hops += 1;
                    if hops > HOPS {
                        return Err(unsound(link, "is a link that goes round in circles"));
                    }
                    position.pop();
                    for part in parts(&read(&path)?).into_iter().rev() {
                        ahead.push_front(part);
                    }
                }
            }
            Some(Component::ParentDir) => {
                position.pop().ok_or_else(out)?;
            }
            Some(Component::CurDir) | None => {}
            Some(_) => {
                let rest: PathBuf = std::iter::once(part).chain(ahead).collect();
                let leads_to = fs::canonicalize(rest).ok();
                return match leads_to.is_some_and(|path| also.contains(&path)) {
                    true => Ok(()),
                    false => Err(out()),
                };
            }
        }
    }
    Ok(())
}

fn parts(path: &Path) -> VecDeque<PathBuf> {
    path.components()
        .map(|component| PathBuf::from(component.as_os_str()))
        .collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn check(links: &[(&str, &str)], link: &str) -> Result<(), StoreError> {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().join("r");
        fs::create_dir_all(root.join("lib")).unwrap();
        fs::write(root.join("lib/a.so.1"), "x").unwrap();
        for (name, target) in links {
            symlink(target, root.join(name)).unwrap();
        }
        check_link(&root, &root.join(link))
    }

    #[test]
    fn links_inside_a_result_stay() {
        for target in ["a.so.1", "../lib/a.so.1", "./a.so.1", "nothing/there", "."] {
            check(&[("lib/l", target)], "lib/l").unwrap();
        }
        check(&[("l", "lib"), ("lib/m", "../l/../lib/a.so.1")], "lib/m").unwrap();
    }

    #[test]
    fn a_link_may_lead_to_a_program_that_was_named_and_nowhere_else() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().canonicalize().unwrap();
        let [inside, program, other] = ["r", "python", "other"].map(|name| root.join(name));
        fs::create_dir(&inside).unwrap();
        fs::write(&program, "x").unwrap();
        fs::write(&other, "x").unwrap();
        symlink(&program, inside.join("a")).unwrap();
        symlink("a", inside.join("b")).unwrap();
        symlink(&other, inside.join("c")).unwrap();
        let check = |name: &str| {
            check_link_but(&inside, &inside.join(name), std::slice::from_ref(&program))
        };
        check("a").unwrap();
        check("b").unwrap();
        check("c").unwrap_err();
        check_link(&inside, &inside.join("b")).unwrap_err();
    }

    #[test]
    fn links_out_of_a_result_are_refused_also_through_other_links() {
        for target in ["/etc/passwd", "../../x", "a/../../../x", "/"] {
            let error = check(&[("lib/l", target)], "lib/l").unwrap_err();
            assert!(
                matches!(error, StoreError::Unsound { .. }),
                "{target}: {error}"
            );
        }
        // Counted as text, this stays inside.
        let error = check(
            &[("b", "."), ("a", "b/b/b/b/../../../../etc/hostname")],
            "a",
        );
        assert!(
            error
                .unwrap_err()
                .to_string()
                .contains("link out of the result")
        );
        let error = check(&[("a", "b"), ("b", "a")], "a").unwrap_err();
        assert!(error.to_string().contains("circles"), "{error}");
    }
}
