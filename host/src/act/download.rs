//! Files by URL and digest, unpacked or not.
//!
//! | ingredient of the key | why |
//! |---|---|
//! | `digest` | names every byte, wherever it comes from |
//! | `unpack` | how it is unpacked |
//! | `name` | of the file, where it is not unpacked |
//! | `program` | whether anything in it is executable |
//!
//! Programs need policy's leave, before anything else of the plan is done. What is not a program is
//! never executable, whatever its archive says.

use std::{fs, os::unix::fs::PermissionsExt as _, path::Path};

use engine_provider_api::{Artifact, ArtifactState, Download, Step};

use super::{
    ACTOR, ActError, Context, Expected, MirrorFailure, Outlook, Turn, begin, blocking, publish,
    take_turn, turn::FLIGHT_LIMIT,
};
use crate::{
    net::{self, Digest, Fetched, Transfer, Url},
    policy,
    store::{self, Begin, Entry, Ingredients, Kind, Lock, StoreError, Work},
    unpack::{self, Programs, Refusal},
};

/// A step, read.
struct Request {
    urls: Vec<Url>,
    digest: Digest,
    /// Name of the file, where it is not unpacked.
    name: Option<String>,
    ingredients: Ingredients,
}

impl Request {
    fn new(step: &Step, act: &Download) -> Result<Self, ActError> {
        let digest = Digest::parse(&act.digest).map_err(|source| ActError::Digest {
            step: step.id.clone(),
            source,
        })?;
        let mut urls = Vec::new();
        for text in &act.urls {
            urls.push(Url::parse(text).map_err(|_| ActError::Plan {
                reason: format!("`{}` names `{}`, which is no URL", step.id, text),
            })?);
        }
        let name = match (act.unpack, urls.first()) {
            (None, Some(url)) => Some(net::file_name(url).to_owned()),
            _ => None,
        };
        let ingredients = Ingredients::new()
            .with("digest", digest.to_string())
            .with("unpack", act.unpack)
            .with("name", &name)
            .with("program", act.program);
        Ok(Self {
            urls,
            digest,
            name,
            ingredients,
        })
    }
}

pub(super) fn expected(
    context: &Context,
    step: &Step,
    act: &Download,
) -> Result<Expected, ActError> {
    let request = Request::new(step, act)?;
    let key = request.ingredients.key(Kind::Archive);
    let entry = context
        .store
        .find(&key)
        .map_err(|source| ActError::store(step, source))?;
    let mut artifact = artifact(&context.store.path_of(&key), &request);
    let outlook = match entry {
        Some(_) => Outlook::Cached,
        None => {
            artifact.state = ArtifactState::Expected;
            match permit(context, act, &request) {
                Ok(()) => Outlook::Fetch {
                    from: request.urls.iter().map(net::shown).collect(),
                    size_bytes: None,
                    refused: None,
                },
                Err(refusal) => Outlook::Refused {
                    why: format!("{refusal}: {}", refusal.allow),
                },
            }
        }
    };
    Ok(Expected { artifact, outlook })
}

/// Whether policy allows the download, where there are programs in it.
fn permit(context: &Context, act: &Download, request: &Request) -> Result<(), policy::Refusal> {
    if !act.program {
        return Ok(());
    }
    let from = net::shown(&request.urls[0]);
    context.policy.allow_binary_download(&from)
}

fn artifact(tree: &Path, request: &Request) -> Artifact {
    let path = match &request.name {
        Some(name) => tree.join(name),
        None => tree.to_owned(),
    };
    Artifact {
        state: ArtifactState::Obtained,
        path: Some(path.to_string_lossy().into_owned()),
        digest: Some(request.digest.to_string()),
        ..Artifact::default()
    }
}

pub(super) async fn run(
    context: &Context,
    step: &Step,
    act: &Download,
) -> Result<Artifact, ActError> {
    let request = Request::new(step, act)?;
    let doing = format!("downloading {}", request.digest);
    let ingredients = request.ingredients.clone();
    let work = match begin(context, Kind::Archive, step, ingredients, &doing).await? {
        Begin::Hit(entry) => {
            let human = format!("{} is here already", request.digest);
            context.narrator.say(ACTOR, "cached", &step.id, human);
            return Ok(artifact(&entry.path, &request));
        }
        Begin::Work(work) => work,
    };
    permit(context, act, &request).map_err(|refusal| ActError::refused(step, refusal))?;
    let name = partial_name(&request.digest);
    let _lock = lock_blob(context, step, name, &doing).await?;
    let (url, fetched) = fetch(context, step, act, &request).await?;
    let entry = keep(step, act, &request, work, &url, fetched).await?;
    Ok(artifact(&entry.path, &request))
}

/// What the file of a digest is called while it is collected, and its lock after it.
pub(super) fn partial_name(digest: &Digest) -> &str {
    &digest.hex()[..64]
}

/// Takes the lock of the file that is collected under this name: steps of several keys, pools and
/// hosts may want the same one. A key's lock is held already.
pub(super) async fn lock_blob(
    context: &Context,
    step: &Step,
    name: &str,
    doing: &str,
) -> Result<Lock, ActError> {
    let turn = Turn {
        of: "blob",
        lock: &format!("blob-{name}"),
        doing,
        limit: FLIGHT_LIMIT,
        waiting: &|who| {
            format!(
                "{}: waiting for {who}, which fetches the same file",
                step.id
            )
        },
    };
    take_turn(context, step, turn).await
}

/// Fetches from the first URL that gives it.
async fn fetch(
    context: &Context,
    step: &Step,
    act: &Download,
    request: &Request,
) -> Result<(String, Fetched), ActError> {
    let start = match act.narration.start.as_str() {
        "" => "download",
        word => word,
    };
    let mut failures = Vec::new();
    for url in &request.urls {
        let place = net::shown(url);
        let say = format!("downloading {place}");
        context.narrator.say(ACTOR, start, &place, say);
        let transfer = Transfer {
            actor: ACTOR,
            kind: "url",
            sources: vec![url.clone().into()],
            digest: Some(request.digest.clone()),
            size_bytes: None,
            limit_bytes: None,
            partial: context
                .store
                .prepare_partial(partial_name(&request.digest))
                .map_err(|source| ActError::store(step, source))?,
            task: step.id.clone(),
        };
        match context
            .net
            .fetch(&transfer, &context.narrator, &context.cancel)
            .await
        {
            Ok(fetched) => return Ok((place, fetched)),
            Err(source) => match ActError::net(step, source) {
                error if error.is_cancelled() => return Err(error),
                error => {
                    let human = format!("{place} did not give the file: {}", error.brief());
                    context.narrator.warn(ACTOR, "mirror-failed", &place, human);
                    failures.push(MirrorFailure {
                        place,
                        error: Box::new(error),
                    });
                }
            },
        }
    }
    Err(match failures.pop() {
        Some(only) if failures.is_empty() => *only.error,
        last => ActError::Mirrors {
            what: request.digest.to_string(),
            failures: failures.into_iter().chain(last).collect(),
        },
    })
}

async fn keep(
    step: &Step,
    act: &Download,
    request: &Request,
    work: Work,
    url: &str,
    fetched: Fetched,
) -> Result<Entry, ActError> {
    let tree = work.tree();
    let (how, name) = (act.unpack, request.name.clone());
    let programs = match act.program {
        true => Programs::Kept,
        false => Programs::Refused,
    };
    let kept = blocking(move || match how {
        Some(how) => {
            let unpacked = unpack::archive(how, &fetched.path, &tree, programs);
            // One that is refused now is refused always: nothing is gained by keeping it.
            let removed = store::remove_tree(&fetched.path);
            unpacked.and(removed.map_err(Refusal::from))
        }
        None => {
            let target = tree.join(name.expect("what is not unpacked has a name"));
            place_file(&fetched.path, &target, programs).map_err(Refusal::from)
        }
    })
    .await;
    kept.map_err(|refusal| refused(step, url, refusal))?;
    publish(step, work, serde_json::json!({ "from": url })).await
}

fn place_file(from: &Path, to: &Path, programs: Programs) -> Result<(), StoreError> {
    let failed = |source| StoreError::io("move", from, source);
    let mode = match programs {
        Programs::Kept => 0o755,
        Programs::Refused => 0o644,
    };
    fs::set_permissions(from, fs::Permissions::from_mode(mode)).map_err(failed)?;
    fs::rename(from, to).map_err(failed)
}

/// The step's error for an archive that is not unpacked.
pub(super) fn refused(step: &Step, archive: &str, refusal: Refusal) -> ActError {
    match refusal {
        Refusal::Store(source) => ActError::store(step, source),
        Refusal::Archive(reason) => ActError::Archive {
            archive: archive.to_owned(),
            reason,
        },
    }
}
