//! The lock file: one document that pins provider, engine and model together.
//!
//! `host.lock` lies beside the pool file and is meant to be committed with it. This room knows the
//! document and how two states of a pool differ; it asks nobody and fetches nothing. What a pool's
//! state is now is the journey's to find out ([`crate::drive`]), and what is pinned is put into a plan
//! there, before anything is asked or done.
//!
//! | file | job |
//! |---|---|
//! | `document` | what the lock file holds |
//! | `file` | reading and writing it |
//! | `drift` | what differs between what is locked and what is |
//! | `seal` | whether a line was edited since it was written |
//! | `merge` | what a new lock takes over from the one before |
//!
//! Rules: only immutable values are pins, and what depends on the machine stands under the name of the
//! machine's kind, so that machines can share one file. What this version does not know is kept when
//! the file is rewritten; a file of a newer schema is neither read nor rewritten.

mod document;
mod drift;
mod error;
mod file;
mod merge;
mod seal;

pub use document::{
    Document, FileLock, ModelLock, PoolLock, ProviderLock, SCHEMA, StepLock, is_known_digest,
};
pub use drift::{Drift, Part, changes, drifts, incomparable};
pub use error::LockError;
pub use file::{FILE, path_beside, read, tidy, write};
pub(crate) use file::{parse, render};
pub use merge::{Update, merge};
pub use seal::edits;

#[cfg(test)]
mod tests;
