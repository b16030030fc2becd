//! Which port an engine gets, and whose answers on it are believed.

use std::{
    collections::BTreeMap,
    fs,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::TcpListener,
    time::{Duration, Instant},
};

use engine_host::{
    engine::{Handoff, Listening, Outcome},
    fault::{Exit, Fault as _},
};
use fakes::{Job, until};
use tokio_util::sync::CancellationToken;

use crate::room::{Host, LIMIT, Room};

/// Answers like an engine that is ready, for as long as this process lives.
fn answer_everybody(listener: TcpListener) {
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let _ = BufReader::new(&stream).read_line(&mut String::new());
            let _ = (&stream).write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
        }
    });
}

#[tokio::test]
async fn a_stranger_that_answers_for_an_engine_that_has_closed_its_port_is_told_from_it() {
    let room = Room::new();
    for job in [room.job(&[]), room.job_of_another_user()] {
        let engine = room.start(&job).await;
        let listening = Listening::default();
        let whose = || engine.ask_whose_port(&room.keeper, &listening);
        whose().await.unwrap();
        let address = engine.url().strip_prefix("http://").unwrap().to_owned();
        let mut stream = std::net::TcpStream::connect(&address).unwrap();
        write!(stream, "GET /fail/deaf HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
        let stranger = until("the port", || {
            TcpListener::bind(&address).map_err(|error| error.to_string())
        });
        answer_everybody(stranger.await);
        engine.ask_alive(LIMIT).await.unwrap();
        assert!(engine.instance().process.is_alive());
        // It may be believed for as long as one look at the connections lasts.
        let start = Instant::now();
        let said = loop {
            match whose().await {
                Err(said) => break said,
                Ok(()) => assert!(start.elapsed() < LIMIT, "a stranger is believed"),
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        };
        let port = job.ports[0];
        assert!(
            said.starts_with(&format!("its port {port} is another process's now")),
            "{said}"
        );
        engine.stop(&CancellationToken::new()).await.unwrap();
    }
    room.assert_empty().await;
}

/// Starts a host in a network of its own, after these commands: this machine's rules are left alone.
fn host_after(commands: &str, room: &Room, job: &Job) -> Host {
    let then = format!("{commands} && exec \"$@\"");
    Host::start_by(room, job, &["unshare", "--net", "sh", "-c", &then, "sh"])
}

/// An engine whose first port a rule leads elsewhere, then one that has no other port.
async fn assert_led_elsewhere(how: &str, chain: &str, target: &str) {
    assert_led_elsewhere_beside("", how, chain, target).await;
}

async fn assert_led_elsewhere_beside(others: &str, how: &str, chain: &str, target: &str) {
    let room = Room::new();
    // However much it says meanwhile: that it is silent is no part of it.
    let mut job = room.job(&["--pour-hz", "100"]);
    let (first, second) = (job.ports[0], job.ports[1]);
    let rule = format!(
        "ip link set lo up; {others}
         iptables -w {chain} -p tcp --dport {first} -j {target}"
    );
    let mut host = host_after(&rule, &room, &job);
    assert_eq!(host.line(), format!("ready http://127.0.0.1:{second}"));
    writeln!(host.child.stdin.as_mut().unwrap(), "stop").unwrap();
    assert_eq!(host.line(), "end asked");
    host.child.wait().unwrap();
    room.assert_empty().await;

    job.ports.truncate(1);
    let mut host = host_after(&rule, &room, &job);
    let said = format!(
        "failed the engine listens on 127.0.0.1:{first}, but connections to it are {how}: \
         a rule of this machine's packet filter leads the port elsewhere"
    );
    assert_eq!(host.line(), said);
    host.child.wait().unwrap();
    room.assert_empty().await;
}

#[tokio::test]
async fn a_port_that_a_stale_rule_leads_to_nobody_is_named_and_passed_over() {
    assert_led_elsewhere("refused", "-t nat -A OUTPUT -o lo", "REDIRECT --to-ports 1").await;
}

/// As where it leads to a container that is gone.
#[tokio::test]
async fn a_port_where_a_stale_rule_lets_nobody_answer_is_named_and_passed_over() {
    assert_led_elsewhere("not answered", "-A INPUT -i lo", "DROP").await;
}

/// As where it leads to a container that has got the address of one that is gone: an engine answers, just as
/// this one would.
#[tokio::test]
async fn an_answer_that_a_stale_rule_brings_from_elsewhere_is_not_believed() {
    let stranger = e2e::free_port();
    let target = format!("REDIRECT --to-ports {stranger}");
    let answers = format!(
        "{} --host 127.0.0.1 --port {stranger} --exit-after-ms 30000 &",
        env!("CARGO_BIN_EXE_fake-engine")
    );
    let how = "answered by another program";
    assert_led_elsewhere_beside(&answers, how, "-t nat -A OUTPUT -o lo", &target).await;
}

#[tokio::test]
async fn a_loopback_interface_that_is_down_is_named() {
    let room = Room::new();
    let job = room.job(&[]);
    let mut host = host_after("ip link set lo down", &room, &job);
    let said = format!(
        "failed the engine listens on 127.0.0.1:{}, but this machine has no route to it: \
         its loopback interface is down",
        job.ports[0]
    );
    assert_eq!(host.line(), said);
    host.child.wait().unwrap();
    room.assert_empty().await;
}

#[tokio::test]
async fn an_answer_from_somebody_else_s_socket_is_not_believed() {
    let room = Room::new();
    let path = room.root.join("tell-port");
    let told = std::os::unix::net::UnixListener::bind(&path).unwrap();
    // This test's own process takes the port and answers just like an engine.
    std::thread::spawn(move || {
        for socket in told.incoming().flatten() {
            let mut port = String::new();
            BufReader::new(socket).read_to_string(&mut port).unwrap();
            answer_everybody(TcpListener::bind(format!("127.0.0.1:{port}")).unwrap());
        }
    });
    let mut job = room.job(&["--foreign-socket", path.to_str().unwrap()]);
    job.ports.truncate(1);
    let error = room.fail(&job).await;
    assert_eq!(error.kind(), "foreign-socket", "{error:?}");
    room.assert_empty().await;
}

#[tokio::test]
async fn a_taken_port_is_passed_over_before_and_after_the_start() {
    let room = Room::new();
    let marker = room.root.join("failed-once");
    let job = room.job(&["--fail-once", marker.to_str().unwrap()]);
    let _taken = TcpListener::bind(("127.0.0.1", job.ports[0])).unwrap();
    let engine = room.start(&job).await;
    // The first is taken, the second fails in the engine's own words, the third serves.
    assert_eq!(engine.url(), format!("http://127.0.0.1:{}", job.ports[2]));
    assert!(marker.exists());
    let warned = room.heard.events().into_iter().any(|event| {
        event.human
            == format!(
                "port {} was taken meanwhile, trying the next one",
                job.ports[1]
            )
    });
    assert!(warned);
}

/// It is looked for again, while the main one, which may be the only one that a pool names, is kept.
#[tokio::test]
async fn another_of_its_ports_that_is_taken_costs_an_engine_nothing_but_a_start() {
    let room = Room::new();
    let marker = room.root.join("failed-once");
    let mut job = room.job(&["--fail-once", marker.to_str().unwrap()]);
    job.more_ports = vec![("grpc".to_owned(), job.ports[1])];
    job.ports.truncate(1);
    let engine = room.start(&job).await;
    assert_eq!(engine.url(), format!("http://127.0.0.1:{}", job.ports[0]));
    assert!(marker.exists());
}

#[tokio::test]
async fn no_free_port_names_those_that_were_tried() {
    let room = Room::new();
    let mut job = room.job(&[]);
    job.ports.truncate(1);
    let _taken = TcpListener::bind(("127.0.0.1", job.ports[0])).unwrap();
    let error = room.fail(&job).await;
    assert_eq!(error.exit(), Exit::Unavailable);
    let words = format!(
        "no port is free for the engine on 127.0.0.1: {} was tried",
        job.ports[0]
    );
    assert_eq!(error.to_string(), words);
}

#[tokio::test]
async fn every_port_is_reserved_filled_in_and_handed_off() {
    let room = Room::new();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let usual = taken.local_addr().unwrap().port();
    let record = room.root.join("record");
    let mut job = room.job(&["--record", record.to_str().unwrap()]);
    job.env = BTreeMap::from([("GRPC".to_owned(), "{port.grpc}".to_owned())]);
    job.files = vec![("ports".to_owned(), "{address.port} {port.grpc}".to_owned())];
    job.more_ports = vec![("grpc".to_owned(), usual)];
    let engine = room.start(&job).await;
    let handoff: Handoff = serde_json::from_slice(&fs::read(room.handoff_path()).unwrap()).unwrap();
    let record: serde_json::Value = serde_json::from_slice(&fs::read(&record).unwrap()).unwrap();
    let port = record["env"]["GRPC"].as_str().unwrap();
    assert_ne!(port, usual.to_string(), "that one is taken");
    assert_eq!(
        handoff.endpoints["grpc"],
        format!("http://127.0.0.1:{port}")
    );
    // The same command, whatever ports it would get now.
    match room.try_start(&job).await.unwrap() {
        Outcome::AlreadyRunning(_) => {}
        other => panic!("{other:?}"),
    }
    engine.stop(&CancellationToken::new()).await.unwrap();
    room.assert_empty().await;
}
