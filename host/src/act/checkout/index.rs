//! Git objects out of a source distribution of the Python package index.

use std::path::PathBuf;

use engine_provider_api::{Mirror, Step};

use crate::{
    act::{
        ACTOR, ActError, Context, blocking,
        download::{lock_blob, partial_name, refused},
    },
    net::{self, Digest, NetError, Source, Transfer},
    store, unpack,
};

/// Bytes that a source distribution may have.
const ARCHIVE_LIMIT_BYTES: u64 = 4 << 30;

/// Fetches a source distribution and makes a bare repository of the git objects in it, which stays
/// this process's: whoever checks out reads it.
pub(super) async fn fetch(
    context: &Context,
    step: &Step,
    mirror: &Mirror,
    repository: PathBuf,
) -> Result<PathBuf, ActError> {
    let Mirror::Index {
        project,
        version,
        sha256,
        git_directory,
    } = mirror
    else {
        unreachable!("called for index mirrors only");
    };
    let index = context
        .package_index
        .as_ref()
        .ok_or_else(|| ActError::Reference {
            step: step.id.clone(),
            reason: "this machine names no Python package index".to_owned(),
            hints: Vec::new(),
        })?;
    let digest = Digest::parse(&format!("sha256:{sha256}")).map_err(|source| ActError::Digest {
        step: step.id.clone(),
        source,
    })?;
    let name = partial_name(&digest);
    let _lock = lock_blob(context, step, name, &format!("fetching {project}")).await?;
    let net_error = |source| ActError::net(step, source);
    let file = net::find_sdist(&context.net, index, project, version, &context.cancel)
        .await
        .map_err(net_error)?;
    if let Some(claimed) = file.sha256.filter(|claimed| claimed != digest.hex()) {
        return Err(net_error(NetError::Mismatch {
            url: net::shown(&file.url),
            expected: digest,
            actual: Digest::Sha256(claimed),
        }));
    }
    let transfer = Transfer {
        actor: ACTOR,
        kind: "index",
        sources: vec![Source {
            named_by: index.host_str().map(str::to_owned),
            ..file.url.clone().into()
        }],
        digest: Some(digest.clone()),
        size_bytes: None,
        limit_bytes: Some(ARCHIVE_LIMIT_BYTES),
        partial: context
            .store
            .prepare_partial(name)
            .map_err(|source| ActError::store(step, source))?,
        task: "download".to_owned(),
    };
    let shown = net::shown(&file.url);
    context
        .narrator
        .say(ACTOR, "download", &shown, format!("downloading {shown}"));
    let fetched = context
        .net
        .fetch(&transfer, &context.narrator, &context.cancel)
        .await
        .map_err(net_error)?;
    let (archive, target, inside) = (fetched.path, repository.clone(), git_directory.clone());
    let unpacked = blocking(move || {
        // An earlier mirror may have left half of one.
        store::remove_tree(&target)?;
        unpack::git_objects(&archive, &inside, &target)?;
        store::seal(&target)?;
        // Its objects are all that was wanted of it.
        Ok(store::remove_tree(&archive)?)
    })
    .await;
    unpacked.map_err(|refusal| refused(step, &shown, refusal))?;
    Ok(repository)
}
