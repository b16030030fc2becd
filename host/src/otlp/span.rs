//! A span of ended work, and the events that were told in it.

use std::{collections::HashMap, num::NonZero};

use jiff::Timestamp;

use super::message::{self, CLIENT, ERROR, INTERNAL, KeyValue, Status};
use crate::narrate::{Context, Ended, Event, Outcome, TraceContext, Work};

/// Events of one span at most, as in the specification's limits.
const EVENTS: usize = 128;

/// Work that goes on at the same time of which events are kept at most.
const SPANS: usize = 4096;

/// Events of work that goes on.
#[derive(Default)]
pub(super) struct Events(HashMap<NonZero<u64>, Kept>);

/// Events of one piece of work.
#[derive(Default)]
pub(super) struct Kept {
    events: Vec<message::Event>,
    dropped: u32,
}

impl Events {
    pub(super) fn keep(&mut self, place: TraceContext, event: &Event) {
        if self.0.len() >= SPANS && !self.0.contains_key(&place.span) {
            return;
        }
        let kept = self.0.entry(place.span).or_default();
        match kept.events.len() < EVENTS {
            true => kept.events.push(event_of(event)),
            false => kept.dropped = kept.dropped.saturating_add(1),
        }
    }

    pub(super) fn take(&mut self, place: TraceContext) -> Kept {
        self.0.remove(&place.span).unwrap_or_default()
    }
}

fn event_of(event: &Event) -> message::Event {
    let mut attributes = vec![
        KeyValue::text("engine_host.level", event.level.as_str()),
        KeyValue::text("engine_host.actor", event.actor.as_str()),
        KeyValue::text("engine_host.target", &event.target),
        KeyValue::text("engine_host.human", &event.human),
    ];
    if let Some(milliseconds) = event.duration_ms {
        let key = "engine_host.duration_ms";
        attributes.push(KeyValue::number(key, milliseconds));
    }
    let kind = event.error_kind.as_deref();
    let optional = [("error.type", kind), ("engine_host.cause", event.cause)];
    attributes.extend(optional.into_iter().filter_map(text));
    message::Event {
        time_unix_nano: nanoseconds(event.time),
        name: event.action.clone(),
        attributes,
    }
}

fn text((key, value): (&str, Option<&str>)) -> Option<KeyValue> {
    value.map(|value| KeyValue::text(key, value))
}

/// The span of work that has ended.
pub(super) fn of(ended: &Ended, kept: Kept) -> message::Span {
    let start = nanoseconds(ended.began);
    let duration = u64::try_from(ended.duration.as_nanos()).unwrap_or(u64::MAX);
    let parent = ended.parent.map(|parent| parent.span);
    message::Span {
        trace_id: ended.place.trace.get().to_be_bytes().to_vec(),
        span_id: bytes_of(ended.place.span),
        parent_span_id: parent.map(bytes_of).unwrap_or_default(),
        flags: u32::from(ended.place.sampled),
        name: name_of(ended),
        kind: match ended.work {
            Work::Fetch => CLIENT,
            _ => INTERNAL,
        },
        start_time_unix_nano: start,
        end_time_unix_nano: start.saturating_add(duration),
        attributes: attributes(ended),
        events: kept.events,
        dropped_events_count: kept.dropped,
        status: (ended.outcome == Outcome::Failed).then(|| Status {
            message: ended.error.clone().unwrap_or_default(),
            code: ERROR,
        }),
    }
}

fn bytes_of(span: NonZero<u64>) -> Vec<u8> {
    span.get().to_be_bytes().to_vec()
}

fn name_of(ended: &Ended) -> String {
    match ended.kind {
        "" => ended.work.as_str().to_owned(),
        kind => format!("{} {kind}", ended.work.as_str()),
    }
}

fn attributes(ended: &Ended) -> Vec<KeyValue> {
    let Context {
        pool_id,
        replica_id,
        engine,
        engine_version,
        job_id,
        correlation_id,
        trace_id: _,
        policy_label,
    } = &ended.context;
    let mut attributes = vec![
        KeyValue::text("engine_host.outcome", ended.outcome.as_str()),
        KeyValue::text("engine_host.target", &ended.target),
    ];
    let optional = [
        ("engine_host.pool", pool_id),
        ("engine_host.replica", replica_id),
        ("engine_host.engine", engine),
        ("engine_host.engine_version", engine_version),
        ("engine_host.job", job_id),
        ("engine_host.correlation_id", correlation_id),
        ("engine_host.policy", policy_label),
    ];
    let known = |(key, value): (&str, &Option<String>)| text((key, value.as_deref()));
    attributes.extend(optional.into_iter().filter_map(known));
    if ended.work == Work::Fetch {
        attributes.push(KeyValue::number("engine_host.bytes", ended.bytes));
    }
    attributes.extend(text(("error.type", ended.error_kind)));
    attributes
}

fn nanoseconds(time: Timestamp) -> u64 {
    u64::try_from(time.as_nanosecond()).unwrap_or(0)
}
