//! Models inside this program.

use std::fs;

use sha2::{Digest as _, Sha256};

use super::{ACTOR, ModelError, Request, Stage, Staged, blocking};
use crate::{
    net::Digest,
    store::{self, Lock, Patience, StoreError},
};

/// A model inside this program.
#[derive(Debug, Clone, Copy)]
pub struct Builtin {
    /// Its name, as in `builtin:NAME`.
    pub name: &'static str,
    /// The file.
    pub bytes: &'static [u8],
}

/// Every model inside this program.
pub const BUILTINS: &[Builtin] = &[Builtin {
    name: "haiku",
    bytes: include_bytes!("../../../models/haiku/haiku.gguf"),
}];

impl Builtin {
    /// SHA-256 of the file, 64 hexadecimal digits. Computed, at about a millisecond per megabyte,
    /// so that it can never be outdated.
    #[must_use]
    pub fn sha256(&self) -> String {
        store::hex(&Sha256::digest(self.bytes))
    }
}

pub(super) fn find(name: &str) -> Result<Builtin, ModelError> {
    BUILTINS
        .iter()
        .find(|builtin| builtin.name == name)
        .copied()
        .ok_or_else(|| ModelError::UnknownBuiltin {
            name: name.to_owned(),
            known: BUILTINS.iter().map(|builtin| builtin.name).collect(),
        })
}

pub(super) async fn stage(
    stage: &Stage,
    request: &Request,
    name: &str,
) -> Result<Staged, ModelError> {
    let builtin = find(name)?;
    let sha256 = builtin.sha256();
    let actual = Digest::Sha256(sha256.clone());
    if let Some(expected) = request.digest.clone().filter(|digest| *digest != actual) {
        return Err(ModelError::Mismatch {
            path: format!("builtin:{name}").into(),
            expected,
            actual,
        });
    }
    let failed = |source| request.failed(source);
    let _lock = lock_blob(stage, request, &sha256).await.map_err(failed)?;
    let store = request.store.clone();
    let (blob, fresh) = blocking(move || match store.blob(&sha256)? {
        Some(blob) => Ok((blob, false)),
        None => {
            let partial = store.prepare_partial(&sha256)?;
            fs::write(&partial, builtin.bytes)
                .map_err(|source| StoreError::io("write", &partial, source))?;
            let origin = format!("builtin:{}", builtin.name);
            Ok((store.publish_blob(&partial, &sha256, &origin)?, true))
        }
    })
    .await
    .map_err(failed)?;
    if fresh {
        let human = format!("wrote built-in model {name}, sha256 {}", blob.sha256);
        stage
            .narrator
            .say(ACTOR, "verified", blob.path.to_string_lossy(), human);
    }
    if let Some(identity) = stage.run_as {
        store::ensure_reachable(&blob.path, identity).map_err(failed)?;
    }
    Ok(blob.into())
}

/// Takes the lock of a blob, telling whoever has to wait.
pub(super) async fn lock_blob(
    stage: &Stage,
    request: &Request,
    name: &str,
) -> Result<Lock, StoreError> {
    let path = request.store.lock_path(&format!("blob-{name}"));
    let shown = request.reference.to_string();
    let on_wait = |holder: Option<&store::Holder>| {
        let who = holder.map_or_else(|| "another process".to_owned(), ToString::to_string);
        let human = format!("waiting for {who}, which stages the same model");
        stage.narrator.say(ACTOR, "wait", &shown, human);
    };
    let patience = Patience {
        limit: super::remote::FLIGHT_LIMIT,
        cancel: &stage.cancel,
        on_wait: &on_wait,
    };
    store::lock(&path, &format!("staging model {shown}"), patience).await
}
