//! The journey from a pool to a running engine, readable as a table of contents.

mod choose;
mod error;
mod request;

pub use choose::Chosen;
pub use error::DriveError;
pub use request::{Host, Request};
