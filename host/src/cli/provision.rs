//! `host provision`: from a pool to a ready engine, in the foreground or left running.

use std::path::Path;

use engine_provider_api::Mode;
use futures_util::future::{join_all, select_all};
use tokio_util::sync::CancellationToken;

use super::{arguments::ProvisionArguments, context::Context, signals};
use crate::{
    drive::{Host, Obtained},
    engine::{EngineEnd, Instance, Outcome, RunningEngine},
    fault::{Exit, Failure},
    process::{quote, rest},
};

pub(super) async fn run(
    context: &Context,
    arguments: &ProvisionArguments,
) -> Result<Exit, Failure> {
    let received = signals::cancel_on_signal(context.host.cancel.clone());
    match journey(context, arguments, received.hurry()).await {
        Ok(()) => Ok(received.exit().unwrap_or(Exit::Success)),
        Err(failure) => received.or(failure),
    }
}

async fn journey(
    context: &Context,
    arguments: &ProvisionArguments,
    hurry: &CancellationToken,
) -> Result<(), Failure> {
    let (job, host) = context.host.job("provision");
    let running = job.end_with_failure(bring_up(context, &host, arguments, hurry).await)?;
    if arguments.detach {
        for engine in running {
            engine.keep().await?;
        }
        return Ok(());
    }
    watch(context, &running, hurry).await
}

/// Starts every replica; those that were started here.
async fn bring_up(
    context: &Context,
    host: &Host,
    arguments: &ProvisionArguments,
    hurry: &CancellationToken,
) -> Result<Vec<RunningEngine>, Failure> {
    let request = context.request(&arguments.job);
    // The keeper comes up while the provider's worker does.
    let (chosen, ()) = tokio::join!(host.choose(&request), async { host.keeper.warm_up() });
    let chosen = chosen?;
    let planned = host.plan(chosen, &request).await?;
    let obtained = host.obtain(planned, &request).await?;
    let mut running = Vec::new();
    for number in 0..obtained.chosen.wanted.pool.replicas {
        let replica = format!("r{number}");
        let outcome = host.start(&obtained, &replica, &request.handoff_dir).await;
        match outcome {
            Ok(Outcome::Started(engine)) => {
                let whose = if arguments.detach {
                    Whose::Left
                } else {
                    Whose::Ours
                };
                show(context, &obtained, engine.instance(), whose);
                running.push(*engine);
            }
            Ok(Outcome::AlreadyRunning(instance)) => {
                show(context, &obtained, &instance, Whose::Others);
            }
            Err(failure) => {
                stop_all(&running, hurry).await?;
                return Err(failure);
            }
        }
    }
    Ok(running)
}

/// Stays with the engines until one ends or a signal asks to stop them; then stops the rest.
async fn watch(
    context: &Context,
    running: &[RunningEngine],
    hurry: &CancellationToken,
) -> Result<(), Failure> {
    if running.is_empty() {
        return Ok(());
    }
    rest();
    let ends = running.iter().map(|engine| Box::pin(engine.wait_exit()));
    let ended = tokio::select! {
        (end, _, _) = select_all(ends) => Some(end),
        () = context.host.cancel.cancelled() => None,
    };
    stop_all(running, hurry).await?;
    match ended {
        Some(EngineEnd::Crashed(error)) => Err(error.into()),
        Some(EngineEnd::Stopped) | None => Ok(()),
    }
}

/// Stops engines side by side.
async fn stop_all(running: &[RunningEngine], hurry: &CancellationToken) -> Result<(), Failure> {
    let stops = running.iter().map(|engine| engine.stop(hurry));
    // Each is stopped, whatever becomes of the others.
    let stopped = join_all(stops).await;
    Ok(stopped.into_iter().collect::<Result<(), _>>()?)
}

/// Whose matter an engine is from now on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Whose {
    /// This command's, which stays with it.
    Ours,
    /// Nobody's: it was started here and is left running.
    Left,
    /// It ran already.
    Others,
}

/// Prints what was asked for: where the engine answers, and what can be done with it.
fn show(context: &Context, obtained: &Obtained, instance: &Instance, whose: Whose) {
    if context.output.json {
        if let Some(handoff) = read_handoff(&instance.handoff) {
            context.print_json(&handoff);
        }
        return;
    }
    let program = &context.called.program;
    let attached = instance.provisioning_mode == Mode::External;
    let mut text = match attached {
        // Its version is its own matter.
        true => format!("\n{} is ready at {}\n", instance.engine, instance.url),
        false => format!(
            "\n{} {} is ready at {}\n",
            instance.engine, instance.engine_version, instance.url
        ),
    };
    let mut line = |label: &str, value: &str| text.push_str(&format!("  {label:<8} {value}\n"));
    if whose == Whose::Others {
        let since = instance.started_at.strftime("%Y-%m-%d %H:%M:%SZ");
        let pid = instance.process.pid;
        line("running", &format!("already, pid {pid}, since {since}"));
    }
    line("handoff", &instance.handoff.display().to_string());
    line("log", &instance.log.display().to_string());
    if obtained.engine.dialect == "openai" {
        line(
            "try",
            &try_command(&instance.url, &obtained.engine.model.id),
        );
    }
    let stop = format!("{program} stop {}", instance.pool_id);
    // An engine of somebody else runs on.
    let label = if attached { "let go" } else { "stop" };
    match whose {
        Whose::Ours => line(label, &format!("Ctrl-C here, or: {stop}")),
        Whose::Left | Whose::Others => line(label, &stop),
    }
    text.push('\n');
    context.print(&text);
}

/// A request that streams, for any engine that speaks the OpenAI protocol.
fn try_command(url: &str, model: &str) -> String {
    let body = serde_json::json!({
        "model": model,
        "stream": true,
        "messages": [{"role": "user", "content": "Write a haiku about snow"}],
    });
    format!(
        "curl -N {url}/v1/chat/completions -H 'Content-Type: application/json' -d {}",
        quote(&body.to_string())
    )
}

fn read_handoff(path: &Path) -> Option<serde_json::Value> {
    serde_json::from_slice(&std::fs::read(path).ok()?).ok()
}
