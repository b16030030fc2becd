//! Measuring pairwise, so that what else the machine does hits both sides.

use std::time::{Duration, Instant};

/// Medians of two things measured in turns, and of their differences.
#[derive(Debug, Clone, Copy)]
pub struct Pairs {
    /// Median of the first.
    pub one: Duration,
    /// Median of the second.
    pub other: Duration,
    /// Median of first minus second, in milliseconds.
    pub more_ms: f64,
}

impl Pairs {
    /// Measures both `count` times in turns, after one round that does not count.
    pub fn measure(
        count: usize,
        mut one: impl FnMut() -> Duration,
        mut other: impl FnMut() -> Duration,
    ) -> Self {
        let (_, _) = (one(), other());
        let pairs: Vec<(Duration, Duration)> = (0..count).map(|_| (one(), other())).collect();
        let more = pairs.iter().map(|(one, other)| {
            let milliseconds = |time: &Duration| time.as_secs_f64() * 1000.0;
            milliseconds(one) - milliseconds(other)
        });
        Self {
            one: median(pairs.iter().map(|(one, _)| *one)),
            other: median(pairs.iter().map(|(_, other)| *other)),
            more_ms: middle(more.collect(), f64::total_cmp),
        }
    }

    /// Asserts the limit and prints the row of the table.
    ///
    /// # Panics
    ///
    /// When the first takes more than `limit_ms` longer.
    #[track_caller]
    pub fn assert_at_most(self, what: &str, limit_ms: f64) {
        let ratio = self.one.as_secs_f64() / self.other.as_secs_f64();
        println!(
            "measured: {what}: {:.2} times ({:.1} ms against {:.1} ms), {:+.1} ms in the median pair, limit {limit_ms:+} ms",
            ratio,
            self.one.as_secs_f64() * 1000.0,
            self.other.as_secs_f64() * 1000.0,
            self.more_ms,
        );
        assert!(self.more_ms <= limit_ms, "{what}: {self:?}");
    }
}

/// How long something takes.
pub fn timed(work: impl FnOnce()) -> Duration {
    let start = Instant::now();
    work();
    start.elapsed()
}

/// The middle one.
///
/// # Panics
///
/// When there is none.
pub fn median(times: impl Iterator<Item = Duration>) -> Duration {
    middle(times.collect(), Duration::cmp)
}

fn middle<T: Copy>(mut values: Vec<T>, order: impl FnMut(&T, &T) -> std::cmp::Ordering) -> T {
    values.sort_by(order);
    values[values.len() / 2]
}
