//! `host prepare`: do all the work, start nothing, say what would be started.

use super::{arguments::JobArguments, context::Context, plan::command_lines, signals};
use crate::{
    drive::{Obtained, RunView, run_view},
    fault::{Exit, Failure},
};

pub(super) async fn run(context: &Context, arguments: &JobArguments) -> Result<Exit, Failure> {
    let received = signals::cancel_on_signal(context.host.cancel.clone());
    let request = context.request(arguments);
    let host = &context.host;
    let chosen = host.choose(&request).await?;
    let planned = host.plan(chosen, &request).await?;
    let obtained = match host.obtain(planned, &request).await {
        Ok(obtained) => obtained,
        Err(failure) => return received.or(failure),
    };
    if context.output.json {
        context.print_json(&document(&obtained));
    } else {
        context.print(&render(&obtained));
    }
    Ok(Exit::Success)
}

/// The prepared engine with its command in the classic form beside it.
fn document(obtained: &Obtained) -> serde_json::Value {
    let mut document =
        serde_json::to_value(&obtained.engine).expect("a prepared engine is plain data");
    let view = view(obtained);
    document["command"] = serde_json::to_value(view.command).expect("a view is plain data");
    document["artifacts"] =
        serde_json::to_value(&obtained.artifacts).expect("artifacts are plain data");
    document
}

fn view(obtained: &Obtained) -> RunView {
    let ports = &obtained.chosen.wanted.pool.provisioning.ports;
    run_view(&obtained.engine, ports, |step| {
        obtained.artifacts.get(step)?.path.clone()
    })
}

fn render(obtained: &Obtained) -> String {
    let view = view(obtained);
    format!(
        "{} {} is prepared; it would be started with\n{}",
        obtained.engine.engine,
        view.engine_version,
        command_lines(&view.command)
    )
}
