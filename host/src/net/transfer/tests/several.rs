//! A file over several connections, and what they brought when they are cut off.

use super::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_large_file_comes_over_several_connections_and_each_byte_once() {
    let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (counted, highest) = (Arc::clone(&now), Arc::clone(&most));
    let server = Server::start(move |_, request| {
        let active = counted.fetch_add(1, Ordering::SeqCst) + 1;
        highest.fetch_max(active, Ordering::SeqCst);
        // Long enough that the others come meanwhile.
        std::thread::sleep(Duration::from_millis(20));
        counted.fetch_sub(1, Ordering::SeqCst);
        Reply::file(request, body())
    });
    Bench::compared(&server).gets(body()).await;
    let mut asked: Vec<(u64, u64)> = asked(&server)
        .iter()
        .map(|range| {
            let (first, last) = range.split_once('-').unwrap();
            (first.parse().unwrap(), last.parse::<u64>().unwrap() + 1)
        })
        .collect();
    assert_eq!(asked[0], (0, 64 << 10));
    asked.sort_unstable();
    let whole = asked.iter().fold(0, |at, part| {
        assert_eq!(part.0, at, "{asked:?}");
        part.1
    });
    assert_eq!(whole, SIZE as u64);
    let most = most.load(Ordering::SeqCst);
    assert!((2..=4).contains(&most), "{most} at once");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_wants_fewer_connections_gets_fewer() {
    let active = Arc::new(AtomicUsize::new(0));
    let server = Server::start(move |_, request| {
        if active.fetch_add(1, Ordering::SeqCst) >= 2 {
            active.fetch_sub(1, Ordering::SeqCst);
            return Reply::status(429);
        }
        std::thread::sleep(Duration::from_millis(5));
        active.fetch_sub(1, Ordering::SeqCst);
        Reply::file(request, body())
    });
    Bench::compared(&server).gets(body()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_several_connections_brought_is_not_fetched_again() {
    let is_broken = Arc::new(AtomicBool::new(true));
    let broken = Arc::clone(&is_broken);
    let server = Server::start(move |_, request| {
        let reply = Reply::file(request, body());
        match request.range() {
            // The part at the front never comes: what is there has a hole.
            Some((0, _)) if broken.load(Ordering::SeqCst) => reply.cut_after(20_000),
            Some((start, _)) if broken.load(Ordering::SeqCst) && start < 64 << 10 => {
                Reply::status(500)
            }
            _ => reply,
        }
    });
    let bench = Bench::compared(&server);
    let error = bench.fails(Exit::Network, "http-status").await;
    assert!(error.to_string().ends_with("/m answered 500"), "{error}");
    assert_eq!(bench.left(), ["x.partial", "x.partial.json"]);
    is_broken.store(false, Ordering::SeqCst);
    let before = server.requests().len();
    let fetched = bench.gets(body()).await;
    // How far the others came before the last one gave up is theirs to decide.
    assert!(fetched.resumed_bytes > 20_000, "{}", fetched.resumed_bytes);
    let asked: Vec<String> = asked(&server).split_off(before);
    assert_eq!(asked[0], "20000-36383");
    let bytes = asked.iter().map(|range| {
        let (first, last) = range.split_once('-').unwrap();
        last.parse::<u64>().unwrap() + 1 - first.parse::<u64>().unwrap()
    });
    assert_eq!(bytes.sum::<u64>() + fetched.resumed_bytes, SIZE as u64);
}
