//! Provider plugins: found, checked, opened, asked.
//!
//! [`Catalog::search`] lists what there is and executes nothing; [`Catalog::select`] says which
//! file a name stands for; [`Session::open`] runs it, in a sandboxed worker process unless asked
//! otherwise. What is done with a provider's answers is not this room's business.
//!
//! The rule that keeps it sound: what was checked is an open descriptor, and that descriptor is
//! what gets loaded. Nothing of a file is believed because of its path or its listing.

mod catalog;
pub mod elf;
mod error;
pub mod file;
mod found;
mod in_process;
mod load;
pub mod manifest;
mod search;
mod session;
mod trust;
pub mod worker;

pub use catalog::{Catalog, Entry, Outcome, Shadow};
pub use error::{Absence, ProviderFault};
pub use found::{Found, Refusal, inspect};
pub use load::LoadFailure;
pub use search::{Search, Tier};
pub use session::{Isolation, Limits, Options, Session};
pub use trust::Trust;
