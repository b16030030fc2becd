//! `host ps`: the engines of this installation.

use std::io::Write;

use comfy_table::{Table, presets::NOTHING};
use serde_json::json;

use crate::{
    config::paths::Home,
    engine::{EngineError, Instance, instances},
};

/// Schema of the JSON form.
const SCHEMA: u32 = 1;

/// Lists what runs, as a table for people or as JSON.
pub fn run(home: &Home, as_json: bool, out: &mut dyn Write) -> Result<(), EngineError> {
    let engines = instances(home)?;
    let text = if as_json {
        let engines: Vec<_> = engines.iter().map(document).collect();
        let list = json!({"schema": SCHEMA, "engines": engines});
        format!("{list:#}\n")
    } else if engines.is_empty() {
        "no engine runs\n".to_owned()
    } else {
        table(&engines)
    };
    out.write_all(text.as_bytes())
        .map_err(|source| EngineError::Output { source })
}

/// One engine as JSON; the shape is described in `docs/cli.md`.
fn document(engine: &Instance) -> serde_json::Value {
    json!({
        "pool_id": engine.pool_id,
        "replica_id": engine.replica_id,
        "engine": engine.engine,
        "engine_version": engine.engine_version,
        "state": engine.state,
        "detached": engine.kept,
        "pid": engine.process.pid,
        "url": engine.url,
        "endpoints": engine.endpoints,
        "container": engine.container.as_ref().map(|container| {
            json!({"runtime": container.runtime, "name": container.name})
        }),
        "started_at": engine.started_at,
        "handoff": engine.handoff,
        "log": engine.log,
    })
}

fn table(engines: &[Instance]) -> String {
    let mut table = Table::new();
    table.load_preset(NOTHING).set_header([
        "POOL", "REPLICA", "ENGINE", "VERSION", "STATE", "PID", "URL", "SINCE", "HANDOFF",
    ]);
    for engine in engines {
        table.add_row([
            engine.pool_id.clone(),
            engine.replica_id.clone(),
            engine.engine.clone(),
            engine.engine_version.clone(),
            engine.state.as_str().to_owned(),
            engine.process.pid.to_string(),
            engine.url.clone(),
            engine.started_at.strftime("%F %TZ").to_string(),
            engine.handoff.display().to_string(),
        ]);
    }
    let rows = table.trim_fmt();
    format!("{rows}\n")
}
