//! A command that needs the person at the terminal: `sudo` that asks for a password.
//!
//! It shares the terminal and stays in its foreground process group, because a program in any other
//! group is stopped when it reads from the terminal (SIGTTIN). Ctrl-C reaches it and the host alike.
//! Whoever calls this suspends progress bars first, and has made sure that there is a terminal.

use std::{collections::BTreeMap, os::unix::process::ExitStatusExt, path::Path, process::Stdio};

use super::{Exited, ProcessError, StartFailure, command::command_line};

/// Runs a command on the terminal to its end. A person answers, so there is no time limit; dropping
/// the future kills it.
pub async fn attend(
    program: &Path,
    args: &[String],
    env: &BTreeMap<String, String>,
) -> Result<Exited, ProcessError> {
    let name = program.to_string_lossy().into_owned();
    #[expect(
        clippy::disallowed_methods,
        reason = "process/ is the room that starts processes"
    )]
    let mut command = tokio::process::Command::new(program);
    command
        .args(args)
        .env_clear()
        .envs(env)
        .stdin(Stdio::inherit())
        .stdout(Stdio::inherit())
        .stderr(Stdio::inherit())
        .kill_on_drop(true);
    let mut child = command.spawn().map_err(|error| ProcessError::Start {
        program: name.clone(),
        command: command_line(program, args),
        reason: StartFailure::Other {
            reason: error.to_string(),
        },
    })?;
    let status = child.wait().await.map_err(|source| ProcessError::Read {
        program: name,
        source,
    })?;
    Ok(Exited::of(status.code(), status.signal()))
}
