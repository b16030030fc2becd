//! What a daemon shows of itself: metrics and traces.

use std::{
    fs,
    io::{Read as _, Write as _},
    net::TcpStream,
    process::{Command, Stdio},
};

use e2e::{Collector, RUN_LIMIT, http_get, wait_for};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::{Daemon, Stage, kill, pid};

fn page(daemon: &Daemon<'_>, query: &str) -> String {
    let (status, page) = http_get(&format!("{}/metrics{query}", daemon.url)).unwrap();
    assert_eq!(status, 200, "{page}");
    page
}

/// What Prometheus' own tool has to say about a page.
fn lint(page: &str) -> String {
    let mut command = Command::new("promtool");
    command.args(["check", "metrics"]).stdin(Stdio::piped());
    let spawned = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut child = spawned.expect("promtool: scripts/setup-tests installs it");
    let mut input = child.stdin.take().unwrap();
    input.write_all(page.as_bytes()).unwrap();
    drop(input);
    let output = child.wait_with_output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    format!("{}\n{}", output.status, String::from_utf8(text).unwrap())
}

/// The value of a sample that begins like this.
fn value(page: &str, sample: &str) -> Option<f64> {
    let line = page.lines().find(|line| line.starts_with(sample))?;
    line.rsplit(' ').next()?.parse().ok()
}

#[test]
fn the_live_page_of_metrics_is_sound_and_says_what_happened() {
    let stage = Stage::new();
    stage
        .machine
        .write_pools(&[stage.pool("chat", &[]), stage.pool("code", &[])]);
    let daemon = stage.serve(&[]);
    let first = daemon.wait_state("chat", "ready");
    daemon.wait_state("code", "ready");
    let before = page(&daemon, "");
    assert!(!before.contains("engine_host_restarts_total{"), "{before}");
    kill(pid(&first));
    daemon.wait_replica("chat", "another engine", |replica| {
        replica["state"] == "ready" && replica["pid"] != first["pid"]
    });
    let _ = stage.machine.run(&["reload", "chat"]).code(0);
    let _ = stage.machine.run(&["drain", "code"]).code(0);
    let page = page(&daemon, "");
    let verdict = lint(&page);
    assert_eq!(verdict, "exit status: 0\n", "{page}");
    let expected = [
        ("engine_host_build_info{version=", 1.0),
        (
            r#"engine_host_replica_state{pool="chat",replica="r0",state="ready"}"#,
            1.0,
        ),
        (
            r#"engine_host_replica_state{pool="chat",replica="r0",state="broken"}"#,
            0.0,
        ),
        (
            r#"engine_host_replica_ready{pool="chat",replica="r0"}"#,
            1.0,
        ),
        (
            r#"engine_host_reload_duration_seconds_count{pool="chat",outcome="done"}"#,
            1.0,
        ),
        (
            r#"engine_host_drain_duration_seconds_count{pool="code",outcome="done"}"#,
            1.0,
        ),
        (r#"engine_host_restarts_total{pool="chat","#, 1.0),
        (
            r#"engine_host_launches_total{pool="chat",outcome="done"}"#,
            2.0,
        ),
        (
            r#"engine_host_launches_total{pool="code",outcome="done"}"#,
            1.0,
        ),
        (
            r#"engine_host_time_to_ready_seconds_count{pool="chat"}"#,
            2.0,
        ),
        (r#"engine_host_slots{pool="chat",replica="r0"}"#, 1.0),
        (r#"engine_host_leases{pool="chat",replica="r0"}"#, 0.0),
        (
            r#"engine_host_fetches_total{source="url",outcome="done"}"#,
            1.0,
        ),
    ];
    for (sample, wanted) in expected {
        assert_eq!(value(&page, sample), Some(wanted), "{sample}\n{page}");
    }
    let theirs = r#"fixture_requests_processing{pool="chat",replica="r0"}"#;
    assert_eq!(value(&page, theirs), None, "{page}");
    let whole = self::page(&daemon, "?engines=1");
    assert_eq!(value(&whole, theirs), Some(0.0), "{whole}");
    assert!(whole.contains("engine_host_build_info"), "{whole}");
    let bytes = value(&page, r#"engine_host_fetched_bytes_total{source="url"}"#);
    assert!(bytes.unwrap() > 1e6, "{page}");
    let misses = value(&page, r#"engine_host_cache_misses_total{kind="download"}"#);
    let hits = value(&page, r#"engine_host_cache_hits_total{kind="download"}"#);
    assert_eq!((misses, hits), (Some(1.0), Some(2.0)), "{page}");
    let _ = daemon.end(Signal::TERM, 0);
}

/// What a POST with these headers is answered, head and all.
fn post(daemon: &Daemon<'_>, path: &str, headers: &[(&str, &str)]) -> String {
    let address = daemon.url.strip_prefix("http://").unwrap();
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(RUN_LIMIT)).unwrap();
    let headers: String = headers
        .iter()
        .map(|(name, value)| format!("{name}: {value}\r\n"))
        .collect();
    let request = format!(
        "POST {path} HTTP/1.1\r\nHost: {address}\r\nContent-Length: 0\r\nConnection: close\r\n{headers}\r\n"
    );
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn what_is_asked_for_carries_the_name_and_the_trace_of_who_asked() {
    let mut stage = Stage::new();
    let collector = Collector::start();
    let endpoint = collector.endpoint();
    let machine = &mut stage.machine;
    machine.lend("OTEL_EXPORTER_OTLP_ENDPOINT", &endpoint);
    let mut pool = stage.pool("chat", &[]);
    pool["preload"] = json!(false);
    stage.machine.write_pool(&pool);
    let daemon = stage.serve(&[]);
    let token = stage.machine.home().join("state/api-token");
    let token = format!("Bearer {}", fs::read_to_string(token).unwrap().trim());
    let parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let headers = [
        ("Authorization", token.as_str()),
        ("X-Correlation-Id", "order-66"),
        ("traceparent", parent),
    ];
    let answer = post(&daemon, "/v1/pools/chat/up", &headers);
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert!(answer.contains("x-correlation-id: order-66"), "{answer}");
    let job = wait_for("the job's trace", RUN_LIMIT, || {
        let spans = collector.spans();
        let job = spans.iter().find(|span| span.name == "job up").cloned();
        job.ok_or(spans)
    });
    assert_eq!(job.trace, "4bf92f3577b34da6a3ce929d0e0e4736", "{job:?}");
    assert_eq!(job.parent, "00f067aa0ba902b7");
    let attribute = |name: &str| job.attributes[&format!("engine_host.{name}")].clone();
    assert_eq!(attribute("correlation_id"), "order-66");
    let parent = "00-5bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let headers = [
        headers[0],
        ("X-Correlation-Id", "order-67"),
        ("traceparent", parent),
    ];
    let answer = post(&daemon, "/v1/pools/chat/down", &headers);
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    let end = wait_for("the trace of the end", RUN_LIMIT, || {
        let spans = collector.spans();
        let end = |name: &str| spans.iter().find(|span| span.name == name).cloned();
        match (end("job drain"), end("drain")) {
            (Some(job), Some(drain)) => Ok([job, drain]),
            _ => Err(spans),
        }
    });
    for span in &end {
        assert_eq!(span.trace, "5bf92f3577b34da6a3ce929d0e0e4736", "{span:?}");
        let whose = &span.attributes["engine_host.correlation_id"];
        assert_eq!(whose, "order-67", "{span:?}");
    }
    let run = daemon.end(Signal::TERM, 0);
    let events = run.events();
    let named = |event: &&Value| event["correlation_id"] == "order-66";
    let actions: Vec<&str> = events
        .iter()
        .filter(named)
        .filter_map(|it| it["action"].as_str())
        .collect();
    for action in ["request", "complete", "launch", "ready", "handoff"] {
        assert!(actions.contains(&action), "{action}: {actions:?}");
    }
    let stop = events.iter().find(|it| it["action"] == "stop").unwrap();
    assert_eq!(stop["correlation_id"], "order-67", "{stop:#}");
    // Of its job too, which is not the daemon's.
    let mut jobs: Vec<&Value> = events
        .iter()
        .filter(|it| it["action"] == "launch")
        .map(|it| &it["job_id"])
        .collect();
    jobs.dedup();
    assert_eq!(jobs, [&json!(attribute("job"))]);
    let served = events.iter().find(|it| it["action"] == "serve").unwrap();
    assert_ne!(&served["job_id"], jobs[0]);
}

#[test]
fn a_daemon_s_bringing_up_is_one_trace_per_replica() {
    let mut stage = Stage::new();
    let collector = Collector::start();
    stage
        .machine
        .lend("OTEL_EXPORTER_OTLP_ENDPOINT", &collector.endpoint());
    stage.machine.write_pool(&stage.pool("chat", &[]));
    let daemon = stage.serve(&[]);
    daemon.wait_state("chat", "ready");
    let job = wait_for("the job's trace", RUN_LIMIT, || {
        let spans = collector.spans();
        let job = spans.iter().find(|span| span.name == "job up").cloned();
        job.ok_or(spans)
    });
    assert_eq!(job.attributes["engine_host.pool"], "chat", "{job:?}");
    assert_eq!(job.attributes["engine_host.outcome"], "done", "{job:?}");
    let spans = collector.spans();
    let of_job = |name: &str| {
        let mut spans = spans.iter().filter(|span| span.trace == job.trace);
        spans.any(|span| span.name == name)
    };
    for name in [
        "plan",
        "prepare",
        "step download",
        "fetch url",
        "launch process",
        "ready process",
    ] {
        assert!(of_job(name), "{name}: {spans:#?}");
    }
    let _ = daemon.end(Signal::TERM, 0);
}
