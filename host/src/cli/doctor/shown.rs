//! Everything that `host doctor` tells, as lines or JSON.

use std::io::Write;

use engine_provider_api::Hint;

use super::{Row, RuntimeRow, State, exit};
use crate::{
    cli::{config::Form, report::Called},
    engine::Instance,
    fault::Exit,
};

/// A container of an engine that has ended, which could not be removed then.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct LeftContainer {
    /// `podman` or `docker`.
    pub runtime: String,
    /// Its name.
    pub name: String,
    /// Pool of its engine.
    pub pool: String,
    /// What removes it.
    pub command: String,
}

/// Those that the engines of a home have left.
#[must_use]
pub fn left_containers(engines: &[Instance]) -> Vec<LeftContainer> {
    let left = engines.iter().filter_map(|engine| {
        let container = engine.container.as_ref()?;
        Some(LeftContainer {
            runtime: container.runtime.clone(),
            name: container.name.clone(),
            pool: engine.pool_id.clone(),
            command: format!("{} rm --force {}", container.runtime, container.name),
        })
    });
    left.collect()
}

/// Everything that is told.
#[derive(Debug, Clone, Default)]
pub struct Report {
    /// What each provider can do in each mode.
    pub rows: Vec<Row>,
    /// The container runtimes of this machine, whether or not a provider wants one.
    pub runtimes: Vec<RuntimeRow>,
    /// Containers that nobody could remove.
    pub left: Vec<LeftContainer>,
}

/// Writes the verdicts and what is left; `called`: for commands to paste.
pub fn write(
    out: &mut dyn Write,
    report: &Report,
    form: Form,
    called: &Called,
) -> std::io::Result<()> {
    let Report {
        rows,
        runtimes,
        left,
    } = report;
    if form == Form::Json {
        let shown: Vec<Row> = rows.iter().map(|row| with_commands(row, called)).collect();
        let mut json = serde_json::json!({
            "rows": shown,
            "runtimes": runtimes,
            "would_run": exit(rows) == Exit::Success,
        });
        if !left.is_empty() {
            json["left_containers"] = serde_json::json!(left);
        }
        return writeln!(out, "{json}");
    }
    for alike in rows.chunk_by(Row::is_judged_like) {
        let row = &alike[0];
        let state = match row.state {
            State::Ready => "ready",
            State::CanBeMade => "can be made ready",
            State::Cannot => "cannot",
        };
        let modes = alike.iter().map(|row| match row.default {
            true => format!("{} (default)", row.mode),
            false => row.mode.to_string(),
        });
        let modes = modes.collect::<Vec<_>>().join(", ");
        writeln!(out, "{} {modes}: {state}", row.provider)?;
        for reason in &row.reasons {
            writeln!(out, "  why: {reason}")?;
        }
        write_fixes(out, &with_commands(row, called).fixes)?;
        for note in row.warnings.iter().chain(&row.notes) {
            writeln!(out, "  note: {note}")?;
        }
    }
    for runtime in runtimes {
        writeln!(out, "runtime {runtime}")?;
        for reason in &runtime.reasons {
            writeln!(out, "  why: {reason}")?;
        }
        write_fixes(out, &runtime.fixes)?;
        if !runtime.devices.is_empty() {
            writeln!(
                out,
                "  note: container devices: {}",
                runtime.devices.join(", ")
            )?;
        }
    }
    for LeftContainer {
        runtime,
        name,
        pool,
        command,
    } in left
    {
        writeln!(out, "{runtime} container {name}: left")?;
        writeln!(
            out,
            "  why: the engine of pool {pool} has ended, and nobody could remove it"
        )?;
        writeln!(out, "  fix: a daemon tries again by itself; at once:")?;
        writeln!(out, "         {command}")?;
    }
    Ok(())
}

fn write_fixes(out: &mut dyn Write, fixes: &[Hint]) -> std::io::Result<()> {
    for fix in fixes {
        writeln!(out, "  fix: {}", fix.text)?;
        for line in fix.command.iter().flat_map(|command| command.lines()) {
            writeln!(out, "         {line}")?;
        }
    }
    Ok(())
}

/// The row with commands that can be pasted. What a provider wants tried again is the job in this mode.
fn with_commands(row: &Row, called: &Called) -> Row {
    let mut row = row.clone();
    let mode = match row.default {
        true => String::new(),
        false => format!(" --mode {}", row.mode),
    };
    let job = format!("{{host}} provision --provider {}{mode}", row.provider);
    for fix in &mut row.fixes {
        if let Some(command) = &mut fix.command {
            *command = called.fill(&command.replace("{again}", &job));
        }
    }
    row
}
