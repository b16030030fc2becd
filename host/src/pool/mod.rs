//! Pools that stay up: what a daemon embeds.
//!
//! [`PoolManager`] keeps the engines of a pool file running: it starts them through the journey of
//! [`crate::drive`], watches over them, starts them again, drains and swaps them, and knows at every
//! moment what can serve. There is no global state: several managers may live in one process, and
//! two hosts of one home respect each other through locks and reservations in `state/`.
//!
//! | file | job |
//! |---|---|
//! | `manager` | the handle: up, down, drain, reload, restart, lease, status, subscribe |
//! | `supervisor` | one task per pool: what is wanted, carried out one command after the other |
//! | `replica` | one task per replica: start, watch, fall, back off, start again |
//! | `registry` | what is known of every replica; leases; who listens |
//! | `reserve` | who uses how much of which GPU, across hosts |
//! | `following` | a registry that follows handoffs of others |
//! | `callback`, `telling` | an orchestrator that is told of handoffs; whom to tell now |
//! | `backoff` | when to try again, and when to stop trying: pure |
//! | `caller` | for whom something is done |
//! | `cause` | why an engine fell, told apart |
//! | `metrics` | what is known, as metrics |
//! | `turn` | what reaches work while it is carried out |
//! | `upkeep` | containers that could not be removed are removed later |
//! | `status` | the documents that are shown, served and subscribed to |

mod backoff;
mod callback;
mod caller;
mod cause;
mod configured;
mod error;
mod following;
mod manager;
mod metrics;
mod placing;
mod registry;
mod replica;
mod reserve;
mod serving;
mod status;
mod supervisor;
mod telling;
mod turn;
mod upkeep;

use crate::narrate::Actor;

const ACTOR: Actor = Actor::PoolManager;

pub use crate::config::Supervision;
pub use backoff::{Breaker, Next, Schedule};
pub use callback::{Callback, CallbackError, NOTICE_SCHEMA, Notice};
pub use caller::Caller;
pub use cause::Cause;
pub use error::{Code, PoolError};
pub use manager::{Builder, ConfigChanges, Ending, NotApplied, PoolManager};
pub use metrics::observe;
pub use registry::{Lease, Registry};
pub use reserve::{
    Holding, Need, NoRoom, Placement, Reservations, ReserveError, Reserved, Room, Share,
};
pub use status::{
    BreakerState, Change, Evidence, Health, LastError, PoolStatus, ReplicaState, ReplicaStatus,
    Slots, Want,
};
