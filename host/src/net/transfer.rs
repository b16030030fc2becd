//! Fetching a file: from the first source that gives it, resumed, retried, hashed, compared.
//!
//! | part | does |
//! |---|---|
//! | here | sources in order, failures and pauses, what is done with what arrived |
//! | `round` | decides by a server's first answer: one connection or several |
//! | `line` | asks for a part and takes what comes |
//! | `access` | what opens a source, and having that renewed |
//! | `collector` | writes and hashes, in threads of its own |
//! | `partial`, `journal`, `ranges` | the file on its way, and what is known of it |

mod access;
mod collector;
mod journal;
mod line;
mod meter;
mod partial;
mod ranges;
mod round;

use std::path::PathBuf;

use reqwest::header::HeaderMap;
use tokio_util::sync::CancellationToken;
use url::Url;

use super::{Digest, Net, NetError, Renewal, Verification, digest::Hashes, shown};
use crate::{
    narrate::{Actor, Narrator, Work, chain},
    store::StoreError,
};
use collector::Collector;
use journal::Version;
use line::Route;
use meter::Meter;
use partial::Partial;

/// Failures in a row, none of them bringing a byte, before a source is given up.
pub(super) const TRIES: u32 = 5;

/// Failures of one source, however much each try brings; an answer that ends early with next to nothing is
/// one as well.
const FAILURES: u32 = 200;

/// Answers in a row with another part than was asked for, before a source is asked for all of it.
const WRONG_PARTS: u32 = 2;

/// Versions of a file that are begun before a source is given up that changes all the time.
const VERSIONS: u32 = 3;

/// A file to fetch.
#[derive(Debug, Clone)]
pub struct Transfer {
    /// Kind of its source, from a fixed list: `url`, `hub`, `s3`, `oci`, `index`.
    pub kind: &'static str,
    /// Who is said to fetch it.
    pub actor: Actor,
    /// Where it can be had, best first; at least one. One that does not give it is passed over, which is
    /// told; what it gave stays where a digest will tell whether it was right.
    pub sources: Vec<Source>,
    /// What it must be. Without one, whatever arrives is accepted.
    pub digest: Option<Digest>,
    /// How large it must be, where that is known.
    pub size_bytes: Option<u64>,
    /// Bytes accepted at most.
    pub limit_bytes: Option<u64>,
    /// Where it is collected, and left when whole. The caller holds a lock for it.
    pub partial: PathBuf,
    /// Name for progress, for example the step.
    pub task: String,
}

/// A place where a file can be had.
#[derive(Debug, Clone)]
pub struct Source {
    /// Where.
    pub url: Url,
    /// Sent to the URL's own server alone, for example `Authorization`.
    pub headers: HeaderMap,
    /// Host of the page that named the URL, if one did: policy may let it vouch.
    pub named_by: Option<String>,
    /// How its server proves who it is, where that is not as for all others.
    pub(crate) identity: Verification,
    /// Knows where it can be had once its server no longer gives it out for these headers or this URL;
    /// `None`: nowhere else.
    pub(crate) renewal: Option<Renewal>,
}

impl From<Url> for Source {
    fn from(url: Url) -> Self {
        Self {
            url,
            headers: HeaderMap::new(),
            named_by: None,
            identity: Verification::default(),
            renewal: None,
        }
    }
}

impl Transfer {
    /// Where it is had first, which stands for it in messages.
    fn shown(&self) -> String {
        shown(&self.sources.first().expect("a transfer has a source").url)
    }

    /// Whether a digest will tell if what was put together belongs together.
    fn is_compared(&self) -> bool {
        self.digest.is_some()
    }
}

/// A file that was fetched and is what it should be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fetched {
    /// Where it lies: the transfer's `partial`.
    pub path: PathBuf,
    /// SHA-256 of its content, 64 hexadecimal digits.
    pub sha256: String,
    /// Its size.
    pub size_bytes: u64,
    /// Bytes that an earlier run had already brought.
    pub resumed_bytes: u64,
    /// The sources that gave it, without secrets, in this order: one, unless another one went on where the
    /// first had ended.
    pub from: Vec<String>,
}

impl Net {
    /// Fetches a file. On failure what arrived stays for the next try, unless it was wrong.
    pub async fn fetch(
        &self,
        transfer: &Transfer,
        narrator: &Narrator,
        cancel: &CancellationToken,
    ) -> Result<Fetched, NetError> {
        let span = narrator.begin(Work::Fetch, transfer.kind, transfer.shown());
        narrator.makes();
        let mut job = Job {
            net: self,
            transfer,
            narrator: span.narrator(),
            meter: Meter::new(&transfer.task, transfer.size_bytes, span.narrator()),
            collector: None,
            known: Known::default(),
            resumed_bytes: 0,
            givers: Vec::new(),
        };
        let outcome = tokio::select! {
            () = cancel.cancelled() => Err(NetError::Cancelled { url: transfer.shown() }),
            outcome = job.run() => outcome,
        };
        job.leave().await;
        span.received(job.meter.received());
        drop(job);
        span.end_with(outcome)
    }
}

/// A transfer on its way.
struct Job<'a> {
    net: &'a Net,
    transfer: &'a Transfer,
    narrator: &'a Narrator,
    meter: Meter<'a>,
    /// Set while there is a file to add to.
    collector: Option<Collector>,
    known: Known,
    resumed_bytes: u64,
    /// Sources that gave what is there, without secrets.
    givers: Vec<String>,
}

/// What is known of the version of the file that is being collected.
#[derive(Debug, Clone, Default)]
struct Known {
    /// Where it comes from, without secrets; empty before the first answer.
    url: String,
    version: Version,
    size_bytes: Option<u64>,
}

impl Job<'_> {
    async fn run(&mut self) -> Result<Fetched, NetError> {
        let mut failures = Vec::new();
        let mut sources = self.transfer.sources.iter().peekable();
        while let Some(source) = sources.next() {
            match self.fetch_from(source).await {
                Ok(fetched) => return Ok(fetched),
                Err(error) if error.is_of_its_source() => {
                    if let Some(next) = sources.peek() {
                        tell_passed_over(self.narrator, self.transfer.actor, source, &error, next);
                    }
                    failures.push(error);
                }
                Err(error) => return Err(error),
            }
        }
        Err(NetError::of_sources(failures))
    }

    async fn fetch_from(&mut self, source: &Source) -> Result<Fetched, NetError> {
        let mut route = Route::new(self.net, self.transfer, source);
        let (mut in_a_row, mut versions) = (0, 1);
        loop {
            let before = self.open().await?.handed().count();
            let collected = self.collect(&mut route).await;
            let after = self.open().await?.handed().count();
            self.note_giver(&route, before, after);
            let error = match collected {
                Ok(size) => match self.verify(&mut route, size).await? {
                    Some(fetched) => return Ok(fetched),
                    // What came from elsewhere may be what was wrong: once more from the start.
                    None => continue,
                },
                Err(error) => error,
            };
            let is_last = route.fails_too_often();
            // Who drips brings a little each time, and would do so for days.
            let is_progress = after > before && !matches!(error, NetError::Stalled { .. });
            in_a_row = if is_progress { 1 } else { in_a_row + 1 };
            let limits = self.net.limits();
            match &error {
                NetError::Changed { .. } if versions < VERSIONS => {
                    versions += 1;
                    self.restart().await?;
                }
                // Ranges do not work: once more without, if that has to be also what is there.
                NetError::WrongPart { .. }
                    if route.ranges && (after == 0 || in_a_row >= WRONG_PARTS) =>
                {
                    route.ranges = false;
                    continue;
                }
                _ if !limits.is_worth_retrying(&error) => return Err(error),
                _ if in_a_row >= TRIES || is_last => return Err(error),
                _ => {}
            }
            let pause = limits.pause(in_a_row, &error);
            let settled = self.open().await?.settle().await;
            settled.map_err(|error| self.keep(error))?;
            tokio::time::sleep(pause).await;
        }
    }

    /// The file that is added to, opened where it is not.
    async fn open(&mut self) -> Result<&Collector, NetError> {
        if self.collector.is_none() {
            let path = self.transfer.partial.clone();
            let is_compared = self.transfer.is_compared();
            let opened = blocking(move || Partial::open(&path, is_compared)).await;
            let partial = opened.map_err(|error| self.keep(error))?;
            let journal = &partial.journal;
            self.known = Known {
                url: journal.url.clone(),
                version: journal.version.clone(),
                size_bytes: journal.size_bytes,
            };
            self.resumed_bytes = journal.written.count();
            self.givers = match self.resumed_bytes {
                0 => Vec::new(),
                _ => vec![journal.url.clone()],
            };
            self.begin_with(partial);
        }
        Ok(self.collector())
    }

    fn collector(&self) -> &Collector {
        let collector = self.collector.as_ref();
        collector.expect("it was opened, and is taken only to end or to be replaced")
    }

    fn begin_with(&mut self, partial: Partial) {
        self.meter.start_at(partial.journal.written.count());
        let digest = self.transfer.digest.as_ref();
        self.collector = Some(Collector::start(partial, digest));
    }

    /// Throws away what arrived, whichever run brought it.
    async fn restart(&mut self) -> Result<(), NetError> {
        if let Some(collector) = self.collector.take() {
            let partial = collector.stop().await;
            self.begin_again(partial).await?;
        }
        Ok(())
    }

    async fn begin_again(&mut self, mut partial: Partial) -> Result<(), NetError> {
        let reset = blocking(move || partial.reset().map(|()| partial)).await;
        let partial = reset.map_err(|error| self.keep(error))?;
        self.known = Known::default();
        self.resumed_bytes = 0;
        self.givers.clear();
        self.begin_with(partial);
        Ok(())
    }

    /// Writes down who gave bytes. What had been there may have been thrown away meanwhile.
    fn note_giver(&mut self, route: &Route<'_>, before: u64, after: u64) {
        let (giver, is_first) = (route.shown(), self.givers.is_empty());
        if (after > before || is_first) && !self.givers.contains(&giver) && after > 0 {
            self.givers.push(giver);
        }
    }

    /// Compares what arrived, which is all of it; `None` where it has to be fetched once more.
    async fn verify(
        &mut self,
        route: &mut Route<'_>,
        size: u64,
    ) -> Result<Option<Fetched>, NetError> {
        let collector = self.collector.take().expect("it was added to");
        let (partial, hashes) = collector.finish(size).await;
        let hashes = match hashes {
            Ok(hashes) => hashes,
            Err(error) => {
                partial.leave();
                return Err(self.keep(error));
            }
        };
        if let Err(error) = self.compare(route, size, &hashes) {
            let is_doubtful =
                self.resumed_bytes > 0 || route.is_mixed() || self.known.url != route.shown();
            if is_doubtful && !std::mem::replace(&mut route.again, true) {
                self.begin_again(partial).await?;
                return Ok(None);
            }
            partial.discard();
            return Err(error);
        }
        let path = partial.finish(size).map_err(|error| self.keep(error))?;
        Ok(Some(Fetched {
            path,
            sha256: hashes.sha256(),
            size_bytes: size,
            resumed_bytes: self.resumed_bytes,
            from: std::mem::take(&mut self.givers),
        }))
    }

    fn compare(&self, route: &Route<'_>, actual: u64, hashes: &Hashes) -> Result<(), NetError> {
        route.check_size(actual)?;
        match &self.transfer.digest {
            Some(expected) if hashes.like(expected) != *expected => Err(NetError::Mismatch {
                url: route.shown(),
                expected: expected.clone(),
                actual: hashes.like(expected),
            }),
            _ => Ok(()),
        }
    }

    /// Leaves what arrived for another run.
    async fn leave(&mut self) {
        if let Some(collector) = self.collector.take() {
            let partial = collector.stop().await;
            blocking(move || partial.leave()).await;
        }
    }

    fn keep(&self, source: StoreError) -> NetError {
        NetError::Store {
            url: self.transfer.shown(),
            source,
        }
    }
}

/// Tells that a place did not give what was asked of it, and which one is asked now.
pub(crate) fn tell_passed_over(
    narrator: &Narrator,
    actor: Actor,
    source: &Source,
    error: &NetError,
    next: &Source,
) {
    let place = shown(&source.url);
    // Most errors begin with it.
    let what = match chain(error) {
        what if what.contains(&place) => what,
        what => format!("{place}: {what}"),
    };
    let human = format!("{what}; going on with {}", shown(&next.url));
    narrator.warn(actor, "mirror-failed", place, human);
}

/// Runs something that waits for the disk.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(work)
        .await
        .expect("file operations do not panic")
}

#[cfg(test)]
mod tests;
