//! `host plan`: what would be done and what would run.

use std::fmt::Write as _;

use super::{arguments::JobArguments, context::Context, terminal::size};
use crate::{
    drive::{PlanView, RunView},
    fault::{Exit, Failure},
    process::quote,
};

pub(super) async fn run(context: &Context, arguments: &JobArguments) -> Result<Exit, Failure> {
    let request = context.request(arguments);
    let (job, host) = context.host.job("plan");
    let planned = async {
        let chosen = host.choose(&request).await?;
        host.plan(chosen, &request).await
    };
    let planned = job.end_with_failure(planned.await)?;
    let view = planned.view();
    if context.output.json {
        let value = serde_json::to_value(&view).expect("a view is plain data");
        context.print_json(&value);
    } else {
        context.print(&render(&view));
    }
    Ok(Exit::Success)
}

/// The plan for people: one screen, in the order in which it happens.
pub(super) fn render(view: &PlanView) -> String {
    let run = &view.run;
    let (pool, engine, provider) = (&view.pool_id, &view.engine, &view.provider);
    // Of an engine that somebody else has started neither GPU nor profile is this host's matter.
    let is_ours = run.external.is_none();
    let from = match is_ours {
        true => format!("from {}, gpu {}", view.mode, view.gpu),
        false => "that runs already".to_owned(),
    };
    let mut text = format!(
        "pool {pool}: {engine} {from}, provider {} {}\n\n",
        provider.name, provider.version
    );
    for step in &view.steps {
        let size = step
            .size_bytes
            .map(|bytes| format!(" ({})", size(bytes)))
            .unwrap_or_default();
        let _ = writeln!(
            text,
            "  {:<16} {:<11} {}{size}",
            step.id, step.state, step.detail
        );
    }
    let _ = writeln!(text, "\nengine version  {}", run.engine_version);
    let _ = writeln!(text, "model           {}", run.model.id);
    if is_ours {
        let _ = writeln!(text, "profile         {}", run.profile);
    }
    if !run.device_mask.is_empty() {
        let _ = writeln!(text, "GPUs            {}", run.device_mask.join(", "));
    }
    if let Some(container) = &run.container {
        let (name, version) = (&container.runtime, &container.runtime_version);
        let _ = writeln!(text, "container       {name} {version}");
    }
    if !view.hosts.is_empty() {
        let _ = writeln!(text, "may reach       {}", view.hosts.join(", "));
    }
    match &run.external {
        Some(url) => {
            let _ = writeln!(text, "\nwould attach to:\n  {url}\n");
        }
        None => {
            let _ = writeln!(text, "\nwould run:\n{}", command_lines(run));
        }
    }
    paragraphs(&mut text, "note", &view.notes);
    paragraphs(&mut text, "warning", &view.warnings);
    text
}

/// A command with one option per line, as it could be pasted once its placeholders are known.
pub(super) fn command_lines(run: &RunView) -> String {
    let command = &run.command;
    let image = run.container.as_ref().map(|container| &container.image);
    let mut text = String::new();
    for (name, value) in &command.env {
        let _ = writeln!(text, "  {name}={} \\", quote(value));
    }
    let _ = write!(text, "  {}", quote(&command.bin));
    for argument in &command.args {
        // An option begins a line, its values stay beside it.
        let joint = if argument.starts_with('-') || Some(argument) == image {
            " \\\n    "
        } else {
            " "
        };
        let _ = write!(text, "{joint}{}", quote(argument));
    }
    text.push('\n');
    text
}

fn paragraphs(text: &mut String, label: &str, lines: &[String]) {
    for line in lines {
        let _ = writeln!(text, "{label}: {line}");
    }
}
