//! `host events`: what happens, as it happens.

use std::time::Duration;

use futures_util::future::{Either, select};
use jiff::Timestamp;

use super::reach;
use crate::{
    api::{
        client::Client,
        documents::{EventsOf, PoolEventsOf},
        operations::{EVENTS, POOL_EVENTS},
    },
    cli::{arguments::EventsArguments, context::Context, signals},
    fault::{Exit, Failure},
    narrate::Event,
};

/// How long what was told before an answer is waited for after it.
const LATE: Duration = Duration::from_millis(25);

/// Tells what the daemon does for these pools, from a moment on, until it has answered.
pub(super) async fn told_until<T>(
    context: &Context,
    client: &Client,
    pools: &[String],
    since: Timestamp,
    answer: impl Future<Output = T>,
) -> T {
    let sink = context.retold();
    let concerns = |event: &Event| {
        let pool = event.context.pool_id.as_ref();
        event.time >= since && pool.is_some_and(|pool| pools.contains(pool))
    };
    let telling = async {
        // A daemon that tells nothing may still do what is asked.
        let Ok(mut parts) = client.stream(&EVENTS.of(&[])).await else {
            return;
        };
        let mut text = Lines::default();
        while let Ok(Some(part)) = parts.next().await {
            for line in text.add(&part) {
                let data = line.strip_prefix("data: ");
                let event = data.and_then(|data| serde_json::from_str(data).ok());
                if let Some(event) = event.filter(concerns) {
                    sink.event(&event);
                }
            }
        }
    };
    let (answer, telling) = (std::pin::pin!(answer), std::pin::pin!(telling));
    match select(answer, telling).await {
        Either::Left((answer, telling)) => {
            // What was told before the answer comes over a connection of its own, and may come after it.
            let _ = tokio::time::timeout(LATE, telling).await;
            answer
        }
        Either::Right(((), answer)) => answer.await,
    }
}

/// Prints events until interrupted: a line each, or one JSON object per line.
pub(in crate::cli) async fn run(
    context: &Context,
    arguments: &EventsArguments,
) -> Result<Exit, Failure> {
    let stop = context.host.cancel.clone();
    let received = signals::cancel_on_signal(stop.clone());
    let client = reach::client(context);
    let job = arguments.job.clone();
    let mut parts = match &arguments.pool {
        Some(pool) => {
            let question = POOL_EVENTS.of(&[pool]).with(&PoolEventsOf { job });
            client.stream(&question).await?
        }
        None => {
            let pool = None;
            let question = EVENTS.of(&[]).with(&EventsOf { pool, job });
            client.stream(&question).await?
        }
    };
    let mut text = Lines::default();
    loop {
        let part = tokio::select! {
            part = parts.next() => part?,
            () = stop.cancelled() => return Ok(received.exit().unwrap_or(Exit::Success)),
        };
        let Some(part) = part else {
            return Ok(Exit::Success);
        };
        for line in text.add(&part) {
            if let Some(data) = line.strip_prefix("data: ") {
                show(context, data);
            }
        }
        if context.cannot_print() {
            return Ok(Exit::Success);
        }
    }
}

fn show(context: &Context, data: &str) {
    if context.output.json {
        context.print(&format!("{data}\n"));
        return;
    }
    let Ok(event) = serde_json::from_str::<serde_json::Value>(data) else {
        return;
    };
    if let Some(count) = event["missed"].as_u64() {
        context.print(&format!("… at least {count} events were missed here\n"));
        return;
    }
    let text = |name: &str| event[name].as_str().unwrap_or_default();
    let time = text("time").get(11..19).unwrap_or_default();
    let mark = match text("level") {
        "error" => "error: ",
        "warning" => "warning: ",
        _ => "",
    };
    let replica = match (text("pool_id"), text("replica_id")) {
        (pool, "") => pool.to_owned(),
        (pool, replica) => format!("{pool}/{replica}"),
    };
    let (action, human) = (text("action"), text("human"));
    context.print(&format!(
        "{time} {replica:<16} {action:<16} {mark}{human}\n"
    ));
}

/// Lines out of parts that may end anywhere.
#[derive(Default)]
struct Lines {
    rest: Vec<u8>,
}

impl Lines {
    fn add(&mut self, part: &[u8]) -> Vec<String> {
        self.rest.extend_from_slice(part);
        let Some(end) = self.rest.iter().rposition(|byte| *byte == b'\n') else {
            return Vec::new();
        };
        let whole: Vec<u8> = self.rest.drain(..=end).collect();
        let text = String::from_utf8_lossy(&whole);
        text.lines().map(str::to_owned).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_whole_wherever_parts_end() {
        let mut lines = Lines::default();
        assert!(lines.add(b"data: {\"a\"").is_empty());
        assert_eq!(lines.add(b": 1}\n\nda"), ["data: {\"a\": 1}", ""]);
        assert_eq!(lines.add(b"ta: x\n"), ["data: x"]);
    }
}
