//! What can go wrong on the way.

use std::time::Duration;

use super::{Digest, DigestError};
use crate::{
    fault::{Detail, Exit, Fault, Hint, hint},
    policy::Refusal,
    store::StoreError,
};

/// A failure to fetch. URLs in it are fit to be shown.
#[derive(Debug, thiserror::Error)]
pub enum NetError {
    /// Policy does not allow the host.
    #[error("{url} may not be reached")]
    Forbidden {
        /// What was asked for.
        url: String,
        /// Which setting forbids it.
        #[source]
        source: Box<Refusal>,
    },
    /// Not https, and nothing that would make up for it.
    #[error("{url} is not https, and no digest says what should arrive")]
    Insecure {
        /// What was asked for.
        url: String,
    },
    /// A text that is no URL that can be fetched.
    #[error("`{url}` is no http or https URL")]
    BadUrl {
        /// The text.
        url: String,
    },
    /// A digest that cannot be compared.
    #[error("the expected digest of {url} cannot be used")]
    BadDigest {
        /// What was asked for.
        url: String,
        /// Why.
        #[source]
        source: DigestError,
    },
    /// Proxy or certificate settings cannot be used.
    #[error("cannot use {setting}")]
    Setting {
        /// Name of the variable.
        setting: &'static str,
        /// Why.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// No connection, or it broke.
    #[error("cannot fetch {url}")]
    Connection {
        /// What was asked for.
        url: String,
        /// Why.
        #[source]
        source: reqwest::Error,
    },
    /// The server refused.
    #[error("{url} answered {status}")]
    Status {
        /// What was asked for.
        url: String,
        /// Status code.
        status: u16,
        /// How long it asks to wait, where it says so.
        retry_after: Option<Duration>,
    },
    /// Nothing came for too long.
    #[error("{url} sent nothing for {} s", limit.as_secs())]
    Stalled {
        /// What was asked for.
        url: String,
        /// The longest silence accepted.
        limit: Duration,
    },
    /// A redirect that cannot be followed.
    #[error("{url} redirects {reason}")]
    Redirect {
        /// What was asked for.
        url: String,
        /// Where to, or how often.
        reason: String,
    },
    /// The server sent another part than was asked for.
    #[error("{url} sent another part of the file than was asked for")]
    WrongPart {
        /// What was asked for.
        url: String,
    },
    /// More bytes than are accepted.
    #[error("{url} is larger than {limit_bytes} bytes")]
    TooLarge {
        /// What was asked for.
        url: String,
        /// The limit.
        limit_bytes: u64,
    },
    /// Another number of bytes than expected.
    #[error("{url} has {actual} bytes, expected {expected}")]
    Size {
        /// What was asked for.
        url: String,
        /// Bytes expected.
        expected: u64,
        /// Bytes there are.
        actual: u64,
    },
    /// Other bytes than expected.
    #[error("{url} is not what it should be")]
    Mismatch {
        /// What was asked for.
        url: String,
        /// Digest expected.
        expected: Digest,
        /// Digest of what arrived.
        actual: Digest,
    },
    /// A package index does not have a file.
    #[error("{index} has no source distribution of {project} {version}")]
    NotInIndex {
        /// The index.
        index: String,
        /// Project asked for.
        project: String,
        /// Version asked for.
        version: String,
    },
    /// A page cannot be understood.
    #[error("{url} is no page of a package index: {reason}")]
    BadPage {
        /// The page.
        url: String,
        /// What is wrong with it.
        reason: String,
    },
    /// What arrived could not be kept.
    #[error("cannot keep what {url} sends")]
    Store {
        /// What was asked for.
        url: String,
        /// Why.
        #[source]
        source: StoreError,
    },
    /// The caller gave up.
    #[error("cancelled while fetching {url}")]
    Cancelled {
        /// What was asked for.
        url: String,
    },
}

impl NetError {
    /// Whether the same request may succeed a moment later.
    #[must_use]
    pub fn is_worth_retrying(&self) -> bool {
        match self {
            Self::Connection { source, .. } => !source.is_builder(),
            Self::Status { status, .. } => {
                matches!(status, 408 | 425 | 429 | 500 | 502 | 503 | 504)
            }
            Self::Stalled { .. } | Self::WrongPart { .. } => true,
            _ => false,
        }
    }
}

impl Fault for NetError {
    fn exit(&self) -> Exit {
        match self {
            Self::Forbidden { .. } | Self::Insecure { .. } => Exit::Refused,
            Self::BadUrl { .. } | Self::BadDigest { .. } | Self::Setting { .. } => Exit::Config,
            Self::Mismatch { .. } | Self::Size { .. } | Self::TooLarge { .. } => Exit::Verification,
            Self::Store { source, .. } => source.exit(),
            Self::Cancelled { .. } => Exit::Interrupted,
            _ => Exit::Network,
        }
    }

    fn hints(&self) -> Vec<Hint> {
        match self {
            Self::Connection { url, .. } => vec![hint(
                "see whether the host can be reached from here",
                Some(&format!("curl -sSIL {url}")),
            )],
            Self::Mismatch { .. } => vec![hint(
                "the file changed at its source or on the way: compare with what its publisher \
                 says before changing the expected digest",
                None,
            )],
            Self::Insecure { .. } => vec![hint("use https, or give a sha256 checksum", None)],
            Self::Status {
                status: 401 | 403, ..
            } => vec![hint(
                "the server wants credentials for this file, or does not give it out",
                None,
            )],
            Self::Store { source, .. } => source.hints(),
            Self::Forbidden { source, .. } => source.hints(),
            _ => Vec::new(),
        }
    }

    fn details(&self) -> Vec<Detail> {
        match self {
            Self::Mismatch {
                expected, actual, ..
            } => vec![
                Detail::new("expected", expected.to_string()),
                Detail::new("actual", actual.to_string()),
            ],
            Self::Store { source, .. } => source.details(),
            Self::Forbidden { source, .. } => source.details(),
            _ => Vec::new(),
        }
    }

    fn kind(&self) -> &'static str {
        match self {
            Self::Forbidden { .. } => "host-forbidden",
            Self::Insecure { .. } => "insecure-url",
            Self::BadUrl { .. } => "bad-url",
            Self::BadDigest { .. } => "bad-digest",
            Self::Setting { .. } => "bad-setting",
            Self::Connection { .. } => "connection",
            Self::Status { .. } => "http-status",
            Self::Stalled { .. } => "stalled",
            Self::Redirect { .. } => "redirect",
            Self::WrongPart { .. } => "wrong-part",
            Self::TooLarge { .. } => "too-large",
            Self::Size { .. } => "size-mismatch",
            Self::Mismatch { .. } => "digest-mismatch",
            Self::NotInIndex { .. } => "not-in-index",
            Self::BadPage { .. } => "bad-page",
            Self::Store { source, .. } => source.kind(),
            Self::Cancelled { .. } => "cancelled",
        }
    }
}
