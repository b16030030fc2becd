//! Models from everywhere: real servers, real clients, and servers that fail in every way there is.

mod buckets;
mod catalog;
mod facts;
mod faults;
mod hostile;
mod hub;
mod lock;
mod lock_killed;
mod mirrors;
mod pinned;
mod proxied;
mod transfer;
