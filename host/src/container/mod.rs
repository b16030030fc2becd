//! Podman and docker: which one is used, what it is told, what it left behind.
//!
//! Everything here is driven through their command lines: sockets are off by default, and podman
//! ignores requests for GPUs made through docker's. This room builds commands and reads answers; it
//! starts nothing and fetches nothing itself.
//!
//! | file | job |
//! |---|---|
//! | `runtime` | which runtime is used, and what its programs see of the environment |
//! | `run` | the one command that starts an engine, hardened the same way for all of them |

mod error;
mod run;
mod runtime;

pub use error::ContainerError;
pub use run::{BindMount, Published, Run, run_arguments};
pub use runtime::{Runtime, choose, environment};
