//! What happens, as server-sent events.
//!
//! Each event's `id` names the daemon and the number of the event. Who connects again with the last one
//! it heard as `Last-Event-ID` gets what came after it, nothing twice; where some of that is no longer
//! kept, or was another daemon's, an event `missed` comes first (`{"missed": 1}`: at least so many). A slow
//! reader is not waited for: it is told `missed` as well.

use std::convert::Infallible;

use axum::{
    body::Body,
    http::{HeaderMap, HeaderName, HeaderValue},
    response::{
        IntoResponse as _, Sse,
        sse::{Event as Sent, KeepAlive},
    },
};
use futures_util::{StreamExt as _, stream};

use super::Answer;
use crate::{
    api::{
        answer::{EventStream, Reply},
        call::Call,
        documents::{EventsOf, PoolEventsOf},
        server::State,
    },
    narrate::hub::{Filter, Heard, Told},
};

/// Header of a request: the event that was heard last. Of every answer: the one that was told last before
/// it, so that who follows events as well knows when it has heard all that belongs to the answer.
pub(in crate::api) const LAST: HeaderName = HeaderName::from_static("last-event-id");

pub(in crate::api) async fn of_all(call: Call<EventsOf>) -> Answer<EventStream> {
    let filter = Filter {
        pool: call.query.pool,
        job: call.query.job,
    };
    Ok(follow(call.state, filter, &call.headers))
}

pub(in crate::api) async fn of_pool(call: Call<PoolEventsOf>) -> Answer<EventStream> {
    let filter = Filter {
        pool: Some(call.status()?.pool_id),
        job: call.query.job,
    };
    Ok(follow(call.state, filter, &call.headers))
}

/// What a client heard before its connection broke.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum HeardLast {
    Nothing,
    /// This event of this daemon.
    Number(u64),
    /// Something that this daemon has not told.
    Unknown,
}

impl HeardLast {
    fn of(headers: &HeaderMap, daemon: &str) -> Self {
        let Some(last) = headers.get(LAST) else {
            return Self::Nothing;
        };
        let text = last.to_str().unwrap_or_default().trim();
        match number_of(text) {
            Some((name, number)) if name == daemon => Self::Number(number),
            _ => Self::Unknown,
        }
    }
}

fn follow(state: State, filter: Filter, headers: &HeaderMap) -> Reply<EventStream> {
    let last = HeardLast::of(headers, &state.name);
    let after = match last {
        HeardLast::Number(number) => number,
        HeardLast::Nothing | HeardLast::Unknown => 0,
    };
    let first = (last == HeardLast::Unknown).then_some(Heard::Missed(1));
    let heard = state.hub.follow(filter, after);
    let heard = stream::unfold(heard, |mut follow| async move {
        let heard = follow.next().await?;
        Some((heard, follow))
    });
    let name = state.name.clone();
    let all = stream::iter(first).chain(heard).map(move |heard| {
        Ok::<_, Infallible>(match heard {
            Heard::Event(told) => as_sent(&name, &told),
            Heard::Missed(count) => as_missed(count),
        })
    });
    let end = state.end.clone();
    let all = all.take_until(async move { end.cancelled().await });
    let beat = KeepAlive::new().interval(state.heartbeat);
    let sent = Sse::new(all).keep_alive(beat).into_response();
    Reply::body(Body::new(sent.into_body()))
}

/// What an event is called: by its daemon, and its number there.
fn id_of(daemon: &str, number: u64) -> String {
    format!("{daemon}-{number}")
}

/// The two parts of what an event is called.
pub(in crate::api) fn number_of(id: &str) -> Option<(&str, u64)> {
    let (daemon, number) = id.rsplit_once('-')?;
    Some((daemon, number.parse().ok()?))
}

/// The event that was told last, for an answer.
pub(in crate::api) fn last_told(state: &State) -> Option<HeaderValue> {
    HeaderValue::from_str(&id_of(&state.name, state.hub.last())).ok()
}

fn as_sent(daemon: &str, told: &Told) -> Sent {
    let text = serde_json::to_string(&*told.event).expect("events are plain data");
    Sent::default()
        .id(id_of(daemon, told.sequence))
        .event("event")
        .data(text)
}

fn as_missed(count: u64) -> Sent {
    let text = serde_json::json!({ "missed": count }).to_string();
    Sent::default().event("missed").data(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_this_daemon_told_is_gone_on_from() {
        let last = |text: &str| {
            let mut headers = HeaderMap::new();
            headers.insert("last-event-id", text.parse().unwrap());
            HeardLast::of(&headers, "a1b2")
        };
        assert_eq!(last("a1b2-17"), HeardLast::Number(17));
        for other in ["c3d4-17", "17", "", "a1b2", "a1b2-", "a1b2-x", "a1b2--1"] {
            assert_eq!(last(other), HeardLast::Unknown, "{other}");
        }
        let none = HeardLast::of(&HeaderMap::new(), "a1b2");
        assert_eq!(none, HeardLast::Nothing);
    }
}
