//! Where models come from: a reference becomes a verified file or directory that the engine's user can
//! read, and an entry of the catalog.
//!
//! | reference | what happens |
//! |---|---|
//! | `builtin:NAME` | written from this program into the store |
//! | `file:PATH`, a path | used in place ([`own`]); copied into the store only where the engine's user could not read it; a file or, for engines that read one, a directory |
//! | `https:`, `hf:`, `s3:`, `oci:` | resolved ([`source`]), then fetched into the store ([`fetch`]) |
//!
//! A reference that is in the catalog with sound files needs nobody: its source is not asked again, and a
//! verified file is not hashed again while it looks the same. A user's own file is never changed. Where
//! neither operator nor source says a digest, what comes first is trusted, said aloud and written down:
//! later it must be the same; policy can refuse it. `cache_dir` is a store of its own with the same
//! layout.

mod access;
mod adopt;
mod again;
mod asked;
mod builtin;
pub mod catalog;
mod compare;
mod copy;
mod described;
mod error;
pub mod facts;
mod fetch;
mod hashing;
mod known;
mod lockable;
mod models;
mod names;
mod own;
mod publish;
mod reference;
mod remote;
mod request;
mod secret;
pub mod source;
mod tree;
mod unpacked;

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use engine_provider_api::{Artifact, ArtifactState, StageModel};
use tokio_util::sync::CancellationToken;

pub(crate) use again::Again;
pub use builtin::{BUILTINS, Builtin};
pub use error::ModelError;
pub use known::Verify;
pub use lockable::{Lockable, LockableFile, lockable, lockable_here};
pub use models::Models;
pub use reference::Reference;
pub(crate) use secret::register_all as keep_secrets_of;
pub use source::hosts;

use crate::{
    config::environment::Environment,
    narrate::{Actor, Narrator},
    net::Net,
    policy::Refusal,
    process::Identity,
    store::Store,
};
use catalog::{Entry, State};
use hashing::Hashing;
use request::Request;

const ACTOR: Actor = Actor::ModelProvisioner;

/// Longest wait for another process that stages the same model.
const FLIGHT_LIMIT: Duration = Duration::from_secs(6 * 60 * 60);

/// What staging needs.
#[derive(Clone)]
pub struct Stage {
    /// Where models are kept, unless the step names a `cache_dir`.
    pub store: Store,
    /// The transfer engine.
    pub net: Net,
    /// Told what happens.
    pub narrator: Narrator,
    /// Ends transfers and waits.
    pub cancel: CancellationToken,
    /// Directory that relative paths start from: the pool file's, else the working directory.
    pub base: PathBuf,
    /// Who will read the model; `None`: this process's user.
    pub run_as: Option<Identity>,
    /// Where sources find credentials, endpoints and caches.
    pub environment: Arc<Environment>,
    /// What sources said during this run, and the models that it uses.
    pub models: Models,
    /// Why a model that nobody gives a digest for is refused; `None`: it is trusted on first use.
    pub unverified: Option<Refusal>,
    /// What is hashed again.
    pub verify: Verify,
    /// Files of the model as a lock file has them; empty: those that there are now.
    pub versions: Arc<source::Versions>,
    /// Whether sources are asked though the model is here.
    pub refresh: bool,
    /// Whether a model that was retired may be used again.
    pub revive: bool,
}

/// What staging would do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outlook {
    /// The file is there and needs nothing.
    There,
    /// It is written from this program.
    Unpack,
    /// A user's file is copied.
    Copy,
    /// It is fetched from one of these URLs.
    Fetch(Vec<String>),
    /// The reference is understood and not served; this says why.
    Unsupported(String),
}

/// Says what staging would do and what it would give, doing nothing.
pub fn expected(stage: &Stage, step: &StageModel) -> Result<(Artifact, Outlook), ModelError> {
    let request = Request::new(stage, step)?;
    if let Some(error) = request.unsupported(step) {
        // A plan shows it among all the rest; staging refuses it.
        let why = error.to_string();
        return Ok((Artifact::default(), Outlook::Unsupported(why)));
    }
    let (mut artifact, outlook) = expected_of(stage, &request, step)?;
    described::add(stage, &request, step, &mut artifact);
    Ok((artifact, outlook))
}

fn expected_of(
    stage: &Stage,
    request: &Request,
    step: &StageModel,
) -> Result<(Artifact, Outlook), ModelError> {
    match &request.reference {
        Reference::Builtin(name) => {
            let builtin = builtin::find(name)?;
            let there = request.store.blob(builtin.sha256);
            let there = there.map_err(|source| request.failed(source))?;
            let path = request.store.blob_path(builtin.sha256);
            let artifact = Artifact {
                state: state(there.is_some()),
                path: Some(path.to_string_lossy().into_owned()),
                digest: Some(format!("sha256:{}", builtin.sha256)),
                size_bytes: Some(builtin.bytes.len() as u64),
                ..Artifact::default()
            };
            let outlook = there.map_or(Outlook::Unpack, |_| Outlook::There);
            Ok((artifact, outlook))
        }
        Reference::File(path) => own::expected(stage, request, step, path),
        _ => remote::expected(stage, request, step),
    }
}

/// Asks a model's source what it is, unless it is here or was asked during this run: then a plan can say
/// sizes and digests. Gives, for a reference that may mean something else by now, what it means here.
pub async fn resolve(
    stage: &Stage,
    step: &StageModel,
) -> Result<Option<catalog::Name>, ModelError> {
    let request = Request::new(stage, step)?;
    let local = matches!(
        request.reference,
        Reference::Builtin(_) | Reference::File(_)
    );
    if local || request.unsupported(step).is_some() {
        return Ok(None);
    }
    let here = known::entry(stage, &request, step).map_err(|source| request.failed(source))?;
    match here {
        Some(entry) if !stage.refresh => {
            let key = names::Key::new(stage, &request, step);
            let name = entry.name(key.as_str()).cloned();
            Ok(name.filter(|name| name.reference != name.pinned))
        }
        _ if request.digest.is_some() && asked::is_here(&request, step)? => Ok(None),
        _ => {
            let resolved = asked::ask(stage, &request, step, None).await?;
            let key = names::Key::new(stage, &request, step);
            described::ask(stage, &key, step, &resolved).await;
            Ok(None)
        }
    }
}

/// Obtains a model and gives its entry in the catalog; a user's own file has one too. Told from `resolve`
/// to `complete`.
pub async fn add(stage: &Stage, step: &StageModel) -> Result<Entry, ModelError> {
    let added = async {
        Request::new(stage, step)?.refuse_idle(step)?;
        let (request, entry) = obtain(stage, step).await?;
        revive(stage, &request, entry).await
    };
    told(stage, step, added.await)
}

/// Obtains a model and verifies it; its artifact is the file or directory. Told from `resolve` to `complete`.
pub async fn stage(stage: &Stage, step: &StageModel) -> Result<Artifact, ModelError> {
    let (request, entry) = told(stage, step, obtain(stage, step).await)?;
    let mut artifact = entry.artifact();
    described::add(stage, &request, step, &mut artifact);
    Ok(artifact)
}

/// Tells a failure, unless somebody wanted it.
fn told<T>(
    stage: &Stage,
    step: &StageModel,
    obtained: Result<T, ModelError>,
) -> Result<T, ModelError> {
    if let Err(error) = &obtained
        && !error.is_cancelled()
    {
        let narrator = &stage.narrator;
        narrator.fail(ACTOR, error.action(), &step.reference, error);
    }
    obtained
}

async fn obtain(stage: &Stage, step: &StageModel) -> Result<(Request, Entry), ModelError> {
    let reference = &step.reference;
    let say = |action: &str, human: String| stage.narrator.say(ACTOR, action, reference, human);
    say("resolve", format!("resolving model {reference}"));
    let request = Request::new(stage, step)?;
    if let Some(error) = request.unsupported(step) {
        return Err(error);
    }
    say("ensure", format!("making sure that {reference} is here"));
    let entry = match &request.reference {
        Reference::Builtin(name) => builtin::stage(stage, &request, step, name).await?,
        Reference::File(path) => own::stage(stage, &request, step, path).await?,
        _ => remote::stage(stage, &request, step).await?,
    };
    if let Some(identity) = stage.run_as {
        crate::store::ensure_reachable(&entry.path, identity)
            .map_err(|source| request.failed(source))?;
    }
    say("complete", format!("model is at {}", entry.path.display()));
    Ok((request, entry))
}

/// Takes a model back that was retired.
async fn revive(stage: &Stage, request: &Request, entry: Entry) -> Result<Entry, ModelError> {
    if entry.state == State::Active {
        return Ok(entry);
    }
    let catalog = catalog::Catalog::of(&request.store);
    let revived = catalog
        .set_state(&entry.id, State::Active, &stage.cancel)
        .await
        .map_err(|source| request.failed(source))?;
    Ok(revived.unwrap_or(entry))
}

/// Hashes all of a model again and gives the files that are damaged or gone.
pub async fn verify(
    catalog: &catalog::Catalog,
    entry: &Entry,
    narrator: &Narrator,
    cancel: &CancellationToken,
) -> Result<Vec<String>, crate::store::StoreError> {
    let human = format!("verifying {}", entry.id);
    narrator.say(ACTOR, "verify", &entry.id, human);
    let hashing = Hashing::new(narrator, cancel);
    let store = catalog.store().clone().watched(Arc::new(hashing));
    let of = entry.clone();
    let damaged = blocking(move || known::damaged(&store, &of, Verify::All)).await?;
    let (id, digest) = (&entry.id, &entry.digest);
    match damaged.is_empty() {
        true => narrator.say(ACTOR, "verified", id, format!("{id} is {digest}")),
        false => {
            let human = format!("{id} is damaged: {}", damaged.join(", "));
            narrator.warn(ACTOR, "verify-failed", id, human);
        }
    }
    Ok(damaged)
}

fn state(there: bool) -> ArtifactState {
    if there {
        ArtifactState::Obtained
    } else {
        ArtifactState::Expected
    }
}

/// The last part of a path, for names that people read.
fn shown_name(path: &Path) -> std::borrow::Cow<'_, str> {
    path.file_name()
        .unwrap_or(path.as_os_str())
        .to_string_lossy()
}

/// Runs something that reads or writes whole files, away from the tasks.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(work)
        .await
        .expect("reading and writing files does not panic")
}

#[cfg(test)]
mod tests;
