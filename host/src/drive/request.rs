//! What is wanted, and by which installation.

use std::path::PathBuf;

use tokio_util::sync::CancellationToken;

use crate::{
    config::{
        PoolFiles, environment::Environment, paths::Home, select::Overlay, select::Selection,
    },
    lock::{Part, Update},
    model::Verify,
    narrate::{Narrator, Span, TraceContext, Work},
    process::{Keeper, KeeperOptions},
    provider::Isolation,
};

/// An installation: where it keeps things, whom it tells, how it is cancelled.
#[derive(Debug, Clone)]
pub struct Host {
    /// Where it keeps things.
    pub home: Home,
    /// The environment it was given.
    pub environment: Environment,
    /// Reads its pool files.
    pub pool_files: PoolFiles,
    /// Whom it tells.
    pub narrator: Narrator,
    /// Cancelled: everything under way is ended and cleaned up.
    pub cancel: CancellationToken,
    /// Starts what outlives a question.
    pub keeper: Keeper,
    /// Program that becomes keeper, worker and probe: one whose `main` begins with
    /// [`crate::become_helper`].
    pub program: PathBuf,
}

impl Host {
    /// An installation whose helpers are this program itself.
    #[must_use]
    pub fn new(home: Home, environment: Environment, narrator: Narrator) -> Self {
        Self {
            keeper: Keeper::new(&home, KeeperOptions::default()),
            home,
            environment,
            pool_files: PoolFiles::default(),
            narrator,
            cancel: CancellationToken::new(),
            program: PathBuf::from("/proc/self/exe"),
        }
    }

    /// Begins one of several jobs of this process: it has a name of its own, by which its events and
    /// its logs are found.
    pub fn own_job(&self, word: &'static str) -> (Span, Self) {
        let number = TraceContext::root().span.get() >> 32;
        let narrator = self.narrator.with(|context| {
            let run = context.job_id.take().unwrap_or_default();
            context.job_id = Some(format!("{run}-{number:08x}"));
        });
        let host = Self {
            narrator,
            ..self.clone()
        };
        host.job(word)
    }

    /// Begins the job of this process, called by this word of a fixed list: what the host beside it
    /// does is part of it.
    pub fn job(&self, word: &'static str) -> (Span, Self) {
        let span = self.narrator.begin(Work::Job, word, word);
        let host = Self {
            narrator: span.narrator().clone(),
            ..self.clone()
        };
        (span, host)
    }
}

/// What is wanted: which pool, and what the command line changes about it.
#[derive(Debug, Clone, Default)]
pub struct Request {
    /// Which pool.
    pub selection: Selection,
    /// What is changed about it.
    pub overlay: Overlay,
    /// Directories searched for providers before all others.
    pub provider_path: Vec<PathBuf>,
    /// Where the provider runs.
    pub isolation: Isolation,
    /// Machine to plan for instead of this one, from `host facts --json`.
    pub facts: Option<PathBuf>,
    /// Which models are hashed again, though they look as they did when they were hashed.
    pub verify: Verify,
    /// Directory for handoff files.
    pub handoff_dir: PathBuf,
    /// Passed through to every event.
    pub correlation_id: Option<String>,
    /// What the lock file beside the pool file means.
    pub lock: LockUse,
}

/// What a lock file means to a journey.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum LockUse {
    /// Its pins stand in for branches, tags and whatever else can change, where it has any.
    #[default]
    Pins,
    /// Everything is exactly as it is locked, or nothing is done.
    Exact,
    /// It is about to be written: pins hold, but for the parts that are asked for anew.
    Renew(Update),
}

impl LockUse {
    /// Whether what is mutable in this part is asked for again, whatever is locked.
    #[must_use]
    pub fn renews(&self, part: Part) -> bool {
        matches!(self, Self::Renew(update) if update.renews(part))
    }
}
