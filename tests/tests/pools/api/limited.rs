//! What clients may not do, and how they are told.

use std::{
    fs,
    io::Write as _,
    net::{IpAddr, UdpSocket},
    os::unix::fs::PermissionsExt as _,
    path::Path,
    process::Command,
};

use rustix::process::Signal;

use super::{
    Client, resting,
    wire::{Answer, Connection, Following},
};
use crate::{Daemon, Stage};

const NO: &str = "INVALID_PARAMS";

/// Connections that are served at a time, through each door.
const CONNECTIONS: usize = 256;

/// A daemon whose pool does not run.
fn with_daemon(test: impl Fn(&Stage, &Daemon<'_>)) {
    let stage = resting();
    let daemon = stage.serve(&[]);
    test(&stage, &daemon);
    let health = Client::stranger(&daemon).ask("GET", "/health");
    assert_eq!(health.status, 200, "{health:?}");
    let _ = daemon.end(Signal::TERM, 0);
}

/// Asks with these headers.
fn asked(client: &Client, method: &str, target: &str, headers: &[(&str, &str)]) -> Answer {
    let close = [("Connection", "close")];
    client.send(&client.head(method, target, &[&close, headers].concat()))
}

#[test]
fn a_request_that_is_too_large_is_refused() {
    with_daemon(|stage, daemon| {
        for client in [Client::stranger(daemon), Client::local(stage)] {
            let get = |headers: &[(&str, &str)]| asked(&client, "GET", "/health", headers);
            let long = "x".repeat(40_000);
            get(&[("X-Long", &long)]).refused(431, NO);
            let names: Vec<String> = (0..100).map(|it| format!("X-{it}")).collect();
            let many: Vec<(&str, &str)> = names.iter().map(|it| (it.as_str(), "y")).collect();
            get(&many).refused(431, NO);
            let target = format!("/v1/events?job={}", "x".repeat(20_000));
            asked(&client, "GET", &target, &[]).refused(414, NO);
            // What is larger still is not even read to its end.
            let huge = "x".repeat(1_000_000);
            assert_eq!(get(&[("X-Huge", &huge)]).status, 431);
            let names: Vec<String> = (0..1000).map(|it| format!("X-{it}")).collect();
            let many: Vec<(&str, &str)> = names.iter().map(|it| (it.as_str(), "y")).collect();
            assert_eq!(get(&many).status, 431);
            // Within all limits.
            let fits = "x".repeat(8_000);
            assert_eq!(get(&[("X-Fits", &fits)]).status, 200);
        }
    });
}

#[test]
fn a_body_is_refused_unless_there_is_nothing_in_it() {
    with_daemon(|stage, daemon| {
        let strangers = [Client::trusted(stage, daemon), Client::local(stage)];
        for client in strangers {
            let post = |headers: &[(&str, &str)], body: &str| {
                let close = [("Connection", "close")];
                let head = client.head("POST", "/v1/reload", &[&close, headers].concat());
                client.send(&format!("{head}{body}"))
            };
            post(&[("Content-Length", "1000000000")], "x").refused(413, NO);
            let chunk = format!("10000\r\n{}\r\n", "x".repeat(0x10000));
            let chunked = [("Transfer-Encoding", "chunked")];
            post(&chunked, &chunk.repeat(3)).refused(413, NO);
            let refused = post(&[("Content-Length", "14")], "{\"wait\":false}");
            let refused = refused.refused(400, NO);
            assert!(refused["message"].as_str().unwrap().contains("query"));
            for body in ["", "{}", " \r\n"] {
                let length = body.len().to_string();
                let done = post(&[("Content-Length", &length)], body);
                assert_eq!(done.status, 200, "{done:?}");
            }
            let conflict = [("Content-Length", "2"), ("Content-Length", "3")];
            assert_eq!(post(&conflict, "{}").status, 400);
        }
    });
}

#[test]
fn a_request_that_does_not_come_in_time_is_ended_and_others_are_served() {
    with_daemon(|stage, daemon| {
        for client in [Client::stranger(daemon), Client::local(stage)] {
            let mut slow = client.connect();
            slow.write_all(b"GET /health HTTP/1.1\r\nHost: ").unwrap();
            let mut never = client.connect();
            let body = client.head("POST", "/v1/reload", &[("Content-Length", "2")]);
            if client.may_change() {
                never.write_all(body.as_bytes()).unwrap();
            }
            assert_eq!(client.ask("GET", "/health").status, 200);
            Following::read(slow).whole().refused(408, NO);
            if client.may_change() {
                Following::read(never).whole().refused(408, NO);
            }
        }
    });
}

#[test]
fn a_crowd_is_told_to_come_later_and_does_not_close_the_other_door() {
    with_daemon(|stage, daemon| {
        let client = Client::stranger(daemon);
        let streams: Vec<Following> = (0..CONNECTIONS)
            .map(|_| client.follow("/v1/events", &[]))
            .collect();
        for _ in 0..3 {
            client.ask("GET", "/health").refused(503, "POOL_UNREADY");
        }
        let local = Client::local(stage).ask("GET", "/health");
        assert_eq!(local.status, 200, "{local:?}");
        drop(streams);
        e2e::wait_for("a seat", e2e::RUN_LIMIT, || {
            match client.ask("GET", "/health") {
                answer if answer.status == 200 => Ok(()),
                answer => Err(answer),
            }
        });
    });
}

#[test]
fn a_browser_s_page_of_another_site_is_refused() {
    with_daemon(|stage, daemon| {
        let client = Client::stranger(daemon);
        let own = client.host().to_owned();
        let port = own.rsplit(':').next().unwrap();
        let get = |host: &str, target: &str, more: &str| {
            let head = format!("GET {target} HTTP/1.1\r\nConnection: close\r\n");
            client.send(&format!("{head}{host}{more}\r\n"))
        };
        let own_host = format!("Host: {own}\r\n");
        for host in [
            format!("Host: evil.example:{port}\r\n"),
            "Host: evil.example\r\n".to_owned(),
            "Host:\r\n".to_owned(),
            String::new(),
        ] {
            get(&host, "/v1/pools", "").refused(403, NO);
        }
        for origin in ["http://evil.example", "null", "https://127.0.0.1"] {
            let origin = format!("Origin: {origin}\r\n");
            get(&own_host, "/v1/pools", &origin).refused(403, NO);
        }
        let twice = format!("{own_host}{own_host}");
        get(&twice, "/v1/pools", "").refused(400, NO);
        get(&own_host, "http://evil.example/v1/pools", "").refused(403, NO);
        let origin = format!("Origin: http://{own}\r\n");
        assert_eq!(get(&own_host, "/v1/pools", &origin).status, 200);
        let localhost = format!("Host: LocalHost:{port}\r\n");
        assert_eq!(get(&localhost, "/v1/pools", "").status, 200);
        // Over the socket there is no browser.
        let local = Client::local(stage).ask("GET", "/v1/pools");
        assert_eq!(local.status, 200, "{local:?}");
    });
}

#[test]
fn the_token_alone_is_the_token() {
    with_daemon(|_, daemon| {
        let client = Client::stranger(daemon);
        for value in [
            "Bearer ",
            "Bearer 0123456789abcdef",
            "Basic dXNlcjpwYXNz",
            "nonsense",
        ] {
            for (method, target) in [("POST", "/v1/reload"), ("GET", "/v1/pools")] {
                let answer = asked(&client, method, target, &[("Authorization", value)]);
                answer.refused(401, NO);
                assert_eq!(answer.header("www-authenticate"), Some("Bearer"), "{value}");
            }
        }
        asked(&client, "POST", "/v1/reload", &[]).refused(401, NO);
    });
}

#[test]
fn who_changes_something_is_named_in_logs_by_the_digest_of_its_token() {
    let stage = resting();
    let daemon = stage.serve(&[]);
    let client = Client::trusted(&stage, &daemon);
    assert_eq!(client.ask("POST", "/v1/reload").status, 200);
    let token = fs::read_to_string(stage.machine.home().join("state/api-token")).unwrap();
    let digest = e2e::sha256(token.trim().as_bytes());
    let named = format!("POST /v1/reload by identity=token:{}\"", &digest[..6]);
    let run = daemon.end(Signal::TERM, 0);
    assert!(run.stderr.contains(&named), "{named}: {}", run.stderr);
    assert!(!run.stderr.contains(token.trim()), "{}", run.stderr);
}

#[test]
fn the_token_may_come_from_the_environment_or_a_file() {
    const TOKEN: &str = "0123456789abcdef0123456789abcdef";
    let file = |stage: &Stage| {
        let path = stage.machine.write("token", TOKEN);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        path.to_str().unwrap().to_owned()
    };
    for from_file in [false, true] {
        let mut stage = resting();
        let path = file(&stage);
        let (other, more) = match from_file {
            true => (
                "another-token-of-the-environment",
                vec!["--token-file", path.as_str()],
            ),
            false => (TOKEN, Vec::new()),
        };
        stage.machine.lend("HOST_API_TOKEN", other);
        let daemon = stage.serve(&more);
        let client = Client::stranger(&daemon);
        let post = |token: &str| {
            let bearer = format!("Bearer {token}");
            asked(&client, "POST", "/v1/reload", &[("Authorization", &bearer)]).status
        };
        assert_eq!(post(TOKEN), 200);
        assert_eq!(post("another-token-of-nobody-at-all"), 401);
        if from_file {
            assert_eq!(post(other), 401, "the file comes before the environment");
        }
        assert!(!stage.machine.home().join("state/api-token").exists());
        let _ = daemon.end(Signal::TERM, 0);
    }
}

/// An address of this machine that others reach it by.
fn address_of_this_machine() -> IpAddr {
    // Nothing is sent: connecting only chooses a way.
    let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
    socket
        .connect("192.0.2.1:9")
        .expect("a way out of this machine");
    socket.local_addr().unwrap().ip()
}

#[test]
fn beyond_loopback_nothing_is_told_without_the_token() {
    let address = address_of_this_machine();
    assert!(!address.is_loopback(), "{address}");
    let stage = resting();
    let daemon = stage.serve(&["--listen", &format!("{address}:0")]);
    let (stranger, trusted) = (Client::stranger(&daemon), Client::trusted(&stage, &daemon));
    for target in [
        "/health",
        "/v1/pools",
        "/metrics",
        "/openapi.json",
        "/nowhere",
    ] {
        stranger.ask("GET", target).refused(401, NO);
    }
    stranger.ask("POST", "/v1/reload").refused(401, NO);
    assert_eq!(trusted.ask("GET", "/v1/pools").status, 200);
    assert_eq!(trusted.ask("POST", "/v1/reload").status, 200);
    let _ = daemon.end(Signal::TERM, 0);
}

#[test]
fn another_user_does_not_come_through_the_socket() {
    const SCRIPT: &str = "exec curl -sS --max-time 20 --unix-socket \"$0\" http://localhost/health";
    let ask = |socket: &Path, user: &str| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid", user, "--regid", user, "--clear-groups"]);
        command.args(["sh", "-c", SCRIPT]).arg(socket);
        let done = command
            .output()
            .expect("setpriv and curl: util-linux, curl");
        (
            done.status.success(),
            String::from_utf8(done.stdout).unwrap(),
        )
    };
    let stage = resting();
    let daemon = stage.serve(&[]);
    let socket = stage.machine.home().join("state/daemon.sock");
    let mode = || fs::metadata(&socket).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(), 0o600);
    assert!(ask(&socket, "0").1.contains("\"live\":true"));
    assert!(!ask(&socket, "65534").0);
    // Who gets past the file's mode is still asked who he is.
    for directory in socket.ancestors().skip(1) {
        let bits = fs::metadata(directory).unwrap().permissions().mode() | 0o011;
        let _ = fs::set_permissions(directory, fs::Permissions::from_mode(bits));
        if directory == stage.machine.root() {
            break;
        }
    }
    fs::set_permissions(&socket, fs::Permissions::from_mode(0o666)).unwrap();
    let (served, told) = ask(&socket, "65534");
    assert!(!served && told.is_empty(), "{told}");
    let _ = daemon.end(Signal::TERM, 0);
}

#[test]
fn odd_paths_and_methods_lead_nowhere() {
    with_daemon(|stage, daemon| {
        for client in [Client::trusted(stage, daemon), Client::local(stage)] {
            for target in [
                "/",
                "//v1/pools",
                "/v1//pools",
                "/v1/pools/",
                "/v1/pools/..",
                "/v1/pools/%2e%2e",
                "/v1/pools/%2e%2e/logs",
                "/v1/pools/..%2f..%2fetc%2fpasswd/logs",
                "/v1/pools/%00",
                "/v1/../v1/pools",
                "/%76%31/pools",
                "/V1/POOLS",
                "/v1/pools;x",
                "/../../etc/passwd",
            ] {
                client.ask("GET", target).refused(404, NO);
            }
            client.ask("GET", "/v1/pools/%ff").refused(400, NO);
            for (method, target, allowed) in [
                ("PUT", "/v1/pools", "GET,HEAD"),
                ("DELETE", "/v1/pools/chat", "GET,HEAD"),
                ("GET", "/v1/pools/chat/up", "POST"),
                ("TRACE", "/health", "GET,HEAD"),
                ("BREW", "/health", "GET,HEAD"),
                ("OPTIONS", "/v1/pools/chat/leases", "GET,HEAD,POST"),
            ] {
                let answer = client.ask(method, target);
                answer.refused(405, NO);
                let mut allow: Vec<&str> = answer.header("allow").unwrap().split(',').collect();
                allow.sort_unstable();
                assert_eq!(allow.join(","), allowed, "{method} {target}");
            }
            client.ask("OPTIONS", "*").refused(404, NO);
            let head = client.ask("HEAD", "/v1/pools");
            assert_eq!((head.status, head.body.as_str()), (200, ""));
            // What is no HTTP has no document in answer.
            assert_eq!(client.send("nonsense\r\n\r\n").status, 400);
        }
        // Without the token nothing is told about what there is.
        let stranger = Client::stranger(daemon);
        stranger.ask("BREW", "/health").refused(401, NO);
        stranger.ask("DELETE", "/nowhere").refused(401, NO);
    });
}

#[test]
fn requests_on_one_connection_are_answered_in_their_order() {
    with_daemon(|_, daemon| {
        let client = Client::stranger(daemon);
        let mut connection: Box<dyn Connection> = client.connect();
        let first = client.head("GET", "/nowhere", &[]);
        let second = client.head("GET", "/health", &[("Connection", "close")]);
        connection
            .write_all(format!("{first}{second}").as_bytes())
            .unwrap();
        let mut text = String::new();
        connection.read_to_string(&mut text).unwrap();
        let answers = text.split("HTTP/1.1 ").skip(1);
        let statuses: Vec<&str> = answers.filter_map(|it| it.lines().next()).collect();
        assert_eq!(statuses, ["404 Not Found", "200 OK"], "{text}");
    });
}
