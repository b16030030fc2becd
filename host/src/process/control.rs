//! Talking to somebody else's keeper: how `host stop` ends an engine that another host started.

use std::{
    fs, io,
    os::fd::{AsRawFd, OwnedFd},
    path::Path,
    time::Duration,
};

use rustix::fs::{Mode, OFlags};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines},
    net::{
        UnixStream,
        unix::{OwnedReadHalf, OwnedWriteHalf},
    },
};

use super::{
    ChildAddress, Ended, ProcessError, ProcessIdentity,
    client::directory,
    keeper::protocol::{Ask, ChildId, Request, Tell, VERSION, socket_name},
};
use crate::config::paths::Home;

/// Longest time a keeper takes for an answer.
const ANSWER_LIMIT: Duration = Duration::from_secs(5);

/// A conversation with the keeper of one child.
#[derive(Debug)]
pub struct Control {
    lines: Lines<BufReader<OwnedReadHalf>>,
    writer: OwnedWriteHalf,
    child: ChildId,
    next: u64,
    ended: Option<Ended>,
}

impl Control {
    /// Finds the keeper of a child. Fails where it is gone, does not answer or speaks another
    /// version of the protocol; its child can still be signalled directly then.
    pub async fn connect(home: &Home, address: ChildAddress) -> Result<Self, ProcessError> {
        if !address.keeper.is_alive() {
            return Err(ProcessError::KeeperGone { exited: None });
        }
        let stream = open(&directory(home), address.keeper.pid)
            .await
            .map_err(|error| refused("connect", &error))?;
        let (reader, writer) = stream.into_split();
        let mut control = Self {
            lines: BufReader::new(reader).lines(),
            writer,
            child: address.child,
            next: 0,
            ended: None,
        };
        match control
            .ask("hello", Ask::Hello { version: VERSION })
            .await?
        {
            Tell::Hello { version, .. } if (1..=VERSION).contains(&version) => Ok(control),
            _ => Err(refused(
                "hello",
                &"it speaks another version of the protocol",
            )),
        }
    }

    /// Begins to end the child the way its kind says. `false`: it had ended already.
    pub async fn end(&mut self) -> Result<bool, ProcessError> {
        let child = self.child;
        self.order("end", Ask::End { child }).await
    }

    /// Sends a signal to the child's first process. `false`: it had ended already.
    pub async fn signal(&mut self, signal: rustix::process::Signal) -> Result<bool, ProcessError> {
        let ask = Ask::Signal {
            child: self.child,
            signal: signal.as_raw(),
        };
        self.order("signal", ask).await
    }

    /// Kills the child's whole tree. `false`: it had ended already.
    pub async fn kill_tree(&mut self) -> Result<bool, ProcessError> {
        let child = self.child;
        self.order("kill", Ask::Kill { child }).await
    }

    /// Waits until the child and its tree have ended; `None` when the keeper ended first.
    pub async fn wait(&mut self) -> Option<Ended> {
        while self.ended.is_none() {
            self.hear().await?;
        }
        self.ended.clone()
    }

    async fn order(&mut self, operation: &'static str, ask: Ask) -> Result<bool, ProcessError> {
        // The only reason a keeper refuses these is that there is no such child any more.
        Ok(matches!(self.ask(operation, ask).await?, Tell::Done { .. }))
    }

    async fn ask(&mut self, operation: &'static str, ask: Ask) -> Result<Tell, ProcessError> {
        self.next += 1;
        let id = self.next;
        let mut line =
            serde_json::to_vec(&Request { id, ask }).map_err(|error| refused(operation, &error))?;
        line.push(b'\n');
        let answer = async {
            self.writer.write_all(&line).await.ok()?;
            loop {
                let tell = self.hear().await?;
                if number(&tell) == Some(id) {
                    return Some(tell);
                }
            }
        };
        match tokio::time::timeout(ANSWER_LIMIT, answer).await {
            Ok(Some(tell)) => Ok(tell),
            Ok(None) => Err(ProcessError::KeeperGone { exited: None }),
            Err(_) => Err(refused(operation, &"no answer in time")),
        }
    }

    /// The next thing it says that this version knows; `None` once it says nothing more.
    async fn hear(&mut self) -> Option<Tell> {
        loop {
            let text = self.lines.next_line().await.ok()??;
            let Ok(tell) = serde_json::from_str(&text) else {
                continue;
            };
            if let Tell::Exited { child, ended } = &tell
                && *child == self.child
            {
                self.ended = Some(ended.clone());
            }
            return Some(tell);
        }
    }
}

fn number(tell: &Tell) -> Option<u64> {
    match tell {
        Tell::Hello { id, .. }
        | Tell::Started { id, .. }
        | Tell::NotStarted { id, .. }
        | Tell::Done { id }
        | Tell::Refused { id, .. } => Some(*id),
        Tell::Exited { .. } => None,
    }
}

fn refused(operation: &'static str, reason: &dyn std::fmt::Display) -> ProcessError {
    ProcessError::Keeper {
        operation,
        reason: reason.to_string(),
    }
}

/// Connects through the directory's descriptor: the path of a home may be longer than the 107
/// bytes that a socket's address holds (unix(7)).
pub(super) async fn open(directory: &Path, keeper: i32) -> io::Result<UnixStream> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let handle: OwnedFd = rustix::fs::open(directory, flags, Mode::empty())?;
    let path = format!(
        "/proc/self/fd/{}/{}",
        handle.as_raw_fd(),
        socket_name(keeper)
    );
    let connecting = UnixStream::connect(path);
    let stream = tokio::time::timeout(ANSWER_LIMIT, connecting)
        .await
        .map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
    let peer = stream.peer_cred()?.uid();
    let own = rustix::process::geteuid().as_raw();
    if peer == own || peer == 0 {
        Ok(stream)
    } else {
        Err(io::Error::other(format!("user id {peer} answers there")))
    }
}

/// Removes the sockets of keepers that were killed.
pub fn sweep(home: &Home) {
    let entries = fs::read_dir(directory(home)).into_iter().flatten();
    for entry in entries.flatten() {
        let name = entry.file_name();
        let pid = name.to_str().and_then(|name| name.strip_suffix(".sock"));
        let pid: Option<i32> = pid.and_then(|pid| pid.parse().ok());
        if pid.is_some_and(|pid| ProcessIdentity::of(pid).is_none()) {
            let _ = fs::remove_file(entry.path());
        }
    }
}
