use std::time::Instant;

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpListener,
};

use super::*;
use crate::{config::environment::Environment, narrate::Work, process::ProcessError};

fn otlp(endpoint: &str) -> Otlp {
    within(endpoint, "20000")
}

/// One that waits so many milliseconds for an answer.
fn within(endpoint: &str, limit: &str) -> Otlp {
    let environment = Environment::from_pairs([
        ("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint),
        ("OTEL_EXPORTER_OTLP_HEADERS", "x-key=planted-key"),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", limit),
    ]);
    Otlp::new(Settings::of(&environment).unwrap().unwrap())
}

fn spans(otlp: &Otlp) -> Vec<Span> {
    otlp.take()
}

fn attribute(span: &Span, key: &str) -> Option<String> {
    let found = span.attributes.iter().find(|it| it.key == key)?;
    match found.value.as_ref()?.value.as_ref()? {
        message::Value::Text(text) => Some(text.clone()),
        message::Value::Number(number) => Some(number.to_string()),
    }
}

#[test]
fn spans_carry_their_place_what_they_were_about_and_what_was_told_in_them() {
    let otlp = otlp("http://127.0.0.1:9");
    let narrator = Narrator::new(vec![Box::new(otlp.clone())]);
    narrator.secrets().register("hunter22");
    let job = narrator.begin(Work::Job, "prepare", "prepare");
    let about = job
        .narrator()
        .with(|it| it.pool_id = Some("chat".to_owned()));
    about.concerns();
    let step = about.begin(Work::Step, "build", "build with hunter22");
    step.narrator().say(
        Actor::EngineProvisioner,
        "cmake-build",
        "x",
        "password=hunter22",
    );
    step.end(Some(&ProcessError::Cancelled {
        program: "it".to_owned(),
    }));
    job.end(None);
    let spans = spans(&otlp);
    let [step, job] = spans.as_slice() else {
        panic!("{spans:?}")
    };
    assert_eq!(
        (step.name.as_str(), job.name.as_str()),
        ("step build", "job prepare")
    );
    assert_eq!(step.trace_id, job.trace_id);
    assert_eq!(step.parent_span_id, job.span_id);
    assert!(job.parent_span_id.is_empty());
    assert!(step.start_time_unix_nano >= job.start_time_unix_nano);
    assert!(step.end_time_unix_nano <= job.end_time_unix_nano + 1_000_000);
    assert_eq!(attribute(job, "engine_host.pool").as_deref(), Some("chat"));
    assert_eq!(
        attribute(step, "engine_host.outcome").as_deref(),
        Some("cancelled")
    );
    assert_eq!(step.events[0].name, "cmake-build");
    assert!(!format!("{spans:?}").contains("hunter22"));
}

#[test]
fn a_job_of_another_program_is_joined_and_one_that_is_not_sampled_is_not_sent() {
    let otlp = otlp("http://127.0.0.1:9");
    let narrator = Narrator::new(vec![Box::new(otlp.clone())]);
    let given = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let inside = narrator.part_of(given.parse().unwrap());
    inside.begin(Work::Job, "prepare", "prepare").end(None);
    let unsampled = given.replace("-01", "-00");
    let inside = narrator.part_of(unsampled.parse().unwrap());
    inside.begin(Work::Job, "prepare", "prepare").end(None);
    let spans = spans(&otlp);
    assert_eq!(spans.len(), 1);
    assert_eq!(
        spans[0].parent_span_id,
        0x00f0_67aa_0ba9_02b7_u64.to_be_bytes()
    );
}

#[test]
fn events_name_their_trace_where_traces_are_given_to_somebody() {
    let (captured, otlp) = (
        crate::narrate::Capture::default(),
        otlp("http://127.0.0.1:9"),
    );
    let traced = Narrator::new(vec![Box::new(captured.clone()), Box::new(otlp.clone())]);
    let job = traced.begin(Work::Job, "plan", "plan");
    job.narrator()
        .say(Actor::EngineProvisioner, "start", "x", "x");
    let trace = job.narrator().place().unwrap().trace_id();
    job.end(None);
    assert_eq!(captured.events()[0].context.trace_id.as_ref(), Some(&trace));
    let (plain, told) = Narrator::capture();
    let job = plain.begin(Work::Job, "plan", "plan");
    job.narrator()
        .say(Actor::EngineProvisioner, "start", "x", "x");
    assert_eq!(told.events()[0].context.trace_id, None);
    drop(job);
}

#[test]
fn what_does_not_fit_is_dropped_and_counted() {
    let otlp = otlp("http://127.0.0.1:9");
    let narrator = Narrator::new(vec![Box::new(otlp.clone())]);
    let job = narrator.begin(Work::Job, "plan", "plan");
    for _ in 0..EVENTS_TOLD {
        job.narrator()
            .say(Actor::EngineProvisioner, "start", "x", "x");
    }
    job.end(None);
    let span = &spans(&otlp)[0];
    assert_eq!(span.events.len(), 128);
    assert_eq!(span.dropped_events_count, EVENTS_TOLD - 128);
    for _ in 0..QUEUE + 7 {
        narrator.begin(Work::Wait, "result", "x").end(None);
    }
    assert_eq!(otlp.dropped(), 7);
}

const EVENTS_TOLD: u32 = 200;

#[tokio::test]
async fn a_collector_that_hangs_holds_nobody_longer_than_was_said() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let otlp = within(&endpoint, "2000");
    let (silent, told) = Narrator::capture();
    let narrator = Narrator::new(vec![Box::new(otlp.clone())]);
    narrator.begin(Work::Job, "plan", "plan").end(None);
    let net = Net::new(&Environment::default(), otlp.gate());
    let sender = otlp.clone();
    let sending = tokio::spawn(async move { sender.send(&net, &silent).await });
    let start = Instant::now();
    assert!(!otlp.close(Duration::from_millis(100)).await);
    assert!(start.elapsed() < Duration::from_secs(30));
    // The request itself ends by its own limit, and says so.
    sending.await.unwrap();
    assert_eq!(otlp.dropped(), 1);
    assert!(told.events()[0].human.contains("no answer within 2s"));
}

#[tokio::test]
async fn headers_go_along_and_a_refusal_is_told_once() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let otlp = otlp(&format!("http://{}", listener.local_addr().unwrap()));
    let server = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut head = Vec::new();
        while !head.windows(4).any(|it| it == b"\r\n\r\n") {
            head.push(stream.read_u8().await.unwrap());
        }
        let answer = "HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
        stream.write_all(answer.as_bytes()).await.unwrap();
        String::from_utf8(head).unwrap()
    });
    let narrator = Narrator::new(vec![Box::new(otlp.clone())]);
    narrator.begin(Work::Job, "plan", "plan").end(None);
    let net = Net::new(&Environment::default(), otlp.gate());
    let (silent, told) = Narrator::capture();
    let (sender, closer) = (otlp.clone(), otlp.clone());
    tokio::join!(
        sender.send(&net, &silent),
        closer.close(Duration::from_secs(10))
    );
    let head = server.await.unwrap();
    assert!(head.starts_with("POST /v1/traces HTTP/1.1"), "{head}");
    assert!(head.contains("x-key: planted-key"), "{head}");
    assert!(
        head.contains("content-type: application/x-protobuf"),
        "{head}"
    );
    let words: Vec<String> = told.events().into_iter().map(|it| it.human).collect();
    assert_eq!(words, ["traces are lost: the collector answered 400"]);
    assert!(!format!("{otlp:?}").contains("planted-key"));
}
