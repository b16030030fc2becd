//! Whether a container's user may read what is mounted for it.
//!
//! A model file that only its owner may read fails in a container under another user as "No such
//! file", after minutes. What the mode bits say is looked at before anything is started, and, as far as
//! it is there, before an image is pulled. Inside, even root has no right to pass them by: every
//! capability is dropped.

use std::{
    fs::{self, Metadata},
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
};

use engine_provider_api::{ContainerLaunch, ContainerRuntime, Image};

use super::{EngineError, container::is_cache, kind::Contained};
use crate::{
    container::{BindMount, Runtime},
    process::Identity,
};

/// Most entries of a directory that are looked at: a model has hundreds at most.
const ENTRY_LIMIT: usize = 10_000;

/// Bits of "others" in a mode.
const READ: u32 = 0o4;
const ENTER: u32 = 0o5;

/// Whose a directory is that an engine writes in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Owner {
    /// This user's; `None`: this process's own.
    Is(Option<Identity>),
    /// Whoever a runtime without root maps the user inside to, made so by the runtime itself.
    Mapped,
}

/// The container's user as this machine sees it; `None` where an image names it by a word or where
/// it is mapped to somebody whom this process does not know.
pub(super) fn user_inside(contained: &Contained<'_>) -> Option<Identity> {
    let inside = numbers(contained.user());
    if !contained.runtime.rootless {
        return inside;
    }
    // Without root, the container's root is this user; everybody else is mapped to an id that owns
    // nothing here.
    inside.filter(|user| user.uid == 0).map(|_| Identity {
        uid: rustix::process::geteuid().as_raw(),
        gid: rustix::process::getegid().as_raw(),
    })
}

/// Reads `2000`, `2000:0` or nothing at all, which is root; a group that is not named is root's.
fn numbers(user: &str) -> Option<Identity> {
    let (uid, gid) = user.split_once(':').unwrap_or((user, "0"));
    let number = |text: &str| match text {
        "" | "root" => Some(0),
        text => text.parse().ok(),
    };
    Some(Identity {
        uid: number(uid)?,
        gid: number(gid)?,
    })
}

/// Refuses a container whose user could not read what is mounted for it, or could be given no cache, as
/// far as that is seen before anything is fetched. `image`: what is known of it; where it is unknown
/// and decides on the user, nothing is refused.
pub fn refuse_without_rights(
    launch: &ContainerLaunch,
    runtime: &ContainerRuntime,
    image: Option<&Image>,
    mounts: &[BindMount],
) -> Result<(), EngineError> {
    let unknown = Image::default();
    let image = match image {
        Some(image) => image,
        None if launch.user.is_some() => &unknown,
        None => return Ok(()),
    };
    let contained = Contained {
        launch,
        runtime,
        image,
    };
    if launch.mounts.iter().any(|mount| is_cache(&mount.source)) {
        owner_of_caches(&contained)?;
    }
    let user = user_inside(&contained);
    let read = mounts.iter().filter(|mount| !mount.writable);
    for mount in read.filter(|mount| mount.source.exists()) {
        check(&mount.source, &mount.target, user)?;
    }
    Ok(())
}

/// Who must own the caches that this user writes in.
pub(super) fn owner_of_caches(contained: &Contained<'_>) -> Result<Owner, EngineError> {
    owner_for(contained, rustix::process::geteuid().as_raw())
}

/// The same where this process is user `own`.
fn owner_for(contained: &Contained<'_>, own: u32) -> Result<Owner, EngineError> {
    if contained.runtime.rootless && contained.which() == Runtime::Podman {
        // It is given to whomever the user inside is mapped to when it is mounted.
        return Ok(Owner::Mapped);
    }
    let user = match (numbers(contained.user()), contained.runtime.rootless) {
        (Some(user), true) if user.uid == 0 => return Ok(Owner::Is(None)),
        (Some(user), _) => user,
        (None, _) => {
            return Err(EngineError::NamedUser {
                user: contained.user().to_owned(),
            });
        }
    };
    if user.uid == own && !contained.runtime.rootless {
        return Ok(Owner::Is(None));
    }
    if own != 0 || contained.runtime.rootless {
        // Only root could give it away.
        return Err(EngineError::CacheOwner {
            uid: user.uid,
            own,
            runtime: contained.runtime.name.clone(),
        });
    }
    Ok(Owner::Is(Some(user)))
}

/// Refuses a mount that is not there or that the user inside could not read.
pub(super) fn check(path: &Path, target: &str, user: Option<Identity>) -> Result<(), EngineError> {
    let mut rest = vec![path.to_owned()];
    let mut looked = 0;
    while let Some(next) = rest.pop() {
        looked += 1;
        if looked > ENTRY_LIMIT {
            return Ok(());
        }
        let metadata = fs::metadata(&next).map_err(|_| EngineError::MountMissing {
            path: next.clone(),
            target: target.to_owned(),
        })?;
        let needed = if metadata.is_dir() { ENTER } else { READ };
        if !allows(&metadata, user, needed) {
            return Err(unreadable(next, &metadata, target, user));
        }
        if metadata.is_dir() {
            let entries = fs::read_dir(&next).into_iter().flatten().flatten();
            // What a link leads to may lie elsewhere; who made it knows.
            let plain = entries.filter(|entry| entry.file_type().is_ok_and(|it| !it.is_symlink()));
            rest.extend(plain.map(|entry| entry.path()));
        }
    }
    Ok(())
}

fn allows(metadata: &Metadata, user: Option<Identity>, needed: u32) -> bool {
    let mode = metadata.permissions().mode();
    let bits = match user {
        Some(user) if user.uid == metadata.uid() => mode >> 6,
        Some(user) if user.gid == metadata.gid() => mode >> 3,
        _ => mode,
    };
    bits & needed == needed
}

fn unreadable(
    path: PathBuf,
    metadata: &Metadata,
    target: &str,
    user: Option<Identity>,
) -> EngineError {
    EngineError::MountUnreadable {
        is_directory: metadata.is_dir(),
        mode: metadata.permissions().mode() & 0o7777,
        path,
        target: target.to_owned(),
        user: user.map_or_else(
            || "another user".to_owned(),
            |user| format!("user id {}", user.uid),
        ),
    }
}

#[cfg(test)]
mod tests {
    use engine_provider_api::Mount;

    use super::*;

    fn runtime(name: &str, rootless: bool) -> ContainerRuntime {
        ContainerRuntime {
            name: name.to_owned(),
            rootless,
            ..ContainerRuntime::default()
        }
    }

    #[test]
    fn a_cache_is_given_to_the_user_inside_or_refused_where_only_root_could() {
        let owner = |name: &str, rootless: bool, user: &str, own: u32| {
            let launch = ContainerLaunch {
                user: Some(user.to_owned()),
                ..ContainerLaunch::default()
            };
            let contained = Contained {
                launch: &launch,
                runtime: &runtime(name, rootless),
                image: &Image::default(),
            };
            owner_for(&contained, own)
        };
        let gives = |uid, gid| Owner::Is(Some(Identity { uid, gid }));
        assert_eq!(
            owner("podman", true, "2000:0", 1000).unwrap(),
            Owner::Mapped
        );
        assert_eq!(owner("podman", false, "2000:0", 0).unwrap(), gives(2000, 0));
        assert_eq!(owner("docker", false, "2000:0", 0).unwrap(), gives(2000, 0));
        for (rootless, user, own) in [
            (false, "0:0", 0),
            (false, "1000", 1000),
            (true, "0:0", 1000),
        ] {
            let found = owner("docker", rootless, user, own).unwrap();
            assert_eq!(found, Owner::Is(None), "{user} by {own}");
        }
        for (rootless, user) in [(false, "2000:0"), (false, "0:0"), (true, "2000:0")] {
            let error = owner("docker", rootless, user, 1000).unwrap_err();
            let uid = numbers(user).unwrap().uid;
            assert_eq!(
                error.to_string(),
                format!(
                    "docker runs the engine as user id {uid}, and user id 1000 may not give it a cache to \
                     write in"
                )
            );
        }
        let named = owner("docker", false, "vllm", 0).unwrap_err();
        assert!(matches!(named, EngineError::NamedUser { .. }));
    }

    #[test]
    fn what_the_user_inside_lacks_is_refused_before_anything_is_fetched() {
        let root = tempfile::tempdir().unwrap();
        fs::set_permissions(root.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let model = root.path().join("model");
        fs::write(&model, "x").unwrap();
        fs::set_permissions(&model, fs::Permissions::from_mode(0o600)).unwrap();
        let docker = runtime("docker", false);
        let refused = |user: Option<&str>, image: Option<&Image>, cache: &str, source: &Path| {
            let launch = ContainerLaunch {
                user: user.map(str::to_owned),
                mounts: vec![Mount {
                    source: cache.into(),
                    target: "/cache".to_owned(),
                }],
                ..ContainerLaunch::default()
            };
            let mounts = [BindMount {
                source: source.to_owned(),
                target: "/model".to_owned(),
                writable: false,
            }];
            refuse_without_rights(&launch, &docker, image, &mounts)
        };
        let error = refused(Some("54321"), None, "{files}", &model).unwrap_err();
        assert!(
            matches!(error, EngineError::MountUnreadable { .. }),
            "{error:?}"
        );
        // What is not staged yet is looked at when it is.
        refused(Some("54321"), None, "{files}", &root.path().join("later")).unwrap();
        let named = Image {
            user: "vllm".to_owned(),
            ..Image::default()
        };
        let later = root.path().join("later");
        let error = refused(None, Some(&named), "{cache.vllm}", &later).unwrap_err();
        assert!(matches!(error, EngineError::NamedUser { .. }), "{error:?}");
        refused(None, None, "{cache.vllm}", &later).unwrap();
    }

    #[test]
    fn a_user_is_read_as_runtimes_do() {
        let read = |text: &str| numbers(text).map(|user| (user.uid, user.gid));
        assert_eq!(read(""), Some((0, 0)));
        assert_eq!(read("2000:0"), Some((2000, 0)));
        assert_eq!(read("1000"), Some((1000, 0)));
        assert_eq!(read("vllm"), None);
    }

    #[test]
    fn a_private_file_deep_inside_is_found_before_anything_starts() {
        let root = tempfile::tempdir().unwrap();
        let deep = root.path().join("model/1");
        fs::create_dir_all(&deep).unwrap();
        for directory in [root.path(), &root.path().join("model"), &deep] {
            fs::set_permissions(directory, fs::Permissions::from_mode(0o755)).unwrap();
        }
        let file = deep.join("weights");
        fs::write(&file, "x").unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
        let own = fs::metadata(&file).unwrap();
        let user = |uid| Some(Identity { uid, gid: 54_321 });
        check(root.path(), "/models", user(own.uid())).unwrap();
        let error = check(root.path(), "/models", user(54_321)).unwrap_err();
        assert_eq!(
            error.to_string(),
            format!(
                "user id 54321 inside the container may not read `{}` (mode 0600), mounted as /models",
                file.display()
            )
        );
        fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
        check(root.path(), "/models", user(54_321)).unwrap();
        check(root.path(), "/models", None).unwrap();
        let missing = check(&deep.join("gone"), "/models", None).unwrap_err();
        assert!(matches!(missing, EngineError::MountMissing { .. }));
    }
}
