//! What can go wrong on the way.

mod fault;

use std::time::Duration;

use super::{Broken, Digest, DigestError, NotRenewed};
use crate::{policy::Refusal, store::StoreError};

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
        source: Broken,
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
    /// The server no longer gives it out, and who gave access does not give it again.
    #[error("{url} answered {status}, and access to it was not renewed")]
    NotRenewed {
        /// What was asked for.
        url: String,
        /// Status code.
        status: u16,
        /// Why not.
        #[source]
        source: NotRenewed,
    },
    /// Nothing, or next to nothing, came for too long.
    #[error("{url} sent {} for {} s", so_little(*bytes), limit.as_secs())]
    Stalled {
        /// What was asked for.
        url: String,
        /// How much came in that time.
        bytes: u64,
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
    /// Its source has another version each time.
    #[error("{url} changed while it was fetched")]
    Changed {
        /// What was asked for.
        url: String,
    },
    /// None of several sources gave the file.
    #[error("none of {} places gave the file", failures.len())]
    Sources {
        /// What each said, in the order in which they were asked; at least two.
        failures: Vec<NetError>,
    },
    /// The content is packed, although it was asked for as it is.
    #[error("{url} sends its content packed ({encoding}), though it was asked not to")]
    Encoded {
        /// What was asked for.
        url: String,
        /// `Content-Encoding` of the answer.
        encoding: String,
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

fn so_little(bytes: u64) -> String {
    match bytes {
        0 => "nothing".to_owned(),
        _ => format!("only {bytes} bytes"),
    }
}

impl NetError {
    /// What sources said that did not give a file; at least one did.
    pub(crate) fn of_sources(mut failures: Vec<Self>) -> Self {
        match failures.len() {
            1 => failures.remove(0),
            _ => Self::Sources { failures },
        }
    }

    /// Whether another source may do better.
    pub(crate) fn is_of_its_source(&self) -> bool {
        !matches!(
            self,
            Self::Store { .. } | Self::Cancelled { .. } | Self::Setting { .. }
        )
    }

    /// Whether the same request may succeed a moment later.
    #[must_use]
    pub fn is_worth_retrying(&self) -> bool {
        match self {
            Self::Connection { source, .. } => !source.is_final,
            Self::Status { status, .. } => {
                matches!(status, 408 | 425 | 429 | 500 | 502 | 503 | 504)
            }
            Self::Stalled { .. } | Self::WrongPart { .. } => true,
            Self::NotRenewed { source, .. } => source.is_passing(),
            _ => false,
        }
    }
}
