//! Which models, or results, go when space is wanted. Pure.

use jiff::{SignedDuration, Timestamp};
use serde::Serialize;

/// What a clean-up leaves.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Limits {
    /// Bytes that they may take; the least recently used go first.
    pub max_size_bytes: Option<u64>,
    /// Longest time without use.
    pub older_than: Option<SignedDuration>,
}

/// A model or result as a clean-up sees it.
#[derive(Debug, Clone)]
pub(crate) struct Candidate {
    pub(crate) id: String,
    pub(crate) size_bytes: u64,
    /// Why it goes whatever the limits are, where it does.
    pub(crate) due: Option<Reason>,
    pub(crate) last_used: Timestamp,
    pub(crate) in_use: bool,
}

/// Why something goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reason {
    /// It was retired.
    Retired,
    /// A newer one took its place.
    Superseded,
    /// It was not used for too long.
    Unused,
    /// There is too much, and it is what was not used for longest.
    Size,
    /// Somebody said so.
    Asked,
}

impl Reason {
    /// The word shown to people.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Retired => "retired",
            Self::Superseded => "superseded",
            Self::Unused => "unused",
            Self::Size => "size",
            Self::Asked => "asked",
        }
    }
}

/// Those that go, with the reason, those first that were not used for longest. None that is in use.
#[must_use]
pub(crate) fn choose_of(
    mut all: Vec<Candidate>,
    limits: Limits,
    now: Timestamp,
) -> Vec<(String, Reason)> {
    all.sort_by(|a, b| (a.last_used, &a.id).cmp(&(b.last_used, &b.id)));
    let mut left: u64 = all.iter().map(|one| one.size_bytes).sum();
    let mut chosen: Vec<(String, Reason)> = Vec::new();
    let mut stay = Vec::new();
    for one in all {
        let unused = now.duration_since(one.last_used);
        let is_old = limits.older_than.is_some_and(|limit| unused > limit);
        let reason = match one.in_use {
            true => None,
            false => one.due.or(is_old.then_some(Reason::Unused)),
        };
        match reason {
            Some(reason) => {
                left -= one.size_bytes;
                chosen.push((one.id, reason));
            }
            None => stay.push(one),
        }
    }
    let limit = limits.max_size_bytes.unwrap_or(u64::MAX);
    for one in stay.into_iter().filter(|one| !one.in_use) {
        if left <= limit {
            break;
        }
        left -= one.size_bytes;
        chosen.push((one.id, Reason::Size));
    }
    chosen
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Models of 10 bytes, used so many hours ago.
    fn models(hours: &[i64], now: Timestamp) -> Vec<Candidate> {
        let model = |(index, hours): (usize, &i64)| Candidate {
            id: format!("m{index}"),
            size_bytes: 10,
            due: None,
            last_used: now - SignedDuration::from_hours(*hours),
            in_use: false,
        };
        hours.iter().enumerate().map(model).collect()
    }

    fn ids(chosen: &[(String, Reason)]) -> Vec<&str> {
        chosen.iter().map(|(id, _)| id.as_str()).collect()
    }

    #[test]
    fn the_least_recently_used_go_until_it_fits() {
        let now = Timestamp::now();
        let limits = Limits {
            max_size_bytes: Some(20),
            ..Limits::default()
        };
        let chosen = choose_of(models(&[1, 5, 3, 2], now), limits, now);
        assert_eq!(ids(&chosen), ["m1", "m2"]);
        let mut all = models(&[1, 5, 3, 2], now);
        all[1].in_use = true;
        assert_eq!(ids(&choose_of(all, limits, now)), ["m2", "m3"]);
    }

    #[test]
    fn age_and_retirement_decide_without_a_size_and_use_protects_from_both() {
        let now = Timestamp::now();
        let limits = Limits {
            older_than: Some(SignedDuration::from_hours(4)),
            ..Limits::default()
        };
        let mut all = models(&[1, 5, 9], now);
        all[0].due = Some(Reason::Retired);
        all[2].in_use = true;
        let chosen = choose_of(all.clone(), limits, now);
        assert_eq!(
            chosen,
            [
                ("m1".to_owned(), Reason::Unused),
                ("m0".to_owned(), Reason::Retired)
            ]
        );
        all[0].in_use = true;
        assert!(choose_of(all, Limits::default(), now).is_empty());
    }

    #[test]
    fn without_a_limit_nothing_goes_that_is_not_due() {
        let now = Timestamp::now();
        assert!(choose_of(models(&[9000], now), Limits::default(), now).is_empty());
    }
}
