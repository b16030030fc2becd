//! Transfers that fall silent, are cut off or cancelled: how long is waited, and what is kept.

use super::*;

#[tokio::test]
async fn a_server_that_falls_silent_or_drips_is_given_up_and_what_came_is_kept() {
    // Two hundred bytes drip in a second: far from the thousand that count, and from the ten looked for, so
    // that a busy machine may hold them up.
    for (silence, interval, bytes) in [(300, 400, 0), (1000, 5, 10)] {
        let server = Server::start(move |_, request| {
            let reply = Reply::file(request, body());
            match request.range() {
                Some((0, _)) => reply.dripping(5000, Duration::from_millis(interval)),
                _ => reply.dripping(0, Duration::from_millis(interval)),
            }
        });
        let mut bench = Bench::compared(&server);
        bench.transfer.size_bytes = Some(SIZE as u64);
        bench.net = silent_after(Duration::from_millis(silence));
        let error = bench.fails(Exit::Network, "stalled").await;
        let NetError::Stalled { bytes: came, .. } = error else {
            panic!("{error}");
        };
        assert!(came >= bytes && came < 1000, "{came}");
        let kept = fs::metadata(&bench.transfer.partial).unwrap().len();
        assert!(kept >= 5000, "{kept}");
    }
}

#[tokio::test]
async fn a_server_that_cuts_off_each_time_is_given_up_only_when_nothing_comes_any_more() {
    let server = Server::start(|number, request| {
        let bytes = if number < 8 { 3000 } else { 0 };
        Reply::file(request, body()).cut_after(bytes)
    });
    let mut bench = Bench::compared(&server);
    bench.transfer.size_bytes = Some(SIZE as u64);
    let error = bench.fails(Exit::Network, "connection").await;
    assert!(error.hints()[0].command.as_ref().unwrap().contains("/m"));
    assert!(server.requests().len() >= 12);
    assert_eq!(bench.left(), ["x.partial", "x.partial.json"]);
}

#[tokio::test]
async fn a_server_that_gives_a_byte_each_time_is_given_up() {
    type Answer = fn(&Request) -> Reply;
    let scraps: [(Answer, &str); 2] = [
        (scrap, "wrong-part"),
        (
            |request| {
                let is_first = request.range().is_some_and(|(start, _)| start == 0);
                let bytes = if is_first { 64 << 10 } else { 1 };
                Reply::file(request, body()).cut_after(bytes)
            },
            "connection",
        ),
    ];
    for (scrap, kind) in scraps {
        let server = Server::start(move |_, request| scrap(request));
        let mut bench = Bench::compared(&server);
        bench.transfer.size_bytes = Some(SIZE as u64);
        bench.fails(Exit::Network, kind).await;
        let asked = server.requests().len();
        let most = FAILURES as usize + 2 * CONNECTIONS;
        assert!(asked <= most, "{kind}: {asked} requests");
    }
}

/// The first byte of what is asked for.
fn scrap(request: &Request) -> Reply {
    let (start, _) = request.range().unwrap();
    let range = format!("bytes {start}-{start}/{SIZE}");
    Reply {
        body: body()[start..=start].to_vec(),
        ..Reply::status(206).with("Content-Range", &range)
    }
}

#[tokio::test]
async fn a_server_is_waited_for_as_long_as_it_asks_but_not_for_an_hour() {
    let server = Server::start(|number, request| match number {
        0 => Reply::status(429).with("Retry-After", "1"),
        _ => Reply::file(request, body()),
    });
    let start = std::time::Instant::now();
    Bench::compared(&server).gets(body()).await;
    assert!(start.elapsed() >= Duration::from_secs(1));

    let server = Server::start(|_, _| Reply::status(503).with("Retry-After", "3600"));
    let bench = Bench::compared(&server);
    let error = bench.fails(Exit::Network, "http-status").await;
    assert_eq!(server.requests().len(), 1);
    assert!(error.hints()[0].text.contains("3600 s"));
    assert_eq!(bench.left(), [""; 0]);
}

#[tokio::test]
async fn a_journal_that_claims_more_than_there_is_counts_for_nothing() {
    let server = Server::start(|_, request| Reply::file(request, body()));
    let bench = Bench::compared(&server);
    let mut journal = journal::Journal::of_unbroken(150_000);
    journal.written = journal.durable.clone();
    journal.size_bytes = Some(SIZE as u64);
    journal.write(&bench.transfer.partial).unwrap();
    fs::write(&bench.transfer.partial, &body()[..1000]).unwrap();
    assert_eq!(bench.gets(body()).await.resumed_bytes, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancelled_transfer_leaves_what_it_says_and_goes_on_there() {
    let server = Server::start(|_, request| {
        let reply = tagged(request, body(), "\"one\"");
        match request.range() {
            Some((start, _)) if start < 100_000 => reply,
            _ => reply.dripping(0, Duration::from_millis(50)),
        }
    });
    let bench = Bench::uncompared(&server);
    let cancel = CancellationToken::new();
    let (net, narrator) = (net(), Narrator::silent());
    let fetching = net.fetch(&bench.transfer, &narrator, &cancel);
    let enough = async {
        // Once each connection waits for its drip, all before it was handed over.
        until(|| {
            let requests = server.requests();
            let drips = |request: &&Request| request.range().is_some_and(|(at, _)| at >= 100_000);
            requests.iter().filter(drips).count() == CONNECTIONS
        })
        .await;
        cancel.cancel();
    };
    let (result, ()) = tokio::join!(fetching, enough);
    let error = result.unwrap_err();
    assert_eq!(
        (error.exit(), error.kind()),
        (Exit::Interrupted, "cancelled")
    );
    let journal = journal::Journal::read(&bench.transfer.partial).unwrap();
    let there = journal.reliable().front();
    assert!(there >= 100_000, "{there}");
    let open = Server::start(|_, request| tagged(request, body(), "\"one\""));
    // The same version by another name may be another one.
    let moved = Bench {
        transfer: Transfer {
            actor: crate::narrate::Actor::ModelProvisioner,
            sources: vec![open.url("m").into()],
            ..bench.transfer.clone()
        },
        ..bench
    };
    assert_eq!(moved.gets(body()).await.resumed_bytes, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_came_before_a_silence_is_journaled_while_it_lasts() {
    let server = Server::start(|_, request| {
        Reply::file(request, body()).dripping(5000, Duration::from_secs(60))
    });
    let bench = Bench::compared(&server);
    let patient = net().limited(Limits {
        silence: Duration::from_secs(60),
        ..*net().limits()
    });
    let (narrator, cancel) = (Narrator::silent(), CancellationToken::new());
    let fetching = patient.fetch(&bench.transfer, &narrator, &cancel);
    // Whoever is killed now writes nothing any more.
    let written = until(|| {
        let journal = journal::Journal::read(&bench.transfer.partial);
        journal.is_some_and(|journal| journal.reliable().front() == 5000)
    });
    tokio::select! {
        result = fetching => panic!("{result:?}"),
        () = written => {}
    }
}
