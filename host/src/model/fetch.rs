//! One file of a model becomes a verified blob: once, however many ask for it.

use std::{
    path::{Path, PathBuf},
    time::Instant,
};

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::{
    ACTOR, ModelError, Request, Stage, adopt, blocking,
    builtin::lock_blob,
    catalog::{EntryFile, Trust},
    source::{RemoteFile, git_blob},
};
use crate::{
    net::{self, Digest, NetError, Transfer},
    store::{self, Blob, SCHEMA, StoreError},
};

/// What a place gave the first time, where nobody says what it must give.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct FirstUse {
    url: String,
    sha256: String,
    /// The SHA-512 that was expected and held, where one was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    sha512: Option<String>,
    fetched: jiff::Timestamp,
}

/// A file that is wanted.
#[derive(Clone, Copy)]
pub(super) struct Wanted<'a> {
    pub(super) file: &'a RemoteFile,
    /// What the operator says it is.
    pub(super) digest: Option<&'a Digest>,
    /// The reference to exactly this model.
    pub(super) pinned: &'a str,
    /// Name for progress.
    pub(super) task: &'a str,
}

/// A file that is here.
#[derive(Debug)]
pub(super) struct Got {
    pub(super) file: EntryFile,
    pub(super) trust: Trust,
    /// Where it came from, without secrets.
    pub(super) from: String,
}

/// Makes sure that a file is a blob. Its lock is given back before others are waited for: two runs that
/// want the same files never wait for each other.
pub(super) async fn file(
    stage: &Stage,
    request: &Request,
    wanted: Wanted<'_>,
) -> Result<Got, ModelError> {
    let failed = |source| request.failed(source);
    let trust = wanted.trust();
    if let (Trust::FirstUse, Some(refusal)) = (trust, &stage.unverified) {
        return Err(ModelError::Unverified {
            reference: request.reference.to_string(),
            source: Box::new(refusal.clone()),
        });
    }
    let name = partial_name(stage, request, wanted)?;
    let _lock = lock_blob(stage, request, &name).await.map_err(failed)?;
    // Whoever held the lock may have fetched it.
    let known = known_sha256(stage, request, wanted)?;
    let (store, sha256, verify) = (request.store.clone(), known.clone(), stage.verify);
    let there = blocking(move || match (sha256, verify) {
        (None, _) => Ok(None),
        (Some(sha256), super::Verify::All) => store.rehash_blob(&sha256),
        (Some(sha256), _) => store.blob(&sha256),
    });
    let name_in_model = wanted.file.name.clone();
    let blob = match there.await.map_err(failed)? {
        Some(blob) => blob,
        None => match adopt::file(stage, request, wanted.file, known.as_deref()).await? {
            Some((file, from)) => {
                let name = name_in_model;
                let file = EntryFile { name, ..file };
                return Ok(Got { file, trust, from });
            }
            None => fetch(stage, request, wanted, known, &name).await?,
        },
    };
    Ok(Got::of(name_in_model, blob, trust))
}

impl Got {
    /// A file that is a blob.
    pub(super) fn of(name: String, blob: Blob, trust: Trust) -> Self {
        Self {
            from: blob.origin.clone(),
            file: EntryFile {
                name,
                ..blob.into()
            },
            trust,
        }
    }
}

impl From<Blob> for EntryFile {
    fn from(blob: Blob) -> Self {
        Self {
            name: String::new(),
            sha256: blob.sha256,
            size_bytes: blob.size_bytes,
            place: None,
        }
    }
}

async fn fetch(
    stage: &Stage,
    request: &Request,
    wanted: Wanted<'_>,
    known: Option<String>,
    name: &str,
) -> Result<Blob, ModelError> {
    let fetched = transferred(stage, request, wanted, known, name).await?;
    let kept = keep(request, wanted, fetched).await;
    kept.map_err(|source| request.failed(source))
}

/// Fetches a file and compares it with what it must be; it is no blob yet. The caller holds its lock.
pub(super) async fn transferred(
    stage: &Stage,
    request: &Request,
    wanted: Wanted<'_>,
    known: Option<String>,
    name: &str,
) -> Result<net::Fetched, ModelError> {
    let target = wanted.target();
    let narrator = &stage.narrator;
    narrator.say(ACTOR, "download", &target, format!("downloading {target}"));
    let failed = |source| request.failed(source);
    let said = wanted.digest.or(wanted.file.digest.as_ref());
    // Nobody says what it is, but it was here before.
    let first_use = said.is_none() && known.is_some();
    let transfer = Transfer {
        actor: ACTOR,
        kind: request.reference.kind(),
        sources: wanted.file.sources.clone(),
        digest: said.cloned().or(known.map(Digest::Sha256)),
        size_bytes: wanted.file.sure_size_bytes(),
        limit_bytes: None,
        partial: request.store.prepare_partial(name).map_err(failed)?,
        task: wanted.task.to_owned(),
    };
    let start = Instant::now();
    let fetched = match stage.net.fetch(&transfer, narrator, &stage.cancel).await {
        Ok(fetched) => fetched,
        Err(error) => {
            if matches!(error, NetError::Cancelled { .. }) && transfer.partial.exists() {
                let human = format!("what came of {target} is kept: the next run goes on there");
                narrator.say(ACTOR, "download", &target, human);
            }
            return Err(failure(request, wanted, first_use, error));
        }
    };
    let size = store::human_bytes(fetched.size_bytes);
    let before = match fetched.resumed_bytes {
        0 => String::new(),
        bytes => format!(", {} of it before", store::human_bytes(bytes)),
    };
    let from = fetched.from.join(" and ");
    let human = format!("downloaded {size} from {from}{before}");
    narrator.done(ACTOR, "downloaded", &target, human, start.elapsed());
    let git_blob = wanted.git_blob();
    match (&transfer.digest, git_blob) {
        (Some(digest), _) => {
            narrator.say(ACTOR, "verify", &target, format!("comparing with {digest}"));
            narrator.say(ACTOR, "verified", &target, format!("{target} is {digest}"));
        }
        (None, Some(blob)) => {
            check_git_blob(request, &target, &fetched.path, blob).await?;
            let human = format!("{target} is git blob {blob}");
            narrator.say(ACTOR, "verified", &target, human);
        }
        (None, None) => narrator.warn(
            ACTOR,
            "verify",
            &target,
            format!(
                "no checksum was given: trusting what {target} gave now; to make sure, set \
                 `provisioning.model.checksum: sha256:{}`",
                fetched.sha256
            ),
        ),
    }
    Ok(fetched)
}

/// Publishes what was fetched, then writes down what the place gave.
async fn keep(
    request: &Request,
    wanted: Wanted<'_>,
    fetched: net::Fetched,
) -> Result<Blob, StoreError> {
    let origin = fetched.from.join(", ");
    let first = FirstUse {
        url: wanted.target(),
        sha256: fetched.sha256.clone(),
        sha512: match wanted.said() {
            Some(Digest::Sha512(hex)) => Some(hex.clone()),
            _ => None,
        },
        fetched: jiff::Timestamp::now(),
    };
    // Who has a SHA-256 needs no note of what came first.
    let noted = wanted.said().and_then(Digest::sha256).is_none();
    let record = record_path(request, wanted);
    let store = request.store.clone();
    blocking(move || {
        let blob = store.publish_blob(&fetched.path, &fetched.sha256, &origin)?;
        if noted {
            store::write_document(&record, SCHEMA, 0o644, &first)?;
        }
        Ok(blob)
    })
    .await
}

/// Compares a file with git's name of it; what is something else does not stay.
async fn check_git_blob(
    request: &Request,
    target: &str,
    path: &Path,
    blob: &str,
) -> Result<(), ModelError> {
    let (path, expected) = (path.to_owned(), blob.to_owned());
    let actual = blocking(move || {
        let differs = git_blob::differs(&path, &expected);
        if !matches!(differs, Ok(None)) {
            // Left alone it would only be found wrong again.
            let _ = std::fs::remove_file(&path);
        }
        differs.map_err(|source| StoreError::io("read", &path, source))
    });
    match actual.await.map_err(|source| request.failed(source))? {
        None => Ok(()),
        Some(actual) => Err(ModelError::OtherBlob {
            url: target.to_owned(),
            again: request.again.clone(),
            expected: blob.to_owned(),
            actual,
        }),
    }
}

fn failure(request: &Request, wanted: Wanted<'_>, first_use: bool, source: NetError) -> ModelError {
    let wrong = matches!(source, NetError::Mismatch { .. } | NetError::Size { .. });
    if wrong && first_use {
        ModelError::Changed {
            url: wanted.target(),
            again: request.again.clone(),
            source: Box::new(source),
        }
    } else {
        ModelError::Net {
            reference: request.reference.to_string(),
            source: Box::new(source),
        }
    }
}

impl Wanted<'_> {
    /// What somebody says that it is: the operator before its source.
    fn said(&self) -> Option<&Digest> {
        self.digest.or(self.file.digest.as_ref())
    }

    pub(super) fn trust(&self) -> Trust {
        match (self.digest, &self.file.digest) {
            (Some(_), _) => Trust::Checksum,
            (None, Some(_)) => Trust::Source,
            (None, None) if self.file.git_blob.is_some() => Trust::Source,
            (None, None) => Trust::FirstUse,
        }
    }

    /// Git's name of it, where that is all that is said.
    fn git_blob(&self) -> Option<&str> {
        self.file
            .git_blob
            .as_deref()
            .filter(|_| self.said().is_none())
    }

    /// Where it is had first, for messages.
    pub(super) fn target(&self) -> String {
        net::shown(&self.file.sources[0].url)
    }

    /// What it is called as long as nobody knows its digest.
    fn name(&self) -> String {
        let text = match self.file.sources[0].url.as_str() {
            // A plain URL names itself.
            url if net::shown(&self.file.sources[0].url) == shown(self.pinned) => url.to_owned(),
            _ => {
                let version = self.file.kept_as.iter();
                let parts = [self.pinned, &self.file.name].into_iter();
                let parts: Vec<&str> = parts.chain(version.map(String::as_str)).collect();
                parts.join(" ")
            }
        };
        store::hex(&Sha256::digest(text.as_bytes()))[..32].to_owned()
    }
}

fn shown(reference: &str) -> String {
    super::Reference::parse(reference).map_or_else(|_| reference.to_owned(), |it| it.to_string())
}

/// What a file is called until it is whole, which its lock is called too.
pub(super) fn partial_name(
    stage: &Stage,
    request: &Request,
    wanted: Wanted<'_>,
) -> Result<String, ModelError> {
    match &wanted.file.digest {
        Some(digest) if wanted.file.is_archive => Ok(digest.hex().to_owned()),
        _ => Ok(known_sha256(stage, request, wanted)?.unwrap_or_else(|| wanted.name())),
    }
}

/// The SHA-256 that the file must have, or had the first time.
fn known_sha256(
    stage: &Stage,
    request: &Request,
    wanted: Wanted<'_>,
) -> Result<Option<String>, ModelError> {
    let said = wanted.said();
    if let Some(sha256) = said.and_then(Digest::sha256) {
        return Ok(Some(sha256.to_owned()));
    }
    if stage.refresh {
        return Ok(None);
    }
    let path = record_path(request, wanted);
    let first: Option<FirstUse> =
        store::read_document(&path, SCHEMA).map_err(|source| request.failed(source))?;
    let said = said.map(Digest::hex);
    Ok(first
        .filter(|first| said.is_none() || said == first.sha512.as_deref())
        .map(|first| first.sha256))
}

fn record_path(request: &Request, wanted: Wanted<'_>) -> PathBuf {
    let name = format!("url-{}.json", wanted.name());
    request.store.blobs().join(name)
}
