//! The clocks of supervision: each within what makes sense, and none against another.

use std::time::Duration;

use engine_provider_api::Pool;

use super::Checking;
use crate::config::supervision::Supervision;

const SHORTEST: Duration = Duration::from_millis(10);
const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(24 * 3600);
const MONTH: Duration = Duration::from_secs(30 * 24 * 3600);

impl Checking<'_> {
    pub(in crate::config) fn supervision(&mut self, pool: &Pool, settings: &Supervision) {
        let s = settings;
        self.clock("backoff.initial", s.backoff_initial, SHORTEST, HOUR);
        self.clock("backoff.max", s.backoff_max, SHORTEST, DAY);
        self.clock("backoff.stable_after", s.stable_after, SHORTEST, DAY);
        self.clock("breaker.open", s.breaker_open, SHORTEST, DAY);
        self.clock("liveness.interval", s.liveness_interval, SHORTEST, HOUR);
        self.clock("liveness.timeout", s.liveness_timeout, SHORTEST, HOUR);
        self.clock("drain_deadline", s.drain_deadline, Duration::ZERO, DAY);
        if let Some(idle) = s.idle_stop {
            self.clock("idle_stop", idle, SHORTEST, MONTH);
        }
        self.pauses_in_order(s);
        self.restarts_or_none(s);
        if self.given("supervision.idle_stop") && pool.preload {
            self.notice(
                "supervision.idle_stop",
                "stops a pool that is started on demand: it needs `preload: false`",
            );
        }
    }

    fn clock(&mut self, name: &str, value: Duration, least: Duration, most: Duration) {
        if (least..=most).contains(&value) {
            return;
        }
        let last = name.rsplit('.').next().unwrap_or(name);
        let help = match least {
            Duration::ZERO => format!("it is at most {}", words(most)),
            least => format!("it is {} to {}", words(least), words(most)),
        };
        let message = format!("`{last}` is out of range");
        self.problem(&format!("supervision.{name}"), message, &help);
    }

    fn pauses_in_order(&mut self, settings: &Supervision) {
        if settings.backoff_max < settings.backoff_initial {
            self.both(
                "supervision.backoff.max",
                "supervision.backoff.initial",
                "the longest pause is shorter than the first one",
                "make `max` at least as long as `initial`",
            );
        }
    }

    fn restarts_or_none(&mut self, settings: &Supervision) {
        if settings.restart {
            return;
        }
        for name in ["backoff", "breaker"] {
            let field = format!("supervision.{name}");
            if self.given(&field) {
                self.both(
                    &field,
                    "supervision.restart",
                    format!("`{name}` speaks of restarts, and `restart: never` allows none"),
                    "leave one of the two out",
                );
            }
        }
    }
}

/// A limit in the words of pool files; limits are whole hours or milliseconds.
fn words(duration: Duration) -> String {
    match duration.as_secs() / 3600 {
        0 => format!("{}ms", duration.as_millis()),
        hours => format!("{hours}h"),
    }
}
