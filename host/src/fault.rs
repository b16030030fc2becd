//! What every error can tell beyond its text: how the program ends, where to look, what to type.
//!
//! Each room has its own error enum; this trait is what they share, so that one printer in `cli`
//! shows them all and an embedder can act on them.

use std::{error::Error, fmt, sync::Arc};

pub use engine_provider_api::Hint;

/// Exit codes of the `host` program, one meaning each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
#[repr(u8)]
pub enum Exit {
    /// Done.
    Success = 0,
    /// A defect of this program or an error that has no code of its own.
    Internal = 1,
    /// The command line is wrong.
    Usage = 2,
    /// A pool, policy or facts file is wrong.
    Config = 3,
    /// Policy does not allow it.
    Refused = 4,
    /// This machine cannot run the pool: no usable GPU, no toolkit, no free port.
    Unavailable = 5,
    /// A provider is missing, broken, incompatible, or crashed.
    Provider = 6,
    /// A step failed: a tool is missing, a build broke.
    Step = 7,
    /// Something could not be fetched.
    Network = 8,
    /// Something fetched is not what it should be.
    Verification = 9,
    /// The engine crashed, never became ready, or is not on the GPU it must be on.
    Engine = 10,
    /// There is no such pool, engine or log.
    NotFound = 11,
    /// Another process holds what is needed, longer than the limit.
    Busy = 12,
    /// A pool runs with other settings than were asked for.
    Conflict = 13,
    /// The disk is full, or a directory cannot be read or written.
    Storage = 14,
    /// What is locked is not what is: the lock file does not hold, is outdated or is missing.
    Drifted = 15,
    /// Interrupted (INT), after everything was stopped and cleaned.
    Interrupted = 130,
    /// Terminated (TERM), after everything was stopped and cleaned.
    Terminated = 143,
}

impl Exit {
    /// Every code, for the table in the manual.
    pub const ALL: &[Self] = &[
        Self::Success,
        Self::Internal,
        Self::Usage,
        Self::Config,
        Self::Refused,
        Self::Unavailable,
        Self::Provider,
        Self::Step,
        Self::Network,
        Self::Verification,
        Self::Engine,
        Self::NotFound,
        Self::Busy,
        Self::Conflict,
        Self::Storage,
        Self::Drifted,
        Self::Interrupted,
        Self::Terminated,
    ];

    /// The one of this number.
    #[must_use]
    pub fn of(code: i32) -> Option<Self> {
        let all = Self::ALL.iter().copied();
        all.into_iter().find(|exit| i32::from(exit.code()) == code)
    }

    /// The code that says most of several places none of which gave what was wanted: something wrong, then
    /// a full disk, then the network; a refusal only where all were refused.
    pub(crate) fn of_places(codes: &[Self]) -> Self {
        let told = [Self::Verification, Self::Storage, Self::Network];
        let all_refused = !codes.is_empty() && codes.iter().all(|code| *code == Self::Refused);
        match told.into_iter().find(|code| codes.contains(code)) {
            Some(code) => code,
            None if all_refused => Self::Refused,
            None => Self::Network,
        }
    }

    /// The number given to the shell.
    #[must_use]
    pub fn code(self) -> u8 {
        self as u8
    }

    /// One sentence for the manual.
    #[must_use]
    pub fn meaning(self) -> &'static str {
        match self {
            Self::Success => "done",
            Self::Internal => "a defect, or an error without a code of its own",
            Self::Usage => "the command line is wrong",
            Self::Config => "a pool, policy or facts file is wrong",
            Self::Refused => "policy does not allow it",
            Self::Unavailable => "this machine cannot run the pool",
            Self::Provider => "a provider is missing, broken, incompatible, or crashed",
            Self::Step => "a step failed: a tool is missing, a build broke",
            Self::Network => "something could not be fetched",
            Self::Verification => "something fetched is not what it should be",
            Self::Engine => "the engine crashed, never became ready, or is not on its GPU",
            Self::NotFound => "there is no such pool, engine or log",
            Self::Busy => "another process holds what is needed, longer than the limit",
            Self::Conflict => "the pool runs with other settings",
            Self::Storage => "the disk is full, or a directory cannot be used",
            Self::Drifted => "the lock file does not hold, is outdated or is missing",
            Self::Interrupted => "interrupted (INT), everything stopped and cleaned",
            Self::Terminated => "terminated (TERM), everything stopped and cleaned",
        }
    }
}

/// A labelled fact beside an error, printed between its text and its fix.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Detail {
    /// Short label, for example `where`, `command`, `log`, `note`.
    pub label: &'static str,
    /// Text, may have several lines.
    pub text: String,
}

impl Detail {
    /// A detail.
    pub fn new(label: &'static str, text: impl Into<String>) -> Self {
        Self {
            label,
            text: text.into(),
        }
    }
}

/// An error of a room.
pub trait Fault: Error + Send + Sync {
    /// How the program ends because of it.
    fn exit(&self) -> Exit;

    /// What to do about it, best first.
    fn hints(&self) -> Vec<Hint> {
        Vec::new()
    }

    /// Where to look: paths, commands, log lines.
    fn details(&self) -> Vec<Detail> {
        Vec::new()
    }

    /// Stable kebab-case word for `error_kind` in events, for example `digest-mismatch`.
    fn kind(&self) -> &'static str;
}

/// An error of any room, as it travels up.
pub type Failure = Box<dyn Fault>;

impl<E: Fault + 'static> From<E> for Failure {
    fn from(error: E) -> Self {
        Box::new(error)
    }
}

/// An error of any room as the cause of another; cheap to clone, for everybody who waited for the same
/// thing.
#[derive(Clone)]
pub struct Because(Arc<dyn Fault>);

impl Because {
    /// The error itself.
    #[must_use]
    pub fn fault(&self) -> &dyn Fault {
        &*self.0
    }
}

impl From<Failure> for Because {
    fn from(failure: Failure) -> Self {
        Self(Arc::from(failure))
    }
}

impl fmt::Debug for Because {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, formatter)
    }
}

impl fmt::Display for Because {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, formatter)
    }
}

impl Error for Because {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.0.source()
    }
}

impl Fault for Because {
    fn exit(&self) -> Exit {
        self.0.exit()
    }

    fn hints(&self) -> Vec<Hint> {
        self.0.hints()
    }

    fn details(&self) -> Vec<Detail> {
        self.0.details()
    }

    fn kind(&self) -> &'static str {
        self.0.kind()
    }
}

/// Advice in words, with a command to paste where there is one. `{host}` in the command stands for
/// the path the program was called by.
pub fn hint(text: impl Into<String>, command: Option<&str>) -> Hint {
    Hint {
        text: text.into(),
        command: command.map(str::to_owned),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_manual_lists_every_exit_code_with_its_meaning() {
        let manual = include_str!("../../docs/cli.md");
        for exit in Exit::ALL {
            let row = format!("| {} | {} |", exit.code(), exit.meaning());
            assert!(manual.contains(&row), "{row}");
        }
    }

    #[test]
    fn every_exit_code_is_its_own() {
        let mut codes: Vec<u8> = Exit::ALL.iter().map(|exit| exit.code()).collect();
        codes.dedup();
        assert_eq!(codes.len(), Exit::ALL.len());
        assert!(codes.is_sorted());
    }
}
