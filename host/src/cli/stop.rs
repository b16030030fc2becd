//! `host stop`: ends engines, whichever host started them.

use std::io::Write;

use futures_util::future::join_all;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::config::Form;
use crate::{
    config::paths::Home,
    engine::{EngineError, Instance, instances, stop_instance},
    narrate::Narrator,
};

/// Schema of the JSON form.
const SCHEMA: u32 = 1;

/// Which engines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Which<'a> {
    /// Every replica of these pools.
    Pools(&'a [String]),
    /// All of this installation.
    All,
}

/// Stops them side by side and prints what was stopped: a line for each, or one document. Cancelling `hurry` skips draining and
/// grace. Every engine is tried; the first failure is returned.
pub async fn run(
    home: &Home,
    which: Which<'_>,
    narrator: &Narrator,
    hurry: &CancellationToken,
    form: Form,
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
    let (mut ended, mut first) = (Vec::new(), Ok(()));
    for (engine, result) in chosen.iter().zip(stopped) {
        if result.is_ok() {
            ended.push(engine);
        }
        first = first.and(result);
    }
    let text = match form {
        Form::Json => document(&ended),
        Form::Human if chosen.is_empty() => "no engine runs\n".to_owned(),
        Form::Human => ended.iter().map(|engine| line(engine)).collect(),
    };
    out.write_all(text.as_bytes())
        .map_err(|source| EngineError::Output { source })?;
    first
}

fn line(engine: &Instance) -> String {
    let Instance {
        pool_id,
        replica_id,
        url,
        ..
    } = engine;
    format!("stopped {pool_id} {replica_id} ({url})\n")
}

fn document(stopped: &[&Instance]) -> String {
    let stopped: Vec<_> = stopped
        .iter()
        .map(|engine| {
            json!({"pool_id": engine.pool_id, "replica_id": engine.replica_id, "url": engine.url})
        })
        .collect();
    format!("{}\n", json!({"schema": SCHEMA, "stopped": stopped}))
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
