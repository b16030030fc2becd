//! Narration for machines: one JSON object per line.

use std::io::Write;

use crate::narrate::{Event, Sink};

/// Writes events to standard error, one JSON object per line, in the shape of
/// [`Event`]: documented in `docs/cli.md`.
#[derive(Debug, Default)]
pub(super) struct JsonLines;

impl Sink for JsonLines {
    fn event(&self, event: &Event) {
        let mut line = serde_json::to_vec(event).expect("events have string keys");
        line.push(b'\n');
        // One write per line, so that lines of two processes do not mix; nobody may be reading.
        let _ = std::io::stderr().write_all(&line);
    }
}
