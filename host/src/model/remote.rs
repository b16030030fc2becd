//! A model elsewhere: asked for once, its files fetched at the same time, kept under their digests.

use std::collections::BTreeSet;

use engine_provider_api::{Artifact, ModelShape, StageModel};
use futures_util::{StreamExt as _, TryStreamExt as _, stream};

use super::{
    ACTOR, ModelError, Outlook, Reference, Request, Stage, asked, blocking,
    catalog::{Catalog, Entry, Provenance, Trust},
    fetch::{self, Got, Wanted},
    known::{self, Known},
    names::Key,
    publish::{Draft, publish},
    source::Resolved,
    state, tree, unpacked,
};
use crate::{
    net::{self, Digest, Url},
    store::{self, Counted},
};

/// Files of one model that are fetched at the same time.
const AT_ONCE: usize = 4;

pub(super) fn expected(
    stage: &Stage,
    request: &Request,
    step: &StageModel,
) -> Result<(Artifact, Outlook), ModelError> {
    let failed = |source| request.failed(source);
    let entry = known::entry(stage, request, step).map_err(failed)?;
    if let Some(entry) = entry {
        request.refuse_retired(stage, &entry)?;
        request.refuse_unverified(stage, &entry)?;
        entry.check_formats(request, step)?;
        let damaged = known::damaged(&request.store, &entry, known::Verify::Changed);
        let there = damaged.map_err(failed)?.is_empty();
        let outlook = match there {
            true => Outlook::There,
            false => Outlook::Fetch(entry.provenance.from.clone()),
        };
        let artifact = Artifact {
            state: state(there),
            ..entry.artifact()
        };
        return Ok((artifact, outlook));
    }
    if let Some(blob) = request.blob_here(step).map_err(failed)? {
        let artifact = Artifact {
            state: state(true),
            path: Some(blob.path.to_string_lossy().into_owned()),
            digest: Some(format!("sha256:{}", blob.sha256)),
            size_bytes: Some(blob.size_bytes),
            ..Artifact::default()
        };
        return Ok((artifact, Outlook::There));
    }
    let key = Key::new(stage, request, step);
    let said = stage.models.said(&key);
    let sha256 = said.as_ref().map_or_else(
        || {
            request
                .digest
                .as_ref()
                .and_then(Digest::sha256)
                .map(str::to_owned)
        },
        |resolved| request.sha256_of(step, resolved),
    );
    let several = step.shape == ModelShape::Directory
        || said
            .as_ref()
            .is_some_and(|resolved| resolved.files.len() > 1);
    let catalog = Catalog::of(&request.store);
    let path = sha256.as_ref().map(|sha256| match (several, &said) {
        (false, _) => request.store.blob_path(sha256),
        (true, Some(resolved)) if step.shape == ModelShape::File => {
            tree::place(&catalog, sha256).join(&resolved.files[0].name)
        }
        (true, _) => tree::place(&catalog, sha256),
    });
    let artifact = Artifact {
        path: path.map(|path| path.to_string_lossy().into_owned()),
        digest: sha256.map(|sha256| format!("sha256:{sha256}")),
        size_bytes: said.as_ref().and_then(Resolved::size_bytes),
        ..Artifact::default()
    };
    let from = match &said {
        Some(resolved) => sources_of(resolved),
        None => std::iter::once(request.reference.to_string())
            .chain(request.mirrors.iter().map(net::shown))
            .collect(),
    };
    Ok((artifact, Outlook::Fetch(from)))
}

/// Where the first file of a model is had: enough to know where all come from.
fn sources_of(resolved: &Resolved) -> Vec<String> {
    let first = resolved.files.first();
    let sources = first.iter().flat_map(|file| &file.sources);
    sources.map(|source| net::shown(&source.url)).collect()
}

pub(super) async fn stage(
    stage: &Stage,
    request: &Request,
    step: &StageModel,
) -> Result<Entry, ModelError> {
    let failed = |source| request.failed(source);
    if let Reference::Url(url) = &request.reference
        && let Some(password) = url.password()
    {
        stage.narrator.secrets().register(password);
    }
    let found = match stage.refresh {
        true => None,
        false => known::find(stage, request, step).await?,
    };
    let again = match found {
        Some(Known::Sound(entry)) => {
            let key = Key::new(stage, request, step);
            return match entry.name(key.as_str()) {
                Some(_) => Ok(*entry),
                // Found by its digest: from now on by this reference too.
                None => publish(stage, request, step, Draft::of_entry(request, *entry)).await,
            };
        }
        Some(Known::Damaged(entry)) => {
            let human = format!("{} is damaged: fetching again what is wrong", entry.id);
            stage.narrator.warn(ACTOR, "verify", &entry.id, human);
            Some(entry)
        }
        None => None,
    };
    let _staging = Catalog::of(&request.store)
        .staging(&stage.cancel)
        .await
        .map_err(failed)?;
    let here = {
        let (request, step) = (request.clone(), step.clone());
        blocking(move || request.blob_here(&step))
            .await
            .map_err(failed)?
    };
    let draft = match here {
        Some(blob) if again.is_none() => Draft::of_blob(request, blob, Trust::Checksum),
        _ => {
            let resolved = asked::ask(stage, request, step, again.as_deref()).await?;
            obtain(stage, request, step, &resolved).await?
        }
    };
    publish(stage, request, step, draft).await
}

/// Fetches what is not here.
async fn obtain(
    stage: &Stage,
    request: &Request,
    step: &StageModel,
    resolved: &Resolved,
) -> Result<Draft, ModelError> {
    let single = step.shape == ModelShape::File && resolved.files.len() == 1;
    request.compare(step, resolved)?;
    let request = &Request {
        single_file: single,
        ..request.clone()
    };
    let wanted = |file| Wanted {
        file,
        digest: request
            .digest
            .as_ref()
            .filter(|_| single && !file.is_archive),
        pinned: &resolved.pinned,
        task: if single { "download" } else { &file.name },
    };
    let wanted: Vec<Wanted<'_>> = resolved.files.iter().map(wanted).collect();
    room_for(stage, request, &wanted)?;
    let one = async |wanted: Wanted<'_>| match wanted.file.is_archive {
        true => unpacked::files(stage, request, step, wanted).await,
        false => Ok(vec![fetch::file(stage, request, wanted).await?]),
    };
    // Collected first: a stream that holds this closure could not cross threads.
    let each: Vec<_> = wanted.into_iter().map(one).collect();
    let got: Vec<Vec<Got>> = stream::iter(each)
        .buffer_unordered(AT_ONCE)
        .try_collect()
        .await?;
    let mut got: Vec<Got> = got.into_iter().flatten().collect();
    got.sort_by(|a, b| a.file.name.cmp(&b.file.name));
    if resolved.has_archives() {
        asked::fit_together(request, step, &mut got)?;
    }
    let trust = match request.digest {
        Some(_) => Trust::Checksum,
        None => got
            .iter()
            .map(|got| got.trust)
            .max()
            .expect("a model has a file"),
    };
    let from = places_of(&got);
    let files: Vec<_> = got.into_iter().map(|got| got.file).collect();
    let listed = || files.iter().map(|file| (&*file.name, &*file.sha256));
    match (&*files, single) {
        ([one], true) if resolved.has_archives() => {
            request.must_be(Digest::Sha256(one.sha256.clone()))?;
        }
        // What was fetched was compared.
        (_, true) => {}
        (_, false) => request.must_be(Digest::Sha256(tree::digest(listed())))?,
    }
    Ok(Draft {
        // As it is shown: what was written may have a user or a key in it.
        name: request.reference.to_string(),
        pinned: resolved.pinned.clone(),
        versions: resolved.versions(),
        files,
        place: None,
        revision: resolved.revision.clone(),
        licence: resolved.licence.clone(),
        provenance: Provenance {
            origin: request.origin(),
            from,
            trust,
        },
    })
}

/// Where files came from: of each place the first one, which is enough to know where all did.
fn places_of(got: &[Got]) -> Vec<String> {
    let (mut places, mut first) = (BTreeSet::new(), Vec::new());
    for from in got.iter().flat_map(|got| got.from.split(", ")) {
        // What lies with the user has no origin.
        let place = Url::parse(from).map(|url| url.origin().ascii_serialization());
        if places.insert(place.unwrap_or_default()) {
            first.push(from.to_owned());
        }
    }
    first
}

/// Checks that the disk takes all that is missing, before the first byte comes.
fn room_for(stage: &Stage, request: &Request, files: &[Wanted<'_>]) -> Result<(), ModelError> {
    let failed = |source| request.failed(source);
    let (mut bytes, mut counted) = (0_u64, Counted::default());
    for wanted in files {
        let missing = missing_bytes(stage, request, *wanted, &mut counted)?;
        bytes = bytes.saturating_add(missing);
    }
    let partial = request.store.prepare_partial("model").map_err(failed)?;
    store::ensure_space(&partial, bytes).map_err(failed)
}

/// Bytes that a file still takes. Its partial has its space already: of a run that was killed, or of one
/// that is fetching it now, all that was set aside.
fn missing_bytes(
    stage: &Stage,
    request: &Request,
    wanted: Wanted<'_>,
    counted: &mut Counted,
) -> Result<u64, ModelError> {
    let (file, store) = (wanted.file, &request.store);
    let name = fetch::partial_name(stage, request, wanted)?;
    if file.local.is_some() || store.blob_path(&name).exists() {
        return Ok(0);
    }
    let size = file.size_bytes.unwrap_or_default();
    let there = counted.bytes(&store.partial_path(&name)).min(size);
    // An archive is here while it is unpacked.
    let unpacked = if file.is_archive { size } else { 0 };
    Ok((size - there).saturating_add(unpacked))
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use rustix::fs::{FallocateFlags, fallocate};

    use super::{
        super::{source::RemoteFile, tests::bench},
        *,
    };
    use crate::net::Source;

    #[test]
    fn what_another_run_has_begun_is_not_asked_for_twice() {
        const SIZE: u64 = 1 << 20;
        let bench = bench();
        let url = "https://models.test/m.gguf";
        let step = StageModel {
            reference: url.to_owned(),
            ..StageModel::default()
        };
        let request = Request::new(&bench.stage, &step).unwrap();
        let file = |is_archive| RemoteFile {
            name: "m.gguf".to_owned(),
            sources: vec![Source::from(Url::parse(url).unwrap())],
            size_bytes: Some(SIZE),
            digest: Some(Digest::Sha256("ab".repeat(32))),
            version: None,
            kept_as: None,
            git_blob: None,
            local: None,
            is_archive,
        };
        let missing = |is_archive| {
            let wanted = Wanted {
                file: &file(is_archive),
                digest: None,
                pinned: url,
                task: "download",
            };
            missing_bytes(&bench.stage, &request, wanted, &mut Counted::default()).unwrap()
        };
        assert_eq!((missing(false), missing(true)), (SIZE, 2 * SIZE));
        let path = request.store.prepare_partial(&"ab".repeat(32)).unwrap();
        let partial = File::create(path).unwrap();
        fallocate(&partial, FallocateFlags::KEEP_SIZE, 0, SIZE / 4).unwrap();
        assert_eq!(
            (missing(false), missing(true)),
            (SIZE * 3 / 4, SIZE * 7 / 4)
        );
        // More than it needs is none of the others'.
        fallocate(&partial, FallocateFlags::KEEP_SIZE, 0, SIZE * 2).unwrap();
        assert_eq!((missing(false), missing(true)), (0, SIZE));
    }
}
