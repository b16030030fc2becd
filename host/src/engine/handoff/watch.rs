//! A directory of handoffs, watched: which replica is bound to which URL, and when that changes.
//!
//! For whoever consumes handoffs: an orchestrator, a gateway, a pool manager that engines of other
//! hosts are handed to. Told by the kernel (inotify(7)), and looked after in any case: events are only
//! a reason to look, so nothing depends on each of them, and where there are none a look now and then
//! finds the same.
//!
//! The directory is a meeting place, so nothing in it is taken on trust ([`look`]): what is no handoff
//! is passed over, what is half written gets a moment, of two files for one replica the engine that
//! was started last wins, and a handoff at whose address on this machine nobody listens is that of an
//! engine that is gone ([`alive`]). A consumer must still probe before it sends requests.

mod alive;
mod look;
#[cfg(test)]
mod tests;
mod wake;

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use futures_util::Stream;
use serde::Serialize;
use tokio::{sync::mpsc, task::JoinHandle};

use self::{look::Looked, wake::Wake};
use super::Handoff;
use crate::config::paths::Home;

/// Changes that wait for a slow consumer; beyond that looking waits for it, and what it then sees is
/// the newest state.
const WAITING: usize = 64;

/// A handoff that holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Binding {
    /// Its file.
    pub path: PathBuf,
    /// What it says.
    pub handoff: Handoff,
}

/// What became of a replica's handoff.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HandoffEvent {
    /// A replica has one: it can be reached at its URL.
    Bound(Box<Binding>),
    /// It says something else now, for example after a restart.
    Changed(Box<Binding>),
    /// It is gone, or its engine is. What it said last.
    Unbound(Box<Binding>),
}

impl HandoffEvent {
    /// The word in documents and logs.
    #[must_use]
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Bound(_) => "bound",
            Self::Changed(_) => "changed",
            Self::Unbound(_) => "unbound",
        }
    }

    /// The handoff: as it is now, or as it was last.
    #[must_use]
    pub fn binding(&self) -> &Binding {
        match self {
            Self::Bound(binding) | Self::Changed(binding) | Self::Unbound(binding) => binding,
        }
    }
}

/// How a directory is watched.
#[derive(Debug, Clone)]
pub struct WatchSettings {
    /// Longest time between two looks, whatever the kernel tells. Default 5 s. A network file system
    /// tells nothing of what other machines do: there this is how long a change may take.
    pub poll: Duration,
    /// How long a change is given before it is looked at, so that a burst of them costs one look.
    /// Default 20 ms.
    pub debounce: Duration,
    /// How long a file that ends in the middle may stay so. Default 1 s.
    pub half_written: Duration,
    /// Whether a handoff for an address of this machine counts only while somebody listens there.
    /// Default `true`; `false` for a consumer that reaches engines by another way than it stands there.
    pub must_listen: bool,
    /// The host's home, where it can be read: then its records tell at once which engine is gone.
    pub home: Option<Home>,
}

impl Default for WatchSettings {
    fn default() -> Self {
        Self {
            poll: Duration::from_secs(5),
            debounce: Duration::from_millis(20),
            half_written: Duration::from_secs(1),
            must_listen: true,
            home: None,
        }
    }
}

/// Watches a directory of handoffs, which need not exist yet. What is there already comes first, as
/// [`HandoffEvent::Bound`].
///
/// Must be called within a Tokio runtime. Dropping the stream ends the watch.
///
/// ```no_run
/// use engine_host::handoff::{self, HandoffEvent};
///
/// # async fn follow() {
/// let mut handoffs = handoff::watch(".runtime/engines");
/// while let Some(event) = handoffs.next().await {
///     let handoff = &event.binding().handoff;
///     println!("{} {}/{}: {}", event.as_str(), handoff.pool_id, handoff.replica_id, handoff.url);
/// }
/// # }
/// ```
#[must_use]
pub fn watch(directory: impl AsRef<Path>) -> Watch {
    watch_with(directory, WatchSettings::default())
}

/// The same with other settings.
#[must_use]
pub fn watch_with(directory: impl AsRef<Path>, settings: WatchSettings) -> Watch {
    let directory = directory.as_ref();
    let directory = std::path::absolute(directory).unwrap_or_else(|_| directory.to_owned());
    let (sender, events) = mpsc::channel(WAITING);
    let task = tokio::spawn(follow(directory, settings, sender));
    Watch { events, task }
}

/// A directory that is watched: a stream of what becomes of its handoffs.
#[derive(Debug)]
pub struct Watch {
    events: mpsc::Receiver<HandoffEvent>,
    task: JoinHandle<()>,
}

impl Watch {
    /// The next change; waits for it. May be dropped while it waits: nothing is lost.
    pub async fn next(&mut self) -> Option<HandoffEvent> {
        self.events.recv().await
    }
}

impl Stream for Watch {
    type Item = HandoffEvent;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.events.poll_recv(context)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Pool and replica.
type Key = (String, String);

/// The bindings of a directory.
type Bindings = BTreeMap<Key, Binding>;

async fn follow(directory: PathBuf, settings: WatchSettings, sender: mpsc::Sender<HandoffEvent>) {
    let mut wake = Wake::new(directory.clone());
    let mut looked = Looked::default();
    let mut bound = Bindings::new();
    loop {
        // First this, then the look: what happens from now on is told.
        wake.arm();
        let soon = match look(&directory, &settings, &mut looked).await {
            Some(soon) => soon,
            None => return,
        };
        let found = alive::living(looked.handoffs(), &directory, &settings).await;
        for event in differences(&bound, &found) {
            if sender.send(event).await.is_err() {
                return;
            }
        }
        bound = found;
        let pause = soon.unwrap_or(settings.poll).min(settings.poll);
        tokio::select! {
            () = wake.woken() => tokio::time::sleep(settings.debounce).await,
            () = tokio::time::sleep(pause) => {}
            () = sender.closed() => return,
        }
    }
}

/// Looks at the directory without holding up the runtime; `None` where that ends. Gives when it should
/// be looked at again, where that is soon.
async fn look(
    directory: &Path,
    settings: &WatchSettings,
    looked: &mut Looked,
) -> Option<Option<Duration>> {
    let mut own = std::mem::take(looked);
    let (directory, patience) = (directory.to_owned(), settings.half_written);
    let looking = tokio::task::spawn_blocking(move || {
        let soon = own.again(&directory, patience);
        (own, soon)
    });
    let (own, soon) = looking.await.ok()?;
    *looked = own;
    Some(soon)
}

/// What to tell: first what is gone, so that a URL that moves on is free before it is bound again.
fn differences(before: &Bindings, now: &Bindings) -> Vec<HandoffEvent> {
    let gone = before
        .iter()
        .filter(|(key, _)| !now.contains_key(*key))
        .map(|(_, binding)| HandoffEvent::Unbound(Box::new(binding.clone())));
    let here = now
        .iter()
        .filter_map(|(key, binding)| match before.get(key) {
            None => Some(HandoffEvent::Bound(Box::new(binding.clone()))),
            Some(old) if old.handoff != binding.handoff => {
                Some(HandoffEvent::Changed(Box::new(binding.clone())))
            }
            Some(_) => None,
        });
    gone.chain(here).collect()
}
