//! What a request is part of, by its headers: in and out.
//!
//! | header | |
//! |---|---|
//! | `X-Correlation-Id` | up to 128 letters, digits and `-_.:/+=@`; given back. Without one that can be used, one is made |
//! | `traceparent` | the caller's span (W3C Trace Context); one that is none is ignored, as the W3C says |

use axum::http::{HeaderMap, HeaderName, HeaderValue};

use crate::{narrate::TraceContext, pool::Caller};

/// The header that names a request.
pub(super) const HEADER: HeaderName = HeaderName::from_static("x-correlation-id");

/// Longest name that is taken over.
const LONGEST: usize = 128;

/// Who asks, by the headers of a request.
pub(super) fn caller(headers: &HeaderMap) -> Caller {
    let text = |name: &HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
    let given = text(&HEADER).filter(|id| is_fit(id)).map(str::to_owned);
    let place = text(&HeaderName::from_static("traceparent"));
    let place: Option<TraceContext> = place.and_then(|place| place.parse().ok());
    let make = || place.unwrap_or_else(TraceContext::root).trace_id();
    Caller {
        correlation_id: Some(given.unwrap_or_else(make)),
        place,
    }
}

/// The name of a request, for its answer.
pub(super) fn named(caller: &Caller) -> Option<HeaderValue> {
    HeaderValue::from_str(caller.correlation_id.as_deref()?).ok()
}

/// Whether it can stand in logs as it is.
fn is_fit(id: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.:/+=@".contains(&byte);
    (1..=LONGEST).contains(&id.len()) && id.bytes().all(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(name: &'static str, value: &str) -> Caller {
        let mut headers = HeaderMap::new();
        headers.insert(name, HeaderValue::from_bytes(value.as_bytes()).unwrap());
        caller(&headers)
    }

    #[test]
    fn a_fit_name_is_kept_and_any_other_is_replaced() {
        let kept = of("x-correlation-id", "req-7:a/b");
        assert_eq!(kept.correlation_id.as_deref(), Some("req-7:a/b"));
        for odd in ["", "a b", "a\"b", &"x".repeat(129), "é"] {
            let made = of("x-correlation-id", odd).correlation_id.unwrap();
            assert!(made != odd && made.len() == 32, "{odd}: {made}");
        }
    }

    #[test]
    fn a_trace_names_a_request_that_has_no_other_name() {
        let given = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        let asked = of("traceparent", given);
        assert_eq!(asked.place.unwrap().to_string(), given);
        let id = asked.correlation_id.as_deref();
        assert_eq!(id, Some("4bf92f3577b34da6a3ce929d0e0e4736"));
        assert_eq!(of("traceparent", "nonsense").place, None);
    }
}
