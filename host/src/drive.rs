//! The journey from a pool to a running engine, readable as a table of contents.
//!
//! [`Host::choose`] finds the pool, its provider and its policy; [`Host::plan`] says what would be
//! done and run; [`Host::obtain`] does it; [`Host::start`] makes an engine of it that answers.

mod choose;
mod contained;
mod error;
mod obtain;
mod plan;
mod request;
mod start;
mod vet;
mod view;

pub use choose::Chosen;
pub use contained::{Contained, contained};
pub use error::DriveError;
pub use obtain::Obtained;
pub use plan::Planned;
pub use request::{Host, Request};
pub use view::{
    CommandView, ContainerView, ModelView, MountView, PlanView, PortView, ProviderView, RunView,
    StepView, run_view,
};
