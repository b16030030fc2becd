//! A daemon that embeds the host: it keeps the pools of a file up, tells what changes, and leases slots.
//!
//! `pool-managerd POOL-FILE`, until INT or TERM; HUP reads the file again.

use std::{error::Error, path::PathBuf, process::ExitCode};

use engine_host::{
    config::{environment::Environment, paths::Home},
    drive::Host,
    narrate::{Event, Level, Narrator, Sink},
    pool::{Ending, PoolManager},
};
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::broadcast::error::RecvError,
};

/// Where events go: here, to standard error, warnings and errors only.
struct Warnings;

impl Sink for Warnings {
    fn event(&self, event: &Event) {
        if event.level != Level::Info {
            eprintln!("{}: {}", event.action, event.human);
        }
    }
}

fn main() -> ExitCode {
    // Keeper, provider worker, probe and watcher are this program once more: before anything else.
    if let Some(code) = engine_host::become_helper() {
        return code;
    }
    let Some(file) = std::env::args_os().nth(1) else {
        eprintln!("usage: pool-managerd POOL-FILE");
        return ExitCode::from(2);
    };
    let runtime = tokio::runtime::Runtime::new().expect("a runtime can be made");
    if let Err(error) = runtime.block_on(serve(file.into())) {
        eprintln!("error: {}", whole(&*error));
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

async fn serve(file: PathBuf) -> Result<(), Box<dyn Error>> {
    let environment = Environment::of_this_process();
    let home = Home::locate(&environment);
    let host = Host::new(home, environment, Narrator::new(vec![Box::new(Warnings)]));
    let manager = PoolManager::builder(host).pools(file).build()?;
    tokio::spawn(tell(manager.clone()));
    let mut hangup = signal(SignalKind::hangup())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let starting = manager.clone();
    tokio::spawn(async move { starting.up_all().await });
    loop {
        tokio::select! {
            _ = hangup.recv() => match manager.reload_config().await {
                Ok(changes) => println!("reloaded: {changes:?}"),
                Err(error) => eprintln!("not reloaded: {}", whole(&error)),
            },
            _ = terminate.recv() => break,
            _ = tokio::signal::ctrl_c() => break,
        }
    }
    manager.shutdown(Ending::Stop).await;
    Ok(())
}

/// Prints every change; asks each pool that became ready for a lease, as a dispatcher would.
async fn tell(manager: PoolManager) {
    let mut changes = manager.subscribe();
    loop {
        let change = match changes.recv().await {
            Ok(change) => change,
            // Too slow for them: what was missed is in the status.
            Err(RecvError::Lagged(_)) => continue,
            Err(RecvError::Closed) => return,
        };
        for replica in change.status.iter().flat_map(|status| &status.replicas) {
            let (pool, name) = (&change.pool_id, &replica.replica_id);
            let (state, reason) = (replica.state.as_str(), &replica.reason);
            println!("{pool} {name} {state} {reason}");
        }
        // Held while a request runs; given back when dropped, whatever happened to the request.
        if let Ok(lease) = manager.lease(&change.pool_id) {
            println!("{} serves at {}", change.pool_id, lease.url());
        }
    }
}

/// An error with its causes.
fn whole(error: &dyn Error) -> String {
    let causes = std::iter::successors(Some(error), |error| (*error).source());
    causes
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join(": ")
}
