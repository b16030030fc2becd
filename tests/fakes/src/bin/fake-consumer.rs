//! A consumer of handoffs with nothing but the watch: prints what becomes of those in a directory.
//!
//! `fake-consumer DIRECTORY` prints `bound POOL/REPLICA URL`, `changed …`, `unbound …`, until it is ended.

use std::io::Write;

use engine_host::handoff;

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let directory = std::env::args_os().nth(1).expect("a directory");
    let mut handoffs = handoff::watch(std::path::PathBuf::from(directory));
    let mut out = std::io::stdout();
    while let Some(event) = handoffs.next().await {
        let handoff = &event.binding().handoff;
        let (pool, replica, url) = (&handoff.pool_id, &handoff.replica_id, &handoff.url);
        let line = writeln!(out, "{} {pool}/{replica} {url}", event.as_str());
        if line.and_then(|()| out.flush()).is_err() {
            return;
        }
    }
}
