//! `host prepare`: do all the work, start nothing, say what would be started.

use super::{arguments::JobArguments, context::Context, plan::command_lines, signals};
use crate::{
    drive::{Obtained, RunView, contained, run_view},
    fault::{Exit, Failure},
};

pub(super) async fn run(context: &Context, arguments: &JobArguments) -> Result<Exit, Failure> {
    let received = signals::cancel_on_signal(context.host.cancel.clone());
    let request = context.request(arguments);
    let (job, host) = context.host.job("prepare");
    let obtained = async {
        let chosen = host.choose(&request).await?;
        let planned = host.plan(chosen, &request).await?;
        host.obtain(planned, &request).await
    };
    let obtained = match job.end_with_failure(obtained.await) {
        Ok(obtained) => obtained,
        Err(failure) => return received.or(failure),
    };
    let view = view(&obtained)?;
    if context.output.json {
        context.print_json(&document(&obtained, view)?);
    } else {
        context.print(&render(&obtained, &view));
    }
    Ok(Exit::Success)
}

/// The prepared engine with its command in the classic form beside it.
fn document(obtained: &Obtained, view: RunView) -> Result<serde_json::Value, Failure> {
    let mut document =
        serde_json::to_value(&obtained.engine).expect("a prepared engine is plain data");
    document["command"] = serde_json::to_value(view.command).expect("a view is plain data");
    document["artifacts"] =
        serde_json::to_value(&obtained.artifacts).expect("artifacts are plain data");
    document["records"] =
        serde_json::to_value(obtained.records()?).expect("manifests are plain data");
    Ok(document)
}

fn view(obtained: &Obtained) -> Result<RunView, Failure> {
    let (engine, artifacts) = (&obtained.engine, &obtained.artifacts);
    let pool = &obtained.chosen.wanted.pool;
    let contained = contained(engine, None, pool, &obtained.facts, artifacts)?;
    let path_of = |step: &str| artifacts.get(step)?.path.clone();
    Ok(run_view(engine, pool, path_of, contained.as_ref()))
}

fn render(obtained: &Obtained, view: &RunView) -> String {
    if let Some(url) = &view.external {
        return format!("{} at {url} would be attached to\n", obtained.engine.engine);
    }
    format!(
        "{} {} is prepared; it would be started with\n{}",
        obtained.engine.engine,
        view.engine_version,
        command_lines(view)
    )
}
