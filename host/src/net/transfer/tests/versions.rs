//! A file that changes while it is fetched: versions are never mixed.

use super::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn versions_are_never_mixed_when_nothing_would_tell() {
    let begun = Arc::new(AtomicUsize::new(0));
    let server = Server::start(move |_, request| {
        // Changes once, after the first few parts.
        match begun.fetch_add(1, Ordering::SeqCst) < 3 {
            true => tagged(request, body(), "\"one\""),
            false => tagged(request, other_body(), "\"two\""),
        }
    });
    let bench = Bench::uncompared(&server);
    bench.gets(other_body()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_ignores_if_range_is_seen_through() {
    let begun = Arc::new(AtomicUsize::new(0));
    let server = Server::start(
        move |_, request| match begun.fetch_add(1, Ordering::SeqCst) < 3 {
            true => Reply::file(request, body()).with("ETag", "\"one\""),
            false => Reply::file(request, other_body()).with("ETag", "\"two\""),
        },
    );
    Bench::uncompared(&server).gets(other_body()).await;
}

#[tokio::test]
async fn a_file_that_changes_all_the_time_is_given_up() {
    let server = Server::start(|number, request| {
        Reply::file(request, body()).with("ETag", &format!("\"{number}\""))
    });
    let bench = Bench::uncompared(&server);
    let error = bench.fails(Exit::Network, "changed").await;
    assert!(error.to_string().ends_with("changed while it was fetched"));
    assert!(!error.hints().is_empty());
}

#[tokio::test]
async fn a_file_that_changed_on_the_way_is_fetched_once_more_for_its_digest() {
    let server = Server::start(|number, request| match number {
        0 => Reply::file(request, other_body()).with("ETag", "\"one\""),
        _ => Reply::file(request, body()).with("ETag", "\"two\""),
    });
    Bench::compared(&server).gets(body()).await;
}

#[tokio::test]
async fn without_any_mark_of_a_version_a_file_comes_in_one_piece() {
    let server = Server::start(|_, request| Reply::file(request, body()));
    Bench::uncompared(&server).gets(body()).await;
    assert_eq!(asked(&server), ["0-65535", ""]);
}

#[tokio::test]
async fn another_version_than_the_one_that_is_named_is_said_to_be_one() {
    let server = Server::start(|_, request| match request.range() {
        Some((0, _)) => Reply::file(request, body()).with("ETag", "\"one\""),
        _ => Reply::status(412),
    });
    let named = |server: &Server| {
        let mut bench = Bench::uncompared(server);
        let mark = "\"one\"".parse().unwrap();
        let headers = &mut bench.transfer.sources[0].headers;
        headers.insert(reqwest::header::IF_MATCH, mark);
        bench
    };
    let error = named(&server).fails(Exit::Network, "changed").await;
    let hint = &error.hints()[0].text;
    assert!(hint.contains("run the same command again"), "{hint}");
    let server = Server::start(|_, _| Reply::status(412));
    named(&server).fails(Exit::Network, "changed").await;
    // Nobody named one: then it says nothing of versions.
    let bench = Bench::uncompared(&server);
    bench.fails(Exit::Network, "http-status").await;
}
