//! What can go wrong with a lock file, and what in it does not hold.

use std::{io, path::PathBuf};

use super::{Drift, FILE, SCHEMA};
use crate::{
    fault::{Detail, Exit, Fault, Hint, hint},
    process::quote,
    store::StoreError,
};

/// Why a lock file cannot be used, or is not held to.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// It cannot be read.
    #[error("cannot read {}", path.display())]
    Unreadable {
        /// The lock file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// It cannot be written.
    #[error("cannot write {}", path.display())]
    Unwritable {
        /// The lock file.
        path: PathBuf,
        /// Why.
        #[source]
        source: Box<StoreError>,
    },
    /// It is no lock file.
    #[error("{} is no lock file that can be understood", path.display())]
    Damaged {
        /// The lock file.
        path: PathBuf,
        /// Why, with its line.
        #[source]
        source: Box<toml::de::Error>,
    },
    /// A newer version wrote it.
    #[error("{} has schema {found}, this version knows {SCHEMA}", path.display())]
    Newer {
        /// The lock file.
        path: PathBuf,
        /// Its schema.
        found: i64,
    },
    /// `--locked` was given and there is none.
    #[error("`--locked` needs {}, and there is none", path.display())]
    Absent {
        /// Where it would lie.
        path: PathBuf,
        /// Command that writes it, without the program.
        command: String,
    },
    /// Pins do not hold.
    #[error("{} does not hold: {} drifted", path.display(), count(drifts.len(), "pin has", "pins have"))]
    Drifted {
        /// The lock file.
        path: PathBuf,
        /// Every pin that does not hold.
        drifts: Vec<Drift>,
        /// Command that locks again, without the program and its `--update`.
        command: String,
    },
    /// `host lock --check` found that locking would change something.
    #[error("{} is not up to date", path.display())]
    Outdated {
        /// The lock file.
        path: PathBuf,
        /// What would change.
        drifts: Vec<Drift>,
        /// Command that locks again, without the program.
        command: String,
    },
    /// `--update` names nothing.
    #[error("`--update {name}` names no pool and no part of one")]
    NoSuchName {
        /// The name.
        name: String,
        /// Names that would do.
        known: Vec<String>,
    },
    /// A pin is not what such a pin can be.
    #[error("{}: `{what}` is `{value}`, which is {reason}", path.display())]
    Value {
        /// The lock file.
        path: PathBuf,
        /// Where it stands.
        what: String,
        /// The value.
        value: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// Without network, and not everything is here.
    #[error("without network {} not here", count(missing.len(), "thing is", "things are"))]
    Missing {
        /// What is missing, one line each.
        missing: Vec<String>,
        /// Command that fetches it, without the program.
        command: String,
    },
}

fn count(number: usize, one: &str, many: &str) -> String {
    let words = if number == 1 { one } else { many };
    format!("{number} {words}")
}

impl LockError {
    fn drifts(&self) -> &[Drift] {
        match self {
            Self::Drifted { drifts, .. } | Self::Outdated { drifts, .. } => drifts,
            _ => &[],
        }
    }
}

impl Fault for LockError {
    fn exit(&self) -> Exit {
        match self {
            Self::Unreadable { .. } | Self::Unwritable { .. } => Exit::Storage,
            Self::Damaged { .. } | Self::Newer { .. } | Self::Value { .. } => Exit::Config,
            Self::NoSuchName { .. } => Exit::Usage,
            Self::Missing { .. } => Exit::Refused,
            Self::Absent { .. } | Self::Drifted { .. } | Self::Outdated { .. } => Exit::Drifted,
        }
    }

    fn kind(&self) -> &'static str {
        match self {
            Self::Unreadable { .. } => "lock-unreadable",
            Self::Unwritable { .. } => "lock-unwritable",
            Self::Damaged { .. } => "lock-damaged",
            Self::Newer { .. } => "lock-newer",
            Self::Absent { .. } => "lock-absent",
            Self::Drifted { .. } => "lock-drifted",
            Self::Outdated { .. } => "lock-outdated",
            Self::NoSuchName { .. } => "lock-name",
            Self::Value { .. } => "lock-value",
            Self::Missing { .. } => "offline-missing",
        }
    }

    fn details(&self) -> Vec<Detail> {
        if let Self::Missing { missing, .. } = self {
            return missing
                .iter()
                .map(|line| Detail::new("missing", line.clone()))
                .collect();
        }
        let drifts = self.drifts().iter();
        drifts
            .map(|drift| Detail::new("drift", drift.to_string()))
            .collect()
    }

    fn hints(&self) -> Vec<Hint> {
        match self {
            Self::Absent { command, .. } => {
                vec![hint("write it, and commit it", Some(&host(command)))]
            }
            Self::Drifted {
                drifts, command, ..
            } => {
                let mut parts: Vec<&str> = drifts.iter().map(|drift| drift.part.as_str()).collect();
                parts.dedup();
                let accept = |part: &str| {
                    let text = format!("accept what {part} is now");
                    let command = format!("{} --update {}", host(command), quote(part));
                    hint(text, Some(&command))
                };
                let mut all: Vec<Hint> = parts.into_iter().map(accept).collect();
                all.push(hint(
                    format!("or go back to what is locked: put it back as `{FILE}` says"),
                    None,
                ));
                all
            }
            Self::Outdated { command, .. } => vec![hint("lock again", Some(&host(command)))],
            Self::NoSuchName { known, .. } => {
                vec![hint(format!("it takes {}", known.join(", ")), None)]
            }
            Self::Damaged { .. } => vec![hint(
                "take it back from version control, or remove it and lock again",
                Some("{host} lock"),
            )],
            Self::Newer { .. } => vec![hint("use a newer version of this program", None)],
            Self::Value { .. } => vec![hint("lock again", Some("{host} lock --update"))],
            Self::Missing { command, .. } => {
                let text = "fetch it once where there is a network";
                vec![hint(text, Some(&host(command)))]
            }
            Self::Unreadable { .. } | Self::Unwritable { .. } => Vec::new(),
        }
    }
}

fn host(command: &str) -> String {
    format!("{{host}} {command}")
}

impl std::fmt::Display for Drift {
    /// `chat: provider.version` and, below it, what is locked and what is now.
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let shown = |value: &Option<String>| value.clone().unwrap_or_else(|| "nothing".to_owned());
        write!(
            formatter,
            "{}: {}\nlocked  {}\nnow     {}",
            self.pool,
            self.what,
            shown(&self.locked),
            shown(&self.now)
        )
    }
}
