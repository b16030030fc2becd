//! What a user's own files are: hashed where they look different from when they were, and compared with what
//! they must be.

use std::path::PathBuf;

use super::{
    super::{
        ACTOR, ModelError, Request, Stage, blocking,
        catalog::{Entry, EntryFile},
        known::Verify,
    },
    Own, digest, since,
};
use crate::{
    net::{Digest, hash_file},
    store::{Store, StoreError},
};

/// Its files, if all of them look as they did when they were hashed.
pub(super) fn hashed(store: &Store, own: &Own) -> Result<Option<Vec<EntryFile>>, StoreError> {
    let files = own.files().map(|(name, place)| {
        let witness = store.witnessed(&place)?;
        Ok(witness.map(|witness| EntryFile {
            name: name.to_owned(),
            place: Some(place),
            ..witness.into()
        }))
    });
    files.collect()
}

/// Its files, hashed where they look different from when they were.
pub(super) async fn hash(
    stage: &Stage,
    request: &Request,
    own: Own,
) -> Result<Vec<EntryFile>, ModelError> {
    let (store, how) = (request.store.clone(), stage.verify);
    let file = move |name: &str, place: PathBuf| {
        let witness = match how {
            Verify::Changed => store.witness(&place)?,
            Verify::All => store.witness_again(&place)?,
        };
        Ok(EntryFile {
            name: name.to_owned(),
            place: Some(place),
            ..witness.into()
        })
    };
    let all = move || {
        let files = own.files().map(|(name, place)| file(name, place));
        files.collect::<Result<_, StoreError>>()
    };
    blocking(all).await.map_err(|source| request.failed(source))
}

/// Hashes it and compares it with what it must be, where somebody says that.
pub(super) async fn verify(
    stage: &Stage,
    request: &Request,
    own: &Own,
    before: Option<&Entry>,
) -> Result<Vec<EntryFile>, ModelError> {
    let target = own.path.to_string_lossy();
    let say = |action: &str, human: String| {
        stage.narrator.say(ACTOR, action, target.clone(), human);
    };
    let known = hashed(&request.store, own).map_err(|source| request.failed(source))?;
    let told = request.digest.is_some() || known.is_none() || stage.verify == Verify::All;
    if told {
        say("verify", format!("verifying {target}"));
    }
    let files = hash(stage, request, own.clone()).await?;
    let actual = Digest::parse(&digest(own.shape, &files)).expect("it was just written");
    let Some(expected) = request.digest.clone() else {
        if told {
            say("verified", format!("{target} is {actual}"));
        }
        return Ok(files);
    };
    let actual = match &expected {
        Digest::Sha512(_) if own.is_one_file() => {
            let (store, path) = (request.store.clone(), own.path.clone());
            let like = expected.clone();
            let hashed = blocking(move || hash_file(&store, &path, &like)).await;
            hashed.map_err(|source| request.failed(source))?
        }
        _ => actual,
    };
    if actual != expected {
        return Err(another(request, own, before, expected, actual));
    }
    say("verified", format!("{target} is {expected}"));
    Ok(files)
}

/// It is not what it must be; where it once was, since when it is not.
fn another(
    request: &Request,
    own: &Own,
    before: Option<&Entry>,
    expected: Digest,
    actual: Digest,
) -> ModelError {
    let path = own.path.clone();
    match before.filter(|entry| entry.is_known_as(&expected.to_string())) {
        Some(entry) => ModelError::OwnChanged {
            path,
            since: since(request, entry),
            expected,
            actual,
        },
        None => ModelError::Mismatch {
            path,
            expected,
            actual,
        },
    }
}
