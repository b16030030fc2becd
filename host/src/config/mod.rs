//! What the operator says: directories, environment, pool files.
//!
//! A pool file goes through three hands: [`document`] reads it as a tree in which every value knows
//! its place, [`schema`] checks the tree against the schema of the types in [`written`] and tells
//! everything that is wrong at once, and [`pools`] makes typed pools of it, with the rules that no
//! schema can say. [`select`] picks the pool that is wanted. What may be done is for
//! [`crate::policy`]; what an engine makes of its `options{}` is for its provider, whose schema
//! [`options`] checks them against.

mod across;
mod check;
pub mod document;
pub mod duration;
pub mod environment;
mod modes;
pub mod notify;
pub mod options;
pub mod paths;
pub mod places;
pub mod pool_files;
pub mod pools;
pub mod problem;
pub mod schema;
pub mod select;
pub mod supervision;
pub mod syntax;
pub mod written;

pub use notify::Notify;
pub use places::Places;
pub use pool_files::PoolFiles;
pub use pools::{Loaded, PoolEntry, Surroundings, load};
pub use problem::{ConfigError, Problem};
pub use select::{Overlay, Selected, Selection, Wanted, select};
pub use supervision::Supervision;
