//! One typed event per fact, told to people and machines.
//!
//! A [`Narrator`] carries the context (pool, job, engine, …) and gives events to its sinks. Secrets
//! are masked when the event is made, in every field, so that no sink can forget to.
//!
//! | file | job |
//! |---|---|
//! | `event` | the event |
//! | `span` | work that takes time and is part of other work; told when it ends |
//! | `trace` | names of traces, as they cross between programs |
//! | `secrets` | what must not be told |
//! | `hub` | keeps the last events, lets several follow |
//! | `metrics` | counts and measures |

mod event;
pub mod hub;
pub mod metrics;
mod secrets;
mod span;
mod trace;

use std::{
    error::Error,
    sync::{Arc, Mutex},
    time::Duration,
};

pub use event::{Actor, Context, Event, Level};
pub use hub::Hub;
pub use metrics::Metrics;
pub use secrets::Secrets;
use span::Place;
pub use span::{Ended, Outcome, Span, Waits, Work};
pub use trace::{NoTraceContext, TraceContext};

use crate::fault::Fault;

/// Progress of something that takes long. Not an event: it may be dropped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Progress {
    /// Step or command it belongs to, for example `cmake-build`.
    pub task: String,
    /// How much is done.
    pub done: u64,
    /// How much there is, where that is known.
    pub total: Option<u64>,
    /// What is counted.
    pub unit: Unit,
    /// Whether the task is over and its bar goes away.
    pub finished: bool,
}

/// What progress counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// Bytes.
    Bytes,
    /// Compiled files, objects, other countable things.
    Items,
}

/// Where events go. Called from many tasks; must not block for long.
pub trait Sink: Send + Sync {
    /// Takes an event, already masked.
    fn event(&self, event: &Event);

    /// Takes progress. Default: ignores it.
    fn progress(&self, progress: &Progress) {
        let _ = progress;
    }

    /// Takes work that has ended, already masked. Default: ignores it.
    fn ended(&self, ended: &Ended) {
        let _ = ended;
    }

    /// Whether it gives traces to somebody: then events name theirs. Default: no.
    fn traces(&self) -> bool {
        false
    }
}

impl<S: Sink + ?Sized> Sink for Arc<S> {
    fn event(&self, event: &Event) {
        (**self).event(event);
    }

    fn progress(&self, progress: &Progress) {
        (**self).progress(progress);
    }

    fn ended(&self, ended: &Ended) {
        (**self).ended(ended);
    }

    fn traces(&self) -> bool {
        (**self).traces()
    }
}

/// Tells events to its sinks. Cheap to clone; clones share sinks and secrets.
#[derive(Clone)]
pub struct Narrator {
    sinks: Arc<Vec<Box<dyn Sink>>>,
    secrets: Secrets,
    context: Arc<Context>,
    /// What its work is part of.
    place: Option<Place>,
    /// Whether a sink gives traces to somebody.
    traced: bool,
}

impl Narrator {
    /// A narrator for these sinks, without context.
    #[must_use]
    pub fn new(sinks: Vec<Box<dyn Sink>>) -> Self {
        Self {
            traced: sinks.iter().any(|sink| sink.traces()),
            sinks: Arc::new(sinks),
            secrets: Secrets::default(),
            context: Arc::new(Context::default()),
            place: None,
        }
    }

    /// A narrator nobody listens to.
    #[must_use]
    pub fn silent() -> Self {
        Self::new(Vec::new())
    }

    /// A narrator that keeps its events, for tests and embedders.
    #[must_use]
    pub fn capture() -> (Self, Capture) {
        let capture = Capture::default();
        (Self::new(vec![Box::new(capture.clone())]), capture)
    }

    /// The same narrator with its context changed.
    #[must_use]
    pub fn with(&self, change: impl FnOnce(&mut Context)) -> Self {
        let mut context = (*self.context).clone();
        change(&mut context);
        Self {
            context: Arc::new(context),
            ..self.clone()
        }
    }

    /// The context that events get.
    #[must_use]
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// Values that must never be told.
    #[must_use]
    pub fn secrets(&self) -> &Secrets {
        &self.secrets
    }

    /// Tells that something happened. `target` is what it happened to (a URL, a path, a step);
    /// `human` is one sentence.
    pub fn say(
        &self,
        actor: Actor,
        action: &str,
        target: impl Into<String>,
        human: impl Into<String>,
    ) {
        self.tell(Event::new(actor, action, target.into(), human.into()));
    }

    /// Tells that something is finished and how long it took.
    pub fn done(
        &self,
        actor: Actor,
        action: &str,
        target: impl Into<String>,
        human: impl Into<String>,
        duration: Duration,
    ) {
        let mut event = Event::new(actor, action, target.into(), human.into());
        event.duration_ms = Some(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX));
        self.tell(event);
    }

    /// Tells that the operator should worry about something.
    pub fn warn(
        &self,
        actor: Actor,
        action: &str,
        target: impl Into<String>,
        human: impl Into<String>,
    ) {
        let mut event = Event::new(actor, action, target.into(), human.into());
        event.level = Level::Warning;
        self.tell(event);
    }

    /// Tells that something failed, with its whole chain of causes in one sentence.
    pub fn fail(&self, actor: Actor, action: &str, target: impl Into<String>, error: &dyn Fault) {
        let mut event = Event::new(actor, action, target.into(), chain(error));
        event.level = Level::Error;
        event.error_kind = Some(error.kind().to_owned());
        self.tell(event);
    }

    /// Tells that an engine that fell is started again. `cause` comes from a fixed list, since it labels
    /// metrics.
    pub fn restart(
        &self,
        cause: &'static str,
        target: impl Into<String>,
        human: impl Into<String>,
    ) {
        let mut event = Event::new(Actor::PoolManager, "restart", target.into(), human.into());
        event.cause = Some(cause);
        self.tell(event);
    }

    /// Gives an event its context, masks it and hands it to every sink.
    pub fn tell(&self, mut event: Event) {
        event.context = (*self.context).clone();
        event.place = self.place.as_ref().and_then(Place::open);
        event.mask(&self.secrets);
        tracing::debug!(target: "engine_host::narration", actor = event.actor.as_str(), action = %event.action, "{}", event.human);
        for sink in self.sinks.iter() {
            sink.event(&event);
        }
    }

    /// Reports progress.
    pub fn progress(&self, progress: &Progress) {
        for sink in self.sinks.iter() {
            sink.progress(progress);
        }
    }
}

impl std::fmt::Debug for Narrator {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Narrator")
            .field("context", &self.context)
            .finish_non_exhaustive()
    }
}

/// Events kept in memory.
#[derive(Debug, Clone, Default)]
pub struct Capture(Arc<Mutex<Vec<Event>>>);

impl Capture {
    /// All events so far.
    #[must_use]
    pub fn events(&self) -> Vec<Event> {
        self.0
            .lock()
            .expect("no sink panics while it holds this")
            .clone()
    }

    /// The actions so far, in order.
    #[must_use]
    pub fn actions(&self) -> Vec<String> {
        self.events()
            .into_iter()
            .map(|event| event.action)
            .collect()
    }
}

impl Sink for Capture {
    fn event(&self, event: &Event) {
        self.0
            .lock()
            .expect("no sink panics while it holds this")
            .push(event.clone());
    }
}

/// The texts of an error and its causes, outermost first, without repetitions.
#[must_use]
pub fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(layer) = cause {
        let words = layer.to_string();
        if !text.ends_with(&words) {
            text.push_str(": ");
            text.push_str(&words);
        }
        cause = layer.source();
    }
    text
}
