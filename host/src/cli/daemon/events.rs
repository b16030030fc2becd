//! `host events`: what happens, as it happens.

use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::watch;

use super::reach;
use crate::{
    api::{
        client::{Client, event_number},
        documents::{EventsOf, PoolEventsOf},
        operations::{EVENTS, POOL_EVENTS},
    },
    cli::{arguments::EventsArguments, context::Context, signals},
    fault::{Exit, Failure},
    narrate::{Event, Sink},
};

/// Longest time that what was told before an answer is waited for after it.
const LATE: Duration = Duration::from_secs(2);

/// Tells what the daemon does for these pools, from a moment on, until it has answered.
pub(super) async fn told_until<T>(
    sink: &dyn Sink,
    client: &Client,
    pools: &[String],
    since: Timestamp,
    answer: impl Future<Output = T>,
) -> T {
    let concerns = |event: &Event| {
        let pool = event.context.pool_id.as_ref();
        event.time >= since && pool.is_some_and(|pool| pools.contains(pool))
    };
    let (heard, mut hears) = watch::channel(0);
    let telling = async {
        // A daemon that tells nothing may still do what is asked.
        let Ok(mut parts) = client.stream(&EVENTS.of(&[])).await else {
            return;
        };
        let mut text = Lines::default();
        let mut number = 0;
        while let Ok(Some(part)) = parts.next().await {
            for line in text.add(&part) {
                let data = line.strip_prefix("data: ");
                let event = data.and_then(|data| serde_json::from_str(data).ok());
                if let Some(event) = event.filter(concerns) {
                    sink.event(&event);
                }
                // An event's name comes before what it says.
                match line.strip_prefix("id: ") {
                    Some(id) => number = event_number(id),
                    None if line.is_empty() => drop(heard.send_replace(number)),
                    None => {}
                }
            }
        }
    };
    let (mut answer, mut telling) = (std::pin::pin!(answer), std::pin::pin!(telling));
    let answer = tokio::select! {
        answer = &mut answer => answer,
        () = &mut telling => return answer.await,
    };
    // What was told before the answer comes over a connection of its own, and may come after it.
    let told = client.told();
    tokio::select! {
        () = telling => {}
        _ = hears.wait_for(|heard| *heard >= told) => {}
        () = tokio::time::sleep(LATE) => {}
    }
    answer
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
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        net::{UnixListener, UnixStream},
    };

    use super::*;
    use crate::{
        api::operations::LIST_POOLS,
        narrate::{Actor, Capture, Narrator},
    };

    /// A daemon that answers at once, and what it told before that only a while later.
    async fn late(listener: UnixListener, event: String) {
        async fn head(stream: &mut UnixStream) -> String {
            let mut text = String::new();
            while !text.ends_with("\r\n\r\n") {
                text.push(stream.read_u8().await.unwrap().into());
            }
            text
        }
        let (answered, answers) = watch::channel(false);
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let asked = head(&mut stream).await;
            if asked.starts_with("GET /v1/events ") {
                let (event, mut answers) = (event.clone(), answers.clone());
                tokio::spawn(async move {
                    let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n";
                    stream.write_all(head.as_bytes()).await.unwrap();
                    answers.wait_for(|answered| *answered).await.unwrap();
                    tokio::time::sleep(Duration::from_millis(200)).await;
                    let text = format!("id: a1b2-7\nevent: event\ndata: {event}\n\n");
                    stream.write_all(text.as_bytes()).await.unwrap();
                    // Goes on, as streams do.
                    std::future::pending::<()>().await;
                });
            } else {
                let answer = "HTTP/1.1 200 OK\r\nlast-event-id: a1b2-7\r\ncontent-length: 12\r\n\r\n{\"pools\":[]}";
                stream.write_all(answer.as_bytes()).await.unwrap();
                answered.send_replace(true);
            }
        }
    }

    #[tokio::test]
    async fn what_was_told_before_an_answer_is_told_however_late_it_comes() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("daemon.sock");
        let (narrator, told) = Narrator::capture();
        let of_pool = narrator.with(|context| context.pool_id = Some("chat".into()));
        of_pool.say(Actor::PoolManager, "ready", "chat", "pool chat is ready");
        let event = serde_json::to_string(&told.events()[0]).unwrap();
        let daemon = tokio::spawn(late(UnixListener::bind(&socket).unwrap(), event));
        let client = Client::new(&socket);
        let heard = Capture::default();
        let began = std::time::Instant::now();
        let (pools, question) = (["chat".to_owned()], LIST_POOLS.of(&[]));
        let asked = client.ask(&question);
        let answer = told_until(&heard, &client, &pools, Timestamp::MIN, asked).await;
        assert!(answer.unwrap().pools.is_empty());
        assert_eq!(heard.actions(), ["ready"]);
        assert!(began.elapsed() < LATE, "it waits no longer than it has to");
        daemon.abort();
    }

    #[test]
    fn lines_are_whole_wherever_parts_end() {
        let mut lines = Lines::default();
        assert!(lines.add(b"data: {\"a\"").is_empty());
        assert_eq!(lines.add(b": 1}\n\nda"), ["data: {\"a\": 1}", ""]);
        assert_eq!(lines.add(b"ta: x\n"), ["data: x"]);
    }
}
