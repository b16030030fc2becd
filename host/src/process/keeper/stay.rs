//! How long a child stays once nobody looks after it any more.

use std::time::{Duration, Instant};

/// What becomes of a child when its host is gone. Pure: told the time, and who is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stay {
    /// It is ended with its host.
    Bound,
    /// It stays until somebody stops it.
    ForEver,
    /// It stays for a while, for somebody to take it over.
    For {
        /// How long.
        limit: Duration,
        /// Since when nobody is there.
        alone: Option<Instant>,
        /// Whether its time is over.
        over: bool,
    },
}

impl Stay {
    /// Kept, for a while or for ever.
    pub(super) fn kept(limit_ms: Option<u64>) -> Self {
        match limit_ms {
            None => Self::ForEver,
            Some(limit) => Self::For {
                limit: Duration::from_millis(limit),
                alone: None,
                over: false,
            },
        }
    }

    /// Whether it is being ended because nobody came: too late to take it over.
    pub(super) fn is_over(&self) -> bool {
        matches!(self, Self::For { over: true, .. })
    }

    /// Takes down whether somebody looks after it now; whether its time is over with that, told once.
    pub(super) fn runs_out(&mut self, attended: bool, now: Instant) -> bool {
        let Self::For { limit, alone, over } = self else {
            return false;
        };
        if *over {
            return false;
        }
        if attended {
            *alone = None;
            return false;
        }
        let since = *alone.get_or_insert(now);
        *over = now.duration_since(since) >= *limit;
        *over
    }

    /// How long it still has, while its time runs.
    pub(super) fn left(&self, now: Instant) -> Option<Duration> {
        match self {
            Self::For {
                limit,
                alone: Some(since),
                over: false,
            } => Some(limit.saturating_sub(now.duration_since(*since))),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_runs_only_while_nobody_is_there_and_from_the_start_each_time() {
        let mut stay = Stay::kept(Some(1000));
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        assert!(!stay.runs_out(true, at(0)) && stay.left(at(0)).is_none());
        assert!(!stay.runs_out(false, at(100)));
        assert_eq!(stay.left(at(400)), Some(Duration::from_millis(700)));
        assert!(!stay.runs_out(true, at(1000)));
        assert!(!stay.runs_out(false, at(1500)));
        assert!(!stay.runs_out(false, at(2400)));
        assert!(stay.runs_out(false, at(2500)) && stay.is_over());
        // Told once, and nobody can come any more.
        assert!(!stay.runs_out(true, at(2600)) && stay.is_over());
        assert_eq!(stay.left(at(2600)), None);
    }

    #[test]
    fn for_ever_is_for_ever() {
        let mut stay = Stay::kept(None);
        let later = Instant::now() + Duration::from_secs(1 << 30);
        assert!(!stay.runs_out(false, later) && stay.left(later).is_none());
    }
}
