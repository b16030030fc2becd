//! Starts a provider worker: this program again, with nothing of this process but one socket.

use std::{
    io,
    os::{fd::OwnedFd, unix::net::UnixStream, unix::process::CommandExt as _},
    path::Path,
    process::Stdio,
};

use tokio::process::Child;

/// A started worker and the socket to it.
pub(crate) struct Started {
    /// The process: leader of its own group, killed when this is dropped; its standard error is a
    /// pipe.
    pub(crate) child: Child,
    /// Our end of the socket that is its standard input.
    pub(crate) socket: UnixStream,
}

/// Starts `program` with one argument, an empty environment and a socket as standard input.
///
/// Nothing runs between fork and exec, so that a host of many gigabytes need not copy its page
/// tables. Must be called inside a tokio runtime.
pub(crate) fn start(program: &Path, argument: &str) -> io::Result<Started> {
    let (ours, theirs) = UnixStream::pair()?;
    #[expect(clippy::disallowed_methods, reason = "process/ starts processes")]
    let mut command = std::process::Command::new(program);
    command
        .arg0("engine-provider-worker")
        .arg(argument)
        .env_clear()
        .process_group(0)
        .stdin(Stdio::from(OwnedFd::from(theirs)))
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    let mut command = tokio::process::Command::from(command);
    command.kill_on_drop(true);
    Ok(Started {
        child: command.spawn()?,
        socket: ours,
    })
}
