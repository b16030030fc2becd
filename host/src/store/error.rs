//! What can go wrong with files, locks and results.

use std::{
    io,
    path::{Path, PathBuf},
    time::Duration,
};

use super::{Holder, watch::is_ended};
use crate::{
    fault::{Detail, Exit, Fault, Hint, hint},
    process::quote,
};

/// A failure of the store.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// A file or directory could not be read or written.
    #[error("cannot {action} {}", path.display())]
    Io {
        /// Verb, for example `create`.
        action: &'static str,
        /// What it was done to.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// There is no space left, or the user's quota is used up.
    #[error("no space left for {}", path.display())]
    Full {
        /// What was written.
        path: PathBuf,
        /// Free bytes for this user on its file system, where they could be asked.
        free_bytes: Option<u64>,
        /// Bytes that are needed, where they are known.
        needed_bytes: Option<u64>,
    },
    /// Another process holds a lock for longer than the limit.
    #[error("{what} is held by {} for longer than {} s", super::lock::describe(holder.as_ref()), limit.as_secs())]
    Busy {
        /// What is locked, in words.
        what: String,
        /// Who holds it, where that can be told.
        holder: Option<Holder>,
        /// How long was waited.
        limit: Duration,
    },
    /// The wait for a lock was cancelled.
    #[error("cancelled while waiting for {what}")]
    Cancelled {
        /// What is locked, in words.
        what: String,
    },
    /// A document was written by a newer version of this program.
    #[error("{} has schema {found}, this version knows {known}", path.display())]
    Newer {
        /// The document.
        path: PathBuf,
        /// Its schema.
        found: u32,
        /// The newest schema that this version knows.
        known: u32,
    },
    /// A document cannot be understood.
    #[error("{} is damaged", path.display())]
    Damaged {
        /// The document.
        path: PathBuf,
        /// Why.
        #[source]
        source: serde_json::Error,
    },
    /// Something lies where it must not, for example a link that leads out of a result.
    #[error("{}: {reason}", path.display())]
    Unsound {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// Root would write where somebody else decides what lies there.
    #[error("{} is not root's alone: whoever else may change it could lead root anywhere", path.display())]
    Foreign {
        /// The directory that somebody else may change.
        path: PathBuf,
        /// Its owner.
        owner: u32,
    },
    /// The user that builds and runs engines cannot get into the store.
    #[error("user {uid}, which builds and runs engines, cannot enter {}", path.display())]
    Unreachable {
        /// The directory that bars the way.
        path: PathBuf,
        /// The user.
        uid: u32,
    },
}

impl StoreError {
    /// Makes an error from a failed file operation; a full disk becomes [`StoreError::Full`].
    pub fn io(action: &'static str, path: impl Into<PathBuf>, source: io::Error) -> Self {
        let path = path.into();
        if is_full(&source) {
            Self::full(path, None)
        } else {
            Self::Io {
                action,
                path,
                source,
            }
        }
    }

    /// Makes an error from a reading of `path` that failed, or that its watch has ended.
    pub(crate) fn of_reading(path: &Path, source: io::Error) -> Self {
        if is_ended(&source) {
            return Self::Cancelled {
                what: format!("the reading of {}", path.display()),
            };
        }
        Self::io("read", path, source)
    }

    /// There is too little space for `path`.
    pub fn full(path: impl Into<PathBuf>, needed_bytes: Option<u64>) -> Self {
        let path = path.into();
        Self::Full {
            free_bytes: free_bytes(&path),
            path,
            needed_bytes,
        }
    }
}

/// Whether an error means that the disk or the user's quota is full.
fn is_full(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
    )
}

/// Bytes that this user may still write to the file system of `path` or of its nearest ancestor
/// that exists.
pub(crate) fn free_bytes(path: &Path) -> Option<u64> {
    let existing = path.ancestors().find(|ancestor| ancestor.exists())?;
    let status = rustix::fs::statvfs(existing).ok()?;
    Some(status.f_bavail.saturating_mul(status.f_frsize))
}

/// Refuses early when fewer than `needed_bytes` are free for `path`.
pub(crate) fn ensure_space(path: &Path, needed_bytes: u64) -> Result<(), StoreError> {
    match free_bytes(path) {
        Some(free) if free < needed_bytes => Err(StoreError::full(path, Some(needed_bytes))),
        _ => Ok(()),
    }
}

/// A size for people, for example `1.5 GiB`.
#[must_use]
pub(crate) fn human_bytes(bytes: u64) -> String {
    const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
    #[expect(
        clippy::cast_precision_loss,
        reason = "one digit after the point is shown"
    )]
    let mut size = bytes as f64 / 1024.0;
    if bytes < 1024 {
        return format!("{bytes} bytes");
    }
    let mut unit = 0;
    while size >= 1024.0 && unit + 1 < UNITS.len() {
        size /= 1024.0;
        unit += 1;
    }
    format!("{size:.1} {}", UNITS[unit])
}

impl Fault for StoreError {
    fn exit(&self) -> Exit {
        match self {
            Self::Busy { .. } => Exit::Busy,
            Self::Cancelled { .. } => Exit::Interrupted,
            Self::Unsound { .. } => Exit::Verification,
            _ => Exit::Storage,
        }
    }

    fn hints(&self) -> Vec<Hint> {
        match self {
            Self::Full { path, .. } => {
                let at = path.ancestors().find(|ancestor| ancestor.exists());
                let command = at.map(|at| format!("df -h {}", quote(&at.to_string_lossy())));
                let text = "free some space, or put the host's home on another disk with HOST_HOME";
                vec![
                    hint(text, command.as_deref()),
                    hint("see what of this host's takes space", Some("{host} disk")),
                ]
            }
            Self::Io { source, .. } if source.kind() == io::ErrorKind::ReadOnlyFilesystem => {
                let text = "make the disk writable, or use another home: set HOST_HOME";
                vec![hint(text, None)]
            }
            Self::Io { path, source, .. } if source.kind() == io::ErrorKind::PermissionDenied => {
                let at = path.ancestors().find(|ancestor| ancestor.exists());
                let command = at.map(|at| format!("ls -ld {}", quote(&at.to_string_lossy())));
                let text = "see whose it is; another home is set with HOST_HOME";
                vec![hint(text, command.as_deref())]
            }
            Self::Io { source, .. } if source.kind() == io::ErrorKind::NotADirectory => {
                let text = "what stands there is no directory; another home is set with HOST_HOME";
                vec![hint(text, None)]
            }
            Self::Foreign { owner, .. } => {
                let text = "name a directory below one of root's own, or leave `cache_dir` out";
                let theirs = Some(owner).filter(|owner| **owner != 0);
                let as_them = theirs.map(|owner| hint(format!("or run as user {owner}"), None));
                [hint(text, None)].into_iter().chain(as_them).collect()
            }
            Self::Newer { .. } => vec![hint(
                "use the newer host, or another home: set HOST_HOME to an empty directory",
                None,
            )],
            Self::Damaged { path, .. } => vec![hint(
                "delete it; it will be made again",
                Some(&format!("rm {}", quote(&path.to_string_lossy()))),
            )],
            Self::Unreachable { path, uid } => vec![
                hint(
                    format!("let user {uid} pass through the directory"),
                    Some(&format!("chmod o+x {}", quote(&path.to_string_lossy()))),
                ),
                hint("or put the host's home elsewhere with HOST_HOME", None),
            ],
            Self::Busy { holder, .. } => holder
                .iter()
                .map(|holder| {
                    let command = format!("ps -o pid,etime,args -p {}", holder.pid);
                    hint("see what the other process is doing", Some(&command))
                })
                .collect(),
            _ => Vec::new(),
        }
    }

    fn details(&self) -> Vec<Detail> {
        let Self::Full {
            free_bytes,
            needed_bytes,
            ..
        } = self
        else {
            return Vec::new();
        };
        let mut details = Vec::new();
        if let Some(free) = free_bytes {
            details.push(Detail::new("free", human_bytes(*free)));
        }
        if let Some(needed) = needed_bytes {
            details.push(Detail::new("needed", human_bytes(*needed)));
        }
        details
    }

    fn kind(&self) -> &'static str {
        match self {
            Self::Io { .. } => "storage",
            Self::Full { .. } => "disk-full",
            Self::Busy { .. } => "busy",
            Self::Cancelled { .. } => "cancelled",
            Self::Newer { .. } => "newer-schema",
            Self::Damaged { .. } => "damaged-document",
            Self::Unsound { .. } => "unsound-result",
            Self::Unreachable { .. } => "unreachable-home",
            Self::Foreign { .. } => "foreign-directory",
        }
    }
}
