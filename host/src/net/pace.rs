//! How fast an answer has to come: who drips could hold a transfer, or a question, for days.

use std::time::Instant;

use super::limits::Limits;

/// How much came since when.
#[derive(Debug)]
pub(super) struct Pace {
    since: Instant,
    bytes: u64,
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            since: Instant::now(),
            bytes: 0,
        }
    }
}

impl Pace {
    /// Counts what came; says how little that was, if it was too little for too long.
    pub(super) fn too_slow(&mut self, bytes: u64, limits: &Limits) -> Option<u64> {
        self.bytes += bytes;
        if self.since.elapsed() < limits.silence {
            return None;
        }
        let came = std::mem::take(self).bytes;
        (came < limits.least_bytes).then_some(came)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_little_over_a_whole_interval_is_too_slow() {
        let limits = Limits::default();
        assert_eq!(Pace::default().too_slow(1, &limits), None);
        let over = || Pace {
            since: Instant::now() - limits.silence,
            bytes: 0,
        };
        assert_eq!(over().too_slow(1, &limits), Some(1));
        assert_eq!(over().too_slow(limits.least_bytes, &limits), None);
        let mut pace = over();
        pace.too_slow(limits.least_bytes, &limits);
        // The next interval counts for itself.
        assert_eq!(pace.too_slow(1, &limits), None);
    }
}
