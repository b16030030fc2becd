//! What can go wrong when a registry is asked.

use std::path::PathBuf;

use crate::{
    container::{CredentialsError, Reference, RegistriesError, Runtime},
    fault::{Detail, Exit, Fault, Hint, hint},
    net::{Digest, NetError},
};

/// Why an image could not be described.
#[derive(Debug, thiserror::Error)]
pub enum RegistryError {
    /// What the machine says of registries cannot be used, or forbids it.
    #[error(transparent)]
    Registries(#[from] RegistriesError),
    /// Credentials cannot be had from where they should be.
    #[error(transparent)]
    Credentials(#[from] CredentialsError),
    /// The registry does not give it to us.
    #[error("{registry} does not give out {image}")]
    Unauthorized {
        /// The image.
        image: String,
        /// Its registry.
        registry: String,
        /// Status code.
        status: u16,
        /// What its answer said.
        said: String,
        /// Where the credentials come from that were sent; `None`: there were none.
        sent: Option<PathBuf>,
        /// The runtime that logs in.
        runtime: Runtime,
    },
    /// The registry does not have it.
    #[error("{registry} has no {image}")]
    NotFound {
        /// The image.
        image: String,
        /// Its registry.
        registry: String,
        /// What its answer said.
        said: String,
    },
    /// The image is not made for this machine.
    #[error("{image} has no image for {wanted}")]
    OtherPlatform {
        /// The image.
        image: String,
        /// What was looked for.
        wanted: String,
        /// What there is.
        has: Vec<String>,
    },
    /// Something came that is not what its digest says.
    #[error("{what} is not what its digest says")]
    Mismatch {
        /// What it is, and where.
        what: String,
        /// Digest expected.
        expected: Digest,
        /// Digest of what arrived.
        actual: Digest,
    },
    /// An answer cannot be understood.
    #[error("{what} cannot be understood: {reason}")]
    Malformed {
        /// What it is, and where.
        what: String,
        /// What is wrong with it.
        reason: String,
    },
    /// It could not be reached.
    #[error("{registry} could not be asked")]
    Net {
        /// The registry.
        registry: String,
        /// Why.
        #[source]
        source: Box<NetError>,
    },
    /// No place had it.
    #[error("{image} could not be had from any of {} places", failures.len())]
    Places {
        /// The image.
        image: String,
        /// Each place and why not, in their order.
        failures: Vec<PlaceFailure>,
    },
}

/// A place that did not have it.
#[derive(Debug)]
pub struct PlaceFailure {
    /// The image there.
    pub place: String,
    /// Why not.
    pub error: Box<RegistryError>,
}

impl RegistryError {
    pub(super) fn of_places(image: &Reference, mut failures: Vec<PlaceFailure>) -> Self {
        match failures.pop() {
            Some(only) if failures.is_empty() => *only.error,
            last => Self::Places {
                image: image.to_string(),
                failures: failures.into_iter().chain(last).collect(),
            },
        }
    }

    /// Whether asking elsewhere would be wrong or lead to the same.
    pub(super) fn is_final(&self) -> bool {
        matches!(
            self,
            Self::Credentials(_) | Self::Registries(_) | Self::OtherPlatform { .. }
        ) || self.is_cancelled()
    }

    /// Whether it only says that somebody ended it.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        matches!(self, Self::Net { source, .. } if matches!(**source, NetError::Cancelled { .. }))
    }
}

impl Fault for RegistryError {
    fn exit(&self) -> Exit {
        match self {
            Self::Registries(inner) => inner.exit(),
            Self::Credentials(inner) => inner.exit(),
            Self::Net { source, .. } => source.exit(),
            Self::OtherPlatform { .. } => Exit::Unavailable,
            Self::Mismatch { .. } | Self::Malformed { .. } => Exit::Verification,
            Self::Unauthorized { .. } | Self::NotFound { .. } => Exit::Network,
            Self::Places { failures, .. } => {
                let codes = failures.iter().map(|failure| failure.error.exit());
                let codes: Vec<Exit> = codes.collect();
                let told = [Exit::Verification, Exit::Network];
                let worst = told.into_iter().find(|code| codes.contains(code));
                worst.or(codes.first().copied()).unwrap_or(Exit::Network)
            }
        }
    }

    fn hints(&self) -> Vec<Hint> {
        match self {
            Self::Registries(inner) => inner.hints(),
            Self::Credentials(inner) => inner.hints(),
            Self::Net { source, .. } => source.hints(),
            Self::Unauthorized {
                registry,
                sent,
                runtime,
                ..
            } => {
                let login = format!("{} login {registry}", runtime.name());
                let text = match sent {
                    Some(_) => "the credentials may be outdated: log in again",
                    None => "log in, if the name is right",
                };
                vec![hint(text, Some(&login))]
            }
            Self::NotFound { .. } => vec![hint(
                "check `image`, `tag` and `digest` of the pool against what its publisher lists",
                None,
            )],
            Self::OtherPlatform { .. } => vec![hint(
                "choose a tag that is made for this machine, or another mode",
                None,
            )],
            Self::Mismatch { .. } | Self::Malformed { .. } => vec![hint(
                "the registry or something on the way to it is damaged: try again, then ask who runs it",
                None,
            )],
            Self::Places { failures, .. } => {
                let mut all: Vec<Hint> = Vec::new();
                for hint in failures.iter().flat_map(|failure| failure.error.hints()) {
                    if !all.contains(&hint) {
                        all.push(hint);
                    }
                }
                all
            }
        }
    }

    fn details(&self) -> Vec<Detail> {
        match self {
            Self::Registries(inner) => inner.details(),
            Self::Credentials(inner) => inner.details(),
            Self::Net { source, .. } => source.details(),
            Self::Unauthorized {
                status, said, sent, ..
            } => {
                let credentials = match sent {
                    Some(place) => format!("those in {} were refused", place.display()),
                    None => "none were found for it".to_owned(),
                };
                vec![
                    Detail::new("answer", answer(*status, said)),
                    Detail::new("credentials", credentials),
                ]
            }
            Self::NotFound { said, .. } => vec![Detail::new("answer", answer(404, said))],
            Self::OtherPlatform { has, .. } => vec![Detail::new("it has", has.join(", "))],
            Self::Mismatch {
                expected, actual, ..
            } => vec![
                Detail::new("expected", expected.to_string()),
                Detail::new("actual", actual.to_string()),
            ],
            Self::Malformed { .. } => Vec::new(),
            Self::Places { failures, .. } => failures
                .iter()
                .flat_map(|failure| {
                    let why = crate::narrate::chain(failure.error.as_ref());
                    let tried = Detail::new("tried", format!("{}: {why}", failure.place));
                    std::iter::once(tried).chain(failure.error.details())
                })
                .collect(),
        }
    }

    fn kind(&self) -> &'static str {
        match self {
            Self::Registries(inner) => inner.kind(),
            Self::Credentials(inner) => inner.kind(),
            Self::Net { source, .. } => source.kind(),
            Self::Unauthorized { .. } => "registry-unauthorized",
            Self::NotFound { .. } => "image-not-found",
            Self::OtherPlatform { .. } => "other-platform",
            Self::Mismatch { .. } => "digest-mismatch",
            Self::Malformed { .. } => "bad-registry-answer",
            Self::Places { .. } => "no-mirror",
        }
    }
}

fn answer(status: u16, said: &str) -> String {
    match said {
        "" => status.to_string(),
        said => format!("{status}, {said}"),
    }
}
