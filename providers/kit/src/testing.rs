//! What tests of a provider need: pools and machines that were written down, and answers as text.

use std::{collections::BTreeMap, fmt::Write as _};

use engine_provider_api::{
    Artifact, EngineProvisioner, Facts, Mode, Plan, PlanRequest, Pool, PrepareRequest,
    PreparedEngine, ProviderError, Template,
};
use serde_json::{Value, json};

/// The facts of a machine that was written down, of this name in the repository's
/// `tests/fixtures/facts`. For crates two levels below its root; others give [`facts`] their own.
#[macro_export]
macro_rules! machine {
    ($name:literal) => {
        $crate::testing::facts(include_str!(concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../tests/fixtures/facts/",
            $name,
            ".json"
        )))
    };
}

/// The first pool of this file of the repository's `examples`. For crates two levels below its root.
#[macro_export]
macro_rules! example {
    ($name:literal) => {
        $crate::testing::first_pool(include_str!(concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../examples/",
            $name
        )))
    };
}

/// What `host facts --json` once said.
///
/// # Panics
///
/// When the text is no document of facts.
#[track_caller]
pub fn facts(text: &str) -> Facts {
    serde_json::from_str(text).expect("a document of facts")
}

/// The first pool of a pool file, without the fields that the host reads itself.
///
/// # Panics
///
/// When the text is none.
#[track_caller]
pub fn first_pool(text: &str) -> Pool {
    let mut document: Value = serde_saphyr::from_str(text).expect("a pool file is YAML");
    serde_json::from_value(document["pools"][0].take()).expect("a pool file has a pool")
}

/// A pool of these fields, over the least that an engine needs.
///
/// # Panics
///
/// When they are not a pool's.
#[track_caller]
pub fn pool(least: Value, fields: Value) -> Pool {
    let mut pool = least;
    merge(&mut pool, fields);
    serde_json::from_value(pool).expect("the fields are a pool's")
}

/// Lays one document over another: fields of objects each, anything else as a whole.
pub fn merge(into: &mut Value, from: Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            for (key, value) in from {
                merge(into.entry(key).or_insert(Value::Null), value);
            }
        }
        (into, from) => *into = from,
    }
}

/// The fields of a pool that add flags to its engine's command line.
pub fn with_flags(flags: &[&str]) -> Value {
    json!({ "provisioning": { "flags": flags } })
}

/// What a provider plans.
///
/// # Errors
///
/// What it refuses.
pub fn plan(
    provider: &impl EngineProvisioner,
    pool: Pool,
    mode: Mode,
    facts: &Facts,
) -> Result<Plan, ProviderError> {
    provider.plan(&PlanRequest {
        requires: Vec::new(),
        pool,
        mode,
        facts: facts.clone(),
    })
}

/// What a provider prepares from what its steps gave.
///
/// # Errors
///
/// What it refuses.
pub fn prepare(
    provider: &impl EngineProvisioner,
    pool: Pool,
    mode: Mode,
    facts: &Facts,
    artifacts: BTreeMap<String, Artifact>,
) -> Result<PreparedEngine, ProviderError> {
    provider.prepare(&PrepareRequest {
        requires: Vec::new(),
        pool,
        mode,
        facts: facts.clone(),
        artifacts,
    })
}

/// Words of a command line, with a space between them.
pub fn join(words: &[Template]) -> String {
    let words: Vec<&str> = words.iter().map(Template::as_str).collect();
    words.join(" ")
}

/// What a plan tells whoever reads it, a line each.
pub fn advice(notes: &[String], warnings: &[String]) -> String {
    let notes = notes.iter().map(|note| format!("note: {note}\n"));
    let warnings = warnings
        .iter()
        .map(|warning| format!("warning: {warning}\n"));
    notes.chain(warnings).collect()
}

/// A refusal, a line for each of its parts.
pub fn told(error: &ProviderError) -> String {
    let mut text = format!("{:?}: {}\n", error.code, error.message);
    if let Some(field) = &error.field {
        let _ = writeln!(text, "field: {field}");
    }
    for cause in &error.causes {
        let _ = writeln!(text, "cause: {cause}");
    }
    for hint in &error.hints {
        let _ = writeln!(text, "  fix: {}", hint.text);
        if let Some(command) = &hint.command {
            let _ = writeln!(text, "         {command}");
        }
    }
    text
}
