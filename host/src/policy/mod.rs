//! What may be done here, who said so, and the line that would allow more.
//!
//! Three layers: the machine's policy is a ceiling, the user's below it, then a pool file's request
//! or a flag. What none of them speaks of has the defaults of [`Policy::default`].

use std::path::PathBuf;

use engine_provider_api::GpuPolicy;

use crate::process::Identity;

/// A value and who set it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Setting<T> {
    /// The value in force.
    pub value: T,
    /// Who set it.
    pub origin: Origin,
}

impl<T> Setting<T> {
    /// A value nobody set.
    pub fn default_of(value: T) -> Self {
        Self {
            value,
            origin: Origin::Default,
        }
    }
}

/// Who set a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// Nobody: the built-in default.
    Default,
    /// A command-line flag, for example `--gpu`.
    Flag(String),
    /// A file; `ceiling` when it is the machine's policy, which nothing below can exceed.
    File {
        /// The file.
        path: PathBuf,
        /// Line in it, counted from 1.
        line: usize,
        /// Whether nothing below may exceed it.
        ceiling: bool,
    },
}

/// Which hosts may be reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NetworkPolicy {
    /// None at all.
    Offline,
    /// The hosts that a plan names and shows.
    AsPlanned,
    /// These hosts only; `*.example.org` covers every host below a domain.
    Only(Vec<String>),
}

/// What may be done, resolved from all layers for one pool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Policy {
    /// Whether a GPU must, may or must not be used.
    pub gpu: Setting<GpuPolicy>,
    /// Whether distribution packages may be installed.
    pub allow_package_installs: Setting<bool>,
    /// Whether packages may be built from the Arch User Repository.
    pub allow_aur: Setting<bool>,
    /// Whether programs may be downloaded.
    pub allow_binary_downloads: Setting<bool>,
    /// Which hosts may be reached.
    pub network: Setting<NetworkPolicy>,
    /// Tools that may be run; `None`: those that plans name.
    pub tools: Setting<Option<Vec<String>>>,
    /// Who builds and runs engines; `None`: this process's user.
    pub run_as: Setting<Option<Identity>>,
    /// Variables of the host's environment that engines may see.
    pub engine_environment: Setting<Vec<String>>,
    /// Variables of the host's environment that steps may see: proxies, private CAs.
    pub step_environment: Setting<Vec<String>>,
    /// Name of the policy, for events.
    pub label: String,
}
