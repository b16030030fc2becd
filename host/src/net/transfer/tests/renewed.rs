//! Access that ends on the way, and is had anew.

use super::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_way_is_asked_once_and_again_when_it_has_run_out() {
    let served = Arc::new(AtomicUsize::new(0));
    let target = Server::start(move |_, request| {
        let is_old = request.path.ends_with("signature=0");
        match is_old && served.fetch_add(1, Ordering::SeqCst) >= 3 {
            true => Reply::status(403),
            false => Reply::file(request, body()),
        }
    });
    let to = target.url("m").to_string();
    let way = Server::start(move |number, _| Reply::redirect(&format!("{to}?signature={number}")));
    Bench::compared(&way).gets(body()).await;
    let asked = way.requests().len();
    // Each connection may find out by itself.
    assert!((2..=5).contains(&asked), "{asked}");
}

/// Gives a new token each time, as long as there are any; counts.
#[derive(Default)]
struct Tokens {
    given: Arc<AtomicUsize>,
    /// Those that are no good from the start.
    bad: usize,
    /// What is asked for them: fails with what this answers, where that is not 200.
    service: Option<Url>,
}

impl Renew for Tokens {
    fn renew<'a>(
        &'a self,
        refused: &'a Source,
    ) -> futures_util::future::BoxFuture<'a, Result<Source, crate::net::NotRenewed>> {
        Box::pin(async {
            let number = self.given.fetch_add(1, Ordering::SeqCst) + 1;
            if let Some(service) = &self.service {
                let cancel = CancellationToken::new();
                net().describe(&service.clone().into(), &cancel).await?;
            }
            let token = match number <= self.bad {
                true => "bad".to_owned(),
                false => number.to_string(),
            };
            let mut source = refused.clone();
            source.headers.insert("x-token", token.parse().unwrap());
            source.renewal = None;
            Ok(source)
        })
    }
}

/// A server that takes each token so often, and one token after the other.
fn short_lived(times: usize) -> Server {
    let uses = std::sync::Mutex::new(std::collections::BTreeMap::<u32, usize>::new());
    Server::start(move |_, request| {
        let token = request.headers.get("x-token");
        let Some(Ok(token)) = token.map(|token| token.parse::<u32>()) else {
            return Reply::status(401);
        };
        let mut uses = uses.lock().unwrap();
        if uses.last_key_value().is_some_and(|(last, _)| *last > token) {
            return Reply::status(401);
        }
        let used = uses.entry(token).or_default();
        *used += 1;
        match *used > times {
            true => Reply::status(401),
            false => Reply::file(request, body()),
        }
    })
}

fn renewed_by(mut bench: Bench, tokens: Tokens) -> Bench {
    bench.transfer.sources[0].renewal = Some(crate::net::Renewal::new(tokens));
    bench
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn access_that_ends_is_renewed_and_no_byte_comes_twice() {
    // No fewer than there are connections: each is given something by each token.
    for times in [4, 6] {
        let server = short_lived(times);
        let tokens = Tokens::default();
        let given = Arc::clone(&tokens.given);
        renewed_by(Bench::compared(&server), tokens)
            .gets(body())
            .await;
        let given = given.load(Ordering::SeqCst);
        // 64 KiB first, then parts of 16 KiB.
        let parts = 1 + (SIZE - (64 << 10)).div_ceil(16 << 10);
        assert_eq!(given, parts.div_ceil(times));
        let requests = server.requests();
        let mut taken: Vec<String> = requests
            .iter()
            .filter_map(|request| request.headers.get("range").cloned())
            .collect();
        taken.sort();
        taken.dedup();
        assert_eq!(taken.len(), parts);
    }
}

#[tokio::test]
async fn access_that_brings_nothing_is_renewed_twice_and_not_without_end() {
    let outdated = short_lived(100);
    let tokens = Tokens {
        bad: 1,
        ..Tokens::default()
    };
    renewed_by(Bench::compared(&outdated), tokens)
        .gets(body())
        .await;
    let closed = Server::start(|_, _| Reply::status(403));
    let tokens = Tokens::default();
    let given = Arc::clone(&tokens.given);
    let bench = renewed_by(Bench::compared(&closed), tokens);
    bench.fails(Exit::Network, "http-status").await;
    assert_eq!(given.load(Ordering::SeqCst), 2);
    assert_eq!(closed.requests().len(), 3);
    let lone = Server::start(|_, _| Reply::status(401));
    Bench::compared(&lone)
        .fails(Exit::Network, "http-status")
        .await;
    assert_eq!(lone.requests().len(), 1);
}

#[tokio::test]
async fn a_renewal_that_fails_says_why_and_is_tried_again_where_it_may_pass() {
    let server = short_lived(100);
    let busy = Server::start(|number, _| match number {
        0..4 => Reply::status(503),
        _ => Reply::ok("x"),
    });
    let tokens = Tokens {
        service: Some(busy.url("token")),
        ..Tokens::default()
    };
    renewed_by(Bench::compared(&server), tokens)
        .gets(body())
        .await;
    let gone = Server::start(|_, _| Reply::status(410));
    let tokens = Tokens {
        service: Some(gone.url("token")),
        ..Tokens::default()
    };
    let bench = renewed_by(Bench::compared(&server), tokens);
    let error = bench.fails(Exit::Network, "http-status").await;
    let told = crate::narrate::chain(&error);
    assert!(
        told.contains("answered 401, and access to it was not renewed"),
        "{told}"
    );
    assert!(told.contains("answered 410"), "{told}");
    assert_eq!(gone.requests().len(), 1);
}
