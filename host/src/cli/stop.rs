//! `host stop`: ends engines, whichever host started them.

use std::io::Write;

use futures_util::future::join_all;
use tokio_util::sync::CancellationToken;

use crate::{
    config::paths::Home,
    engine::{EngineError, Instance, instances, stop_instance},
    narrate::Narrator,
};

/// Which engines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Which<'a> {
    /// Every replica of these pools.
    Pools(&'a [String]),
    /// All of this installation.
    All,
}

/// Stops them side by side and prints one line for each. Cancelling `hurry` skips draining and
/// grace. Every engine is tried; the first failure is returned.
pub async fn run(
    home: &Home,
    which: Which<'_>,
    narrator: &Narrator,
    hurry: &CancellationToken,
    out: &mut dyn Write,
) -> Result<(), EngineError> {
    let chosen = choose(instances(home)?, which)?;
    let stops = chosen.iter().map(|engine| {
        let narrator = narrator.with(|context| {
            context.pool_id = Some(engine.pool_id.clone());
            context.replica_id = Some(engine.replica_id.clone());
            context.engine = Some(engine.engine.clone());
            context.engine_version = Some(engine.engine_version.clone());
        });
        async move { stop_instance(home, engine, &narrator, hurry).await }
    });
    let stopped = join_all(stops).await;
    let mut first = Ok(());
    for (engine, result) in chosen.iter().zip(stopped) {
        if result.is_ok() {
            writeln!(
                out,
                "stopped {} {} ({})",
                engine.pool_id, engine.replica_id, engine.url
            )
            .map_err(|source| EngineError::Output { source })?;
        }
        first = first.and(result);
    }
    if chosen.is_empty() {
        writeln!(out, "no engine runs").map_err(|source| EngineError::Output { source })?;
    }
    first
}

/// The engines that are meant; a pool that has none is an error before anything is stopped.
fn choose(running: Vec<Instance>, which: Which<'_>) -> Result<Vec<Instance>, EngineError> {
    let Which::Pools(pools) = which else {
        return Ok(running);
    };
    if let Some(missing) = pools
        .iter()
        .find(|pool| !running.iter().any(|engine| engine.pool_id == **pool))
    {
        let mut names: Vec<String> = running.into_iter().map(|engine| engine.pool_id).collect();
        names.dedup();
        return Err(EngineError::NotRunning {
            pool: missing.clone(),
            running: names,
        });
    }
    Ok(running
        .into_iter()
        .filter(|engine| pools.contains(&engine.pool_id))
        .collect())
}
