//! What hosts, keepers and minders say to each other: one JSON document per line.
//!
//! A host talks to its keeper over the socket it was born with; other processes of the same user
//! over the Unix socket in `state/keepers/`. The first line of either side is a [`Hello`]; a keeper
//! answers every request that has an id and tells exits unasked.

use serde::{Deserialize, Serialize};

use crate::process::{Exited, ProcessIdentity, Spec, StartFailure};

/// Version of this protocol. A keeper may be older than the program that talks to it: a detached
/// engine outlives an upgrade. Both speak the older of their two versions.
///
/// | version | what is new |
/// |---|---|
/// | 1 | start, keep, signal, end, kill |
/// | 2 | `limit_ms` of `keep`; `adopt` |
pub(crate) const VERSION: u32 = 2;

/// First version in which a child can be adopted. Of an older keeper it is watched without being told.
pub(crate) const KNOWS_ADOPT: u32 = 2;

/// Longest line accepted, in bytes.
pub(crate) const LINE_LIMIT: usize = 4 * 1024 * 1024;

/// A child's number, given by the keeper, never used twice by one keeper.
pub(crate) type ChildId = u64;

/// Name of a keeper's socket in `state/keepers/`.
pub(crate) fn socket_name(keeper: i32) -> String {
    format!("{keeper}.sock")
}

/// The keeper whose socket has this name.
pub(super) fn keeper_of(name: &str) -> Option<i32> {
    name.strip_suffix(".sock")?.parse().ok()
}

/// From host to keeper.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Request {
    /// Echoed in the answer.
    pub(crate) id: u64,
    /// What is asked.
    #[serde(flatten)]
    pub(crate) ask: Ask,
}

/// What a keeper can be asked.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "kebab-case")]
pub(crate) enum Ask {
    /// First line: who speaks.
    Hello {
        /// Version of the protocol spoken.
        version: u32,
    },
    /// Start a child. Only the keeper's own host may.
    Spawn {
        /// The command.
        spec: Box<Spec>,
    },
    /// Let an engine outlive its host. Only the keeper's own host and adopters may.
    Keep {
        /// Which.
        child: ChildId,
        /// How long it stays once neither its host nor an adopter is connected, in milliseconds; then
        /// it is ended the way its kind says. Absent: until somebody stops it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        limit_ms: Option<u64>,
    },
    /// Look after an engine that is kept: while this connection lives its time does not run, and an
    /// end asked for over it was asked for by the one whose engine it is.
    Adopt {
        /// Which.
        child: ChildId,
    },
    /// Send a signal to a child's first process.
    Signal {
        /// Which.
        child: ChildId,
        /// Signal number.
        signal: i32,
    },
    /// End a child the way its kind says: a step at once, an engine with TERM, grace, KILL.
    End {
        /// Which.
        child: ChildId,
    },
    /// Kill a child and its whole tree now.
    Kill {
        /// Which.
        child: ChildId,
    },
}

/// From keeper to host.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "tell", rename_all = "kebab-case")]
pub(crate) enum Tell {
    /// Answer to a hello.
    Hello {
        /// The request's id.
        id: u64,
        /// Version of the protocol spoken.
        version: u32,
    },
    /// A child was started.
    Started {
        /// The request's id.
        id: u64,
        /// Its number.
        child: ChildId,
        /// Its first process.
        process: ProcessIdentity,
    },
    /// A child could not be started.
    NotStarted {
        /// The request's id.
        id: u64,
        /// Why.
        reason: StartFailure,
    },
    /// Done, nothing more to say.
    Done {
        /// The request's id.
        id: u64,
    },
    /// Not done.
    Refused {
        /// The request's id.
        id: u64,
        /// Why.
        reason: String,
    },
    /// A child and its whole tree have ended and its logs are complete.
    Exited {
        /// Its number.
        child: ChildId,
        /// How.
        #[serde(flatten)]
        ended: Ended,
    },
}

/// How a child ended, and its tree with it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ended {
    /// How its first process ended.
    pub exited: Exited,
    /// Whether another process than its host had asked for the end (`host stop`).
    #[serde(default)]
    pub asked_elsewhere: bool,
    /// Processes of its tree that could not be killed, for example stuck in a driver.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub survivors: Vec<i32>,
}

/// From keeper to minder.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Order {
    /// Send this signal to the first process.
    Signal(i32),
    /// End it the way its kind says.
    End,
    /// Kill the whole tree now.
    Kill,
}

/// From minder to keeper.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Report {
    /// The program runs.
    Started(ProcessIdentity),
    /// It was not started. The last line.
    NotStarted(StartFailure),
    /// It and its whole tree have ended. The last line.
    Ended {
        /// How its first process ended.
        exited: Exited,
        /// Processes that could not be killed.
        survivors: Vec<i32>,
    },
}
