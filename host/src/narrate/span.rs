//! Work that takes time: it begins, it ends one way or another, and it may be part of other work.
//!
//! A [`Span`] is told once, when it ends, to sinks that care (metrics, traces); people are told by
//! events. It carries a narrator: what is told with that one, or begun with it, belongs to it. So
//! which work is part of which follows from what is handed down, not from threads or tasks.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use jiff::Timestamp;

use super::{Context, Narrator, TraceContext};
use crate::fault::{Exit, Failure, Fault};

/// What kind of work takes time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Work {
    /// All that one command or request causes.
    Job,
    /// A provider is asked what has to be done.
    Plan,
    /// An engine is obtained: every step of its plan.
    Prepare,
    /// One step of a plan.
    Step,
    /// A file comes over the network.
    Fetch,
    /// Somebody else holds what is needed.
    Wait,
    /// An engine is started: from its process until it is ready and handed off.
    Launch,
    /// An engine that runs is waited for until it is ready.
    Ready,
    /// A pool finishes what it has.
    Drain,
    /// A pool gets a new engine.
    Reload,
}

impl Work {
    /// The word in traces.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Job => "job",
            Self::Plan => "plan",
            Self::Prepare => "prepare",
            Self::Step => "step",
            Self::Fetch => "fetch",
            Self::Wait => "wait",
            Self::Launch => "launch",
            Self::Ready => "ready",
            Self::Drain => "drain",
            Self::Reload => "reload",
        }
    }

    /// Whether its result may have been there before.
    fn may_be_cached(self) -> bool {
        matches!(self, Self::Prepare | Self::Step)
    }
}

/// How work ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// It was done.
    Done,
    /// There was nothing to do: the result was there.
    Cached,
    /// It failed.
    Failed,
    /// It was given up: somebody did not want it any more.
    Cancelled,
}

impl Outcome {
    /// Every outcome, for metrics.
    pub const ALL: &[Self] = &[Self::Done, Self::Cached, Self::Failed, Self::Cancelled];

    /// The word in metrics and traces.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Cached => "cached",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        }
    }
}

/// Work that has ended, as sinks get it: secrets are masked.
#[derive(Debug, Clone, PartialEq)]
pub struct Ended {
    /// What kind of work.
    pub work: Work,
    /// Its kind among those, from a fixed list: of a step `build`, of a fetch `hub`. May be empty.
    pub kind: &'static str,
    /// What it was about: a step, a URL, a pool.
    pub target: String,
    /// For whom and in which job.
    pub context: Context,
    /// Its place in its trace.
    pub place: TraceContext,
    /// What it was part of.
    pub parent: Option<TraceContext>,
    /// When it began.
    pub began: Timestamp,
    /// How long it took.
    pub duration: Duration,
    /// How it ended.
    pub outcome: Outcome,
    /// Whether something was made or fetched for it.
    pub made: bool,
    /// Bytes that came over the network for it, its parts not counted.
    pub bytes: u64,
    /// Kind of failure, a word as in `error_kind` of events.
    pub error_kind: Option<&'static str>,
    /// The failure with its causes, in one sentence.
    pub error: Option<String>,
}

/// Work on its way. Dropped, it counts as given up.
#[derive(Debug)]
#[must_use = "a span that is dropped counts as given up"]
pub struct Span {
    narrator: Narrator,
    open: Arc<Open>,
    /// Taken when it ends.
    about: Option<About>,
}

#[derive(Debug)]
struct About {
    work: Work,
    kind: &'static str,
    target: String,
    parent: Option<TraceContext>,
    began: Timestamp,
    clock: Instant,
}

/// What is known of work on its way, also to what is begun as part of it.
#[derive(Debug)]
pub(super) struct Open {
    pub(super) place: TraceContext,
    made: AtomicBool,
    bytes: AtomicU64,
    ended: AtomicBool,
    concerns: Mutex<Concerns>,
    parent: Option<Arc<Open>>,
}

/// What work turns out to be about.
#[derive(Debug, Default)]
enum Concerns {
    /// What was known when it began.
    #[default]
    Nothing,
    /// One pool.
    One(Context),
    /// More than one: what is true of one is not true of the work.
    Several,
}

impl Open {
    /// Something is made for this, hence for all that it is part of.
    fn make(&self) {
        self.made.store(true, Ordering::Relaxed);
        if let Some(parent) = &self.parent {
            parent.make();
        }
    }
}

/// Where the work of a narrator belongs.
#[derive(Debug, Clone)]
pub(super) enum Place {
    /// To work of another program.
    Elsewhere(TraceContext),
    /// To work of this one.
    Here(Arc<Open>),
}

impl Place {
    pub(super) fn context(&self) -> TraceContext {
        match self {
            Self::Elsewhere(context) => *context,
            Self::Here(open) => open.place,
        }
    }

    /// The same for work of this program that goes on.
    pub(super) fn open(&self) -> Option<TraceContext> {
        match self {
            Self::Here(open) if !open.ended.load(Ordering::Relaxed) => Some(open.place),
            _ => None,
        }
    }
}

impl Narrator {
    /// Begins work as part of what this narrator belongs to. `kind` comes from a fixed list, since it
    /// labels metrics; `target` may be anything.
    pub fn begin(&self, work: Work, kind: &'static str, target: impl Into<String>) -> Span {
        let parent = self.place.as_ref().map(Place::context);
        let open = Arc::new(Open {
            place: parent.map_or_else(TraceContext::root, |parent| parent.child()),
            made: AtomicBool::new(false),
            bytes: AtomicU64::new(0),
            ended: AtomicBool::new(false),
            concerns: Mutex::default(),
            parent: match &self.place {
                Some(Place::Here(open)) => Some(Arc::clone(open)),
                _ => None,
            },
        });
        let mut narrator = Self {
            place: Some(Place::Here(Arc::clone(&open))),
            ..self.clone()
        };
        if self.traced {
            let id = open.place.trace_id();
            narrator = narrator.with(|context| context.trace_id = Some(id));
        }
        Span {
            narrator,
            open,
            about: Some(About {
                work,
                kind,
                target: target.into(),
                parent,
                began: Timestamp::now(),
                clock: Instant::now(),
            }),
        }
    }

    /// The same narrator, its work being part of what another program does.
    #[must_use]
    pub fn part_of(&self, elsewhere: TraceContext) -> Self {
        Self {
            place: Some(Place::Elsewhere(elsewhere)),
            ..self.clone()
        }
    }

    /// The same narrator, its work being part of what the other one's is.
    #[must_use]
    pub fn within(&self, other: &Self) -> Self {
        let narrator = Self {
            place: other.place.clone(),
            ..self.clone()
        };
        let trace_id = other.context.trace_id.clone();
        narrator.with(|context| context.trace_id = trace_id)
    }

    /// The same narrator, telling for whom the other one does: in its job, for its caller, as part of its
    /// work.
    #[must_use]
    pub fn on_behalf_of(&self, other: &Self) -> Self {
        self.within(other).with(|context| {
            context.job_id.clone_from(&other.context.job_id);
            context
                .correlation_id
                .clone_from(&other.context.correlation_id);
        })
    }

    /// Where work of this narrator belongs, to be handed to other programs as `traceparent`.
    #[must_use]
    pub fn place(&self) -> Option<TraceContext> {
        self.place.as_ref().map(Place::context)
    }

    /// Says that the work at hand is about what this narrator tells of: a pool, an engine, a version.
    /// Said of several pools, it is about none.
    pub fn concerns(&self) {
        let Some(Place::Here(open)) = &self.place else {
            return;
        };
        let mut concerns = open.concerns.lock().expect("no holder panics");
        let context = Context::clone(&self.context);
        *concerns = match &*concerns {
            Concerns::One(known) if known.pool_id != context.pool_id => Concerns::Several,
            Concerns::Several => Concerns::Several,
            _ => Concerns::One(context),
        };
    }

    /// Says that something is made or fetched now: the work at hand does not find its result.
    pub fn makes(&self) {
        if let Some(Place::Here(open)) = &self.place {
            open.make();
        }
    }
}

impl Span {
    /// Tells and begins what belongs to this work.
    #[must_use]
    pub fn narrator(&self) -> &Narrator {
        &self.narrator
    }

    /// Counts bytes that came over the network for it.
    pub fn received(&self, bytes: u64) {
        self.open.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Ends it: well, or by this failure.
    pub fn end(mut self, failure: Option<&dyn Fault>) {
        let outcome = match failure.map(Fault::exit) {
            None => None,
            Some(Exit::Interrupted | Exit::Terminated) => Some(Outcome::Cancelled),
            Some(_) => Some(Outcome::Failed),
        };
        self.tell(outcome, failure);
    }

    /// Ends it with what came of it, and gives that back.
    pub fn end_with<T, E: Fault>(self, result: Result<T, E>) -> Result<T, E> {
        self.end(result.as_ref().err().map(|error| error as &dyn Fault));
        result
    }

    /// The same for a failure of any room.
    pub fn end_with_failure<T>(self, result: Result<T, Failure>) -> Result<T, Failure> {
        self.end(result.as_ref().err().map(|failure| &**failure));
        result
    }

    /// `outcome`: `None` for what ended well.
    fn tell(&mut self, outcome: Option<Outcome>, failure: Option<&dyn Fault>) {
        let Some(about) = self.about.take() else {
            return;
        };
        let made = self.open.made.load(Ordering::Relaxed);
        self.open.ended.store(true, Ordering::Relaxed);
        let well = match about.work.may_be_cached() && !made {
            true => Outcome::Cached,
            false => Outcome::Done,
        };
        let secrets = self.narrator.secrets();
        let concerns = self.open.concerns.lock().expect("no holder panics");
        let context = match &*concerns {
            Concerns::One(context) => context,
            _ => self.narrator.context(),
        };
        let ended = Ended {
            work: about.work,
            kind: about.kind,
            target: secrets.mask(&about.target).into_owned(),
            context: context.masked(secrets),
            place: self.open.place,
            parent: about.parent,
            began: about.began,
            duration: about.clock.elapsed(),
            outcome: outcome.unwrap_or(well),
            made,
            bytes: self.open.bytes.load(Ordering::Relaxed),
            error_kind: failure.map(Fault::kind),
            error: failure.map(|error| secrets.mask(&super::chain(error)).into_owned()),
        };
        for sink in self.narrator.sinks.iter() {
            sink.ended(&ended);
        }
    }
}

impl Drop for Span {
    fn drop(&mut self) {
        self.tell(Some(Outcome::Cancelled), None);
    }
}

/// A wait that may not happen: begun when somebody has to wait, ended when this is dropped.
#[derive(Debug)]
pub struct Waits<'a> {
    narrator: &'a Narrator,
    kind: &'static str,
    begun: Mutex<Option<Span>>,
}

impl<'a> Waits<'a> {
    /// For what is needed: `result`, `model`, `image`, `packages`, `engine`.
    #[must_use]
    pub fn new(narrator: &'a Narrator, kind: &'static str) -> Self {
        Self {
            narrator,
            kind,
            begun: Mutex::new(None),
        }
    }

    /// Somebody waits now. Said again, nothing changes.
    pub fn begin(&self, target: &str) {
        let mut begun = self.begun.lock().expect("no holder panics");
        let begin = || self.narrator.begin(Work::Wait, self.kind, target);
        begun.get_or_insert_with(begin);
    }
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        let begun = self.begun.get_mut().expect("no holder panics").take();
        if let Some(span) = begun {
            span.end(None);
        }
    }
}

#[cfg(test)]
mod tests;
