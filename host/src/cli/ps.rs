//! `host ps`: the engines of this installation.

use std::io::Write;

use serde_json::json;

use super::columns::{columns, printed};
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
        "detached": engine.kept && engine.kept_limit_ms.is_none(),
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

/// A version as a table has room for it: of a digest its first digits.
fn short_version(version: &str) -> String {
    const DIGITS: usize = 12;
    match version.split_once("sha256:") {
        Some((before, digits)) if digits.is_char_boundary(DIGITS) && digits.len() > DIGITS => {
            format!("{before}sha256:{}", &digits[..DIGITS])
        }
        _ => version.to_owned(),
    }
}

fn table(engines: &[Instance]) -> String {
    let mut table = columns();
    table.set_header([
        "POOL", "REPLICA", "ENGINE", "VERSION", "STATE", "PID", "URL", "SINCE", "HANDOFF",
    ]);
    for engine in engines {
        table.add_row([
            engine.pool_id.clone(),
            engine.replica_id.clone(),
            engine.engine.clone(),
            short_version(&engine.engine_version),
            engine.state.as_str().to_owned(),
            engine.process.pid.to_string(),
            engine.url.clone(),
            engine.started_at.strftime("%F %TZ").to_string(),
            engine.handoff.display().to_string(),
        ]);
    }
    printed(table)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_does_not_fill_the_table() {
        let digest = format!("sha256:{}", "ab".repeat(32));
        assert_eq!(short_version(&digest), "sha256:abababababab");
        assert_eq!(
            short_version("b1+sha256:527c09064f3c"),
            "b1+sha256:527c09064f3c"
        );
        assert_eq!(short_version("0.9.1"), "0.9.1");
    }
}
