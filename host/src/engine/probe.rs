//! Waiting until an engine is ready.
//!
//! Ready is: the probe's answer is one of its `ok` codes *and* the listening socket belongs to our
//! own engine. Refused, reset and closed connections mean *not yet*, whatever the engine: some
//! refuse while they load, some answer 503, and behind a proxy some accept and reset. The deadline
//! counts silence, not time: a large model may load for long as long as something moves.

use std::{
    net::SocketAddr,
    path::Path,
    time::{Duration, Instant, SystemTime},
};

use engine_provider_api::ReadinessProbe;
use tokio_util::sync::CancellationToken;

use super::{
    body::Body,
    http::{self, Want},
    ownership::Listener,
};
use crate::process::{BytesRead, Ended, Keeper, ProcessError, Running, bytes_read};

/// Pause between two probes of an engine that may be ready in no time.
const SHORTEST_PAUSE: Duration = Duration::from_millis(1);

/// How long pauses stay short. After it they grow with the time already waited, so that readiness is
/// noticed late by a sixteenth of that at most.
const SHORT_PAUSES: Duration = Duration::from_millis(100);

/// Longest pause between two probes.
const LONGEST_PAUSE: Duration = Duration::from_millis(250);

/// Longest time one probe may take.
const PROBE_LIMIT: Duration = Duration::from_secs(2);

/// How long somebody else may answer on the port while our engine lives. One that cannot have its
/// port usually ends by itself sooner, and says why.
const FOREIGN_LIMIT: Duration = Duration::from_secs(3);

/// How long answers of something that loads are taken without asking whose they are: a small model is
/// ready by then, and whoever is not ours will still be there.
const UNASKED: Duration = Duration::from_secs(1);

/// How often progress is looked for: it takes a walk through all processes.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(250);

/// Bytes read by calls that count as progress. Answering a probe reads a few hundred.
const READ_STEP: u64 = 1 << 20;

/// What is waited for.
pub(super) struct Wait<'a> {
    pub(super) running: &'a Running,
    pub(super) address: SocketAddr,
    pub(super) probe: &'a ReadinessProbe,
    pub(super) stall: Duration,
    pub(super) log: &'a Path,
    pub(super) body: &'a Body,
    pub(super) keeper: &'a Keeper,
    pub(super) cancel: &'a CancellationToken,
}

/// Why an engine is not ready.
#[derive(Debug)]
pub(super) enum NotReady {
    /// It ended.
    Ended(Ended),
    /// Nothing moved for too long; what its probe said last.
    Stalled(String),
    /// Its probe answers with another code.
    Status(u16),
    /// Somebody else answers.
    Foreign,
    /// Whoever waits was cancelled.
    Cancelled,
    /// It can no longer be watched.
    Process(ProcessError),
}

/// Waits until the engine is ready.
pub(super) async fn until_ready(wait: &Wait<'_>) -> Result<(), NotReady> {
    let mut progress = Progress::new(wait);
    let start = Instant::now();
    let mut foreign_since: Option<Instant> = None;
    let mut was_ours = false;
    loop {
        let last_seen = tokio::select! {
            biased;
            () = wait.cancel.cancelled() => return Err(NotReady::Cancelled),
            ended = wait.running.wait() => {
                return Err(ended.map_or_else(NotReady::Process, NotReady::Ended));
            }
            seen = look(wait, !was_ours && start.elapsed() > UNASKED) => match seen? {
                Seen::Ready => return Ok(()),
                Seen::Foreign => {
                    let since = *foreign_since.get_or_insert_with(Instant::now);
                    if since.elapsed() > FOREIGN_LIMIT {
                        return Err(NotReady::Foreign);
                    }
                    "another process answers on its port".to_owned()
                }
                Seen::NotYet(words) => {
                    foreign_since = None;
                    words
                }
                Seen::Loading(status) => {
                    foreign_since = None;
                    was_ours = true;
                    format!("status {status}")
                }
            },
        };
        if progress.silence(wait) > wait.stall {
            return Err(NotReady::Stalled(last_seen));
        }
        let pause = match start.elapsed() {
            waited if waited < SHORT_PAUSES => SHORTEST_PAUSE,
            waited => (waited / 16).clamp(SHORTEST_PAUSE, LONGEST_PAUSE),
        };
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            _ = wait.running.wait() => {}
            () = wait.cancel.cancelled() => {}
        }
    }
}

/// What one probe saw.
enum Seen {
    Ready,
    Foreign,
    /// Our engine says that it is not ready.
    Loading(u16),
    NotYet(String),
}

/// Probes once. `asks`: whether even an answer that decides nothing is worth finding out whose it is,
/// which takes a walk through every connection of the machine.
async fn look(wait: &Wait<'_>, asks: bool) -> Result<Seen, NotReady> {
    let path = &wait.probe.path;
    let status = match http::get(wait.address, path, Want::Status, PROBE_LIMIT).await {
        Ok(answer) => answer.status,
        Err(error) => return Ok(Seen::NotYet(format!("no answer ({error})"))),
    };
    let is_loading = wait.probe.loading.contains(&status);
    if is_loading && !asks {
        return Ok(Seen::NotYet(format!("status {status}")));
    }
    let whose = wait
        .body
        .listener(wait.address, wait.keeper)
        .await
        .map_err(NotReady::Process)?;
    Ok(match whose {
        Listener::Foreign => Seen::Foreign,
        Listener::Nobody => Seen::NotYet("its socket is not to be seen".to_owned()),
        Listener::Ours if wait.probe.ok.contains(&status) => Seen::Ready,
        Listener::Ours if is_loading => Seen::Loading(status),
        Listener::Ours => return Err(NotReady::Status(status)),
    })
}

/// Signs of progress: the log grows, or the engine reads.
struct Progress {
    log: Option<(u64, SystemTime)>,
    read: BytesRead,
    last: Instant,
    looked: Instant,
}

impl Progress {
    fn new(wait: &Wait<'_>) -> Self {
        Self {
            log: log_state(wait.log),
            read: BytesRead::default(),
            last: Instant::now(),
            looked: Instant::now(),
        }
    }

    /// Time since anything moved, as far as has been looked.
    fn silence(&mut self, wait: &Wait<'_>) -> Duration {
        if self.looked.elapsed() < PROGRESS_INTERVAL.min(wait.stall) {
            return Duration::ZERO;
        }
        self.looked = Instant::now();
        let log = log_state(wait.log);
        let read = bytes_read(&wait.body.tree());
        let has_read = read.from_storage > self.read.from_storage
            || read.by_calls > self.read.by_calls.saturating_add(READ_STEP);
        if log != self.log || has_read {
            self.log = log;
            self.read = read;
            self.last = Instant::now();
        }
        self.last.elapsed()
    }
}

fn log_state(path: &Path) -> Option<(u64, SystemTime)> {
    let metadata = std::fs::metadata(path).ok()?;
    Some((metadata.len(), metadata.modified().ok()?))
}
