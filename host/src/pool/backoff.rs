//! When to start again, and when to stop trying. Pure: the clock and the dice are handed in.
//!
//! Pauses double from the first to the longest; each is drawn from its upper half, so that many
//! engines that fell together do not come back together. After too many failures in a row the
//! breaker opens: nothing is tried for a while, then one start is on trial. If that engine stays
//! well the breaker closes, else it opens again.

use std::{
    hash::{BuildHasher as _, Hasher as _, RandomState},
    time::{Duration, Instant},
};

use super::{BreakerState, Supervision};

/// What follows a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// Start again after this pause.
    After(Duration),
    /// The breaker is open: after this pause one start is on trial.
    Trial(Duration),
    /// Not at all: restarts are switched off.
    Never,
}

/// The circuit breaker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Breaker {
    state: BreakerState,
}

/// Failures in a row, and what follows from them.
#[derive(Debug, Clone, Default)]
pub struct Schedule {
    failures: u32,
    breaker: Breaker,
    ready_since: Option<Instant>,
}

impl Schedule {
    /// The breaker as it is now.
    #[must_use]
    pub fn breaker(&self) -> BreakerState {
        self.breaker.state
    }

    /// Failures since the engine was last well.
    #[must_use]
    pub fn failures(&self) -> u32 {
        self.failures
    }

    /// A start is tried now.
    pub fn starting(&mut self) {
        self.ready_since = None;
        if self.breaker.state == BreakerState::Open {
            self.breaker.state = BreakerState::HalfOpen;
        }
    }

    /// The engine is ready.
    pub fn ready(&mut self, now: Instant) {
        self.ready_since = Some(now);
    }

    /// When the engine will count as well again; `None` where it does already, or is not ready.
    #[must_use]
    pub fn well_at(&self, settings: &Supervision) -> Option<Instant> {
        let troubled = self.failures > 0 || self.breaker.state != BreakerState::Closed;
        let since = self.ready_since.filter(|_| troubled)?;
        Some(since + settings.stable_after)
    }

    /// The engine has been ready long enough: all is forgotten.
    pub fn well(&mut self) {
        self.failures = 0;
        self.breaker.state = BreakerState::Closed;
    }

    /// The engine fell, or did not come up. `dice` is drawn from `0.0..1.0`.
    pub fn failed(&mut self, now: Instant, dice: f64, settings: &Supervision) -> Next {
        if self.well_at(settings).is_some_and(|well| now >= well) {
            self.well();
        }
        self.ready_since = None;
        self.failures = self.failures.saturating_add(1);
        if !settings.restart {
            return Next::Never;
        }
        let limit = settings.breaker_failures;
        let on_trial = self.breaker.state == BreakerState::HalfOpen;
        if on_trial || (limit > 0 && self.failures >= limit) {
            self.breaker.state = BreakerState::Open;
            return Next::Trial(settings.breaker_open);
        }
        Next::After(pause(self.failures, dice, settings))
    }
}

/// A number between 0 and 1, another one each time.
pub(super) fn dice() -> f64 {
    // The keys of the standard hasher are random.
    let random = RandomState::new().build_hasher().finish() >> 32;
    f64::from(u32::try_from(random).expect("32 bits")) / f64::from(u32::MAX)
}

/// The pause after this many failures in a row.
pub(super) fn pause(failures: u32, dice: f64, settings: &Supervision) -> Duration {
    let doublings = failures.saturating_sub(1).min(32);
    let whole = settings
        .backoff_initial
        .saturating_mul(1_u32.checked_shl(doublings).unwrap_or(u32::MAX))
        .min(settings.backoff_max);
    whole.mul_f64(0.5 + dice.clamp(0.0, 1.0) / 2.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings() -> Supervision {
        Supervision {
            breaker_failures: 0,
            ..Supervision::default()
        }
    }

    fn pauses(count: usize, dice: f64, settings: &Supervision) -> Vec<Next> {
        let (mut schedule, now) = (Schedule::default(), Instant::now());
        let fail = |_| {
            schedule.starting();
            schedule.failed(now, dice, settings)
        };
        (0..count).map(fail).collect()
    }

    #[test]
    fn pauses_double_from_one_second_to_five_minutes() {
        let seconds = |seconds| Next::After(Duration::from_secs(seconds));
        let expected = [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300].map(seconds);
        assert_eq!(pauses(11, 1.0, &settings()), expected);
    }

    #[test]
    fn dice_spread_a_pause_over_its_upper_half() {
        assert_eq!(
            pauses(2, 0.0, &settings()),
            [500, 1000].map(|ms| Next::After(Duration::from_millis(ms)))
        );
    }

    #[test]
    fn an_engine_that_was_well_long_enough_begins_anew() {
        let (settings, start) = (settings(), Instant::now());
        let mut schedule = Schedule::default();
        schedule.failed(start, 1.0, &settings);
        schedule.failed(start, 1.0, &settings);
        schedule.starting();
        schedule.ready(start);
        let early = start + settings.stable_after / 2;
        let mut fell_early = schedule.clone();
        let four = Next::After(Duration::from_secs(4));
        assert_eq!(fell_early.failed(early, 1.0, &settings), four);
        let late = start + settings.stable_after;
        let one = Next::After(Duration::from_secs(1));
        assert_eq!(schedule.failed(late, 1.0, &settings), one);
    }

    #[test]
    fn the_breaker_opens_tries_once_and_closes_only_when_that_one_stays_well() {
        let settings = Supervision {
            breaker_failures: 3,
            ..Supervision::default()
        };
        let now = Instant::now();
        let mut schedule = Schedule::default();
        for _ in 0..2 {
            schedule.starting();
            assert!(matches!(
                schedule.failed(now, 1.0, &settings),
                Next::After(_)
            ));
        }
        schedule.starting();
        let trial = Next::Trial(settings.breaker_open);
        assert_eq!(schedule.failed(now, 1.0, &settings), trial);
        assert_eq!(schedule.breaker(), BreakerState::Open);
        schedule.starting();
        assert_eq!(schedule.breaker(), BreakerState::HalfOpen);
        schedule.ready(now);
        // Ready is not yet well.
        let soon = now + Duration::from_secs(1);
        assert_eq!(schedule.failed(soon, 1.0, &settings), trial);
        schedule.starting();
        schedule.ready(soon);
        assert_eq!(
            schedule.well_at(&settings),
            Some(soon + settings.stable_after)
        );
        schedule.well();
        assert_eq!(schedule.breaker(), BreakerState::Closed);
        assert_eq!(schedule.well_at(&settings), None);
    }

    #[test]
    fn without_restarts_nothing_follows() {
        let settings = Supervision {
            restart: false,
            ..Supervision::default()
        };
        let mut schedule = Schedule::default();
        assert_eq!(schedule.failed(Instant::now(), 1.0, &settings), Next::Never);
    }
}
