//! What is wanted, and by which installation.

use std::path::PathBuf;

use tokio_util::sync::CancellationToken;

use crate::{
    config::{environment::Environment, paths::Home, select::Overlay, select::Selection},
    narrate::Narrator,
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
            narrator,
            cancel: CancellationToken::new(),
            program: PathBuf::from("/proc/self/exe"),
        }
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
    /// Directory for handoff files.
    pub handoff_dir: PathBuf,
    /// Passed through to every event.
    pub correlation_id: Option<String>,
}
