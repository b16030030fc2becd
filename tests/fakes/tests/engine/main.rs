//! Promises of the engine room, kept with an engine that breaks its own.

mod ending;
mod gpu;
mod killed;
mod ports;
mod room;
mod starting;
mod users;
