//! How long to wait before a server is asked again.

use std::{
    hash::{BuildHasher as _, Hasher as _, RandomState},
    time::Duration,
};

use jiff::Timestamp;
use reqwest::header::{HeaderMap, RETRY_AFTER};
use tokio_util::sync::CancellationToken;
use url::Url;

use super::{Net, NetError, limits::Limits, shown};

/// Times that a server is asked that does not answer.
const TRIES: u32 = 3;

/// What a server asks for is believed up to here.
const LONGEST_ASKED: Duration = Duration::from_secs(24 * 60 * 60);

impl Limits {
    /// The pause after so many failures in a row: as long as the server asks for, else twice as long
    /// each time, and never the same for everybody.
    pub(super) fn pause(&self, failures: u32, error: &NetError) -> Duration {
        let doubled = self.first_pause * 2_u32.saturating_pow(failures.saturating_sub(1));
        let pause = jittered(doubled.min(self.longest_pause));
        match error {
            NetError::Status {
                retry_after: Some(asked),
                ..
            } => *asked + pause / 8,
            _ => pause,
        }
    }

    /// Whether the same request may succeed after a pause that is worth waiting for.
    pub(super) fn is_worth_retrying(&self, error: &NetError) -> bool {
        match error {
            NetError::Status {
                retry_after: Some(asked),
                ..
            } if *asked > self.longest_retry_after => false,
            _ => error.is_worth_retrying(),
        }
    }
}

/// Between half of it and all of it.
fn jittered(pause: Duration) -> Duration {
    // The keys of the standard hasher are random.
    let random = RandomState::new().build_hasher().finish() >> 32;
    let share = f64::from(u32::try_from(random).expect("32 bits")) / f64::from(u32::MAX);
    pause.mul_f64(0.5 + share / 2.0)
}

/// How long a server asks to wait (RFC 9110, 10.2.3): seconds, or until a date.
pub(super) fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    parse_retry_after(headers.get(RETRY_AFTER)?.to_str().ok()?, Timestamp::now())
}

fn parse_retry_after(text: &str, now: Timestamp) -> Option<Duration> {
    let text = text.trim();
    let asked = match text.parse() {
        Ok(seconds) => Duration::from_secs(seconds),
        Err(_) => {
            let date = jiff::fmt::rfc2822::parse(text).ok()?.timestamp();
            // What is over already need not be waited for.
            Duration::try_from(date.duration_since(now)).unwrap_or_default()
        }
    };
    Some(asked.min(LONGEST_ASKED))
}

impl Net {
    /// Asks again, after a pause, where that is worth it.
    pub(super) async fn patiently<T, F>(
        &self,
        url: &Url,
        cancel: &CancellationToken,
        ask: impl Fn() -> F,
    ) -> Result<T, NetError>
    where
        F: Future<Output = Result<T, NetError>>,
    {
        let tries = async {
            let mut failures = 0;
            loop {
                match ask().await {
                    Err(error)
                        if self.limits().is_worth_retrying(&error) && failures + 1 < TRIES =>
                    {
                        failures += 1;
                        tokio::time::sleep(self.limits().pause(failures, &error)).await;
                    }
                    other => return other,
                }
            }
        };
        tokio::select! {
            () = cancel.cancelled() => Err(NetError::Cancelled { url: shown(url) }),
            result = tries => result,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn busy(seconds: u64) -> NetError {
        NetError::Status {
            url: String::new(),
            status: 503,
            retry_after: Some(Duration::from_secs(seconds)),
        }
    }

    #[test]
    fn pauses_grow_to_a_limit_and_obey_the_server() {
        let limits = Limits::default();
        let stalled = NetError::WrongPart { url: String::new() };
        let most = [
            limits.first_pause,
            limits.first_pause * 2,
            limits.first_pause * 4,
        ];
        for (failures, most) in (1..).zip(most).chain([(60, limits.longest_pause)]) {
            let pause = limits.pause(failures, &stalled);
            assert!(pause >= most / 2 && pause <= most, "{failures}: {pause:?}");
        }
        let pause = limits.pause(1, &busy(3));
        assert!(pause >= Duration::from_secs(3) && pause < Duration::from_secs(4));
    }

    #[test]
    fn a_server_that_asks_for_an_hour_is_not_waited_for() {
        let limits = Limits::default();
        assert!(limits.is_worth_retrying(&busy(30)));
        assert!(!limits.is_worth_retrying(&busy(3600)));
    }

    #[test]
    fn retry_after_is_read_in_both_forms() {
        let now: Timestamp = "1994-11-06T08:49:07Z".parse().unwrap();
        let read = |text| parse_retry_after(text, now);
        assert_eq!(read("120"), Some(Duration::from_secs(120)));
        let date = "Sun, 06 Nov 1994 08:49:37 GMT";
        assert_eq!(read(date), Some(Duration::from_secs(30)));
        let past = "Sun, 06 Nov 1994 08:00:00 GMT";
        assert_eq!(read(past), Some(Duration::ZERO));
        assert_eq!(read("99999999999"), Some(LONGEST_ASKED));
        assert_eq!(read("soon"), None);
    }
}
