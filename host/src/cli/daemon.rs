//! The daemon, and the commands that talk to it.

mod control;
mod events;
mod notify;
mod reach;
mod serve;
mod table;

pub(super) use control::{down, drain, reload, restart, up};
pub(super) use events::run as events;
pub(super) use serve::run as serve;
pub(super) use table::run as status;
