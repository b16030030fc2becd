//! Answers that are not what was asked for: other ranges, sizes, packing, places.

use super::*;

#[tokio::test]
async fn a_server_that_lies_about_ranges_is_asked_for_the_whole_file() {
    let lies: [fn(&Request) -> Reply; 4] = [
        // Another part.
        |_| Reply {
            status: 206,
            ..Reply::ok(body()).with("Content-Range", &format!("bytes 5-{}/{SIZE}", SIZE - 1))
        },
        // More than was asked for.
        |_| Reply {
            status: 206,
            ..Reply::ok(body()).with("Content-Range", &format!("bytes 0-{}/{SIZE}", SIZE - 1))
        },
        // Says one thing and does another.
        |_| Reply {
            status: 206,
            ..Reply::ok(body()).with("Content-Range", &format!("bytes 0-65535/{SIZE}"))
        },
        |_| Reply::status(416),
    ];
    for lie in lies {
        let server = Server::start(move |_, request| match request.range() {
            Some(_) => lie(request),
            None => Reply::ok(body()),
        });
        Bench::compared(&server).gets(body()).await;
        Bench::uncompared(&server).gets(body()).await;
    }
}

#[tokio::test]
async fn another_size_than_expected_is_refused_before_it_is_fetched() {
    for with_ranges in [true, false] {
        let server = Server::start(move |_, request| match with_ranges {
            true => Reply::file(request, body()),
            false => Reply::ok(body()),
        });
        let mut bench = Bench::compared(&server);
        bench.transfer.size_bytes = Some(100_000);
        let error = bench.fails(Exit::Verification, "size-mismatch").await;
        let message = error.to_string();
        assert!(
            message.ends_with("has 200000 bytes, expected 100000"),
            "{message}"
        );
        assert_eq!(bench.left(), [""; 0]);
        assert_eq!(server.requests().len(), 1);
    }
}

#[tokio::test]
async fn an_empty_file_is_a_file() {
    let ranges = Server::start(|_, request| Reply::file(request, b""));
    let whole = Server::start(|_, _| Reply::ok(""));
    for server in [ranges, whole] {
        Bench::uncompared(&server).gets(b"").await;
        // And not the one that was wanted: said once, not for ever.
        let bench = Bench::compared(&server);
        bench.fails(Exit::Verification, "digest-mismatch").await;
    }
}

#[tokio::test]
async fn packed_content_is_refused_unless_a_digest_says_that_it_should_be() {
    let server = Server::start(|_, request| {
        assert_eq!(request.headers["accept-encoding"], "identity");
        Reply::file(request, body()).with("Content-Encoding", "gzip")
    });
    let bench = Bench::uncompared(&server);
    let error = bench.fails(Exit::Network, "content-encoding").await;
    assert!(error.to_string().contains("packed (gzip)"), "{error}");
    assert_eq!(bench.left(), [""; 0]);
    Bench::compared(&server).gets(body()).await;
}

#[tokio::test]
async fn redirects_end() {
    let server = Server::start(|_, _| Reply::redirect("/m"));
    let bench = Bench::compared(&server);
    let error = bench.fails(Exit::Network, "redirect").await;
    assert!(error.to_string().ends_with("redirects more than 10 times"));
    let server = Server::start(|_, _| Reply::redirect("ftp://127.0.0.1/m"));
    Bench::compared(&server)
        .fails(Exit::Network, "redirect")
        .await;
}

#[tokio::test]
async fn a_size_that_no_disk_has_is_refused_before_it_costs_anything() {
    for size in [u64::MAX, 1 << 62, 1 << 50] {
        let server = Server::start(move |_, _| Reply {
            status: 206,
            ..Reply::ok([1; 10])
                .with("Content-Range", &format!("bytes 0-9/{size}"))
                .with("ETag", "\"a\"")
        });
        for digest in [None, Some(Digest::of(b"x"))] {
            let bench = Bench::of([server.url("m")], digest);
            let before = server.requests().len();
            bench.fails(Exit::Storage, "disk-full").await;
            assert_eq!(bench.left(), [""; 0]);
            // Nothing more is asked for before there is room.
            assert_eq!(server.requests().len() - before, 1);
        }
    }
}
