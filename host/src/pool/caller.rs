//! For whom something is done: goes along with what is asked, into events, traces and logs.

use crate::{drive::Host, narrate::TraceContext};

/// Who asked, as its own logs and traces name it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Caller {
    /// Passed through to every event of what it asked for.
    pub correlation_id: Option<String>,
    /// The work of the caller that this is part of.
    pub place: Option<TraceContext>,
}

impl Caller {
    /// This installation, telling for whom it works.
    pub(super) fn host(&self, host: &Host) -> Host {
        let mut narrator = host.narrator.clone();
        if let Some(place) = self.place {
            narrator = narrator.part_of(place);
        }
        if let Some(id) = &self.correlation_id {
            narrator = narrator.with(|context| context.correlation_id = Some(id.clone()));
        }
        Host {
            narrator,
            ..host.clone()
        }
    }
}
