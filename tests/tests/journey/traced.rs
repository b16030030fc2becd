//! Traces of a job, as a collector gets them.

use std::{net::TcpListener, time::Instant};

use e2e::{CollectedSpan, Collector, Machine, Run};
use rustix::process::Signal;

use crate::stage;

const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

fn traced(machine: &Machine, collector: &Collector, arguments: &[&str]) -> Run {
    let mut command = machine.command(arguments);
    command.env("OTEL_EXPORTER_OTLP_ENDPOINT", collector.endpoint());
    machine.start(command).finish(e2e::RUN_LIMIT)
}

/// Names with those that they are part of in front, in the order in which they began.
fn tree(spans: &[CollectedSpan]) -> Vec<String> {
    let path = |span: &CollectedSpan| {
        let mut path = span.name.clone();
        let mut parent = &span.parent;
        while let Some(above) = spans.iter().find(|it| it.id == *parent) {
            path = format!("{} / {path}", above.name);
            parent = &above.parent;
        }
        path
    };
    spans.iter().map(path).collect()
}

fn find<'a>(spans: &'a [CollectedSpan], name: &str) -> &'a CollectedSpan {
    let found = spans.iter().find(|span| span.name == name);
    found.unwrap_or_else(|| panic!("no `{name}` in {:?}", tree(spans)))
}

#[test]
fn a_prepare_is_one_complete_trace_within_that_of_its_caller() {
    let (machine, repository, pool) = stage();
    machine.write_pool(&pool);
    let collector = Collector::start();
    let mut command = machine.command(&["prepare", "--json", "--correlation-id", "req-7"]);
    command
        .env("OTEL_EXPORTER_OTLP_ENDPOINT", collector.endpoint())
        .env("OTEL_EXPORTER_OTLP_HEADERS", "x-team=ours")
        .env("OTEL_SERVICE_NAME", "gpu-box")
        .env("TRACEPARENT", PARENT);
    let _ = machine.start(command).finish(e2e::RUN_LIMIT).code(0);
    let spans = collector.spans();
    let tree = tree(&spans);
    for expected in [
        "job prepare",
        "job prepare / plan",
        "job prepare / prepare",
        "job prepare / prepare / step checkout",
        "job prepare / prepare / step build",
        "job prepare / prepare / step stage-model",
    ] {
        assert!(
            tree.iter().any(|it| it == expected),
            "{expected}: {tree:#?}"
        );
    }
    for span in &spans {
        assert_eq!(span.trace, "4bf92f3577b34da6a3ce929d0e0e4736");
        assert_eq!(span.attributes["engine_host.correlation_id"], "req-7");
        assert_eq!(span.attributes["engine_host.pool"], "default", "{span:?}");
        assert_eq!(span.failure, None, "{span:?}");
        assert!(span.time.0 <= span.time.1, "{span:?}");
    }
    let job = find(&spans, "job prepare");
    assert_eq!(job.parent, "00f067aa0ba902b7");
    let version = format!("{}-cpu", &repository.commit[..12]);
    assert_eq!(job.attributes["engine_host.engine_version"], version);
    assert_eq!(job.attributes["engine_host.engine"], "fixture");
    assert_eq!(job.attributes["engine_host.outcome"], "done");
    let build = find(&spans, "step build");
    assert_eq!(build.attributes["engine_host.outcome"], "done");
    assert!(build.events.contains(&"built".to_owned()), "{build:?}");
    assert_eq!(collector.resource()["service.name"], "gpu-box");
    let head = &collector.deliveries()[0].head;
    assert!(head.contains("x-team: ours"), "{head}");

    // What is there is not made again, and says so.
    let again = Collector::start();
    let _ = traced(&machine, &again, &["prepare"]).code(0);
    let spans = again.spans();
    for name in ["prepare", "step checkout", "step build", "step stage-model"] {
        let span = find(&spans, name);
        assert_eq!(span.attributes["engine_host.outcome"], "cached", "{span:?}");
    }
    assert_ne!(spans[0].trace, "4bf92f3577b34da6a3ce929d0e0e4736");
    machine.assert_clean();
}

#[test]
fn a_provision_shows_launch_and_ready_and_the_job_is_over_when_the_engine_serves() {
    let (machine, _repository, pool) = stage();
    machine.write_pool(&pool);
    let collector = Collector::start();
    let mut command = machine.command(&["provision", "--log-format", "json"]);
    command.env("OTEL_EXPORTER_OTLP_ENDPOINT", collector.endpoint());
    let mut running = machine.start(command);
    running.wait_ready();
    let run = running.end(Signal::INT).code(130);
    let spans = collector.spans();
    let tree = tree(&spans);
    let ready = "job provision / launch process / ready process";
    assert!(tree.iter().any(|it| it == ready), "{tree:#?}");
    let launch = find(&spans, "launch process");
    assert_eq!(launch.attributes["engine_host.replica"], "r0");
    assert!(launch.events.contains(&"handoff".to_owned()), "{launch:?}");
    let job = find(&spans, "job provision");
    assert_eq!(job.attributes["engine_host.outcome"], "done");
    // Events name the trace that they belong to.
    let named = |event: &serde_json::Value| event["trace_id"] == job.trace.as_str();
    let events = run.events();
    assert!(
        events.iter().filter(|it| named(it)).count() > 5,
        "{events:#?}"
    );
    machine.assert_clean();
}

#[test]
fn a_failed_step_is_a_failed_span() {
    let (machine, _repository, mut pool) = stage();
    pool["provisioning"]["source"]["ref"] = "0".repeat(40).into();
    machine.write_pool(&pool);
    let collector = Collector::start();
    let _ = traced(&machine, &collector, &["prepare"]).code(3);
    let spans = collector.spans();
    for name in ["job prepare", "prepare", "step checkout"] {
        let span = find(&spans, name);
        assert_eq!(span.attributes["engine_host.outcome"], "failed", "{span:?}");
        assert!(span.failure.is_some() && span.attributes.contains_key("error.type"));
    }
    machine.assert_clean();
}

#[test]
fn a_collector_that_hangs_or_is_gone_changes_nothing_but_a_warning() {
    let (machine, _repository, pool) = stage();
    machine.write_pool(&pool);
    let _ = machine.run(&["prepare"]).code(0);
    let hung = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = hung.local_addr().unwrap();
    let mut said = Vec::new();
    for endpoint in [format!("http://{address}"), "http://127.0.0.1:9".to_owned()] {
        let mut command = machine.command(&["prepare", "--json"]);
        command.env("OTEL_EXPORTER_OTLP_ENDPOINT", &endpoint);
        let start = Instant::now();
        let run = machine.start(command).finish(e2e::RUN_LIMIT).code(0);
        assert_eq!(run.json()["engine"], "fixture");
        run.says("traces are lost");
        said.push(start.elapsed());
    }
    // The last words have two seconds; the rest is a prepare of what is there, on a busy machine.
    assert!(said.iter().all(|it| it.as_secs() < 30), "{said:?}");
    let mut command = machine.command(&["prepare"]);
    command.env("OTEL_EXPORTER_OTLP_ENDPOINT", "nonsense");
    let run = machine.start(command).finish(e2e::RUN_LIMIT).code(0);
    run.says("OTEL_EXPORTER_OTLP_ENDPOINT cannot be used: it is not a URL");
    machine.assert_clean();
}
