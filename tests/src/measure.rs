//! Measuring pairwise, so that what else the machine does hits both sides.

use std::{
    io::{BufRead as _, BufReader},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use rustix::process::Signal;

/// Rounds that a measurement gets on a busy machine. A quiet one needs no second.
const ROUNDS: usize = 8;

/// Time from the start of `host provision` until it says that the engine is ready; it is ended then.
///
/// # Panics
///
/// When it ends before.
pub fn provisioned(mut command: Command) -> Duration {
    command.stderr(Stdio::null());
    let start = Instant::now();
    let mut child = command.spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    let said = lines
        .map_while(Result::ok)
        .any(|line| line.contains(" is ready at "));
    let took = start.elapsed();
    assert!(said, "it ended without being ready");
    rustix::process::kill_process(rustix::process::Pid::from_child(&child), Signal::INT).unwrap();
    child.wait().unwrap();
    took
}

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
    fn measure(
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

    /// Measures, prints the row of the table and asserts that the first takes at most `limit_ms`
    /// longer than the second, in the median pair.
    ///
    /// What else a machine does only ever adds time: of [`ROUNDS`] rounds the best one counts, and the
    /// first within the limit is the last.
    ///
    /// # Panics
    ///
    /// When no round is within the limit.
    #[track_caller]
    pub fn assert_at_most(
        what: &str,
        limit_ms: f64,
        count: usize,
        mut one: impl FnMut() -> Duration,
        mut other: impl FnMut() -> Duration,
    ) {
        let mut rounds = Vec::new();
        for _ in 0..ROUNDS {
            let pairs = Self::measure(count, &mut one, &mut other);
            println!(
                "measured: {what}: {:.2} times ({:.1} ms against {:.1} ms), {:+.1} ms in the median pair, limit {limit_ms:+} ms",
                pairs.one.as_secs_f64() / pairs.other.as_secs_f64(),
                pairs.one.as_secs_f64() * 1000.0,
                pairs.other.as_secs_f64() * 1000.0,
                pairs.more_ms,
            );
            if pairs.more_ms <= limit_ms {
                return;
            }
            rounds.push(pairs);
        }
        panic!("{what}: {rounds:?}");
    }
}

/// Runs a command to its end.
///
/// # Panics
///
/// When it fails.
pub fn succeeds(mut command: Command) {
    let output = command.output().unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
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
