//! Waiting until an engine is ready.
//!
//! Ready is: the probe's answer is one of its `ok` codes *and* the listening socket belongs to our
//! own engine. Refused, reset and closed connections mean *not yet*, whatever the engine: some
//! refuse while they load, some answer 503, and behind a proxy some accept and reset. The deadline
//! counts silence, not time: a large model may load for long as long as something moves. The limit on
//! time is a long one, for engines that move without end: some log that they wait.

use std::{
    io,
    net::SocketAddr,
    path::Path,
    time::{Duration, Instant, SystemTime},
};

use engine_provider_api::ReadinessProbe;
use tokio_util::sync::CancellationToken;

use super::{body::Body, http, ownership::Listener};
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

/// How long no connection may come to a port on which our engine is seen to listen. Nothing but a rule of
/// the packet filter or a missing route does that; the limit bears an engine that opens and closes its port
/// while it loads.
const UNREACHED_LIMIT: Duration = Duration::from_secs(5);

/// How often it is looked whether an engine listens that is not reached.
const UNREACHED_INTERVAL: Duration = Duration::from_secs(1);

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
    pub(super) limit: Duration,
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
    /// Something moved, for longer than it may take; what its probe said last.
    TooLong(String),
    /// Its probe answers with another code.
    Status(u16),
    /// Somebody else answers.
    Foreign,
    /// It listens, and connections to its port do not come to it.
    Unreached(Unreached),
    /// Whoever waits was cancelled.
    Cancelled,
    /// It can no longer be watched.
    Process(ProcessError),
}

/// What became of a connection that was not made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unreached {
    /// Turned away.
    Refused,
    /// Left waiting.
    Silent,
    /// Taken by somebody else than who listens at the port.
    Diverted,
    /// No network leads to the address.
    NoRoute,
}

/// Waits until the engine is ready.
pub(super) async fn until_ready(wait: &Wait<'_>) -> Result<(), NotReady> {
    let mut progress = Progress::new(wait);
    let start = Instant::now();
    let mut foreign_since: Option<Instant> = None;
    let mut was_ours = false;
    let mut misses = Misses::default();
    loop {
        let last_seen = tokio::select! {
            biased;
            () = wait.cancel.cancelled() => return Err(NotReady::Cancelled),
            ended = wait.running.wait() => {
                return Err(ended.map_or_else(NotReady::Process, NotReady::Ended));
            }
            seen = look(wait, !was_ours && start.elapsed() > UNASKED) => match misses.among(seen?) {
                Seen::Ready => return Ok(()),
                Seen::Unreached(how, words) => {
                    foreign_since = None;
                    if misses.are_of_a_listener(wait).await? {
                        return Err(NotReady::Unreached(how));
                    }
                    words
                }
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
        if start.elapsed() > wait.limit {
            return Err(NotReady::TooLong(last_seen));
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
    /// No connection was made: nobody listens, as a rule.
    Unreached(Unreached, String),
    NotYet(String),
}

/// Connections that were not made, one after the other, while our engine listened.
#[derive(Debug, Default)]
struct Misses {
    looked: Option<Instant>,
    listens_since: Option<Instant>,
}

impl Misses {
    /// Begins anew with every connection that was made.
    fn among(&mut self, seen: Seen) -> Seen {
        if !matches!(seen, Seen::Unreached(..)) {
            *self = Self::default();
        }
        seen
    }

    /// Whether they have gone on for too long for anything but a port that leads elsewhere.
    async fn are_of_a_listener(&mut self, wait: &Wait<'_>) -> Result<bool, NotReady> {
        let now = Instant::now();
        // Not at once: until it has opened its port, every engine refuses, and looking takes time.
        if now - *self.looked.get_or_insert(now) < UNREACHED_INTERVAL {
            return Ok(false);
        }
        self.looked = Some(now);
        let listens = wait.body.listens_itself(wait.address, wait.keeper).await;
        Ok(self.note(now, listens.map_err(NotReady::Process)?))
    }

    /// Notes whether the engine listens at a moment at which it was not reached; whether that has been so
    /// for too long.
    fn note(&mut self, now: Instant, listens: bool) -> bool {
        if !listens {
            self.listens_since = None;
            return false;
        }
        now - *self.listens_since.get_or_insert(now) > UNREACHED_LIMIT
    }
}

impl Unreached {
    /// `None` where something else than who is at the other end is in the way.
    fn of(error: &io::Error) -> Option<Self> {
        match error.kind() {
            io::ErrorKind::ConnectionRefused | io::ErrorKind::HostUnreachable => {
                Some(Self::Refused)
            }
            io::ErrorKind::TimedOut => Some(Self::Silent),
            io::ErrorKind::NetworkUnreachable => Some(Self::NoRoute),
            _ => None,
        }
    }
}

/// Probes once. `asks`: whether even an answer that decides nothing is worth finding out whose it is,
/// which takes a walk through every connection of the machine.
async fn look(wait: &Wait<'_>, asks: bool) -> Result<Seen, NotReady> {
    let said = |error: &io::Error| format!("no answer ({error})");
    let stream = match http::connect(wait.address, PROBE_LIMIT).await {
        Ok(stream) => stream,
        Err(error) => {
            return Ok(match Unreached::of(&error) {
                Some(how) => Seen::Unreached(how, said(&error)),
                None => Seen::NotYet(said(&error)),
            });
        }
    };
    let path = &wait.probe.path;
    let status = match http::status(stream, wait.address, path, PROBE_LIMIT).await {
        Ok(status) => status,
        Err(error) => return Ok(Seen::NotYet(said(&error))),
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
        Listener::Foreign | Listener::Unseen => Seen::Foreign,
        Listener::Nobody => Seen::NotYet("its socket is not to be seen".to_owned()),
        Listener::Ours if wait.probe.ok.contains(&status) => {
            match wait.body.is_reached(wait.address).await {
                true => Seen::Ready,
                false => Seen::Unreached(Unreached::Diverted, "another one answers".to_owned()),
            }
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_one_that_listens_all_the_time_is_led_elsewhere() {
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        let mut misses = Misses::default();
        assert!(!misses.note(after(0), false));
        assert!(!misses.note(after(60), true));
        assert!(!misses.note(after(63), true));
        // It opens its port later than it seemed.
        assert!(!misses.note(after(64), false));
        assert!(!misses.note(after(65), true));
        assert!(!misses.note(after(70), true));
        assert!(misses.note(after(71), true));
        let mut answered = misses;
        assert!(matches!(
            answered.among(Seen::Loading(503)),
            Seen::Loading(503)
        ));
        assert!(!answered.note(after(72), true));
    }

    #[test]
    fn what_stands_between_is_told_from_what_is_in_the_way_here() {
        let of = |kind: io::ErrorKind| Unreached::of(&kind.into());
        assert_eq!(
            of(io::ErrorKind::ConnectionRefused),
            Some(Unreached::Refused)
        );
        assert_eq!(of(io::ErrorKind::HostUnreachable), Some(Unreached::Refused));
        assert_eq!(of(io::ErrorKind::TimedOut), Some(Unreached::Silent));
        assert_eq!(
            of(io::ErrorKind::NetworkUnreachable),
            Some(Unreached::NoRoute)
        );
        for kind in [
            io::ErrorKind::ConnectionReset,
            io::ErrorKind::AddrNotAvailable,
        ] {
            assert_eq!(of(kind), None);
        }
    }
}
