//! How far a provider is believed: as far as the host itself, or no further than its sandbox.
//!
//! A provider that came with the host lies in the same directory as its executable and belongs to
//! the same owner: whoever could replace it could replace the host. Every other one is somebody
//! else's code, wherever it was found, and runs only inside a sandbox that really holds.

use std::{
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

use schemars::JsonSchema;
use serde::Serialize;

use super::file::Opened;

/// Where a provider's authority comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Trust {
    /// It came with the host: sandboxed as far as this machine can.
    Host,
    /// Somebody else made it: not opened in a worker unless the sandbox holds.
    ThirdParty,
}

impl Trust {
    /// Whether the sandbox must hold.
    #[must_use]
    pub fn requires_sandbox(self) -> bool {
        self == Self::ThirdParty
    }
}

/// The host's own executable, as far as trust needs to know it.
#[derive(Debug, Clone)]
pub(super) struct Executable {
    directory: PathBuf,
    owner: u32,
}

impl Executable {
    /// Looks at the executable once; `None` where it cannot be found.
    #[must_use]
    pub(super) fn at(path: &Path) -> Option<Self> {
        let path = path.canonicalize().ok()?;
        Some(Self {
            owner: path.metadata().ok()?.uid(),
            directory: path.parent()?.to_owned(),
        })
    }

    /// Judges an opened library.
    #[must_use]
    pub(super) fn judge(executable: Option<&Self>, library: &Opened) -> Trust {
        let came_with = executable.is_some_and(|executable| {
            library.owner == executable.owner
                && library.canonical.parent() == Some(&executable.directory)
        });
        if came_with {
            Trust::Host
        } else {
            Trust::ThirdParty
        }
    }
}
