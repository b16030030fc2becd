//! What can go wrong with a step.

use std::{path::PathBuf, time::Duration};

use engine_provider_api::{Step, TemplateError};

use super::{CommandFailure, ImageError, PackageError, command};
use crate::{
    fault::{Detail, Exit, Fault, Hint, hint},
    model::ModelError,
    net::{DigestError, NetError},
    policy::Refusal,
    process::ProcessError,
    store::StoreError,
};

/// A step that failed, or a plan that cannot be carried out.
#[derive(Debug, thiserror::Error)]
pub enum ActError {
    /// The plan contradicts itself or the contract.
    #[error("the plan cannot be carried out: {reason}")]
    Plan {
        /// What is wrong with it.
        reason: String,
    },
    /// A text of the plan cannot be filled in.
    #[error("step `{step}` cannot be filled in")]
    Template {
        /// The step.
        step: String,
        /// Why.
        #[source]
        source: TemplateError,
    },
    /// Policy does not allow it.
    #[error("step `{step}` is not allowed")]
    Refused {
        /// The step.
        step: String,
        /// Which setting forbids it, and what would allow it.
        #[source]
        source: Box<Refusal>,
        /// What a person can do instead.
        hints: Vec<Hint>,
    },
    /// Tools are missing and are not installed from here.
    #[error("{}", missing(tools))]
    MissingTools {
        /// The tools.
        tools: Vec<MissingTool>,
        /// Why they are not installed.
        why: String,
        /// What to do.
        hints: Vec<Hint>,
    },
    /// A command failed.
    #[error("step `{step}`: {failure}")]
    Command {
        /// The step.
        step: String,
        /// What failed and how.
        failure: Box<CommandFailure>,
    },
    /// A command could not be started or watched.
    #[error("step `{step}` could not run a command")]
    Process {
        /// The step.
        step: String,
        /// Why.
        #[source]
        source: Box<ProcessError>,
    },
    /// A command took longer than it may.
    #[error("step `{step}`: `{command}` took longer than {}", words(*limit_ms))]
    TimedOut {
        /// The step.
        step: String,
        /// The command.
        command: String,
        /// The limit, in milliseconds.
        limit_ms: u128,
    },
    /// A source takes longer to say what something is than somebody waits for it.
    #[error("step `{step}`: nobody said within {} s what {what} is", limit.as_secs())]
    NoAnswer {
        /// The step.
        step: String,
        /// What was asked about.
        what: String,
        /// How long was waited.
        limit: Duration,
    },
    /// A commit that is none.
    #[error("step `{step}`: {reason}")]
    Reference {
        /// The step.
        step: String,
        /// What is wrong.
        reason: String,
        /// What to do.
        hints: Vec<Hint>,
    },
    /// No mirror had what was wanted.
    #[error("{what} could not be obtained{}", places(failures))]
    Mirrors {
        /// What was wanted.
        what: String,
        /// Each place and why not, in the order they were tried.
        failures: Vec<MirrorFailure>,
    },
    /// A checkout is not the commit that was asked for.
    #[error("{from} gave commit {actual} instead of {expected}")]
    WrongCommit {
        /// The mirror.
        from: String,
        /// Commit asked for.
        expected: String,
        /// Commit there is.
        actual: String,
    },
    /// A commit has another tree than the one that is locked for it.
    #[error("commit {commit} has tree {actual} instead of {expected}")]
    WrongTree {
        /// The commit.
        commit: String,
        /// Tree that is locked.
        expected: String,
        /// Tree that it has.
        actual: String,
    },
    /// An archive that is not unpacked.
    #[error("{archive} is not unpacked: {reason}")]
    Archive {
        /// The archive.
        archive: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A build succeeded and did not leave what it should.
    #[error("step `{step}` did not make {}", path.display())]
    Output {
        /// The step.
        step: String,
        /// The missing output, relative to the working directory.
        path: PathBuf,
    },
    /// A digest of the plan cannot be compared.
    #[error("step `{step}` names a digest that cannot be used")]
    Digest {
        /// The step.
        step: String,
        /// Why.
        #[source]
        source: DigestError,
    },
    /// Something could not be fetched.
    #[error("step `{step}` could not fetch")]
    Net {
        /// The step.
        step: String,
        /// Why.
        #[source]
        source: Box<NetError>,
    },
    /// Something could not be kept.
    #[error("step `{step}` could not keep its result")]
    Store {
        /// The step.
        step: String,
        /// Why.
        #[source]
        source: Box<StoreError>,
    },
    /// The model could not be staged.
    #[error("step `{step}` could not stage the model")]
    Model {
        /// The step.
        step: String,
        /// Why.
        #[source]
        source: Box<ModelError>,
    },
    /// A program of the distribution's packages cannot be had.
    #[error("step `{step}` cannot be done")]
    Package {
        /// The step.
        step: String,
        /// Why.
        #[source]
        source: Box<PackageError>,
    },
    /// The image could not be obtained.
    #[error("step `{step}` could not obtain its image")]
    Image {
        /// The step.
        step: String,
        /// Why.
        #[source]
        source: Box<ImageError>,
    },
    /// The step was ended because another one failed, or by the operator.
    #[error("step `{step}` was cancelled")]
    Cancelled {
        /// The step.
        step: String,
    },
}

/// A tool that is not there, or too old.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MissingTool {
    /// Its name.
    pub name: String,
    /// What it is needed for.
    pub purpose: String,
    /// The version there is and the oldest that will do, where that is the problem.
    pub too_old: Option<(String, String)>,
}

/// A place that did not have it.
#[derive(Debug)]
pub struct MirrorFailure {
    /// The place, fit to be shown.
    pub place: String,
    /// Why.
    pub error: Box<ActError>,
}

fn words(limit_ms: u128) -> String {
    if limit_ms < 10_000 {
        format!("{limit_ms} ms")
    } else {
        format!("{} s", limit_ms / 1000)
    }
}

fn missing(tools: &[MissingTool]) -> String {
    let one = |tool: &MissingTool| match &tool.too_old {
        Some((have, need)) => format!("`{}` {need} or newer (here: {have})", tool.name),
        None => format!("`{}`", tool.name),
    };
    let names: Vec<String> = tools.iter().map(one).collect();
    match names.as_slice() {
        [] => "missing packages cannot be installed from here".to_owned(),
        [name] => format!("{name} is missing"),
        names => format!("{} are missing", names.join(", ")),
    }
}

impl ActError {
    pub(super) fn store(step: &Step, source: StoreError) -> Self {
        match source {
            StoreError::Cancelled { .. } => Self::cancelled(step),
            source => Self::Store {
                step: step.id.clone(),
                source: Box::new(source),
            },
        }
    }

    pub(super) fn net(step: &Step, source: NetError) -> Self {
        match source {
            NetError::Cancelled { .. } => Self::cancelled(step),
            source => Self::Net {
                step: step.id.clone(),
                source: Box::new(source),
            },
        }
    }

    pub(crate) fn image(step: &Step, source: ImageError) -> Self {
        if source.is_cancelled() {
            return Self::cancelled(step);
        }
        Self::Image {
            step: step.id.clone(),
            source: Box::new(source),
        }
    }

    pub(super) fn refused(step: &Step, source: Refusal) -> Self {
        Self::Refused {
            step: step.id.clone(),
            source: Box::new(source),
            hints: Vec::new(),
        }
    }

    pub(super) fn process(step: &Step, source: ProcessError) -> Self {
        match source {
            ProcessError::Cancelled { .. } => Self::cancelled(step),
            source => Self::Process {
                step: step.id.clone(),
                source: Box::new(source),
            },
        }
    }

    pub(super) fn cancelled(step: &Step) -> Self {
        Self::Cancelled {
            step: step.id.clone(),
        }
    }

    /// Why, in one line: what a failed command said about it, else the causes.
    pub(super) fn brief(&self) -> String {
        let inner: &dyn std::error::Error = match self {
            Self::Command { failure, .. } => {
                return match command::last_words(&failure.tail) {
                    Some(words) => words.to_owned(),
                    None => failure.to_string(),
                };
            }
            Self::Net { source, .. } => source,
            Self::Store { source, .. } => source,
            Self::Process { source, .. } => source,
            Self::Image { source, .. } => source,
            _ => self,
        };
        crate::narrate::chain(inner)
    }

    /// Whether this only says that somebody else ended it.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        matches!(self, Self::Cancelled { .. })
    }

    fn inner(&self) -> Option<&dyn Fault> {
        match self {
            Self::Net { source, .. } => Some(source.as_ref()),
            Self::Store { source, .. } => Some(source.as_ref()),
            Self::Model { source, .. } => Some(source.as_ref()),
            Self::Process { source, .. } => Some(source.as_ref()),
            Self::Image { source, .. } => Some(source.as_ref()),
            Self::Digest { source, .. } => Some(source),
            Self::Package { source, .. } => Some(source.as_ref()),
            _ => None,
        }
    }
}

impl Fault for ActError {
    fn exit(&self) -> Exit {
        if let Some(inner) = self.inner() {
            return inner.exit();
        }
        match self {
            Self::Plan { .. } | Self::Template { .. } => Exit::Provider,
            Self::Refused { .. } => Exit::Refused,
            Self::NoAnswer { .. } => Exit::Network,
            Self::Reference { .. } => Exit::Config,
            Self::WrongCommit { .. } | Self::WrongTree { .. } | Self::Archive { .. } => {
                Exit::Verification
            }
            Self::Cancelled { .. } => Exit::Interrupted,
            Self::Command { failure, .. } if failure.disk_full => Exit::Storage,
            Self::Mirrors { failures, .. } => worst(failures),
            _ => Exit::Step,
        }
    }

    fn hints(&self) -> Vec<Hint> {
        match self {
            Self::Refused { source, hints, .. } => {
                let mut all = hints.clone();
                all.extend(source.hints());
                all
            }
            Self::MissingTools { hints, .. } | Self::Reference { hints, .. } => hints.clone(),
            Self::Command { failure, .. } => failure.hints(),
            Self::Mirrors { failures, .. } => failures
                .iter()
                .flat_map(|failure| failure.error.hints())
                .collect(),
            Self::NoAnswer { .. } => vec![hint(
                "its server is slow or silent: see whether it answers at all, then try again",
                None,
            )],
            Self::Output { .. } => vec![hint("this is a defect of the provider's plan", None)],
            _ => self.inner().map(Fault::hints).unwrap_or_default(),
        }
    }

    fn details(&self) -> Vec<Detail> {
        match self {
            Self::MissingTools { tools, why, .. } => tools
                .iter()
                .filter(|tool| !tool.purpose.is_empty())
                .map(|tool| Detail::new("needed", format!("{} for {}", tool.name, tool.purpose)))
                .chain([Detail::new("note", why.clone())])
                .collect(),
            Self::Command { failure, .. } => failure.details(),
            Self::Refused { source, .. } => source.details(),
            Self::Mirrors { failures, .. } => failures
                .iter()
                .flat_map(|failure| {
                    let tried = format!("{}: {}", failure.place, failure.error.brief());
                    std::iter::once(Detail::new("tried", tried)).chain(failure.error.details())
                })
                .collect(),
            _ => self.inner().map(Fault::details).unwrap_or_default(),
        }
    }

    fn kind(&self) -> &'static str {
        if let Some(inner) = self.inner() {
            return inner.kind();
        }
        match self {
            Self::Plan { .. } => "bad-plan",
            Self::Template { .. } => "bad-template",
            Self::Refused { source, .. } => source.kind(),
            Self::MissingTools { .. } => "missing-tools",
            Self::Command { failure, .. } if failure.disk_full => "disk-full",
            Self::Command { .. } => "command-failed",
            Self::TimedOut { .. } | Self::NoAnswer { .. } => "timed-out",
            Self::Reference { .. } => "bad-reference",
            Self::Mirrors { .. } => "no-mirror",
            Self::WrongCommit { .. } => "wrong-commit",
            Self::Archive { .. } => "bad-archive",
            Self::Output { .. } => "missing-output",
            _ => "cancelled",
        }
    }
}

/// Where it was looked for, unless that was one place, which the details name.
fn places(failures: &[MirrorFailure]) -> String {
    match failures.len() {
        0 | 1 => String::new(),
        several => format!(" from any of {several} places"),
    }
}

fn worst(failures: &[MirrorFailure]) -> Exit {
    let codes: Vec<Exit> = failures
        .iter()
        .map(|failure| failure.error.exit())
        .collect();
    Exit::of_places(&codes)
}
