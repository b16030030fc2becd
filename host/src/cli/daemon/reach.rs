//! Finding the daemon of this home, or starting one.

use std::{
    path::{Path, PathBuf},
    process::ExitStatus,
    time::{Duration, Instant},
};

use super::serve;
use crate::{
    api::{SOCKET, client::Client},
    cli::{
        arguments::{IsolationFlag, PoolsArguments},
        context::Context,
    },
    fault::{Detail, Exit, Failure, Fault, Hint, hint},
    narrate::Actor,
    pool::PoolManager,
    process,
};

/// Longest time until a daemon that was started here answers.
const START_LIMIT: Duration = Duration::from_secs(30);

/// Longest time until one that was told to end has drained and stopped its engines.
const END_LIMIT: Duration = Duration::from_secs(3600);

/// Pause between two looks whether it answers.
const LOOK_INTERVAL: Duration = Duration::from_millis(20);

/// How long a daemon that was started by a command stays once nothing runs.
const IDLE_EXIT: &str = "10m";

/// The daemon of this home, whether or not one runs.
pub(super) fn client(context: &Context) -> Client {
    Client::new(&socket(context))
}

/// Where its socket is.
pub(super) fn socket(context: &Context) -> PathBuf {
    context.host.home.state().join(SOCKET)
}

/// The daemon of this home, started where none runs.
pub(super) async fn or_start(context: &Context, pools: &PoolsArguments) -> Result<Client, Failure> {
    let client = client(context);
    if client.is_there().await {
        if arguments(pools) != arguments(&PoolsArguments::usual()) {
            let human = "a daemon runs already, with its own pool file and flags: those given here are \
                         for one that is started; `host serve --replace` takes over with others";
            let narrator = &context.host.narrator;
            narrator.warn(Actor::PoolManager, "notice", "daemon", human);
        }
        return Ok(client);
    }
    // What is wrong with it is said here, not in the log of a daemon.
    PoolManager::builder(context.host.clone())
        .request(serve::request(context, pools))
        .check()?;
    let log = context.host.home.logs().join("daemon.log");
    let mut child = process::start_daemon(&context.host.program, &arguments(pools), &log)
        .map_err(|source| ReachError::Start { source })?;
    let start = Instant::now();
    loop {
        if client.is_there().await {
            return Ok(client);
        }
        if let Ok(Some(status)) = child.try_wait() {
            // Another command's daemon may have been faster.
            if client.is_there().await {
                return Ok(client);
            }
            return Err(ReachError::Ended { status, log }.into());
        }
        if start.elapsed() > START_LIMIT {
            return Err(ReachError::Silent { log }.into());
        }
        tokio::time::sleep(LOOK_INTERVAL).await;
    }
}

/// Waits until a daemon that was told to end has done so: its engines have ended by then.
pub(super) async fn until_gone(client: &Client, socket: &Path) -> Result<(), Failure> {
    let start = Instant::now();
    // Its socket is removed last; where it was killed meanwhile nobody listens there.
    while socket.exists() && client.is_there().await {
        if start.elapsed() > END_LIMIT {
            return Err(ReachError::Stays.into());
        }
        tokio::time::sleep(LOOK_INTERVAL).await;
    }
    Ok(())
}

/// The command line of a daemon for the same pools.
fn arguments(pools: &PoolsArguments) -> Vec<std::ffi::OsString> {
    let mut all: Vec<std::ffi::OsString> = vec!["serve".into()];
    let mut flag = |name: &str, value: Option<std::ffi::OsString>| {
        all.push(name.into());
        all.extend(value);
    };
    flag("--listen", Some("none".into()));
    flag("--idle-exit", Some(IDLE_EXIT.into()));
    flag("--handoff-dir", Some(pools.handoff_dir.clone().into()));
    if let Some(config) = &pools.config {
        flag("--config", Some(config.clone().into()));
    }
    if let Some(provider) = &pools.provider {
        flag("--provider", Some(provider.into()));
    }
    if let Some(runtime) = pools.container_runtime {
        flag("--container-runtime", Some(runtime.as_str().into()));
    }
    if let Some(authfile) = &pools.authfile {
        flag("--authfile", Some(authfile.clone().into()));
    }
    for directory in &pools.host.provider_path {
        flag("--provider-path", Some(directory.clone().into()));
    }
    if let Some(facts) = &pools.host.facts {
        flag("--facts", Some(facts.clone().into()));
    }
    if pools.host.isolation == IsolationFlag::InProcess {
        flag("--isolation", Some("in-process".into()));
    }
    let gpu = pools
        .policy
        .gpu
        .map(|gpu| serde_json::to_value(gpu).expect("a word"));
    if let Some(gpu) = gpu.as_ref().and_then(serde_json::Value::as_str) {
        flag("--gpu", Some(gpu.into()));
    }
    let switches = [
        (pools.locked, "--locked"),
        (
            pools.policy.allow_package_installs,
            "--allow-package-installs",
        ),
        (
            pools.policy.allow_binary_downloads,
            "--allow-binary-downloads",
        ),
        (pools.policy.offline, "--offline"),
    ];
    for (_, name) in switches.iter().filter(|(given, _)| *given) {
        flag(name, None);
    }
    all
}

/// Why no daemon could be reached.
#[derive(Debug, thiserror::Error)]
enum ReachError {
    #[error("a daemon could not be started")]
    Start { source: std::io::Error },
    #[error("the daemon ended at once: {status}")]
    Ended { status: ExitStatus, log: PathBuf },
    #[error("the daemon does not answer within {} s", START_LIMIT.as_secs())]
    Silent { log: PathBuf },
    #[error("the daemon has not ended within {} s", END_LIMIT.as_secs())]
    Stays,
}

impl Fault for ReachError {
    fn exit(&self) -> Exit {
        match self {
            // What it said stands below, and its code is what a script would have had of it.
            Self::Ended { status, .. } => {
                status.code().and_then(Exit::of).unwrap_or(Exit::Internal)
            }
            // Its log could not be made.
            Self::Start { .. } => Exit::Storage,
            Self::Silent { .. } | Self::Stays => Exit::Unavailable,
        }
    }

    fn details(&self) -> Vec<Detail> {
        match self {
            Self::Start { .. } | Self::Stays => Vec::new(),
            Self::Ended { log, .. } | Self::Silent { log } => {
                let text = std::fs::read_to_string(log).unwrap_or_default();
                let last: Vec<&str> = text.lines().rev().take(12).collect();
                let last: Vec<&str> = last.into_iter().rev().collect();
                vec![
                    Detail::new("log", log.display().to_string()),
                    Detail::new("said", last.join("\n")),
                ]
            }
        }
    }

    fn hints(&self) -> Vec<Hint> {
        match self {
            Self::Start { .. } | Self::Ended { .. } | Self::Silent { .. } => vec![hint(
                "start one here, where it says what it does",
                Some("{host} serve"),
            )],
            Self::Stays => vec![hint("see what it waits for", Some("{host} status"))],
        }
    }

    fn kind(&self) -> &'static str {
        match self {
            Self::Start { .. } => "daemon-not-started",
            Self::Ended { .. } => "daemon-ended",
            Self::Silent { .. } => "daemon-silent",
            Self::Stays => "daemon-stays",
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::cli::arguments::{Cli, Command};

    #[test]
    fn a_daemon_that_a_command_starts_is_told_whatever_the_command_was() {
        let typed = [
            "--config",
            "a.yaml",
            "--provider",
            "toy",
            "--container-runtime",
            "docker",
            "--authfile",
            "auth.json",
            "--provider-path",
            "/p",
            "--gpu",
            "prefer",
            "--locked",
            "--offline",
        ];
        let parse = |words: Vec<std::ffi::OsString>| Cli::try_parse_from(words).unwrap().command;
        let up = ["host", "up"].iter().chain(&typed).map(Into::into);
        let Command::Up(up) = parse(up.collect()) else {
            panic!("it is `up`");
        };
        let mut words = vec!["host".into()];
        words.extend(arguments(&up.pools));
        let serve = parse(words);
        assert_eq!(serve.authfile(), Some("auth.json".as_ref()));
        let Command::Serve(serve) = serve else {
            panic!("it is `serve`");
        };
        assert_eq!(format!("{:?}", serve.pools), format!("{:?}", up.pools));
    }
}
