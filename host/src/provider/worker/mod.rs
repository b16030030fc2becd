//! A provider in a process of its own, shut in before any of its code runs.
//!
//! The host starts its own executable again ([`run_if_worker`] turns that process into a worker),
//! hands it the checked descriptor, learns which walls hold ([`Sandbox`]), and only then lets it
//! load. One worker serves one provider for a whole session; success is only ever an answer frame,
//! so that a provider which exits with code 0 has crashed all the same.

mod child;
mod client;
mod filter;
mod sandbox;
mod stderr;
mod wire;

use std::fmt;

pub(crate) use child::ARGUMENT;
pub(super) use child::is_worker;
pub use child::run_if_worker;
pub(super) use client::Worker;
pub use sandbox::{Measure, Outcome, Sandbox};

/// What a provider is doing for the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Phase {
    /// Being opened: the library's constructors and the provider's own.
    Open,
    /// Describing itself.
    Info,
    /// Planning.
    Plan,
    /// Preparing.
    Prepare,
    /// Being dropped.
    Close,
}

impl Phase {
    /// The word for messages; also the entry's name where there is one.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Info => "info",
            Self::Plan => "plan",
            Self::Prepare => "prepare",
            Self::Close => "close",
        }
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.as_str())
    }
}
