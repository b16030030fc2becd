//! What can go wrong between a provider's name and its answer.

use std::{io, path::PathBuf, time::Duration};

use engine_provider_api::{DocumentError, ErrorCode, Hint, ProviderError};
use semver::Version;

use super::{load::LoadFailure, search::Tier, worker::Phase};
use crate::{
    fault::{Detail, Exit, Fault, hint},
    process::Exited,
};

/// Why a provider could not be found, opened or asked.
#[derive(Debug, thiserror::Error)]
pub enum ProviderFault {
    /// No directory has one of this name.
    #[error("{0}")]
    NotFound(Box<Absence>),
    /// It is there, but cannot be used.
    #[error("provider `{name}` cannot be used: {reason}")]
    Unusable {
        /// Its name, from its manifest or its file name.
        name: String,
        /// Its path.
        path: PathBuf,
        /// Why, one line.
        reason: String,
    },
    /// The worker process could not be started.
    #[error("the worker for provider `{provider}` could not be started")]
    Spawn {
        /// Its name.
        provider: String,
        /// Program that was to be the worker.
        program: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// What was started did not answer as a worker of this version does.
    #[error("`{}` does not answer as a provider worker", program.display())]
    NotAWorker {
        /// Program that was started.
        program: PathBuf,
        /// What it did instead.
        reason: String,
    },
    /// The worker's sandbox does not hold, and this provider is not opened without.
    #[error(
        "provider `{provider}` did not come with this program and its sandbox does not hold here"
    )]
    Unsandboxed {
        /// Its name.
        provider: String,
        /// Its path.
        path: PathBuf,
        /// What could not be enforced, with the reason.
        lacking: Vec<String>,
    },
    /// The library could not be entered.
    #[error("provider `{provider}` could not be opened")]
    Load {
        /// Its name.
        provider: String,
        /// Its path.
        path: PathBuf,
        /// Why.
        #[source]
        failure: Box<LoadFailure>,
    },
    /// It ended its process.
    #[error("provider `{provider}` crashed during {phase}{}", ending(exited.as_ref()))]
    Crashed {
        /// Its name.
        provider: String,
        /// What it was asked for.
        phase: Phase,
        /// How the process ended.
        exited: Option<Exited>,
        /// Its last lines on standard error.
        stderr: Vec<String>,
    },
    /// It did not answer in time and was killed.
    #[error("provider `{provider}` did not answer {phase} within {}", seconds(*limit))]
    Hung {
        /// Its name.
        provider: String,
        /// What it was asked for.
        phase: Phase,
        /// The limit.
        limit: Duration,
        /// Its last lines on standard error.
        stderr: Vec<String>,
    },
    /// It wrote something else than an answer to the host.
    #[error("provider `{provider}` broke the protocol during {phase}: {reason}")]
    Garbage {
        /// Its name.
        provider: String,
        /// What it was asked for.
        phase: Phase,
        /// What was wrong.
        reason: String,
        /// Its last lines on standard error.
        stderr: Vec<String>,
    },
    /// Its answer is not the document that was asked for.
    #[error("provider `{provider}` answered {phase} with something unreadable")]
    Document {
        /// Its name.
        provider: String,
        /// What it was asked for.
        phase: Phase,
        /// Why.
        #[source]
        source: DocumentError,
    },
    /// It says about itself something else than its manifest.
    #[error("provider `{provider}` calls itself `{claims}`, unlike its manifest")]
    Contradiction {
        /// `name version` of the manifest.
        provider: String,
        /// `name version` of its self-description.
        claims: String,
    },
    /// It refused, with its own words.
    #[error("provider `{provider}` refused: {error}")]
    Refused {
        /// Its name.
        provider: String,
        /// What it was asked for.
        phase: Phase,
        /// Its error, whole.
        error: Box<ProviderError>,
    },
    /// An earlier call ended the session.
    #[error("the session with provider `{provider}` has ended")]
    Ended {
        /// Its name.
        provider: String,
    },
}

/// A name nobody has, and what is known about why.
#[derive(Debug)]
pub struct Absence {
    /// Name that was asked for.
    pub name: String,
    /// Version that was asked for.
    pub version: Option<Version>,
    /// Names there are.
    pub known: Vec<String>,
    /// Directories that were searched, in order.
    pub searched: Vec<(Tier, PathBuf)>,
    /// Command that builds it, where this is a checkout.
    pub build: Option<String>,
    /// Command that installs it.
    pub install: Option<String>,
}

impl std::fmt::Display for Absence {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let version = version_suffix(self.version.as_ref());
        write!(formatter, "no provider `{}`{version} found", self.name)
    }
}

fn version_suffix(version: Option<&Version>) -> String {
    version.map_or_else(String::new, |version| format!(" {version}"))
}

fn ending(exited: Option<&Exited>) -> String {
    exited.map_or_else(String::new, |exited| format!(": {exited}"))
}

fn seconds(limit: Duration) -> String {
    format!("{} s", limit.as_secs_f64())
}

impl Fault for ProviderFault {
    fn exit(&self) -> Exit {
        match self {
            Self::Refused { error, .. } => match error.code {
                ErrorCode::InvalidParams | ErrorCode::UnsupportedMode => Exit::Config,
                ErrorCode::PoolUnavailable => Exit::Unavailable,
                ErrorCode::Internal => Exit::Provider,
            },
            Self::Unsandboxed { .. } => Exit::Refused,
            Self::Spawn { .. } => Exit::Internal,
            _ => Exit::Provider,
        }
    }

    fn hints(&self) -> Vec<Hint> {
        match self {
            Self::NotFound(absence) => absence.hints(),
            Self::Unusable { path, .. } => vec![hint(
                "look at it closely",
                Some(&format!(
                    "{{host}} provider inspect {}",
                    crate::process::quote(&path.display().to_string())
                )),
            )],
            Self::NotAWorker { .. } => vec![hint(
                "call `engine_host::provider::worker::run_if_worker()` at the top of `main`, or give \
                 the path of the `host` program as the worker",
                None,
            )],
            Self::Unsandboxed { path, .. } => unsandboxed_hints(path),
            Self::Crashed {
                exited: Some(Exited::Signal(libc::SIGKILL)),
                ..
            } => vec![hint(
                "something killed the provider's process, perhaps the kernel for want of memory: try again",
                None,
            )],
            Self::Crashed { .. } | Self::Hung { .. } | Self::Garbage { .. } => vec![hint(
                "this is a defect of the provider; report it to who made it, with the lines above",
                None,
            )],
            Self::Refused { error, .. } => error.hints.clone(),
            Self::Load { failure, .. } => match &**failure {
                LoadFailure::Create(error) => error.hints.clone(),
                _ => Vec::new(),
            },
            _ => Vec::new(),
        }
    }

    fn details(&self) -> Vec<Detail> {
        match self {
            Self::NotFound(absence) => absence
                .searched
                .iter()
                .map(|(tier, path)| Detail::new("searched", format!("{} ({tier})", path.display())))
                .collect(),
            Self::Unusable { path, .. } | Self::Load { path, .. } => {
                vec![Detail::new("where", path.display().to_string())]
            }
            Self::Spawn { program, .. } => {
                vec![Detail::new("command", program.display().to_string())]
            }
            Self::NotAWorker { reason, .. } => vec![Detail::new("note", reason)],
            Self::Unsandboxed { path, lacking, .. } => {
                std::iter::once(Detail::new("where", path.display().to_string()))
                    .chain(lacking.iter().map(|lack| Detail::new("note", lack)))
                    .collect()
            }
            Self::Crashed { stderr, .. }
            | Self::Hung { stderr, .. }
            | Self::Garbage { stderr, .. }
                if !stderr.is_empty() =>
            {
                vec![Detail::new("stderr", stderr.join("\n"))]
            }
            Self::Refused { error, .. } => error
                .causes
                .iter()
                .map(|cause| Detail::new("cause", cause))
                .collect(),
            _ => Vec::new(),
        }
    }

    fn kind(&self) -> &'static str {
        match self {
            Self::NotFound(_) => "provider-not-found",
            Self::Unusable { .. } => "provider-unusable",
            Self::Spawn { .. } => "worker-not-started",
            Self::NotAWorker { .. } => "worker-unknown",
            Self::Unsandboxed { .. } => "provider-unsandboxed",
            Self::Load { .. } => "provider-not-opened",
            Self::Crashed { .. } => "provider-crashed",
            Self::Hung { .. } => "provider-hung",
            Self::Garbage { .. } => "provider-garbage",
            Self::Document { .. } => "provider-document",
            Self::Contradiction { .. } => "provider-contradiction",
            // The contract's own words.
            Self::Refused { error, .. } => match error.code {
                ErrorCode::InvalidParams => "INVALID_PARAMS",
                ErrorCode::PoolUnavailable => "POOL_UNAVAILABLE",
                ErrorCode::UnsupportedMode => "UNSUPPORTED_MODE",
                ErrorCode::Internal => "provider-refused",
            },
            Self::Ended { .. } => "provider-ended",
        }
    }
}

impl Absence {
    fn hints(&self) -> Vec<Hint> {
        let mut hints = Vec::new();
        let nearest = self
            .known
            .iter()
            .map(|known| (strsim::damerau_levenshtein(known, &self.name), known))
            .min()
            .filter(|(distance, _)| *distance <= 2);
        if let Some((_, nearest)) = nearest {
            hints.push(hint(format!("did you mean `{nearest}`?"), None));
            hints.push(hint("see what there is", Some("{host} provider list")));
            return hints;
        }
        if let Some(command) = &self.build {
            hints.push(hint("build it beside this program", Some(command)));
        }
        if let Some(command) = &self.install {
            hints.push(hint("install it from where you have it", Some(command)));
        }
        hints.push(hint("see what there is", Some("{host} provider list")));
        hints
    }
}

fn unsandboxed_hints(path: &std::path::Path) -> Vec<Hint> {
    let mut hints = vec![hint(
        "run on a kernel with Landlock and seccomp (5.13 or newer, `landlock` in its `lsm=` list)",
        None,
    )];
    if let Some(directory) = std::env::current_exe()
        .ok()
        .as_deref()
        .and_then(std::path::Path::parent)
    {
        hints.push(hint(
            "or vouch for it by installing it beside this program",
            Some(&format!(
                "install -m 755 {} {}",
                crate::process::quote(&path.display().to_string()),
                crate::process::quote(&directory.display().to_string()),
            )),
        ));
    }
    hints
}
