//! What an operator waits for because of plugins: listing them, and opening one to ask it.
//!
//! `cargo bench -p engine-host --bench providers`. Medians of 15 runs after one that warms up; the
//! session is also given as a multiple of starting `true`, run beside it.
#![expect(
    clippy::disallowed_methods,
    reason = "a bench starts what it compares with"
)]

#[path = "../tests/support/mod.rs"]
#[expect(dead_code, reason = "it uses a part of the support")]
mod support;

use std::time::{Duration, Instant};

use engine_host::provider::{Catalog, Isolation, Session, inspect};
use engine_provider_api::PrepareRequest;

const RUNS: usize = 15;

fn main() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let directory = tempfile::tempdir().unwrap();
    for number in 0..100 {
        let name = format!("libengine_provider_{number}.so");
        std::fs::copy(support::sample(), directory.path().join(name)).unwrap();
    }
    let search = support::search(&[directory.path()]);
    let listing = median(|| assert_eq!(Catalog::search(&search).entries.len(), 100));
    println!("list 100 providers                          {listing:?}");

    let found = inspect(&support::sample(), &search).unwrap();
    let start = median(|| {
        assert!(
            std::process::Command::new("/bin/true")
                .status()
                .unwrap()
                .success()
        );
    });
    println!("start `true` and wait for it                {start:?}");
    for isolation in [Isolation::Worker, Isolation::InProcess] {
        let whole = median(|| runtime.block_on(ask(&found, isolation)));
        let ratio = whole.as_secs_f64() / start.as_secs_f64();
        println!("open, info, plan, prepare, {isolation:?}: {whole:?}, {ratio:.1} times `true`");
    }
}

async fn ask(found: &engine_host::provider::Found, isolation: Isolation) {
    let session = Session::open(found, isolation, &support::options())
        .await
        .unwrap();
    session.info().await.unwrap();
    let mut request = support::plan_request("fixture");
    let binary =
        serde_json::json!({"binary": {"url": "https://example.org/x", "checksum": "sha256:0"}});
    request.pool.provisioning = serde_json::from_value(binary).unwrap();
    session.plan(&request).await.unwrap();
    let request = PrepareRequest {
        pool: request.pool,
        ..support::prepare_request("fixture")
    };
    session.prepare(&request).await.unwrap();
}

fn median(mut run: impl FnMut()) -> Duration {
    run();
    let mut times: Vec<Duration> = (0..RUNS)
        .map(|_| {
            let start = Instant::now();
            run();
            start.elapsed()
        })
        .collect();
    times.sort();
    times[RUNS / 2]
}
