//! The journey from a pool to a running engine, readable as a table of contents.
//!
//! [`Host::choose`] finds the pool, its provider and its policy; [`Host::plan`] says what would be
//! done and run; [`Host::obtain`] does it; [`Host::start`] makes an engine of it that answers.

mod again;
mod choose;
mod contained;
mod error;
mod models;
mod obtain;
mod pinned;
mod plan;
mod recorded;
mod records;
mod request;
mod room;
mod start;
mod vet;
mod view;

use crate::narrate::Actor;

const ACTOR: Actor = Actor::EngineProvisioner;

pub(crate) use again::same_gpus;
pub use choose::Chosen;
pub use contained::{Contained, contained};
pub use error::DriveError;
pub use obtain::Obtained;
pub use pinned::{lock_command, lock_path};
pub use plan::Planned;
pub use records::Record;
pub use request::{Host, LockUse, Request};
pub use start::Startable;
pub use view::{
    CommandView, ContainerView, ModelView, MountView, PlanView, PortView, ProviderView, RunView,
    StepView, run_view,
};
