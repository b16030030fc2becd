//! Measuring pairwise, so that what else the machine does hits both sides.
//!
//! Limits in milliseconds are those of the machine in docs/measurements.md. How much slower the machine is
//! that measures, or is just then, is told by a yardstick that is measured in turns with the rest: a
//! limit grows by as much, and never shrinks.

use std::{
    io::{BufRead as _, BufReader},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use rustix::process::Signal;

/// Rounds that a measurement gets on a busy machine. A quiet one needs no second.
const ROUNDS: usize = 8;

/// What the yardstick takes on the machine in docs/measurements.md.
const YARDSTICK: Duration = Duration::from_millis(30);

/// How many times as long as there everything takes here and now, by the median of what the yardstick took;
/// at least once.
fn pace_of(yardsticks: impl Iterator<Item = Duration>) -> f64 {
    (median(yardsticks).as_secs_f64() / YARDSTICK.as_secs_f64()).max(1.0)
}

/// The same, measured now.
pub fn pace() -> f64 {
    let _ = yardstick();
    pace_of((0..15).map(|_| yardstick()))
}

/// How long a program takes that nothing here has an influence on and that does what ours does: it starts,
/// opens some dozens of files, reads them and computes a little.
fn yardstick() -> Duration {
    let mut python = Command::new("/usr/bin/python3");
    python.args(["-I", "-c", "import json, ssl, subprocess"]);
    timed(|| succeeds(python))
}

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
    /// How many times as long everything took meanwhile.
    pub pace: f64,
}

impl Pairs {
    /// Measures both `count` times in turns, after one round that does not count.
    fn measure(
        count: usize,
        mut one: impl FnMut() -> Duration,
        mut other: impl FnMut() -> Duration,
    ) -> Self {
        let (_, _, _) = (one(), other(), yardstick());
        let turns: Vec<_> = (0..count).map(|_| (one(), other(), yardstick())).collect();
        let more = turns.iter().map(|(one, other, _)| {
            let milliseconds = |time: &Duration| time.as_secs_f64() * 1000.0;
            milliseconds(one) - milliseconds(other)
        });
        Self {
            one: median(turns.iter().map(|(one, _, _)| *one)),
            other: median(turns.iter().map(|(_, other, _)| *other)),
            more_ms: middle(more.collect(), f64::total_cmp),
            pace: pace_of(turns.iter().map(|(_, _, yardstick)| *yardstick)),
        }
    }

    /// Measures, prints the row of the table and asserts that the first takes at most `limit_ms`
    /// longer than the second, in the median pair, times the pace.
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
            let limit = limit_ms * pairs.pace;
            println!(
                "measured: {what}: {:.2} times ({:.1} ms against {:.1} ms), {:+.1} ms in the median pair, \
                 limit {limit:+.1} ms ({limit_ms} ms at pace {:.2})",
                pairs.one.as_secs_f64() / pairs.other.as_secs_f64(),
                pairs.one.as_secs_f64() * 1000.0,
                pairs.other.as_secs_f64() * 1000.0,
                pairs.more_ms,
                pairs.pace,
            );
            if pairs.more_ms <= limit {
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
