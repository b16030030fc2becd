//! What is followed: events and logs.

use std::{
    thread,
    time::{Duration, Instant},
};

use e2e::RUN_LIMIT;
use rustix::process::Signal;
use serde_json::Value;

use super::{
    Client, resting,
    wire::{Connection, Following},
};
use crate::Stage;

/// Reads events up to the first one whose target this is; gives the ids.
#[track_caller]
fn ids_until(following: &mut Following, target: &str) -> Vec<String> {
    let mut ids = Vec::new();
    loop {
        let (kind, id, data) = following.event().expect("the daemon goes on");
        assert_eq!(kind, "event", "{data}");
        ids.push(id);
        let event: Value = serde_json::from_str(&data).unwrap();
        if event["target"].as_str().unwrap().ends_with(target) {
            return ids;
        }
    }
}

/// Makes an event by which a place among the others is known.
fn mark(client: &Client, name: &str) {
    let target = format!("/marks/{name}");
    client.ask("POST", &target).refused(404, "INVALID_PARAMS");
}

#[test]
fn who_connects_again_goes_on_without_gap_or_repetition() {
    let stage = Stage::new();
    stage.machine.write_pool(&stage.pool("chat", &[]));
    let daemon = stage.serve(&[]);
    daemon.wait_state("chat", "ready");
    let client = Client::local(&stage);
    let mut whole = client.follow("/v1/events", &[]);
    let mut broken = client.follow("/v1/events", &[]);
    mark(&client, "one");
    let mut ids = ids_until(&mut broken, "/marks/one");
    drop(broken);
    // While nobody of this client listens.
    let restarted = client.ask("POST", "/v1/pools/chat/restart");
    assert_eq!(restarted.status, 200, "{restarted:?}");
    let told = restarted.header("last-event-id").unwrap().to_owned();
    mark(&client, "two");
    let last = ids.last().unwrap().clone();
    let mut again = client.follow("/v1/events", &[("Last-Event-ID", &last)]);
    ids.extend(ids_until(&mut again, "/marks/two"));
    mark(&client, "three");
    ids.extend(ids_until(&mut again, "/marks/three"));
    assert_eq!(ids, ids_until(&mut whole, "/marks/three"));
    let mut once = ids.clone();
    once.dedup();
    assert_eq!(once, ids);
    // What an answer names is among what is followed, behind what was heard before it was asked for.
    let place = |id: &String| ids.iter().position(|it| it == id).unwrap();
    assert!(place(&told) > place(&last), "{told} after {last}");
    let of_pool = [("Last-Event-ID", last.as_str())];
    let mut of_pool = client.follow("/v1/pools/chat/events", &of_pool);
    let (_, first, data) = of_pool.event().unwrap();
    assert!(ids.contains(&first) && data.contains("\"chat\""), "{data}");
    // What another daemon has told is not known here, and what is known is told from its beginning.
    let other = [("Last-Event-ID", "another-17")];
    let mut other = client.follow("/v1/events", &other);
    assert_eq!(other.event().unwrap().0, "missed");
    assert_eq!(other.event().unwrap().1, ids[0]);
    let run = daemon.end(Signal::TERM, 0);
    // The streams ended with the daemon, whole.
    while whole.event().is_some() {}
    drop(run);
}

#[test]
fn a_silent_stream_beats() {
    let stage = resting();
    let daemon = stage.serve(&[]);
    let client = Client::stranger(&daemon);
    let mut events = client.follow("/v1/events?pool=nobody", &[]);
    assert_eq!(
        events.answer.header("content-type"),
        Some("text/event-stream")
    );
    let start = Instant::now();
    let line = events.line().unwrap();
    assert!(line.starts_with(':'), "{line}");
    assert!(start.elapsed() < Duration::from_secs(30));
    let _ = daemon.end(Signal::TERM, 0);
}

/// Sends many requests without waiting for each one's answer.
fn flood(client: &Client, count: usize) {
    let mut connection: Box<dyn Connection> = client.connect();
    // Few at a time, so that neither side waits for the other for ever.
    for _ in 0..count / 50 {
        let text = client.head("POST", "/marks/flood", &[]).repeat(50);
        connection.write_all(text.as_bytes()).unwrap();
        let mut answers = 0;
        let mut bytes = [0; 16 * 1024];
        let mut text = String::new();
        while answers < 50 {
            let read = connection.read(&mut bytes).unwrap();
            assert!(read > 0, "{text}");
            text.push_str(&String::from_utf8_lossy(&bytes[..read]));
            answers = text.matches("HTTP/1.1 404").count();
        }
    }
}

#[test]
fn a_slow_reader_is_told_what_it_missed_and_holds_nobody_up() {
    let stage = resting();
    let daemon = stage.serve(&[]);
    let client = Client::local(&stage);
    let mut slow = client.follow("/v1/events", &[]);
    let first = slow.event().unwrap();
    // Far more than is kept for it and fits between the two.
    flood(&client, 4000);
    mark(&client, "end");
    let mut missed = 0;
    let mut last = number(&first.1);
    loop {
        let (kind, id, data) = slow.event().expect("it goes on");
        if kind == "missed" {
            let data: Value = serde_json::from_str(&data).unwrap();
            let count = data["missed"].as_u64().unwrap();
            missed += count;
            last += count;
            continue;
        }
        assert_eq!(number(&id), last + 1, "{missed} were missed");
        last += 1;
        if data.contains("/marks/end") {
            break;
        }
    }
    assert!(missed > 0);
    let _ = daemon.end(Signal::TERM, 0);
}

fn number(id: &str) -> u64 {
    let (_, number) = id.split_once('-').unwrap();
    number.parse().unwrap()
}

#[test]
fn a_log_that_is_followed_ends_with_its_engine() {
    let stage = Stage::new();
    let flags = ["--print-line", "first", "--print-line", "second"];
    stage.machine.write_pool(&stage.pool("chat", &flags));
    let daemon = stage.serve(&[]);
    let ready = daemon.wait_state("chat", "ready");
    let client = Client::stranger(&daemon);
    let last = client.ask("GET", "/v1/pools/chat/logs?lines=1").body;
    assert!(last.starts_with("listening on"), "{last}");
    let mut log = client.follow("/v1/pools/chat/logs?follow=1&lines=3", &[]);
    assert_eq!(log.line().as_deref(), Some("first"));
    assert_eq!(log.line().as_deref(), Some("second"));
    assert_eq!(log.line().as_deref(), Some(last.trim_end()));
    let end = thread::spawn(move || log.line());
    assert!(!end.is_finished());
    crate::kill(crate::pid(&ready));
    let start = Instant::now();
    assert_eq!(end.join().unwrap(), None);
    assert!(start.elapsed() < RUN_LIMIT / 2);
    let _ = daemon.end(Signal::TERM, 0);
}
