//! The host's side of a worker: starts it, asks it, ends it, and says how it ended.

use std::{
    fs::File,
    io::{self, IoSlice},
    mem::MaybeUninit,
    os::{fd::AsFd as _, unix::fs::FileExt as _, unix::process::ExitStatusExt as _},
    path::Path,
    process::ExitStatus,
    time::Duration,
};

use rustix::{
    fs::MemfdFlags,
    net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg},
    process::{Pid, Signal, kill_process_group},
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::UnixStream,
    process::Child,
    task::JoinHandle,
    time::timeout,
};

use super::{
    ARGUMENT, Phase, Sandbox,
    stderr::Tail,
    wire::{self, HEADER_BYTES, Kind, PROTOCOL, Terms},
};
use crate::{
    process::{self, Exited},
    provider::{error::ProviderFault, file::Opened, load::LoadFailure},
};

/// Time a worker has to be gone once its socket is closed, and its last words to arrive.
const GOING: Duration = Duration::from_secs(2);

/// A running worker. Dropping it kills it with its whole process group.
pub(in crate::provider) struct Worker {
    provider: String,
    child: Child,
    socket: UnixStream,
    tail: Tail,
    drained: JoinHandle<()>,
}

/// What went wrong while waiting for a frame.
enum Trouble {
    /// The socket was closed from the other side.
    Gone,
    /// What came is no frame, or not the one that was expected.
    Garbage(String),
    /// Nothing came in time.
    Late,
}

impl Worker {
    /// Starts a worker and waits until it has shut itself in. No foreign code has run by then.
    pub(in crate::provider) async fn start(
        provider: &str,
        program: &Path,
        library: &Opened,
        limit: Duration,
    ) -> Result<(Self, Sandbox), ProviderFault> {
        let spawn_error = |source| ProviderFault::Spawn {
            provider: provider.to_owned(),
            program: program.to_owned(),
            source,
        };
        let started = process::worker::start(program, ARGUMENT).map_err(spawn_error)?;
        match send_terms(&started.socket, library) {
            // It is gone already; how it ended is told below.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
            sent => sent.map_err(spawn_error)?,
        }
        let mut worker = Self::adopt(provider, started).map_err(spawn_error)?;
        let trouble = match worker.receive(&[Kind::Sandboxed], limit).await {
            Ok((_, report)) => match serde_json::from_slice(&report) {
                Ok(sandbox) => return Ok((worker, sandbox)),
                Err(error) => Trouble::Garbage(error.to_string()),
            },
            Err(trouble) => trouble,
        };
        Err(worker.is_no_worker(program, trouble, limit).await)
    }

    fn adopt(provider: &str, started: process::worker::Started) -> io::Result<Self> {
        let mut child = started.child;
        started.socket.set_nonblocking(true)?;
        let stderr = child.stderr.take().expect("standard error was piped");
        let tail = Tail::default();
        Ok(Self {
            provider: provider.to_owned(),
            socket: UnixStream::from_std(started.socket)?,
            drained: tokio::spawn(tail.clone().drain(stderr)),
            tail,
            child,
        })
    }

    /// Lets it load the library and make the provider: from here on foreign code runs.
    pub(in crate::provider) async fn load(
        mut self,
        path: &Path,
        limit: Duration,
    ) -> Result<Self, ProviderFault> {
        let asked = self.ask(Kind::Load, &[], &[Kind::Ready, Kind::Failed], limit);
        match asked.await {
            Ok((Kind::Failed, failure)) => {
                let failure = serde_json::from_slice(&failure).unwrap_or_else(|_| {
                    LoadFailure::Loader("it failed without saying why".to_owned())
                });
                Err(ProviderFault::Load {
                    provider: self.provider.clone(),
                    path: path.to_owned(),
                    failure: Box::new(failure),
                })
            }
            Ok(_) => Ok(self),
            Err(trouble) => Err(self.explain(Phase::Open, trouble, limit).await),
        }
    }

    /// Calls an entry: its document, or its `ProviderError` document.
    pub(in crate::provider) async fn call(
        &mut self,
        phase: Phase,
        document: &str,
        limit: Duration,
    ) -> Result<Result<String, String>, ProviderFault> {
        let parts: [&[u8]; 3] = [phase.as_str().as_bytes(), b"\0", document.as_bytes()];
        let asked = self.ask(Kind::Call, &parts, &[Kind::Answer, Kind::Error], limit);
        let trouble = match asked.await {
            Ok((kind, payload)) => match String::from_utf8(payload) {
                Ok(text) if kind == Kind::Answer => return Ok(Ok(text)),
                Ok(text) => return Ok(Err(text)),
                Err(_) => Trouble::Garbage("an answer that is no text".to_owned()),
            },
            Err(trouble) => trouble,
        };
        Err(self.explain(phase, trouble, limit).await)
    }

    /// Lets it drop the provider and waits for its last frame.
    pub(in crate::provider) async fn quit(mut self, limit: Duration) -> Result<(), ProviderFault> {
        match self.ask(Kind::Quit, &[], &[Kind::Bye], limit).await {
            Ok(_) => Ok(()),
            Err(trouble) => Err(self.explain(Phase::Close, trouble, limit).await),
        }
    }

    /// Its process id, while it runs.
    pub(in crate::provider) fn id(&self) -> Option<u32> {
        self.child.id()
    }

    async fn ask(
        &mut self,
        kind: Kind,
        parts: &[&[u8]],
        expected: &[Kind],
        limit: Duration,
    ) -> Result<(Kind, Vec<u8>), Trouble> {
        let frame = wire::frame(kind, parts)
            .ok_or_else(|| Trouble::Garbage("the request is too large".to_owned()))?;
        timeout(limit, async {
            self.socket
                .write_all(&frame)
                .await
                .map_err(|_| Trouble::Gone)?;
            self.next_frame(expected).await
        })
        .await
        .unwrap_or(Err(Trouble::Late))
    }

    async fn receive(
        &mut self,
        expected: &[Kind],
        limit: Duration,
    ) -> Result<(Kind, Vec<u8>), Trouble> {
        timeout(limit, self.next_frame(expected))
            .await
            .unwrap_or(Err(Trouble::Late))
    }

    async fn next_frame(&mut self, expected: &[Kind]) -> Result<(Kind, Vec<u8>), Trouble> {
        let mut header = [0; HEADER_BYTES];
        self.read_exact(&mut header).await?;
        let (kind, length) = wire::read_header(header).map_err(Trouble::Garbage)?;
        if !expected.contains(&kind) {
            return Err(Trouble::Garbage(format!("an unexpected {kind:?} frame")));
        }
        let mut payload = vec![0; length];
        self.read_exact(&mut payload).await?;
        Ok((kind, payload))
    }

    async fn read_exact(&mut self, bytes: &mut [u8]) -> Result<(), Trouble> {
        match self.socket.read_exact(bytes).await {
            Ok(_) => Ok(()),
            Err(_) => Err(Trouble::Gone),
        }
    }

    /// Ends the worker and says what happened, with how it ended and what it printed last.
    async fn explain(&mut self, phase: Phase, trouble: Trouble, limit: Duration) -> ProviderFault {
        let exited = match &trouble {
            Trouble::Gone => self.wait_for_end().await,
            _ => None,
        };
        self.end().await;
        let (provider, stderr) = (self.provider.clone(), self.tail.lines());
        match trouble {
            Trouble::Gone => ProviderFault::Crashed {
                provider,
                phase,
                exited,
                stderr,
            },
            Trouble::Late => ProviderFault::Hung {
                provider,
                phase,
                limit,
                stderr,
            },
            Trouble::Garbage(reason) => ProviderFault::Garbage {
                provider,
                phase,
                reason,
                stderr,
            },
        }
    }

    async fn is_no_worker(
        &mut self,
        program: &Path,
        trouble: Trouble,
        limit: Duration,
    ) -> ProviderFault {
        let mut reason = match trouble {
            Trouble::Garbage(reason) => reason,
            Trouble::Late => format!("it said nothing for {} s", limit.as_secs_f64()),
            Trouble::Gone => match self.wait_for_end().await {
                // Somebody killed it: that says nothing about the program.
                Some(exited @ Exited::Signal(_)) => {
                    self.end().await;
                    return ProviderFault::Crashed {
                        provider: self.provider.clone(),
                        phase: Phase::Open,
                        exited: Some(exited),
                        stderr: self.tail.lines(),
                    };
                }
                Some(exited) => format!("it ended ({exited})"),
                None => "it closed its standard input".to_owned(),
            },
        };
        self.end().await;
        for line in self.tail.lines() {
            reason.push_str("\n  ");
            reason.push_str(&line);
        }
        ProviderFault::NotAWorker {
            program: program.to_owned(),
            reason,
        }
    }

    /// How it ended by itself; `None` where it did not.
    async fn wait_for_end(&mut self) -> Option<Exited> {
        let status = timeout(GOING, self.child.wait()).await.ok()?.ok()?;
        exited(status)
    }

    /// Kills what is left, takes its exit status, and reads what it printed to the end.
    async fn end(&mut self) {
        self.kill_group();
        let _ = timeout(GOING, self.child.wait()).await;
        let _ = timeout(GOING, &mut self.drained).await;
    }

    fn kill_group(&self) {
        // No id: it was waited for, and the number may be somebody else's by now.
        let leader = self
            .child
            .id()
            .and_then(|id| Pid::from_raw(id.cast_signed()));
        if let Some(leader) = leader {
            let _ = kill_process_group(leader, Signal::KILL);
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.kill_group();
        self.drained.abort();
    }
}

fn exited(status: ExitStatus) -> Option<Exited> {
    let code = status.code().map(Exited::Code);
    code.or_else(|| status.signal().map(Exited::Signal))
}

fn send_terms(socket: &std::os::unix::net::UnixStream, library: &Opened) -> io::Result<()> {
    let drop_user = rustix::process::geteuid().is_root();
    let copy = if drop_user && library.mode & 0o004 == 0 {
        Some(readable_copy(&library.file)?)
    } else {
        None
    };
    let terms = Terms {
        protocol: PROTOCOL,
        drop_user,
        in_memory: copy.is_some(),
    };
    let payload = serde_json::to_vec(&terms)?;
    let frame = wire::frame(Kind::Open, &[&payload]).expect("terms are small");
    let descriptors = [copy.as_ref().unwrap_or(&library.file).as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    assert!(
        ancillary.push(SendAncillaryMessage::ScmRights(&descriptors)),
        "the space is for one descriptor"
    );
    sendmsg(
        socket,
        &[IoSlice::new(&frame)],
        &mut ancillary,
        SendFlags::NOSIGNAL,
    )?;
    Ok(())
}

/// A copy in memory that a worker without rights can open, of a file that only root may read.
fn readable_copy(file: &File) -> io::Result<File> {
    let copy = File::from(rustix::fs::memfd_create(
        "engine-provider",
        MemfdFlags::CLOEXEC,
    )?);
    let mut buffer = vec![0; 256 * 1024];
    let mut at = 0;
    loop {
        let read = file.read_at(&mut buffer, at)?;
        if read == 0 {
            return Ok(copy);
        }
        copy.write_all_at(&buffer[..read], at)?;
        at += read as u64;
    }
}
