//! What can go wrong with a process before it ends by itself.

use std::{io, path::PathBuf, time::Duration};

use engine_provider_api::Hint;
use serde::{Deserialize, Serialize};

use super::Exited;
use crate::fault::{Detail, Exit, Fault, hint};

/// A process that could not be started, asked or watched.
#[derive(Debug, thiserror::Error)]
pub enum ProcessError {
    /// The program was not started.
    #[error("could not start `{program}`")]
    Start {
        /// Name of the program, as it was given.
        program: String,
        /// The whole command.
        command: String,
        /// Why.
        #[source]
        reason: StartFailure,
    },
    /// The keeper was not started.
    #[error("could not start the keeper `{}`", program.display())]
    KeeperStart {
        /// Program that was to be the keeper.
        program: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The keeper is gone; everything it started has ended with it.
    #[error("the keeper of this run has ended{}", .exited.map(|exited| format!(" with {exited}")).unwrap_or_default())]
    KeeperGone {
        /// How it ended, where that is known.
        exited: Option<Exited>,
    },
    /// The keeper said something this version does not understand, or nothing in time.
    #[error("the keeper did not do `{operation}`: {reason}")]
    Keeper {
        /// What it was asked.
        operation: &'static str,
        /// What happened instead.
        reason: String,
    },
    /// It was cancelled and its whole tree was ended.
    #[error("`{program}` was cancelled")]
    Cancelled {
        /// Name of the program.
        program: String,
    },
    /// It took longer than it may.
    #[error("`{program}` did not answer within {}", words(*.limit))]
    TimedOut {
        /// Name of the program.
        program: String,
        /// The limit.
        limit: Duration,
    },
    /// Its output could not be read.
    #[error("could not read what `{program}` prints")]
    Read {
        /// Name of the program.
        program: String,
        /// Why.
        #[source]
        source: io::Error,
    },
}

/// Why a program was not started.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum StartFailure {
    /// There is no such program.
    #[error("there is no file `{}`", path.display())]
    ProgramMissing {
        /// The program.
        path: PathBuf,
    },
    /// The file is there, its interpreter or loader is not.
    #[error("the interpreter or loader of `{}` is missing", path.display())]
    InterpreterMissing {
        /// The program.
        path: PathBuf,
    },
    /// The file is no program for this machine.
    #[error("`{}` is not a program for this machine", path.display())]
    NotAProgram {
        /// The program.
        path: PathBuf,
    },
    /// The working directory is missing or no directory.
    #[error("there is no directory `{}`", path.display())]
    DirectoryMissing {
        /// The directory.
        path: PathBuf,
    },
    /// The user may not run it.
    #[error("user id {uid} may not run `{}`", path.display())]
    NotPermitted {
        /// The program.
        path: PathBuf,
        /// Who tried.
        uid: u32,
    },
    /// This process may not become that user.
    #[error("this process, user id {own}, may not become user id {uid}")]
    IdentityRefused {
        /// Who it should be.
        uid: u32,
        /// Who it is.
        own: u32,
    },
    /// Its log file could not be made.
    #[error("could not create the log `{}`: {reason}", path.display())]
    Log {
        /// The log file.
        path: PathBuf,
        /// The system's words.
        reason: String,
    },
    /// Something else.
    #[error("{reason}")]
    Other {
        /// The system's words.
        reason: String,
    },
}

fn words(limit: Duration) -> String {
    if limit < Duration::from_secs(10) {
        format!("{} ms", limit.as_millis())
    } else {
        format!("{} s", limit.as_secs())
    }
}

impl Fault for ProcessError {
    fn exit(&self) -> Exit {
        match self {
            Self::Start { reason, .. } => match reason {
                StartFailure::IdentityRefused { .. } => Exit::Refused,
                StartFailure::Log { .. } => Exit::Storage,
                _ => Exit::Step,
            },
            Self::Cancelled { .. } => Exit::Interrupted,
            Self::TimedOut { .. } | Self::Read { .. } => Exit::Step,
            Self::KeeperStart { .. } | Self::KeeperGone { .. } | Self::Keeper { .. } => {
                Exit::Internal
            }
        }
    }

    fn hints(&self) -> Vec<Hint> {
        match self {
            Self::Start {
                reason: StartFailure::NotPermitted { path, uid },
                ..
            } => vec![hint(
                format!(
                    "every directory above it must be open to user id {uid}; see where it stops"
                ),
                Some(&format!(
                    "namei -l {}",
                    super::quote(&path.to_string_lossy())
                )),
            )],
            Self::Start {
                reason: StartFailure::InterpreterMissing { path },
                ..
            } => vec![hint(
                "see which loader or interpreter it names",
                Some(&format!("file {}", super::quote(&path.to_string_lossy()))),
            )],
            Self::KeeperGone { .. } => vec![hint(
                "somebody or the kernel's out-of-memory killer ended it; see the kernel's log",
                Some("dmesg | tail"),
            )],
            _ => Vec::new(),
        }
    }

    fn details(&self) -> Vec<Detail> {
        match self {
            Self::Start { command, .. } => vec![Detail::new("command", command.clone())],
            _ => Vec::new(),
        }
    }

    fn kind(&self) -> &'static str {
        match self {
            Self::Start { .. } => "not-started",
            Self::KeeperStart { .. } => "keeper-not-started",
            Self::KeeperGone { .. } => "keeper-gone",
            Self::Keeper { .. } => "keeper-protocol",
            Self::Cancelled { .. } => "cancelled",
            Self::TimedOut { .. } => "timed-out",
            Self::Read { .. } => "output-unreadable",
        }
    }
}
