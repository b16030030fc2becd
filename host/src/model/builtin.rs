//! Models inside this program.

use std::fs;

use engine_provider_api::StageModel;

use super::{
    ACTOR, ModelError, Request, Stage, blocking,
    catalog::{Catalog, Entry, Trust},
    known::{self, Known},
    publish::{Draft, publish},
};
use crate::{
    narrate::Waits,
    net::Digest,
    store::{self, Blob, Lock, Patience, StoreError},
};

/// A model inside this program.
#[derive(Debug, Clone, Copy)]
pub struct Builtin {
    /// Its name, as in `builtin:NAME`.
    pub name: &'static str,
    /// The file.
    pub bytes: &'static [u8],
    /// SHA-256 of the file, 64 hexadecimal digits. Written down: hashing it anew, whenever somebody asks,
    /// takes longer than all else that a plan does with it.
    pub sha256: &'static str,
}

/// Every model inside this program.
pub const BUILTINS: &[Builtin] = &[Builtin {
    name: "haiku",
    bytes: include_bytes!("../../../models/haiku/haiku.gguf"),
    sha256: "744ce8ad850a323018a6aaf88b444cfe7089d4a5f7de1185d67cd632610cd9cb",
}];

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
    step: &StageModel,
    name: &str,
) -> Result<Entry, ModelError> {
    let builtin = find(name)?;
    let actual = Digest::Sha256(builtin.sha256.to_owned());
    if let Some(expected) = request.digest.clone().filter(|digest| *digest != actual) {
        return Err(ModelError::Mismatch {
            path: format!("builtin:{name}").into(),
            expected,
            actual,
        });
    }
    // A newer version of this program may have another one of this name.
    if let Some(Known::Sound(entry)) = known::find(stage, request, step).await?
        && entry.digest == actual.to_string()
    {
        return Ok(*entry);
    }
    let failed = |source| request.failed(source);
    let catalog = Catalog::of(&request.store);
    let _staging = catalog.staging(&stage.cancel).await.map_err(failed)?;
    let blob = write(stage, request, builtin).await?;
    let draft = Draft::of_blob(request, blob, Trust::Source);
    publish(stage, request, step, draft).await
}

async fn write(stage: &Stage, request: &Request, builtin: Builtin) -> Result<Blob, ModelError> {
    let failed = |source| request.failed(source);
    let _lock = lock_blob(stage, request, builtin.sha256)
        .await
        .map_err(failed)?;
    let store = request.store.clone();
    let (blob, fresh) = blocking(move || match store.blob(builtin.sha256)? {
        Some(blob) => Ok((blob, false)),
        None => {
            let partial = store.prepare_partial(builtin.sha256)?;
            store::ensure_space(&partial, builtin.bytes.len() as u64)?;
            fs::write(&partial, builtin.bytes).map_err(|source| {
                // A beginning of it is of no use, and takes space that is needed.
                let _ = fs::remove_file(&partial);
                StoreError::io("write", &partial, source)
            })?;
            let origin = format!("builtin:{}", builtin.name);
            Ok((store.publish_blob(&partial, builtin.sha256, &origin)?, true))
        }
    })
    .await
    .map_err(failed)?;
    if fresh {
        stage.narrator.makes();
        let name = builtin.name;
        let human = format!("wrote built-in model {name}, sha256 {}", blob.sha256);
        stage
            .narrator
            .say(ACTOR, "verified", blob.path.to_string_lossy(), human);
    }
    Ok(blob)
}

/// Takes the lock of a blob, telling whoever has to wait.
pub(super) async fn lock_blob(
    stage: &Stage,
    request: &Request,
    name: &str,
) -> Result<Lock, StoreError> {
    let path = request.store.lock_path(&format!("blob-{name}"));
    let shown = request.reference.to_string();
    let waits = Waits::new(&stage.narrator, "model");
    let on_wait = |who: &str| {
        let human = format!("waiting for {who}, which stages the same model");
        stage.narrator.say(ACTOR, "wait", &shown, human);
        waits.begin(&shown);
    };
    let patience = Patience {
        limit: super::FLIGHT_LIMIT,
        cancel: &stage.cancel,
        on_wait: &on_wait,
    };
    store::lock(&path, &format!("staging model {shown}"), patience).await
}

#[cfg(test)]
mod tests {
    use sha2::{Digest as _, Sha256};

    use super::*;

    #[test]
    fn what_is_written_down_is_the_digest_of_the_file() {
        for builtin in BUILTINS {
            let actual = store::hex(&Sha256::digest(builtin.bytes));
            assert_eq!(builtin.sha256, actual, "{}", builtin.name);
        }
    }
}
