//! A hub of models, as the Hugging Face hub answers: its API and its redirects to a second server that
//! has the large files. That it does so is shown by the hub's own client, which downloads from it.
//!
//! What is published is in [`repository`], what is told of it in [`answers`]; here is who is asked for what.

mod answers;
mod repository;

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    net::{SocketAddr, TcpListener},
    sync::{Arc, Mutex},
    time::Duration,
};

use serde_json::json;

pub use self::repository::{Access, HubRepository, git_blob};
use self::{
    answers::{Found, info, is_signed, json_reply, raw, refusal, tree},
    repository::Kept,
};
use crate::{
    Reply,
    http::{Asked, Traffic, serve},
};

/// The token that may read what is private, and whose owner accepted the terms of what is gated.
pub const HUB_TOKEN: &str = "hf_TheOnlyTokenThatMayReadIt";

/// What signed URLs have, with a number after it; the second server gives nothing without it.
const SIGNATURE: &str = "X-Amz-Signature=5161";

/// A request that was answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HubRequest {
    /// Whether the second server was asked.
    pub storage: bool,
    /// Path and query.
    pub target: String,
    /// `Authorization`, if it was sent.
    pub authorization: Option<String>,
}

/// Serves repositories until the test's process ends.
pub struct Hub {
    address: SocketAddr,
    shared: Arc<Shared>,
    /// Of the second server.
    traffic: Arc<Traffic>,
}

struct Shared {
    storage: SocketAddr,
    /// After each 256 KiB of a large file.
    pause: Duration,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// By `OWNER/NAME` and commit.
    commits: BTreeMap<(String, String), Arc<Kept>>,
    /// Commits by `OWNER/NAME` and branch.
    branches: BTreeMap<(String, String), String>,
    requests: Vec<HubRequest>,
    /// How often each signed URL was used.
    signed: Vec<usize>,
    /// How often each may be.
    uses: Option<usize>,
}

impl Hub {
    /// Begins to serve.
    ///
    /// # Panics
    ///
    /// When no port is left.
    #[must_use]
    pub fn start() -> Self {
        Self::slow(Duration::ZERO)
    }

    /// One that pauses after each 256 KiB of a large file.
    ///
    /// # Panics
    ///
    /// When no port is left.
    #[must_use]
    pub fn slow(pause: Duration) -> Self {
        let [hub, storage] = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
        let address = hub.local_addr().unwrap();
        let shared = Arc::new(Shared {
            storage: storage.local_addr().unwrap(),
            pause,
            state: Mutex::default(),
        });
        let (one, other) = (Arc::clone(&shared), Arc::clone(&shared));
        serve(hub, move |asked| one.answer(&asked));
        Self {
            address,
            traffic: serve(storage, move |asked| other.answer_storage(&asked)),
            shared,
        }
    }

    /// For `HF_ENDPOINT`.
    #[must_use]
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Publishes this as the branch of a repository, and says its commit. Earlier commits stay.
    pub fn publish(&self, name: &str, branch: &str, repository: HubRepository) -> String {
        let kept = Kept::of(repository);
        let mut text = String::new();
        for (path, file) in &kept.files {
            let _ = writeln!(text, "{} {path}", file.git_blob);
        }
        let commit = git_blob(text.as_bytes());
        let at = (name.to_owned(), branch.to_owned());
        self.shared.state().branches.insert(at, commit.clone());
        self.keep(name, &commit, kept);
        commit
    }

    /// Publishes this as a commit of a repository, for a stand-in of one that the real hub has.
    pub fn publish_commit(&self, name: &str, commit: &str, repository: HubRepository) {
        self.keep(name, commit, Kept::of(repository));
    }

    fn keep(&self, name: &str, commit: &str, kept: Kept) {
        let at = (name.to_owned(), commit.to_owned());
        self.shared.state().commits.insert(at, Arc::new(kept));
    }

    /// From now on signed URLs end after so many requests.
    pub fn let_urls_end_after(&self, uses: usize) {
        self.shared.state().uses = Some(uses);
    }

    /// Bytes of large files sent to clients that are gone by now: waits until it has noticed that they are.
    #[must_use]
    pub fn sent_in_all(&self) -> u64 {
        self.traffic.sent_in_all()
    }

    /// Bytes of large files sent so far.
    #[must_use]
    pub fn sent(&self) -> u64 {
        self.traffic.sent()
    }

    /// What was asked since the last look.
    #[must_use]
    pub fn take_requests(&self) -> Vec<HubRequest> {
        std::mem::take(&mut self.shared.state().requests)
    }
}

impl Shared {
    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().expect("no holder panics")
    }

    fn answer(&self, asked: &Asked) -> Reply {
        self.note(false, asked);
        let (path, query) = asked.target.split_once('?').unwrap_or((&asked.target, ""));
        let parts: Vec<String> = path.split('/').skip(1).map(decoded).collect();
        let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
        let token = asked.header("authorization");
        let answered = match &parts[..] {
            ["api", "models", owner, name] => self
                .find(owner, name, "main", token)
                .map(|found| info(&found, query.contains("blobs="))),
            ["api", "models", owner, name, "revision", revision] => self
                .find(owner, name, revision, token)
                .map(|found| info(&found, query.contains("blobs="))),
            ["api", "models", owner, name, "tree", revision] => self
                .find(owner, name, revision, token)
                .map(|found| tree(&found)),
            ["api", "models", owner, name, "auth-check"] => self
                .find(owner, name, "main", token)
                .and_then(|found| found.check(token))
                .map(|()| json_reply(&json!({}))),
            [owner, name, "resolve", revision, path @ ..] => {
                self.find(owner, name, revision, token).and_then(|found| {
                    found.check(token)?;
                    self.file(&found, &path.join("/"), asked)
                })
            }
            [owner, name, "raw", revision, path @ ..] => {
                self.find(owner, name, revision, token).and_then(|found| {
                    found.check(token)?;
                    raw(&found, &path.join("/"))
                })
            }
            _ => Err(refusal(404, "", "Not Found")),
        };
        answered.unwrap_or_else(|refused| refused)
    }

    /// What is missing and what may not be seen look the same; who is not logged in is told 401 of both.
    fn find(
        &self,
        owner: &str,
        name: &str,
        revision: &str,
        token: Option<&str>,
    ) -> Result<Found, Reply> {
        let signed = is_signed(token);
        if token.is_some() && !signed {
            let message = "Invalid credentials in Authorization header";
            return Err(refusal(401, "", message));
        }
        let name = format!("{owner}/{name}");
        let state = self.state();
        let commits = || {
            state
                .commits
                .iter()
                .filter(|((other, _), _)| *other == name)
        };
        let hidden = |repository: &Kept| repository.access == Access::Private && !signed;
        if commits().all(|(_, repository)| hidden(repository)) {
            return Err(match signed {
                true => refusal(404, "RepoNotFound", "Repository not found"),
                false => refusal(401, "RepoNotFound", "Invalid username or password."),
            });
        }
        let commit = state
            .branches
            .get(&(name.clone(), revision.to_owned()))
            .map_or(revision, String::as_str);
        let at = (name.clone(), commit.to_owned());
        match state.commits.get(&at) {
            Some(repository) => Ok(Found {
                commit: commit.to_owned(),
                repository: Arc::clone(repository),
                name,
            }),
            None => Err(refusal(404, "RevisionNotFound", "Invalid rev id")),
        }
    }

    /// A small file, or the way to a large one.
    fn file(&self, found: &Found, path: &str, asked: &Asked) -> Result<Reply, Reply> {
        let file = found.repository.files.get(path);
        let file = file.ok_or_else(|| refusal(404, "EntryNotFound", "Entry not found"))?;
        let reply = match file.pointer {
            None => {
                Reply::file(&file.content, asked).with("ETag", &format!("\"{}\"", file.git_blob))
            }
            Some(_) => {
                let mut state = self.state();
                let number = state.signed.len();
                state.signed.push(0);
                let signed = format!("{}?{SIGNATURE}{number}", file.sha256);
                Reply::of(302, &b"Found. Redirecting"[..])
                    .with("X-Linked-Etag", &format!("\"{}\"", file.sha256))
                    .with("X-Linked-Size", &file.content.len().to_string())
                    .with("Location", &format!("http://{}/{signed}", self.storage))
            }
        };
        Ok(reply.with("X-Repo-Commit", &found.commit))
    }

    /// Content by digest, with no mark of its own. As storage behind signed URLs does, it refuses who
    /// comes with credentials of another kind.
    fn answer_storage(&self, asked: &Asked) -> Reply {
        self.note(true, asked);
        let (path, query) = asked.target.split_once('?').unwrap_or((&asked.target, ""));
        let number = query.strip_prefix(SIGNATURE);
        let number = number.and_then(|number| number.parse::<usize>().ok());
        let mut state = self.state();
        let limit = state.uses.unwrap_or(usize::MAX);
        let used = number.and_then(|number| state.signed.get_mut(number));
        let anonymous = asked.header("authorization").is_none();
        let Some(used) = used.filter(|_| anonymous) else {
            return refusal(400, "", "Only one auth mechanism allowed");
        };
        *used += 1;
        if *used > limit {
            return refusal(403, "", "Request has expired");
        }
        let mut files = state
            .commits
            .values()
            .flat_map(|repository| repository.files.values());
        match files.find(|file| path.strip_prefix('/') == Some(&file.sha256)) {
            Some(file) => Reply::file(&file.content, asked).pausing(self.pause),
            None => refusal(403, "", "AccessDenied"),
        }
    }

    fn note(&self, storage: bool, asked: &Asked) {
        self.state().requests.push(HubRequest {
            storage,
            target: asked.target.clone(),
            authorization: asked.header("authorization").map(str::to_owned),
        });
    }
}

fn decoded(part: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = part.as_bytes();
    while let [first, more @ ..] = rest {
        let byte = match (first, more) {
            (b'%', [_, _, ..]) => {
                let digits = std::str::from_utf8(&more[..2]).unwrap_or_default();
                u8::from_str_radix(digits, 16).ok()
            }
            _ => None,
        };
        rest = if byte.is_some() { &more[2..] } else { more };
        bytes.push(byte.unwrap_or(*first));
    }
    String::from_utf8_lossy(&bytes).into_owned()
}
