//! The engines' own metrics, on one page with the daemon's.

use futures_util::future::join_all;

use crate::{
    engine,
    narrate::{Metrics, metrics::Limits},
    pool::PoolManager,
};

/// The page of this daemon with those of its engines, each sample named by pool and replica. An engine
/// that does not answer in time is left out.
pub(super) async fn page(manager: &PoolManager, metrics: &Metrics) -> String {
    let home = manager.host().home.clone();
    let listed = tokio::task::spawn_blocking(move || engine::instances(&home)).await;
    // What cannot be listed has no metrics either.
    let engines = listed.ok().and_then(Result::ok).unwrap_or_default();
    let ours = |pool: &str| manager.status(pool).is_ok();
    let engines: Vec<_> = engines.into_iter().filter(|it| ours(&it.pool_id)).collect();
    let pages = join_all(engines.iter().map(engine::metrics_of)).await;
    let mut page = metrics.exposition();
    for (engine, text) in engines.iter().zip(pages) {
        let labels = [
            ("pool", engine.pool_id.as_str()),
            ("replica", engine.replica_id.as_str()),
        ];
        if let Some(text) = text {
            page.add(&text, &labels, Limits::default());
        }
    }
    page.text()
}
