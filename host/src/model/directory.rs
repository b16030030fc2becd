//! A user's own directory, for engines that read one: used in place, never changed.
//!
//! Its digest is that of the text that coreutils print for it, so that anybody can compute it:
//!
//! ```text
//! cd DIRECTORY && find -L . -type f -not -path '*/.*' -printf '%P\0' \
//!   | LC_ALL=C sort -z | xargs -0 sha256sum | sha256sum
//! ```
//!
//! Hidden files and directories are no part of a model: tools keep their notes there. A file is hashed
//! once and not again while it looks the same. Links may lead to files inside; a container that is given
//! the directory has nothing else.

use std::{
    fmt::Write as _,
    fs::{self, File, Metadata},
    path::{Path, PathBuf},
};

use engine_provider_api::Artifact;
use sha2::{Digest as _, Sha256};

use super::{
    ACTOR, ModelError, Outlook, Request, Stage, Staged, blocking,
    file::{clone_or_copy, may},
    remote::FLIGHT_LIMIT,
    shown_name, state,
};
use crate::{
    net::Digest,
    process::Identity,
    store::{self, Begin, Ingredients, Kind, Patience, StoreError},
};

/// Files that a directory may have and still be taken for a model.
const FILE_LIMIT: usize = 20_000;

/// What lies in a directory.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Tree {
    /// Names from the directory on, sorted by their bytes.
    files: Vec<String>,
    size_bytes: u64,
    /// Whether the engine's user can read all of it.
    readable: bool,
}

pub(super) fn expected(
    stage: &Stage,
    request: &Request,
    path: &Path,
) -> Result<(Artifact, Outlook), ModelError> {
    let path = stage.base.join(path);
    let tree = look(&path, stage.run_as)?;
    let artifact = Artifact {
        state: state(tree.readable),
        path: tree.readable.then(|| path.to_string_lossy().into_owned()),
        digest: request.digest.as_ref().map(ToString::to_string),
        size_bytes: Some(tree.size_bytes),
        ..Artifact::default()
    };
    let outlook = match tree.readable {
        true => Outlook::There,
        false => Outlook::Copy,
    };
    Ok((artifact, outlook))
}

pub(super) async fn stage(
    stage: &Stage,
    request: &Request,
    path: &Path,
) -> Result<Staged, ModelError> {
    let path = stage.base.join(path);
    let tree = look(&path, stage.run_as)?;
    let sha256 = match (&request.digest, tree.readable) {
        // Nobody asked, and reading gigabytes for nothing is slow.
        (None, true) => None,
        _ => Some(verify(stage, request, &path, &tree).await?),
    };
    let digest = sha256.as_ref().map(|sha256| format!("sha256:{sha256}"));
    let size_bytes = tree.size_bytes;
    let path = match sha256 {
        Some(sha256) if !tree.readable => copy(stage, request, path, tree, sha256).await?,
        _ => path,
    };
    Ok(Staged {
        path,
        digest,
        size_bytes,
    })
}

/// Computes the digest of a directory and compares it with the expected one, where there is one.
async fn verify(
    stage: &Stage,
    request: &Request,
    path: &Path,
    tree: &Tree,
) -> Result<String, ModelError> {
    let target = path.to_string_lossy();
    let say = |action: &str, human: String| {
        stage.narrator.say(ACTOR, action, target.clone(), human);
    };
    say("verify", format!("verifying {}", path.display()));
    let (store, root, files) = (request.store.clone(), path.to_owned(), tree.files.clone());
    let sha256 = blocking(move || digest(&root, &files, |file| Ok(store.witness(file)?.sha256)))
        .await
        .map_err(|source| request.failed(source))?;
    let actual = Digest::Sha256(sha256.clone());
    match &request.digest {
        Some(expected) if *expected != actual => Err(ModelError::Mismatch {
            path: path.to_owned(),
            expected: expected.clone(),
            actual,
        }),
        _ => {
            say("verified", format!("{} is {actual}", path.display()));
            Ok(sha256)
        }
    }
}

/// Copies a directory into the store, under its digest.
async fn copy(
    stage: &Stage,
    request: &Request,
    path: PathBuf,
    tree: Tree,
    sha256: String,
) -> Result<PathBuf, ModelError> {
    let failed = |source| request.failed(source);
    let name = shown_name(&path).into_owned();
    let on_wait = |holder: Option<&store::Holder>| {
        let who = holder.map_or_else(|| "another process".to_owned(), ToString::to_string);
        let human = format!("waiting for {who}, which stages the same model");
        stage.narrator.say(ACTOR, "wait", &name, human);
    };
    let patience = Patience {
        limit: FLIGHT_LIMIT,
        cancel: &stage.cancel,
        on_wait: &on_wait,
    };
    let ingredients = Ingredients::new().with("model directory", &sha256);
    let doing = format!("staging model {name}");
    let begun = request
        .store
        .begin(Kind::Archive, "model", ingredients, &doing, patience);
    let work = match begun.await.map_err(failed)? {
        Begin::Hit(entry) => return Ok(entry.path),
        Begin::Work(work) => work,
    };
    let human =
        format!("copying {name} into the store: the engine's user cannot read it where it is");
    stage
        .narrator
        .say(ACTOR, "copy", path.to_string_lossy(), human);
    let entry = blocking(move || {
        let target = work.tree();
        store::ensure_space(&target, tree.size_bytes)?;
        for file in &tree.files {
            let copy = target.join(file);
            store::make_directory(copy.parent().expect("it lies in the tree"))?;
            clone_or_copy(&path.join(file), &copy)?;
        }
        if digest(&target, &tree.files, store::digest_file)? != sha256 {
            return Err(StoreError::Unsound {
                path,
                reason: "changed while it was copied".to_owned(),
            });
        }
        work.publish(serde_json::json!({ "from": path }))
    })
    .await
    .map_err(failed)?;
    if let Some(identity) = stage.run_as {
        store::ensure_reachable(&entry.path, identity).map_err(failed)?;
    }
    Ok(entry.path)
}

/// The digest of a directory; the module says of what.
fn digest(
    root: &Path,
    files: &[String],
    of_file: impl Fn(&Path) -> Result<String, StoreError>,
) -> Result<String, StoreError> {
    let mut text = String::new();
    for file in files {
        let sha256 = of_file(&root.join(file))?;
        writeln!(text, "{sha256}  {file}").expect("writing to a text does not fail");
    }
    Ok(store::hex(&Sha256::digest(text.as_bytes())))
}

/// Looks at a directory without reading a file of it.
fn look(path: &Path, user: Option<Identity>) -> Result<Tree, ModelError> {
    let unread = |source| store_error(path, StoreError::io("read", path, source));
    let not = |what| ModelError::NotADirectory {
        path: path.to_owned(),
        what,
    };
    let metadata = fs::metadata(path).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => ModelError::Missing {
            path: path.to_owned(),
            shape: "directory",
        },
        _ => unread(error),
    })?;
    if metadata.is_file() {
        return Err(not("a file"));
    }
    if !metadata.is_dir() {
        return Err(not("a device, pipe or socket"));
    }
    let root = path.canonicalize().map_err(unread)?;
    let reachable = user.is_none_or(|user| store::ensure_reachable(&root, user).is_ok());
    let mut walk = Walk {
        root: &root,
        user,
        tree: Tree {
            readable: reachable && may(&metadata, user, 0o5),
            ..Tree::default()
        },
    };
    walk.directory(&root)?;
    let mut tree = walk.tree;
    if tree.files.is_empty() {
        return Err(not("empty"));
    }
    tree.files.sort_unstable();
    Ok(tree)
}

struct Walk<'a> {
    root: &'a Path,
    user: Option<Identity>,
    tree: Tree,
}

impl Walk<'_> {
    fn directory(&mut self, directory: &Path) -> Result<(), ModelError> {
        let failed = |source| store_error(directory, StoreError::io("read", directory, source));
        for entry in fs::read_dir(directory).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            if entry.file_name().as_encoded_bytes().starts_with(b".") {
                continue;
            }
            let path = entry.path();
            let kind = entry.file_type().map_err(failed)?;
            if kind.is_dir() {
                let metadata = entry.metadata().map_err(failed)?;
                self.tree.readable &= may(&metadata, self.user, 0o5);
                self.directory(&path)?;
            } else if kind.is_symlink() {
                let leads_to = path
                    .canonicalize()
                    .map_err(|_| unfit(&path, "is a link to nothing"))?;
                if !leads_to.starts_with(self.root) {
                    return Err(unfit(&path, "is a link out of the directory"));
                }
                self.file(&path)?;
            } else {
                self.file(&path)?;
            }
        }
        Ok(())
    }

    fn file(&mut self, path: &Path) -> Result<(), ModelError> {
        let metadata = fs::metadata(path)
            .map_err(|source| store_error(path, StoreError::io("read", path, source)))?;
        if metadata.is_dir() {
            return Err(unfit(path, "is a link to a directory"));
        }
        if !metadata.is_file() {
            return Err(unfit(path, "is a device, pipe or socket"));
        }
        let inside = path.strip_prefix(self.root).expect("it was found below");
        // coreutils write such names in another way.
        let name = inside
            .to_str()
            .filter(|name| !name.contains('\\') && !name.chars().any(char::is_control))
            .ok_or_else(|| unfit(path, "has a name that is no plain text"))?;
        if self.tree.files.len() >= FILE_LIMIT {
            return Err(ModelError::NotADirectory {
                path: self.root.to_owned(),
                what: "full of other things",
            });
        }
        self.tree.files.push(name.to_owned());
        self.tree.size_bytes += metadata.len();
        self.tree.readable &= self.can_read(path, &metadata);
        Ok(())
    }

    fn can_read(&self, path: &Path, metadata: &Metadata) -> bool {
        match self.user {
            None => File::open(path).is_ok(),
            user => may(metadata, user, 0o4),
        }
    }
}

fn unfit(path: &Path, reason: &'static str) -> ModelError {
    ModelError::Unfit {
        path: path.to_owned(),
        reason,
    }
}

fn store_error(path: &Path, source: StoreError) -> ModelError {
    ModelError::Store {
        reference: path.display().to_string(),
        source: Box::new(source),
    }
}

#[cfg(test)]
mod tests;
