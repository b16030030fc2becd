//! A manager, served: a Unix socket for everything, HTTP for reading and, with a token, for the rest.
//!
//! Both speak the same HTTP/1.1 and the same documents, which are those of [`crate::pool`] and
//! [`documents`]. Routes, the description at `/openapi.json` and the [`client`] go by one table
//! ([`operations`]): an operation is named, typed and described there and nowhere else.
//!
//! Who may do what ([`access`]):
//!
//! | where | reading | the rest |
//! |---|---|---|
//! | Unix socket, same user or root | yes | yes |
//! | TCP on loopback | yes | with the token |
//! | TCP elsewhere | with the token | with the token |
//!
//! What a request is part of (`correlation`) goes along into events and traces.
//!
//! On TCP the `Host` header must name this machine and a browser's `Origin` must be ours, so that a web
//! page cannot reach the daemon through its reader's browser.

mod access;
mod answer;
mod call;
pub mod client;
mod connection;
mod correlation;
pub mod documents;
mod error;
mod follow;
mod gate;
mod handlers;
mod leases;
mod limits;
mod openapi;
mod operation;
pub mod operations;
mod patience;
mod server;
mod token;

pub use access::Peer;
pub use answer::{Description, Empty, ErrorBody, EventStream, LogText, MetricsPage};
pub use error::ApiError;
pub use limits::Limits;
pub use openapi::document as openapi;
pub use operation::{Operation, Question};
pub use server::Api;
pub use token::Token;

/// Where HTTP is served where nothing else is said.
pub const USUAL_ADDRESS: &str = "127.0.0.1:9200";

/// Name of the socket in `state/`.
pub const SOCKET: &str = "daemon.sock";
