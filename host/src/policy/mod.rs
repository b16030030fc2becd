//! What may be done here, who said so, and the line that would allow more.
//!
//! Two kinds of layer. *Ceilings* are the machine's policy and, below it, the user's: they grant
//! nothing, they say how far anything may go. *Requests* are the pool file's `policy{}`, the pool's
//! own fields and command-line flags, the later the stronger. What nobody asks for has the default
//! ([`Policy::default`]), narrowed to the ceilings; what is asked beyond a ceiling is refused, with
//! the line to change ([`Refusal`]).
//!
//! | setting | default | a ceiling means |
//! |---|---|---|
//! | `gpu` | `require` | `require` and `forbid` permit only themselves, `prefer` permits all |
//! | `allow_*` | `false` | `false` forbids, `true` permits to ask |
//! | `allow_unverified_models` | `true` | `false` forbids |
//! | `network` | as planned | `offline` permits nothing else; a list permits its hosts |
//! | `tools` | those that plans name | a list permits its tools |
//! | `run_as` | as root [`SANDBOX_ID`], else oneself | permits exactly this identity |
//! | `environment` | see [`Policy::default`] | a list permits its names |
//!
//! Gates ([`Policy::allow_host`] and its like) are asked by the rooms that act, at the moment they
//! act. What cannot be enforced is said in `docs/architecture.md`, not here.

mod file;
mod gates;
mod identity;
mod resolve;
mod table;

use std::path::PathBuf;

use engine_provider_api::GpuPolicy;

pub(crate) use file::set;
pub use file::{
    Ceiling, EnvironmentNames, Layer, NetworkWritten, PolicyFile, ceilings, layer_of, read,
};
pub use gates::{Refusal, Refusals};
pub use identity::{Caller, ENGINE_SANDBOX_ID, SANDBOX_ID, parse_identity};
pub use resolve::resolve;
pub use table::{Row, rows};

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
    /// Whether a model that neither its operator nor its source gives a digest for is trusted when it
    /// is first fetched.
    pub allow_unverified_models: Setting<bool>,
    /// Which hosts may be reached.
    pub network: Setting<NetworkPolicy>,
    /// Tools that may be run; `None`: those that plans name.
    pub tools: Setting<Option<Vec<String>>>,
    /// Who builds; `None`: this process's user. For engines see [`Policy::engine_identity`].
    pub run_as: Setting<Option<Identity>>,
    /// Variables of the host's environment that engines may see.
    pub engine_environment: Setting<Vec<String>>,
    /// Variables of the host's environment that steps may see: proxies, private CAs.
    pub step_environment: Setting<Vec<String>>,
    /// Name of the policy, for events.
    pub label: String,
}

/// Variables that engines may see. `PATH` is not among them: engines get [`ENGINE_PATH`].
const ENGINE_ENVIRONMENT: &[&str] = &["LANG", "LANGUAGE", "LC_ALL", "LC_CTYPE", "TZ"];

/// `PATH` of engines.
pub const ENGINE_PATH: &str = "/usr/local/bin:/usr/bin:/bin";

/// Variables that steps may see: proxies, private certificate authorities, package indexes.
const STEP_ENVIRONMENT: &[&str] = &[
    "http_proxy",
    "https_proxy",
    "no_proxy",
    "all_proxy",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "NO_PROXY",
    "ALL_PROXY",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "CURL_CA_BUNDLE",
    "REQUESTS_CA_BUNDLE",
    "GIT_SSL_CAINFO",
    "PIP_INDEX_URL",
    "PIP_CERT",
    "LANG",
    "LC_ALL",
    "TZ",
];

impl Default for Policy {
    fn default() -> Self {
        let owned = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
        Self {
            gpu: Setting::default_of(GpuPolicy::Require),
            allow_package_installs: Setting::default_of(false),
            allow_aur: Setting::default_of(false),
            allow_binary_downloads: Setting::default_of(false),
            allow_unverified_models: Setting::default_of(true),
            network: Setting::default_of(NetworkPolicy::AsPlanned),
            tools: Setting::default_of(None),
            run_as: Setting::default_of(None),
            engine_environment: Setting::default_of(owned(ENGINE_ENVIRONMENT)),
            step_environment: Setting::default_of(owned(STEP_ENVIRONMENT)),
            label: "default".to_owned(),
        }
    }
}

impl std::fmt::Display for Origin {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Default => formatter.write_str("default"),
            Self::Flag(flag) => formatter.write_str(flag),
            Self::File { path, line, .. } => write!(formatter, "{}:{line}", path.display()),
        }
    }
}

impl Origin {
    /// Whether nothing below may exceed what was set here.
    #[must_use]
    pub fn is_ceiling(&self) -> bool {
        matches!(self, Self::File { ceiling: true, .. })
    }
}
