//! One child as the keeper sees it: its minder, its output, what is known of its end.

use std::{
    fs::File,
    io::{self, Read},
    os::fd::OwnedFd,
    os::unix::net::UnixStream,
    time::{Duration, Instant},
};

use rustix::{fs::OFlags, pipe::PipeFlags};

use super::{
    line::Lines,
    minder::{self, Parting},
    protocol::{Order, Report},
    startup::{self, Side},
    stay::Stay,
};
use crate::process::{
    Exited, LogFile, Output, ProcessIdentity, Spec, StartFailure, log::CappedLog,
};

/// How long output may keep coming after the whole tree is gone. Only a process that could not be
/// killed still holds a pipe then.
const DRAIN_LIMIT: Duration = Duration::from_secs(1);

/// How long what a killed minder has left may take to disappear once it is killed.
const ORPHAN_LIMIT: Duration = Duration::from_secs(10);

/// Most bytes taken from one pipe before others get their turn.
const TURN: usize = 256 * 1024;

/// A child, from the request to start it until its end is told.
pub(super) struct Minded {
    /// Id of the request that started it; answered when the minder reports.
    pub(super) request: u64,
    /// Talks to its minder.
    pub(super) minder: Lines,
    /// The minder's process.
    pub(super) minder_pid: i32,
    /// First process, once it runs.
    pub(super) process: Option<ProcessIdentity>,
    /// What it prints.
    pub(super) pumps: Vec<Pump>,
    /// Whether it outlives its host, and for how long.
    pub(super) stay: Stay,
    /// Whether another process than the host asked for its end.
    pub(super) asked_elsewhere: bool,
    /// What the minder last said about its end, and when.
    pub(super) ended: Option<(Exited, Vec<i32>, Instant)>,
    /// Whether its minder was killed.
    pub(super) abandoned: bool,
    /// Whether anything of an abandoned tree was still there at the last look.
    pub(super) orphans: bool,
    /// Whether it was not started.
    pub(super) refused: Option<StartFailure>,
    /// What is done behind it where the minder could not.
    parting: Parting,
}

/// Carries one pipe into one log.
pub(super) struct Pump {
    pipe: Option<File>,
    log: CappedLog,
}

impl Minded {
    /// Makes logs, pipes and a minder for a command. `forget`: called in the minder, which is a copy of
    /// this process, to let go of what is of no use there.
    pub(super) fn start(
        request: u64,
        spec: &Spec,
        forget: impl FnOnce(),
    ) -> Result<Self, StartFailure> {
        let (outputs, pumps) = open_outputs(&spec.output)?;
        let (near, far) = UnixStream::pair().map_err(other)?;
        let error = outputs.last().expect("there is at least one output");
        let minder_pid = match startup::fork().map_err(other)? {
            Side::Child => {
                forget();
                minder::run(spec, &far, &outputs[0], error)
            }
            Side::Parent(pid) => pid,
        };
        Ok(Self {
            request,
            minder: Lines::new(near).map_err(other)?,
            minder_pid,
            process: None,
            pumps,
            stay: Stay::Bound,
            asked_elsewhere: false,
            ended: None,
            abandoned: false,
            orphans: false,
            refused: None,
            parting: Parting::of(&spec.child),
        })
    }

    /// Takes what the minder said; whether the child was started by it just now.
    pub(super) fn hear(&mut self) -> bool {
        let mut started = false;
        for report in self.minder.receive() {
            match report {
                Report::Started(process) => {
                    self.process = Some(process);
                    started = true;
                }
                Report::NotStarted(reason) => self.refused = Some(reason),
                Report::Ended { exited, survivors } => {
                    self.ended = Some((exited, survivors, Instant::now()));
                }
            }
        }
        started
    }

    /// The minder is gone without having told an end: somebody killed it. What takes time behind it is
    /// done by a copy of the keeper in its place, once.
    pub(super) fn orphaned(&mut self) {
        if self.ended.is_some() || self.refused.is_some() {
            return;
        }
        self.abandoned = true;
        self.orphans = true;
        let mut parting = std::mem::take(&mut self.parting);
        if parting.takes_time() && self.replace_minder(&parting).is_ok() {
            return;
        }
        parting.complete();
        if self.process.is_some() {
            let killed = Exited::Signal(libc::SIGKILL);
            self.ended = Some((killed, Vec::new(), Instant::now()));
        } else {
            self.refused = Some(StartFailure::Other {
                reason: "its minder was killed".to_owned(),
            });
        }
    }

    /// Forks somebody who only clears up and tells the end.
    fn replace_minder(&mut self, parting: &Parting) -> io::Result<()> {
        let (near, far) = UnixStream::pair()?;
        self.minder_pid = match startup::fork()? {
            Side::Child => minder::clear_up(parting.clone(), &far),
            Side::Parent(pid) => pid,
        };
        self.minder = Lines::new(near)?;
        Ok(())
    }

    /// Whether all has been said and its logs are complete.
    pub(super) fn is_over(&self) -> bool {
        let drained = self.pumps.iter().all(|pump| pump.pipe.is_none());
        match &self.ended {
            Some((_, _, at)) if self.orphans => at.elapsed() > ORPHAN_LIMIT,
            Some((_, _, at)) => drained || at.elapsed() > DRAIN_LIMIT,
            None => self.refused.is_some(),
        }
    }

    /// Gives the minder an order.
    pub(super) fn order(&mut self, order: Order) {
        self.minder.send(&order);
    }

    /// Nobody has come for it in time: it is withdrawn at once, and ended the way its kind says.
    pub(super) fn give_up(&mut self) {
        self.parting.withdraw();
        self.order(Order::End);
    }

    /// Lets go: the minder then ends the child the way its kind says.
    pub(super) fn let_go(&mut self) {
        let _ = self.minder.socket().shutdown(std::net::Shutdown::Write);
    }
}

impl Pump {
    fn new(log: &LogFile) -> Result<(OwnedFd, Self), StartFailure> {
        let log_file = CappedLog::create(log).map_err(|error| StartFailure::Log {
            path: log.path.clone(),
            reason: error.to_string(),
        })?;
        let (reader, writer) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC).map_err(other)?;
        // Only this end: the child's must block as programs expect.
        rustix::fs::fcntl_setfl(&reader, OFlags::NONBLOCK).map_err(other)?;
        let pump = Self {
            pipe: Some(File::from(reader)),
            log: log_file,
        };
        Ok((writer, pump))
    }

    /// The end to poll, while it is open.
    pub(super) fn pipe(&self) -> Option<&File> {
        self.pipe.as_ref()
    }

    /// Carries what is there.
    pub(super) fn carry(&mut self, buffer: &mut [u8]) {
        let mut taken = 0;
        while let Some(pipe) = &mut self.pipe
            && taken < TURN
        {
            match pipe.read(buffer) {
                Ok(0) => self.pipe = None,
                Ok(read) => {
                    self.log.write(&buffer[..read]);
                    taken += read;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(_) => self.pipe = None,
            }
        }
    }
}

/// The child's ends of the pipes (output, then error where it is apart), and what empties them.
fn open_outputs(output: &Output) -> Result<(Vec<OwnedFd>, Vec<Pump>), StartFailure> {
    let logs = match output {
        Output::Together(log) => vec![log],
        Output::Apart { stdout, stderr } => vec![stdout, stderr],
    };
    let pairs: Result<Vec<_>, _> = logs.into_iter().map(Pump::new).collect();
    Ok(pairs?.into_iter().unzip())
}

fn other(error: impl Into<io::Error>) -> StartFailure {
    StartFailure::Other {
        reason: error.into().to_string(),
    }
}
