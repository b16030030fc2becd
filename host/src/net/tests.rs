use std::{
    fs,
    path::Path,
    sync::{Arc, Mutex},
};

use tokio_util::sync::CancellationToken;

use super::{
    testing::{Reply, Server, net_with, open_net},
    *,
};
use crate::{
    config::environment::Environment,
    fault::{Exit, Fault as _},
    narrate::Narrator,
    policy::Policy,
};

fn body() -> Vec<u8> {
    (0..200_000_u32)
        .map(|number| (number % 251) as u8)
        .collect()
}

fn digest_of(bytes: &[u8]) -> Digest {
    use sha2::Digest as _;
    Digest::Sha256(crate::store::hex(&sha2::Sha256::digest(bytes)))
}

fn transfer(url: Url, directory: &Path, digest: Option<Digest>) -> Transfer {
    Transfer {
        actor: crate::narrate::Actor::ModelProvisioner,
        kind: "test",
        sources: vec![url.into()],
        digest,
        size_bytes: None,
        limit_bytes: None,
        partial: directory.join("x.partial"),
        task: "test".to_owned(),
    }
}

async fn fetch(net: &Net, transfer: &Transfer) -> Result<Fetched, NetError> {
    net.fetch(transfer, &Narrator::silent(), &CancellationToken::new())
        .await
}

#[tokio::test]
async fn a_transfer_that_breaks_off_goes_on_where_it_stopped() {
    let server = Server::start(|number, request| {
        let reply = Reply::file(request, &body());
        if number < 3 {
            reply.cut_after(30_000)
        } else {
            reply
        }
    });
    let directory = tempfile::tempdir().unwrap();
    let transfer = transfer(server.url("m"), directory.path(), Some(digest_of(&body())));
    let fetched = fetch(&open_net(), &transfer).await.unwrap();
    assert_eq!(fs::read(&fetched.path).unwrap(), body());
    let ranges: Vec<bool> = server
        .requests()
        .iter()
        .map(|request| request.headers.contains_key("range"))
        .collect();
    assert_eq!(ranges, [true; 4]);
}

#[tokio::test]
async fn what_an_earlier_run_left_is_hashed_and_used() {
    let server = Server::start(|_, request| Reply::file(request, &body()));
    let directory = tempfile::tempdir().unwrap();
    let transfer = transfer(server.url("m"), directory.path(), Some(digest_of(&body())));
    fs::write(&transfer.partial, &body()[..150_000]).unwrap();
    let fetched = fetch(&open_net(), &transfer).await.unwrap();
    assert_eq!(fetched.resumed_bytes, 150_000);
    let range = server.requests()[0].headers["range"].clone();
    assert_eq!(range, "bytes=150000-");
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);

    // Whole already: the server says there is nothing more, and that is enough.
    fs::write(&transfer.partial, body()).unwrap();
    fetch(&open_net(), &transfer).await.unwrap();
}

#[tokio::test]
async fn a_damaged_remainder_costs_one_more_transfer_not_the_job() {
    let server = Server::start(|_, request| Reply::file(request, &body()));
    let directory = tempfile::tempdir().unwrap();
    let transfer = transfer(server.url("m"), directory.path(), Some(digest_of(&body())));
    fs::write(&transfer.partial, vec![9; 1000]).unwrap();
    let fetched = fetch(&open_net(), &transfer).await.unwrap();
    assert_eq!(fetched.resumed_bytes, 0);
    assert_eq!(fs::read(&fetched.path).unwrap(), body());
}

#[tokio::test]
async fn a_wrong_digest_leaves_nothing_behind() {
    let server = Server::start(|_, _| Reply::ok("something else"));
    let directory = tempfile::tempdir().unwrap();
    let transfer = transfer(server.url("m"), directory.path(), Some(digest_of(&body())));
    let error = fetch(&open_net(), &transfer).await.unwrap_err();
    assert_eq!(error.exit(), Exit::Verification);
    assert_eq!(error.kind(), "digest-mismatch");
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
}

#[tokio::test]
async fn without_a_digest_only_the_same_version_is_resumed() {
    let server = Server::start(|number, request| {
        let tag = if number == 0 { "\"one\"" } else { "\"two\"" };
        // The version changed: a server that honours If-Range sends all of it.
        let mut reply = match request.headers.get("if-range").map(String::as_str) {
            Some(known) if known == tag => Reply::file(request, &body()),
            _ => Reply::ok(body()),
        };
        reply.headers.push(("ETag", tag.to_owned()));
        if number == 0 {
            reply.cut_after(50_000)
        } else {
            reply
        }
    });
    let directory = tempfile::tempdir().unwrap();
    let transfer = transfer(server.url("m"), directory.path(), None);
    let fetched = fetch(&open_net(), &transfer).await.unwrap();
    assert_eq!(fs::read(&fetched.path).unwrap(), body());
    let requests = server.requests();
    assert_eq!(requests.len(), 2);
    assert_eq!(requests[1].headers["if-range"], "\"one\"");
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
}

#[tokio::test]
async fn busy_servers_are_asked_again_and_final_answers_are_not() {
    let server = Server::start(|number, _| match number {
        0 | 1 => Reply::status(503),
        _ => Reply::ok("x"),
    });
    let directory = tempfile::tempdir().unwrap();
    let transfer_ = transfer(server.url("m"), directory.path(), None);
    fetch(&open_net(), &transfer_).await.unwrap();

    let server = Server::start(|_, _| Reply::status(404));
    let directory = tempfile::tempdir().unwrap();
    let transfer_ = transfer(server.url("m?token=hidden"), directory.path(), None);
    let error = fetch(&open_net(), &transfer_).await.unwrap_err();
    assert!(matches!(error, NetError::Status { status: 404, .. }));
    assert!(!error.to_string().contains("hidden"), "{error}");
    assert_eq!(server.requests().len(), 1);
}

#[tokio::test]
async fn every_hop_is_asked_of_the_policy() {
    let target = Server::start(|_, _| Reply::ok("x"));
    // The same port under a name that the policy does not know.
    let forbidden = target
        .url("m")
        .to_string()
        .replace("127.0.0.1", "localhost");
    let server = Server::start(move |_, _| Reply::redirect(&forbidden));
    let asked = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&asked);
    let gate = move |host: &str, from: Option<&str>| {
        seen.lock()
            .unwrap()
            .push((host.to_owned(), from.map(str::to_owned)));
        Policy::default().allow_host(host, &["127.0.0.1".to_owned()])
    };
    let directory = tempfile::tempdir().unwrap();
    let transfer = transfer(server.url("m"), directory.path(), None);
    let error = fetch(&net_with(Arc::new(gate)), &transfer)
        .await
        .unwrap_err();
    assert_eq!(error.exit(), Exit::Refused);
    let vouched = ("localhost".to_owned(), Some("127.0.0.1".to_owned()));
    assert_eq!(asked.lock().unwrap().last(), Some(&vouched));
    assert!(target.requests().is_empty());
}

#[tokio::test]
async fn what_is_on_this_machine_is_not_asked_of_a_proxy() {
    let server = Server::start(|_, _| Reply::ok("x"));
    let proxy = Server::start(|_, _| Reply::status(502));
    let variables = ["http_proxy", "ALL_PROXY"].map(|name| (name, proxy.url("").to_string()));
    let environment = Environment::from_pairs(variables);
    let net = Net::new(&environment, Arc::new(|_: &str, _: Option<&str>| Ok(())));
    let directory = tempfile::tempdir().unwrap();
    fetch(&net, &transfer(server.url("m"), directory.path(), None))
        .await
        .unwrap();
    let elsewhere = Url::parse("http://elsewhere.test/m").unwrap();
    let digest = Some(digest_of(b"x"));
    let elsewhere = transfer(elsewhere, directory.path(), digest);
    let cancel = CancellationToken::new();
    let narrator = Narrator::silent();
    let asking = net.fetch(&elsewhere, &narrator, &cancel);
    let asked = async {
        while proxy.requests().is_empty() {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
        cancel.cancel();
    };
    let (result, ()) = tokio::join!(asking, asked);
    result.unwrap_err();
    assert_eq!(proxy.requests()[0].path, "http://elsewhere.test/m");
}

#[tokio::test]
async fn plain_http_needs_loopback_or_a_digest() {
    let directory = tempfile::tempdir().unwrap();
    let url = Url::parse("http://models.invalid/m").unwrap();
    let plain = transfer(url, directory.path(), None);
    let error = fetch(&open_net(), &plain).await.unwrap_err();
    assert!(matches!(error, NetError::Insecure { .. }), "{error}");
}

#[tokio::test]
async fn too_large_and_other_sizes_are_refused_before_they_are_kept() {
    let server = Server::start(|_, _| Reply::ok(body()));
    let directory = tempfile::tempdir().unwrap();
    let mut transfer = transfer(server.url("m"), directory.path(), None);
    transfer.limit_bytes = Some(1000);
    let error = fetch(&open_net(), &transfer).await.unwrap_err();
    assert!(matches!(error, NetError::TooLarge { .. }), "{error}");
    transfer.limit_bytes = None;
    transfer.size_bytes = Some(5);
    let error = fetch(&open_net(), &transfer).await.unwrap_err();
    assert_eq!(error.exit(), Exit::Verification);
}

#[tokio::test]
async fn cancelling_ends_a_transfer_and_keeps_what_arrived() {
    let server = Server::start(|_, _| Reply::status(503));
    let directory = tempfile::tempdir().unwrap();
    let transfer = transfer(
        server.url("m"),
        directory.path(),
        Some(digest_of(b"abcdef")),
    );
    fs::write(&transfer.partial, "abc").unwrap();
    let cancel = CancellationToken::new();
    cancel.cancel();
    let error = open_net()
        .fetch(&transfer, &Narrator::silent(), &cancel)
        .await
        .unwrap_err();
    assert!(matches!(error, NetError::Cancelled { .. }), "{error}");
    assert_eq!(fs::read(&transfer.partial).unwrap(), b"abc");
}

#[tokio::test]
async fn a_source_distribution_is_found_in_an_index() {
    let server = Server::start(|_, request| match request.path.as_str() {
        "/simple/toy-engine/" => {
            let page = r#"{"files":[
                {"filename":"toy_engine-1.0-py3-none-any.whl","url":"/f/w","hashes":{}},
                {"filename":"toy_engine-1.0.tar.gz","url":"/f/toy_engine-1.0.tar.gz","hashes":{"sha256":"ab"}}]}"#;
            Reply {
                headers: vec![("Content-Type", "application/vnd.pypi.simple.v1+json".into())],
                ..Reply::ok(page)
            }
        }
        _ => Reply::status(404),
    });
    let cancel = CancellationToken::new();
    let net = open_net();
    let index = server.url("simple");
    let file = find_sdist(&net, &index, "Toy.Engine", "1.0", &cancel)
        .await
        .unwrap();
    assert_eq!(file.url, server.url("f/toy_engine-1.0.tar.gz"));
    let error = find_sdist(&net, &index, "toy-engine", "2.0", &cancel)
        .await
        .unwrap_err();
    assert!(matches!(error, NetError::NotInIndex { .. }), "{error}");
}

#[tokio::test]
async fn files_of_an_index_are_fetched_with_its_credentials_and_those_elsewhere_without() {
    let server = Server::start(|_, request| {
        if !request.headers.contains_key("authorization") {
            return Reply::status(401);
        }
        match request.path.as_str() {
            "/old/toy/" => Reply::redirect("/simple/toy/"),
            _ => Reply {
                headers: vec![("Content-Type", "text/html".into())],
                ..Reply::ok(format!(
                    "<a href='../../f/toy-1.0.tar.gz'></a>\n\
                     <a href='http://{}/f/toy-1.1.tar.gz'></a>\n\
                     <a href='https://files.test/f/toy-1.2.tar.gz'></a>",
                    request.headers["host"]
                ))
            },
        }
    });
    let mut index = server.url("old");
    index.set_username("ada").unwrap();
    index.set_password(Some("secret")).unwrap();
    let (net, cancel) = (open_net(), CancellationToken::new());
    for (version, password) in [
        ("1.0", Some("secret")),
        ("1.1", Some("secret")),
        ("1.2", None),
    ] {
        let file = find_sdist(&net, &index, "toy", version, &cancel).await;
        assert_eq!(file.unwrap().url.password(), password, "{version}");
    }
}

#[tokio::test]
async fn an_index_over_plain_http_is_asked_since_its_files_are_compared() {
    let cancel = CancellationToken::new();
    let index = Url::parse("http://index.invalid/simple").unwrap();
    let net = net_with(Arc::new(|host: &str, _: Option<&str>| {
        assert_eq!(host, "index.invalid");
        Err(Policy::default().allow_host(host, &[]).unwrap_err())
    }));
    // It gets as far as policy, past the rule for what nothing is compared with.
    let error = find_sdist(&net, &index, "toy", "1", &cancel).await;
    let error = error.unwrap_err();
    assert!(matches!(error, NetError::Forbidden { .. }), "{error}");
}

#[tokio::test]
async fn a_server_elsewhere_cannot_send_requests_back_to_this_machine() {
    let here = Server::start(|_, _| Reply::ok(body()));
    for target in [
        here.url("secret"),
        Url::parse("http://0.0.0.0:9/").unwrap(),
        Url::parse("http://[::ffff:127.0.0.1]:9/").unwrap(),
        Url::parse("http://169.254.169.254/latest/meta-data").unwrap(),
    ] {
        let location = target.to_string();
        // What a proxy answers is what the server elsewhere does.
        let elsewhere = Server::start(move |_, _| Reply::redirect(&location));
        let environment = Environment::from_pairs([("http_proxy", elsewhere.url("").to_string())]);
        let net = Net::new(&environment, Arc::new(|_: &str, _: Option<&str>| Ok(())));
        let directory = tempfile::tempdir().unwrap();
        let url = Url::parse("http://elsewhere.test/m").unwrap();
        let transfer = transfer(url, directory.path(), Some(digest_of(&body())));
        let error = fetch(&net, &transfer).await.unwrap_err();
        assert_eq!((error.kind(), error.exit()), ("redirect", Exit::Network));
        assert!(error.to_string().contains("this machine"), "{error}");
    }
    assert_eq!(here.requests().len(), 0);
}
