//! What is still to be told: for every replica its newest state, in the order in which they changed.

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::{engine::Handoff, handoff::HandoffEvent, store::hex};

/// Schema of the notices that this version posts.
pub const NOTICE_SCHEMA: u32 = 1;

/// The document that is posted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Notice {
    /// Schema of this document.
    pub schema: u32,
    /// `bound`: the replica can be reached; `changed`: its handoff says something else than before;
    /// `unbound`: it is gone.
    pub event: String,
    /// When that was seen.
    #[schemars(with = "String")]
    pub at: Timestamp,
    /// The handoff; of a replica that is gone, its last one.
    pub handoff: Handoff,
}

/// A notice that waits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Waiting {
    replica: (String, String),
    event: &'static str,
    /// What it says, for people: `chat/r0 is bound to http://…`.
    pub(super) words: String,
    /// The notice, as it is posted each time.
    pub(super) document: Vec<u8>,
    /// Digest of the document.
    pub(super) key: String,
}

/// Notices that wait, the oldest first.
#[derive(Debug, Default)]
pub(super) struct Queue(Vec<Waiting>);

impl Queue {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn first(&self) -> Option<&Waiting> {
        self.0.first()
    }

    /// Takes in a change; what waited for the same replica is out of date.
    pub(super) fn put(&mut self, change: &HandoffEvent) {
        let handoff = &change.binding().handoff;
        let replica = (handoff.pool_id.clone(), handoff.replica_id.clone());
        let before = self.0.iter().position(|it| it.replica == replica);
        let before = before.map(|at| self.0.remove(at).event);
        let event = match (before, change) {
            // The server has not heard of it yet.
            (Some("bound"), HandoffEvent::Changed(_)) => "bound",
            // It may have heard: an answer can be lost after the document has arrived.
            _ => change.as_str(),
        };
        self.0.push(Waiting::new(replica, event, handoff));
    }

    /// Takes out what was told, unless something newer has taken its place.
    pub(super) fn told(&mut self, waiting: &Waiting) {
        self.0.retain(|it| it.key != waiting.key);
    }
}

impl Waiting {
    fn new(replica: (String, String), event: &'static str, handoff: &Handoff) -> Self {
        let notice = Notice {
            schema: NOTICE_SCHEMA,
            event: event.to_owned(),
            at: Timestamp::now(),
            handoff: handoff.clone(),
        };
        let document = serde_json::to_vec(&notice).expect("a notice is plain data");
        let name = format!("{}/{}", replica.0, replica.1);
        Self {
            words: match event {
                "unbound" => format!("{name} is gone"),
                _ => format!("{name} is bound to {}", handoff.url),
            },
            key: hex(&Sha256::digest(&document)),
            replica,
            event,
            document,
        }
    }
}
