//! How a pool is kept up: as it is written, and with every default filled in.
//!
//! The clocks are settings like any other, so that a test can shorten them; whoever supervises reads
//! [`Supervision`] and nothing else.

use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;

use super::{duration, written::DurationText};

/// How a pool is kept up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Supervision {
    /// Whether an engine that fell is started again.
    pub restart: bool,
    /// Pause before the first start after a failure; doubled with each further one.
    pub backoff_initial: Duration,
    /// Longest pause.
    pub backoff_max: Duration,
    /// An engine that was ready for this long counts as well again: the next failure is a first one.
    pub stable_after: Duration,
    /// Failures in a row after which the breaker opens; 0: never.
    pub breaker_failures: u32,
    /// How long it stays open before one start is tried.
    pub breaker_open: Duration,
    /// Pause between two questions whether the engine lives.
    pub liveness_interval: Duration,
    /// Longest time one answer may take. An engine under load answers late.
    pub liveness_timeout: Duration,
    /// Questions in a row without an answer after which it counts as hung.
    pub liveness_failures: u32,
    /// Longest time leases are waited for when the pool is drained.
    pub drain_deadline: Duration,
    /// How long an engine that was started on demand runs without a lease; `None`: for ever.
    pub idle_stop: Option<Duration>,
}

impl Default for Supervision {
    fn default() -> Self {
        Self {
            restart: true,
            backoff_initial: Duration::from_secs(1),
            backoff_max: Duration::from_secs(5 * 60),
            stable_after: Duration::from_secs(60),
            breaker_failures: 5,
            breaker_open: Duration::from_secs(10 * 60),
            liveness_interval: Duration::from_secs(5),
            liveness_timeout: Duration::from_secs(10),
            liveness_failures: 3,
            drain_deadline: Duration::from_secs(30),
            idle_stop: Some(Duration::from_secs(15 * 60)),
        }
    }
}

/// How the pool is kept up by a daemon.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(rename = "Supervision")]
pub struct SupervisionWritten {
    /// Whether an engine that fell is started again. Default: `always`.
    pub restart: Option<RestartWritten>,
    /// Pauses before it is.
    pub backoff: Option<BackoffWritten>,
    /// When starts are given up for a while.
    pub breaker: Option<BreakerWritten>,
    /// How it is seen that a running engine hangs.
    pub liveness: Option<LivenessWritten>,
    /// Longest time running requests are waited for when the pool is drained. Default: `30s`.
    pub drain_deadline: Option<DurationText>,
    /// How long an engine that was started on demand runs unused; `never`: it stays. Default: `15m`.
    pub idle_stop: Option<IdleText>,
}

/// Whether an engine that fell is started again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[schemars(rename = "Restart")]
pub enum RestartWritten {
    /// Whatever made it fall.
    Always,
    /// It stays down until somebody starts it.
    Never,
}

/// Pauses before an engine that fell is started again.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(rename = "Backoff")]
pub struct BackoffWritten {
    /// The first pause; each further one is twice as long. Default: `1s`.
    pub initial: Option<DurationText>,
    /// The longest pause. Default: `5m`, or `initial` where that is longer.
    pub max: Option<DurationText>,
    /// An engine that was ready for this long counts as well again. Default: `1m`.
    pub stable_after: Option<DurationText>,
}

/// When starts are given up for a while.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(rename = "Breaker")]
pub struct BreakerWritten {
    /// Failures in a row after which nothing is tried for a while; 0: it is tried for ever. Default: 5.
    #[schemars(range(min = 0, max = 1000))]
    pub failures: Option<u32>,
    /// How long nothing is tried, before one start is on trial. Default: `10m`.
    pub open: Option<DurationText>,
}

/// How it is seen that a running engine hangs.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(rename = "Liveness")]
pub struct LivenessWritten {
    /// Pause between two questions. Default: `5s`.
    pub interval: Option<DurationText>,
    /// Longest time an answer may take. Default: `10s`.
    pub timeout: Option<DurationText>,
    /// Questions in a row without an answer after which it counts as hung. Default: 3.
    #[schemars(range(min = 1, max = 1000))]
    pub failures: Option<u32>,
}

/// A duration with its unit, for example `15m`, or `never`.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[schemars(rename = "Idle", extend(
    "pattern" = IDLE_PATTERN,
    "x-help" = "write `never`, or a duration with its unit, for example `15m` or `2h`"
))]
pub struct IdleText(pub String);

/// [`duration::PATTERN`] or `never`.
const IDLE_PATTERN: &str = r"^(never|([0-9]+(ms|s|m|h))+)$";

impl SupervisionWritten {
    /// With every default filled in. What no duration is, or fits none, counts as the longest there
    /// is, so that the check of its range tells.
    #[must_use]
    pub(super) fn settle(self) -> Supervision {
        let usual = Supervision::default();
        let backoff = self.backoff.unwrap_or_default();
        let breaker = self.breaker.unwrap_or_default();
        let liveness = self.liveness.unwrap_or_default();
        let backoff_initial = read(backoff.initial, usual.backoff_initial);
        Supervision {
            restart: self.restart != Some(RestartWritten::Never),
            backoff_initial,
            backoff_max: read(backoff.max, usual.backoff_max.max(backoff_initial)),
            stable_after: read(backoff.stable_after, usual.stable_after),
            breaker_failures: breaker.failures.unwrap_or(usual.breaker_failures),
            breaker_open: read(breaker.open, usual.breaker_open),
            liveness_interval: read(liveness.interval, usual.liveness_interval),
            liveness_timeout: read(liveness.timeout, usual.liveness_timeout),
            liveness_failures: liveness.failures.unwrap_or(usual.liveness_failures),
            drain_deadline: read(self.drain_deadline, usual.drain_deadline),
            idle_stop: match self.idle_stop {
                None => usual.idle_stop,
                Some(text) if text.0 == "never" => None,
                Some(text) => Some(duration_of(&text.0)),
            },
        }
    }
}

fn read(text: Option<DurationText>, usual: Duration) -> Duration {
    text.map_or(usual, |text| duration_of(&text.0))
}

fn duration_of(text: &str) -> Duration {
    duration::milliseconds(text).map_or(Duration::MAX, Duration::from_millis)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settled(text: &str) -> Supervision {
        let written: SupervisionWritten = serde_json::from_str(text).unwrap();
        written.settle()
    }

    #[test]
    fn what_is_not_written_has_its_default() {
        assert_eq!(settled("{}"), Supervision::default());
        let written = settled(r#"{"breaker": {"failures": 0}, "liveness": {"timeout": "200ms"}}"#);
        let expected = Supervision {
            breaker_failures: 0,
            liveness_timeout: Duration::from_millis(200),
            ..Supervision::default()
        };
        assert_eq!(written, expected);
    }

    #[test]
    fn a_first_pause_that_is_long_lengthens_the_longest() {
        let written = settled(r#"{"backoff": {"initial": "10m"}}"#);
        assert_eq!(written.backoff_max, Duration::from_secs(600));
    }

    #[test]
    fn an_engine_on_demand_may_stay_for_ever() {
        assert_eq!(settled(r#"{"idle_stop": "never"}"#).idle_stop, None);
        let hour = settled(r#"{"idle_stop": "1h"}"#);
        assert_eq!(hour.idle_stop, Some(Duration::from_secs(3600)));
    }

    proptest::proptest! {
        #[test]
        fn the_pattern_accepts_never_and_every_duration(text in "(never|[0-9smh]{0,8})") {
            let pattern = regex::Regex::new(IDLE_PATTERN).unwrap();
            let right = text == "never" || duration::milliseconds(&text).is_some();
            proptest::prop_assert_eq!(pattern.is_match(&text), right);
        }
    }
}
