//! What is accepted from servers, in one place.

use std::time::Duration;

/// Limits of time and number. Tests have shorter ones.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    /// Longest time in which a server that sends may send fewer than `least_bytes`.
    pub(super) silence: Duration,
    /// What counts as silence if it is all that comes in that time: a server that drips would
    /// otherwise hold a transfer for days.
    pub(super) least_bytes: u64,
    /// Pause after the first failure; doubled after each.
    pub(super) first_pause: Duration,
    /// Longest pause that is chosen here.
    pub(super) longest_pause: Duration,
    /// Longest pause that a server may ask for. One that asks for more is not asked again.
    pub(super) longest_retry_after: Duration,
    /// Size from which a file is fetched over several connections.
    pub(super) parallel_bytes: u64,
    /// Bytes that one connection asks for at once, at least. Parts are handed out in the file's order,
    /// so that hashing keeps up.
    pub(super) part_bytes: u64,
    /// Connections for one file at most. A server that refuses some of them gets fewer.
    pub(super) connections: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            silence: Duration::from_secs(60),
            least_bytes: 60 << 10,
            first_pause: Duration::from_millis(250),
            longest_pause: Duration::from_secs(8),
            longest_retry_after: Duration::from_secs(60),
            parallel_bytes: 32 << 20,
            part_bytes: 16 << 20,
            connections: 8,
        }
    }
}
