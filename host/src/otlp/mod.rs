//! Traces, to a collector that speaks OTLP over HTTP.
//!
//! [`Otlp`] is a sink that makes a span of all work that ends, with the events that were told in it.
//! Spans wait in a queue of a stated length for [`Otlp::send`], which gives them to the collector
//! through our own network room: nothing here blocks, and whatever becomes of the collector, the
//! work goes on. What does not fit is dropped and counted.
//!
//! Names of spans are few (`step build`, `launch process`); what they were about is in attributes
//! called `engine_host.…`. Secrets were masked before they came here.

mod message;
mod settings;
mod span;

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use prost::Message as _;
use reqwest::header::{CONTENT_TYPE, HeaderValue};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

pub use self::settings::{Settings, SettingsError};
use self::{
    message::{KeyValue, Request, Resource, ResourceSpans, Scope, ScopeSpans, Span},
    span::Events,
};
use crate::{
    narrate::{Actor, Ended, Event, Narrator, Sink, chain},
    net::{Ask, Net, SharedGate, Trust},
};

/// Spans that wait at most, as in the specification's batch processor.
const QUEUE: usize = 2048;

/// Spans in one request at most, likewise.
const BATCH: usize = 512;

/// Longest time that a span waits for others, likewise.
const DELAY: Duration = Duration::from_secs(5);

/// Longest answer that is read.
const ANSWER_LIMIT_BYTES: u64 = 64 << 10;

/// Makes spans and keeps them until they are sent. Cheap to clone; clones are the same.
#[derive(Clone)]
pub struct Otlp {
    shared: Arc<Shared>,
}

struct Shared {
    settings: Settings,
    /// Events of work that goes on.
    events: Mutex<Events>,
    queue: Mutex<VecDeque<Span>>,
    dropped: AtomicU64,
    /// Told when a batch is full.
    full: Notify,
    /// The end was announced: what is there is sent now.
    closing: CancellationToken,
    /// What is there was sent.
    closed: CancellationToken,
}

impl Otlp {
    /// A sink for these settings. Nothing is sent before [`Otlp::send`].
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        Self {
            shared: Arc::new(Shared {
                settings,
                events: Mutex::default(),
                queue: Mutex::default(),
                dropped: AtomicU64::new(0),
                full: Notify::new(),
                closing: CancellationToken::new(),
                closed: CancellationToken::new(),
            }),
        }
    }

    /// Where it sends to, for whoever decides about hosts.
    #[must_use]
    pub fn host(&self) -> &str {
        let host = self.shared.settings.endpoint.host_str();
        host.expect("it was checked when it was read")
    }

    /// Texts that must not be told.
    pub fn secrets(&self) -> impl Iterator<Item = &str> {
        self.shared.settings.secrets()
    }

    /// A gate that lets this through: the operator has named the host, and no pool can.
    #[must_use]
    pub fn gate(&self) -> SharedGate {
        Arc::new(|_: &str, _: Option<&str>| Ok(()))
    }

    /// Spans that were not sent: the queue was full, or the collector did not take them.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.shared.dropped.load(Ordering::Relaxed)
    }

    /// Sends what has ended, batch by batch, until [`Otlp::close`]. The first failure after a success
    /// is told by `narrator`; failures change nothing else.
    pub async fn send(&self, net: &Net, narrator: &Narrator) {
        let mut failing = false;
        loop {
            let closing = self.shared.closing.is_cancelled();
            let batch = self.take();
            if batch.is_empty() {
                if closing {
                    break;
                }
                self.wait().await;
                continue;
            }
            let spans = batch.len() as u64;
            match self.deliver(net, batch).await {
                Ok(()) => failing = false,
                Err(reason) => {
                    self.shared.dropped.fetch_add(spans, Ordering::Relaxed);
                    if !std::mem::replace(&mut failing, true) {
                        let human = format!("traces are lost: {reason}");
                        narrator.warn(Actor::EngineProvisioner, "notice", self.host(), human);
                    }
                }
            }
        }
        self.shared.closed.cancel();
    }

    /// Lets what has ended be sent, and waits for it at most so long; whether it was.
    pub async fn close(&self, limit: Duration) -> bool {
        self.shared.closing.cancel();
        let closed = self.shared.closed.cancelled();
        tokio::time::timeout(limit, closed).await.is_ok()
    }

    async fn wait(&self) {
        tokio::select! {
            () = self.shared.full.notified() => {}
            () = self.shared.closing.cancelled() => {}
            () = tokio::time::sleep(DELAY) => {}
        }
    }

    fn take(&self) -> Vec<Span> {
        let mut queue = self.queue();
        let count = queue.len().min(BATCH);
        queue.drain(..count).collect()
    }

    async fn deliver(&self, net: &Net, spans: Vec<Span>) -> Result<(), String> {
        let settings = &self.shared.settings;
        let mut headers = settings.headers.clone();
        let kind = HeaderValue::from_static("application/x-protobuf");
        headers.insert(CONTENT_TYPE, kind);
        let ask = Ask {
            url: &settings.endpoint,
            named_by: None,
            headers: &headers,
            trust: Trust::Operator,
            limit_bytes: ANSWER_LIMIT_BYTES,
        };
        let body = request(settings, spans).encode_to_vec();
        let cancel = CancellationToken::new();
        let delivered = net.deliver(&ask, &body, &cancel);
        match tokio::time::timeout(settings.timeout, delivered).await {
            Err(_) => Err(format!("no answer within {:?}", settings.timeout)),
            Ok(Err(error)) => Err(chain(&error)),
            Ok(Ok(answer)) if (200..300).contains(&answer.status) => Ok(()),
            Ok(Ok(answer)) => Err(format!("the collector answered {}", answer.status)),
        }
    }

    fn queue(&self) -> MutexGuard<'_, VecDeque<Span>> {
        self.shared.queue.lock().expect("no holder panics")
    }

    fn events(&self) -> MutexGuard<'_, Events> {
        self.shared.events.lock().expect("no holder panics")
    }
}

fn request(settings: &Settings, spans: Vec<Span>) -> Request {
    let attributes = settings.resource.iter();
    Request {
        resource_spans: vec![ResourceSpans {
            resource: Some(Resource {
                attributes: attributes
                    .map(|(name, value)| KeyValue::text(name, value))
                    .collect(),
            }),
            scope_spans: vec![ScopeSpans {
                scope: Some(Scope {
                    name: "engine-host".to_owned(),
                    version: env!("CARGO_PKG_VERSION").to_owned(),
                }),
                spans,
            }],
        }],
    }
}

impl Sink for Otlp {
    fn event(&self, event: &Event) {
        if let Some(place) = event.place.filter(|place| place.sampled) {
            self.events().keep(place, event);
        }
    }

    fn ended(&self, ended: &Ended) {
        let events = self.events().take(ended.place);
        if !ended.place.sampled {
            return;
        }
        let span = span::of(ended, events);
        let mut queue = self.queue();
        if queue.len() >= QUEUE {
            self.shared.dropped.fetch_add(1, Ordering::Relaxed);
            return;
        }
        queue.push_back(span);
        if queue.len() >= BATCH {
            self.shared.full.notify_one();
        }
    }

    fn traces(&self) -> bool {
        true
    }
}

impl std::fmt::Debug for Otlp {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Headers are secret.
        formatter
            .debug_struct("Otlp")
            .field("endpoint", &self.shared.settings.endpoint.as_str())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
