//! Talking to the daemon of a home over its socket.

use std::{
    io,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use axum::body::Bytes;
use http_body_util::{BodyExt as _, Empty};
use hyper::{Request, Response, body::Incoming, client::conn::http1, header};
use hyper_util::rt::TokioIo;
use serde::de::DeserializeOwned;
use tokio::net::UnixStream;

use super::{ErrorBody, Question, handlers::events};
use crate::{
    fault::{Detail, Exit, Fault, Hint, hint},
    pool::{Code, Evidence, NotApplied},
};

/// Longest time until the daemon takes a connection.
const CONNECT_LIMIT: Duration = Duration::from_secs(5);

/// Most bytes of an answer that is one document.
const ANSWER_LIMIT: usize = 64 * 1024 * 1024;

/// Why a daemon did not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// Nobody listens.
    #[error("no daemon runs for this home")]
    NoDaemon {
        /// Its socket.
        path: PathBuf,
    },
    /// The conversation broke off.
    #[error("the daemon at {} could not be asked", path.display())]
    Broken {
        /// Its socket.
        path: PathBuf,
        /// Why.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// It said no.
    #[error("{}", body.message)]
    Refused {
        /// HTTP status.
        status: u16,
        /// What it said.
        body: Box<ErrorBody>,
    },
    /// It knows what its pool file says now, and could not carry that out.
    #[error("{}", failed.error.message)]
    NotApplied {
        /// For which pool, and why.
        failed: Box<NotApplied>,
    },
    /// Its answer is not what this version reads.
    #[error("the daemon's answer to {operation} cannot be read; it may be of another version")]
    Unreadable {
        /// What was asked.
        operation: String,
    },
}

impl Fault for ClientError {
    fn exit(&self) -> Exit {
        match self {
            Self::NoDaemon { .. } => Exit::NotFound,
            Self::Broken { .. } => Exit::Unavailable,
            Self::Unreadable { .. } => Exit::Internal,
            Self::Refused { status: 404, .. } => Exit::NotFound,
            Self::Refused { body, .. } => exit_of(body.code),
            Self::NotApplied { failed } => exit_of(failed.code),
        }
    }

    fn hints(&self) -> Vec<Hint> {
        match self {
            Self::NoDaemon { .. } => vec![
                hint("start one here", Some("{host} serve")),
                hint("start one and bring a pool up", Some("{host} up")),
                hint("see engines that run without one", Some("{host} ps")),
            ],
            Self::Unreadable { .. } => vec![hint(
                "start the daemon anew",
                Some("{host} serve --replace"),
            )],
            Self::Refused { body, .. } => body.fixes.clone(),
            Self::NotApplied { failed } => failed.error.fixes.clone(),
            Self::Broken { path, .. } => vec![
                hint(
                    "see who may ask it",
                    Some(&format!("ls -l {}", path.display())),
                ),
                hint("start the daemon anew", Some("{host} serve --replace")),
            ],
        }
    }

    fn details(&self) -> Vec<Detail> {
        match self {
            Self::NoDaemon { path } => vec![Detail::new("socket", path.display().to_string())],
            Self::Refused { body, .. } => body.details.iter().map(shown).collect(),
            Self::NotApplied { failed } => failed.error.details.iter().map(shown).collect(),
            _ => Vec::new(),
        }
    }

    fn kind(&self) -> &'static str {
        match self {
            Self::NoDaemon { .. } => "no-daemon",
            Self::Broken { .. } => "daemon-broke-off",
            Self::Refused { .. } => "daemon-refused",
            Self::NotApplied { .. } => "pool-not-applied",
            Self::Unreadable { .. } => "daemon-unreadable",
        }
    }
}

fn exit_of(code: Code) -> Exit {
    match code {
        Code::InvalidParams => Exit::Config,
        Code::PoolUnready => Exit::Busy,
        Code::PoolUnavailable => Exit::Engine,
        Code::Internal => Exit::Internal,
    }
}

/// What the daemon told to look at.
fn shown(told: &Evidence) -> Detail {
    // Labels are a fixed list of this program; another version's new one is told in the text.
    const LABELS: [&str; 16] = [
        "where", "command", "log", "note", "expected", "actual", "answer", "needed", "tried",
        "said", "missing", "free", "cause", "why", "url", "drift",
    ];
    match LABELS.into_iter().find(|label| *label == told.label) {
        Some(label) => Detail::new(label, &told.text),
        None => Detail::new("note", format!("{}: {}", told.label, told.text)),
    }
}

/// A way to the daemon of a home. Clones are one.
#[derive(Debug, Clone)]
pub struct Client {
    socket: PathBuf,
    told: Arc<AtomicU64>,
}

impl Client {
    /// The daemon behind this socket.
    #[must_use]
    pub fn new(socket: &Path) -> Self {
        Self {
            socket: socket.to_owned(),
            told: Arc::default(),
        }
    }

    /// Number of the last event that the daemon had told when it answered: one that follows events has heard
    /// all that belongs to the answers once it has heard this one. 0 before the first answer.
    #[must_use]
    pub fn told(&self) -> u64 {
        self.told.load(Ordering::Relaxed)
    }

    /// Whether somebody listens.
    pub async fn is_there(&self) -> bool {
        self.connect().await.is_ok()
    }

    /// Asks for what is answered with a document.
    pub async fn ask<Q, A: DeserializeOwned>(
        &self,
        question: &Question<Q, A>,
    ) -> Result<A, ClientError> {
        let response = self.send(question).await?;
        let response = self.accepted(response).await?;
        let bytes = self.whole(response).await?;
        serde_json::from_slice(&bytes).map_err(|_| ClientError::Unreadable {
            operation: format!("{} {}", question.method, question.target),
        })
    }

    /// Asks for what is answered with a stream, which is given in parts as they come.
    pub async fn stream<Q, A>(&self, question: &Question<Q, A>) -> Result<Parts, ClientError> {
        let response = self.send(question).await?;
        let response = self.accepted(response).await?;
        Ok(Parts {
            socket: self.socket.clone(),
            body: response.into_body(),
        })
    }

    async fn accepted(
        &self,
        response: Response<Incoming>,
    ) -> Result<Response<Incoming>, ClientError> {
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        let bytes = self.whole(response).await?;
        match serde_json::from_slice::<ErrorBody>(&bytes) {
            Ok(body) => Err(ClientError::Refused {
                status: status.as_u16(),
                body: Box::new(body),
            }),
            Err(_) => Err(ClientError::Unreadable {
                operation: format!("a request, answered with {status}"),
            }),
        }
    }

    async fn whole(&self, response: Response<Incoming>) -> Result<Bytes, ClientError> {
        let limited = http_body_util::Limited::new(response.into_body(), ANSWER_LIMIT);
        let collected = limited.collect().await;
        Ok(collected.map_err(|source| self.broken(source))?.to_bytes())
    }

    async fn send<Q, A>(
        &self,
        question: &Question<Q, A>,
    ) -> Result<Response<Incoming>, ClientError> {
        let stream = self.connect().await?;
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream))
            .await
            .map_err(|source| self.broken(Box::new(source)))?;
        // Ends with the answer's body.
        tokio::spawn(async move { drop(connection.await) });
        let request = Request::builder()
            .method(question.method)
            .uri(&question.target)
            .header(header::HOST, "localhost")
            .body(Empty::<Bytes>::new())
            .map_err(|source| self.broken(Box::new(source)))?;
        let sent = sender.send_request(request).await;
        let answer = sent.map_err(|source| self.broken(Box::new(source)))?;
        if let Some(id) = answer.headers().get(events::LAST) {
            let number = event_number(id.to_str().unwrap_or_default());
            self.told.fetch_max(number, Ordering::Relaxed);
        }
        Ok(answer)
    }

    async fn connect(&self) -> Result<UnixStream, ClientError> {
        let connected =
            tokio::time::timeout(CONNECT_LIMIT, UnixStream::connect(&self.socket)).await;
        match connected {
            Ok(Ok(stream)) => Ok(stream),
            Ok(Err(error)) if is_nobody(&error) => Err(ClientError::NoDaemon {
                path: self.socket.clone(),
            }),
            Ok(Err(error)) => Err(self.broken(Box::new(error))),
            Err(elapsed) => Err(self.broken(Box::new(elapsed))),
        }
    }

    fn broken(&self, source: Box<dyn std::error::Error + Send + Sync>) -> ClientError {
        ClientError::Broken {
            path: self.socket.clone(),
            source,
        }
    }
}

/// Number of an event, by what it is called in a stream; 0 where that is no name of one.
#[must_use]
pub fn event_number(id: &str) -> u64 {
    events::number_of(id).map_or(0, |(_, number)| number)
}

/// Whether nobody listens, as opposed to somebody who may not be asked.
fn is_nobody(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused
    )
}

/// An answer that goes on.
pub struct Parts {
    socket: PathBuf,
    body: Incoming,
}

impl Parts {
    /// The next part.
    pub async fn next(&mut self) -> Result<Option<Bytes>, ClientError> {
        loop {
            match self.body.frame().await {
                None => return Ok(None),
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        return Ok(Some(data));
                    }
                }
                Some(Err(source)) => {
                    return Err(ClientError::Broken {
                        path: self.socket.clone(),
                        source: Box::new(source),
                    });
                }
            }
        }
    }
}
