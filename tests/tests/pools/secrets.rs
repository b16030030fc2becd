//! Secrets that stand somewhere appear nowhere: not in what a daemon says, writes, serves or sends.

use std::{fs, path::Path};

use e2e::{Collector, RUN_LIMIT, http_get, wait_for};
use rustix::process::Signal;
use serde_json::json;

use crate::{Stage, kill, pid};

/// Ten kinds: the name of a variable and the beginning of a value that look like one, and how much of
/// the value is secret.
const KINDS: [(&str, &str); 10] = [
    ("HF_TOKEN", "hf_plantedplanted"),
    ("GITHUB_TOKEN", "ghp_plantedplantedplanted"),
    ("OPENAI_API_KEY", "sk-plantedplantedplanted"),
    ("AWS_ACCESS_KEY_ID", "AKIAPLANTEDPLANTED"),
    ("AWS_SECRET_ACCESS_KEY", "plantedsecretaccess/"),
    ("SLACK_TOKEN", "xoxb-planted-planted-"),
    ("SERVICE_JWT_SECRET", "eyJwbGFudGVkMDEy.eyJwbGFudGVkMDEy."),
    ("DB_PASSWORD", "plantedpassword"),
    ("PROXY_SECRET", "http://bob:plantedurl"),
    ("SIGNED_SECRET", "https://host/x?sig=plantedsig"),
];

/// Places: the daemon's environment, of which the pool asks for it; the pool file; the daemon's
/// environment alone.
const PLACES: [&str; 3] = ["ASKED", "WRITTEN", "AROUND"];

/// Name, value and what must not be seen of it: 30 in all.
fn planted() -> Vec<(String, String, String)> {
    let mut all = Vec::new();
    for (number, (name, value)) in KINDS.iter().enumerate() {
        for place in PLACES {
            // Every value has an end of its own, by which it is found.
            let mark = format!("{}{number:02}{:02}", "PLANTED", place.len());
            let end = if value.starts_with("http://") {
                "@host/"
            } else {
                ""
            };
            all.push((
                format!("{place}_{name}"),
                format!("{value}{mark}{end}"),
                mark,
            ));
        }
    }
    all
}

fn assert_kept(what: &str, text: &str) {
    for (name, _, mark) in planted() {
        if let Some(at) = text.find(&mark) {
            let mut start = at.saturating_sub(200);
            while !text.is_char_boundary(start) {
                start -= 1;
            }
            panic!(
                "{name} appears in {what}: …{}",
                &text[start..at + mark.len()]
            );
        }
    }
}

fn assert_kept_below(directory: &Path) {
    let Ok(entries) = fs::read_dir(directory) else {
        return;
    };
    for entry in entries {
        let path = entry.unwrap().path();
        let kind = fs::symlink_metadata(&path).unwrap().file_type();
        if kind.is_dir() {
            assert_kept_below(&path);
        } else if kind.is_file() && !is_an_engine_s_own(&path) {
            let content = fs::read(&path).unwrap();
            assert_kept(&path.to_string_lossy(), &String::from_utf8_lossy(&content));
        }
    }
}

/// Whether an engine writes it, in its own words.
fn is_an_engine_s_own(path: &Path) -> bool {
    let name = path.file_name().unwrap().to_string_lossy();
    name.starts_with("engine-") && name.ends_with(".log")
}

/// Command lines of all processes of this machine that can be read.
fn command_lines() -> String {
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let lines = processes.filter_map(|it| fs::read(it.path().join("cmdline")).ok());
    let lines = lines.map(|line| String::from_utf8_lossy(&line).replace('\0', " "));
    lines.map(|line| format!("{line}\n")).collect()
}

#[test]
fn thirty_planted_secrets_of_ten_kinds_appear_nowhere() {
    let mut stage = Stage::new();
    let collector = Collector::start();
    let mut env = serde_json::Map::new();
    for (name, value, _) in planted() {
        match name.split_once('_').unwrap() {
            ("ASKED", _) => {
                env.insert(name.clone(), json!(format!("{{secret.{name}}}")));
                stage.machine.lend(&name, &value);
            }
            ("WRITTEN", _) => {
                env.insert(name, json!(value));
            }
            _ => stage.machine.lend(&name, &value),
        }
    }
    assert_eq!(planted().len(), 30);
    let header = planted().remove(2).1;
    let headers = format!("authorization=Bearer%20{header}");
    stage.machine.lend("OTEL_EXPORTER_OTLP_HEADERS", &headers);
    stage
        .machine
        .lend("OTEL_EXPORTER_OTLP_ENDPOINT", &collector.endpoint());
    stage.machine.lend("RUST_LOG", "trace");
    let mut pool = stage.pool("chat", &[]);
    pool["provisioning"]["env"] = env.into();
    // One that says what it has been given, as engines do.
    pool["provisioning"]["flags"] = json!(["--print-environment"]);
    stage.machine.write_pool(&pool);

    for arguments in [&["plan"][..], &["plan", "--json"], &["prepare", "--json"]] {
        let run = stage.machine.run(arguments).code(0);
        assert_kept(&arguments.join(" "), &run.stdout);
        assert_kept(&arguments.join(" "), &run.stderr);
    }
    let daemon = stage.serve(&[]);
    let first = daemon.wait_state("chat", "ready");
    // The engine has what its pool asks for: this is what is to be kept.
    let engine = e2e::environment_of(pid(&first).try_into().unwrap());
    let engine = engine.expect("it serves").join("\n");
    for (name, value, _) in planted() {
        let has = engine.contains(&value);
        assert_eq!(has, !name.starts_with("AROUND"), "{name}");
    }
    assert_kept("command lines", &command_lines());
    let events = stage
        .machine
        .start(stage.machine.command(&["events", "chat", "--json"]));
    let logs = stage.machine.run(&["logs", "chat", "-n", "1000"]).code(0);
    logs.prints("ASKED_HF_TOKEN=");
    assert_kept("host logs", &logs.stdout);
    kill(pid(&first));
    daemon.wait_replica("chat", "another engine", |replica| {
        replica["state"] == "ready" && replica["pid"] != first["pid"]
    });
    for path in [
        "/metrics",
        "/metrics?engines=1",
        "/v1/pools",
        "/v1/pools/chat",
        "/v1/capabilities",
        "/v1/pools/chat/logs?lines=1000",
    ] {
        let (status, text) = http_get(&format!("{}{path}", daemon.url)).unwrap();
        assert_eq!(status, 200, "{path}: {text}");
        assert_kept(path, &text);
    }
    wait_for("traces of both starts", RUN_LIMIT, || {
        let spans = collector.spans();
        let starts = spans.iter().filter(|span| span.name == "job up").count();
        if starts >= 2 { Ok(()) } else { Err(spans) }
    });
    let sent = collector.deliveries();
    assert!(sent[0].head.contains(&header), "{}", sent[0].head);
    for delivery in sent {
        assert_kept("a trace", &String::from_utf8_lossy(&delivery.body));
    }
    for handoff in stage.machine.handoffs() {
        assert_kept("a handoff", &fs::read_to_string(handoff).unwrap());
    }
    let status = stage.machine.run(&["status", "--json"]).code(0);
    assert_kept("host status", &status.stdout);
    let heard = wait_for("events", RUN_LIMIT, || {
        let heard = events.stdout();
        heard.contains("ready").then(|| heard.clone()).ok_or(heard)
    });
    assert_kept("host events", &heard);
    events.signal(Signal::INT);
    let _ = events.finish(RUN_LIMIT).code(130);
    assert_kept_below(&stage.machine.home().join("logs"));
    assert_kept_below(&stage.machine.home().join("state"));
    let run = daemon.end(Signal::TERM, 0);
    assert_kept("the daemon's log", &run.stderr);
    assert_kept("the daemon's output", &run.stdout);
    // A failure says what failed, and no more.
    let mut broken = pool;
    broken["provisioning"]["binary"]["checksum"] = json!(format!("sha256:{}", "0".repeat(64)));
    stage.machine.write_pool(&broken);
    let run = stage.machine.run(&["prepare", "--json"]).code(9);
    assert_kept("an error", &run.stdout);
    assert_kept("an error", &run.stderr);
    assert_kept_below(&stage.machine.home().join("logs"));
}
