//! An orchestrator that is told of handoffs, beside their files.

use std::{
    fs,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{TcpListener, TcpStream},
    sync::{Arc, Mutex},
    thread,
};

use e2e::{RUN_LIMIT, wait_for};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::{Stage, kill, pid};

const TOKEN: &str = "token-of-the-orchestrator";

/// What was posted: its head, and the document.
type Posted = (String, Value);

/// A server that is not well when it is asked first.
struct Orchestrator {
    url: String,
    posted: Arc<Mutex<Vec<Posted>>>,
}

impl Orchestrator {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/handoffs", listener.local_addr().unwrap());
        let posted: Arc<Mutex<Vec<Posted>>> = Arc::default();
        let kept = Arc::clone(&posted);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let Some(one) = read(&stream) else { continue };
                let mut kept = kept.lock().unwrap();
                let status = match kept.is_empty() {
                    true => "503 Not well",
                    false => "204 Taken",
                };
                kept.push(one);
                drop(kept);
                answer(stream, status);
            }
        });
        Self { url, posted }
    }

    /// Waits until its newest document satisfies a condition, and gives it.
    #[track_caller]
    fn wait(&self, what: &str, holds: impl Fn(&Value) -> bool) -> Value {
        wait_for(what, RUN_LIMIT, || {
            let posted = self.posted.lock().unwrap();
            match posted.last() {
                Some((_, document)) if holds(document) => Ok(document.clone()),
                other => Err(other.cloned()),
            }
        })
    }
}

fn read(stream: &TcpStream) -> Option<Posted> {
    let mut reader = BufReader::new(stream);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        (reader.read_line(&mut head).ok()? > 0).then_some(())?;
    }
    let head = head.to_ascii_lowercase();
    let (_, rest) = head.split_once("content-length: ")?;
    let mut body = vec![0; rest.split("\r\n").next()?.parse().ok()?];
    reader.read_exact(&mut body).ok()?;
    Some((head, serde_json::from_slice(&body).ok()?))
}

fn answer(mut stream: TcpStream, status: &str) {
    // Who goes away in the middle is the client's own business.
    let _ = write!(stream, "HTTP/1.1 {status}\r\nConnection: close\r\n\r\n");
}

#[test]
fn an_orchestrator_hears_of_an_engine_from_its_start_to_its_end() {
    let mut stage = Stage::new();
    stage.machine.lend("ORCHESTRATOR_TOKEN", TOKEN);
    let orchestrator = Orchestrator::start();
    let file = json!({
        "pools": [stage.pool("chat", &[])],
        "notify": {
            "url": orchestrator.url,
            "token": "{secret.ORCHESTRATOR_TOKEN}",
            "retry": {"initial": "20ms", "max": "100ms"},
        },
    });
    stage.machine.write("pools.yaml", &file.to_string());
    let daemon = stage.serve(&[]);
    let ready = daemon.wait_state("chat", "ready");
    let bound = wait_for("a second try", RUN_LIMIT, || {
        let posted = orchestrator.posted.lock().unwrap();
        posted.get(1).cloned().ok_or(posted.len())
    });
    let first = orchestrator.posted.lock().unwrap()[0].clone();
    assert_eq!(bound, first, "the same again, its key included");
    let (head, document) = bound;
    assert!(head.contains(&format!("authorization: bearer {TOKEN}")));
    assert_eq!(document["event"], "bound", "{document:#}");
    assert_eq!(document["handoff"]["url"], ready["url"], "{document:#}");

    kill(pid(&ready));
    let before = document["handoff"]["started_at"].clone();
    let next = orchestrator.wait("the next engine", |it| {
        it["event"] != "unbound" && it["handoff"]["started_at"] != before
    });
    assert_eq!(next["handoff"]["pool_id"], "chat", "{next:#}");

    let run = daemon.end(Signal::TERM, 0);
    let last = orchestrator.wait("the end", |it| it["event"] == "unbound");
    assert_eq!(last["handoff"], next["handoff"]);
    assert!(!run.stderr.contains(TOKEN), "{}", run.stderr);
}

#[test]
fn whom_to_tell_changes_with_the_pool_file() {
    let stage = Stage::new();
    let file = |to: Option<&str>| {
        let mut file = json!({"pools": [stage.pool("chat", &[])]});
        if let Some(url) = to {
            file["notify"] = json!({"url": url});
        }
        stage.machine.write("pools.yaml", &file.to_string());
    };
    let reload = || stage.machine.run(&["reload"]);
    file(None);
    let daemon = stage.serve(&[]);
    let ready = daemon.wait_state("chat", "ready");
    let [first, second] = [Orchestrator::start(), Orchestrator::start()];
    for orchestrator in [&first, &second] {
        file(Some(&orchestrator.url));
        daemon.running.signal(Signal::HUP);
        let bound = orchestrator.wait("what runs already", |it| it["event"] == "bound");
        assert_eq!(bound["handoff"]["url"], ready["url"], "{bound:#}");
        // It was not well the first time.
        wait_for("a second try", RUN_LIMIT, || {
            let heard = orchestrator.posted.lock().unwrap().len();
            if heard >= 2 { Ok(()) } else { Err(heard) }
        });
    }
    // The same again is no change; one that could never be told changes nothing.
    reload().code(0).prints("nothing differs");
    file(Some("https://orchestrator.test/handoffs"));
    let mut bad = written(&stage);
    bad["notify"]["token"] = json!("{secret.NOT_SET}");
    stage.machine.write("pools.yaml", &bad.to_string());
    reload()
        .code(3)
        .says("`NOT_SET` that `notify.token` names is not set");
    let heard = first.posted.lock().unwrap().len();
    kill(pid(&ready));
    second.wait("the next engine", |it| {
        it["event"] != "unbound" && it["handoff"]["started_at"] != ready["started_at"]
    });
    assert_eq!(first.posted.lock().unwrap().len(), heard);
    file(None);
    reload().code(0).prints("changed  notify");
    let run = daemon.end(Signal::TERM, 0);
    let last = second.posted.lock().unwrap().last().cloned();
    assert_ne!(
        last.unwrap().1["event"],
        "unbound",
        "nobody was told any more"
    );
    assert!(!run.stderr.contains("orchestrator.test"), "{}", run.stderr);
}

/// The pool file as it is now.
fn written(stage: &Stage) -> Value {
    let text = fs::read_to_string(stage.machine.work().join("pools.yaml")).unwrap();
    serde_json::from_str(&text).unwrap()
}

#[test]
fn a_daemon_does_not_start_where_its_orchestrator_could_never_be_told() {
    let stage = Stage::new();
    let file = |policy: Value, token: &str| {
        json!({
            "pools": [stage.pool("chat", &[])],
            "policy": policy,
            "notify": {"url": "https://orchestrator.test/handoffs", "token": token},
        })
    };
    let serve = |file: Value, code: i32| {
        stage.machine.write("pools.yaml", &file.to_string());
        stage.machine.run(&["serve", "--listen", "none"]).code(code)
    };
    let run = serve(file(json!({}), "{secret.NOT_SET}"), 3);
    run.says("the secret `NOT_SET` that `notify.token` names is not set");
    let run = serve(file(json!({"network": ["github.com"]}), "{secret.HOME}"), 4);
    run.says("orchestrator.test");
    let run = serve(file(json!({}), "a-token-itself"), 3);
    run.says("a token does not stand in the file, its name does");
    stage.machine.assert_clean();
}
