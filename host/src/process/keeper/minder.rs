//! Sits with one child, from its start until nothing of its tree is left.
//!
//! A minder is a copy of the keeper, made for one child. As a subreaper it inherits every descendant
//! that loses its parent, daemons in sessions of their own included: what descends from the minder
//! is exactly the child's tree, whatever else the keeper runs. It ends the tree when it is told to,
//! when the child's first process ends, and when its keeper is gone.

use std::{
    io,
    os::fd::OwnedFd,
    os::unix::{net::UnixStream, process::ExitStatusExt},
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    process::{Pid, Signal, WaitOptions, WaitStatus},
};

use super::{
    hold,
    line::Lines,
    protocol::{Order, Report},
    startup::{self, Standard},
};
use crate::process::{
    Child, Exited, Farewell, ProcessIdentity, Removal, Spec, StartFailure, confine,
    identity::descendants, quiet::let_go_of_freed,
};

/// How long killed processes may take to disappear before they count as survivors.
const KILL_LIMIT: Duration = Duration::from_secs(10);

/// Longest time that orders wait for a child that is still making what is to be removed behind it.
const HALF_MADE_LIMIT: Duration = Duration::from_secs(10);

/// Longest time that what is left of a tree may go on once the farewell is done: a container's
/// monitor takes the container's network down.
const TIDY_LIMIT: Duration = Duration::from_secs(10);

/// Pause between two looks for descendants that are still there.
const INTERVAL: Duration = Duration::from_millis(5);

/// Runs a minder in a fresh copy of the keeper. `output` and `error` become the child's streams.
pub(super) fn run(spec: &Spec, control: &UnixStream, output: &OwnedFd, error: &OwnedFd) -> ! {
    let minding = std::panic::AssertUnwindSafe(|| mind(spec, control, output, error));
    // A panic must not unwind into the frames of the process this is a copy of.
    match std::panic::catch_unwind(minding) {
        Ok(Ok(())) => startup::leave(0),
        _ => startup::leave(70),
    }
}

/// Does what is left to do behind a child whose minder was killed, in a fresh copy of the keeper.
pub(super) fn clear_up(mut parting: Parting, control: &UnixStream) -> ! {
    let clearing = std::panic::AssertUnwindSafe(|| -> io::Result<()> {
        let null = startup::null()?;
        let control = startup::keep_only(control, &null, &null)?;
        let _ = rustix::thread::set_name(c"host-minder");
        parting.complete();
        let ended = Report::Ended {
            exited: Exited::Signal(libc::SIGKILL),
            survivors: Vec::new(),
        };
        say(&mut Lines::new(control)?, &ended);
        Ok(())
    });
    match std::panic::catch_unwind(clearing) {
        Ok(Ok(())) => startup::leave(0),
        _ => startup::leave(70),
    }
}

fn mind(spec: &Spec, control: &UnixStream, output: &OwnedFd, error: &OwnedFd) -> io::Result<()> {
    let control = startup::keep_only(control, output, error)?;
    let signals = startup::watch_signals()?;
    let mut control = Lines::new(control)?;
    let _ = rustix::thread::set_name(c"host-minder");
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;

    let started = hold::share(spec.child.holds())
        .and_then(|held| confine::spawn(spec).map(|child| (child, held)));
    startup::silence([Standard::Output, Standard::Error])?;
    let (child, held) = match started {
        Ok(started) => started,
        Err(reason) => {
            say(&mut control, &Report::NotStarted(reason));
            return Ok(());
        }
    };
    let first = i32::try_from(child.id()).expect("a pid is a positive i32");
    let Some(process) = ProcessIdentity::of(first) else {
        say(
            &mut control,
            &Report::NotStarted(StartFailure::Other {
                reason: "/proc does not show the new process; is it mounted?".to_owned(),
            }),
        );
        let _ = rustix::process::kill_process(pid(first), Signal::KILL);
        return Ok(());
    };
    control.send(&Report::Started(process));
    // It waits from now on, one for each child: of the keeper's memory it needs next to nothing.
    let_go_of_freed();

    let minder = Minder {
        control,
        signals,
        first,
        end: EndPlan::of(&spec.child),
        started: Instant::now(),
        exited: None,
        tidying: None,
        terminated: None,
        killing: None,
    };
    let (mut control, report) = minder.until_the_end();
    // Who hears of the end may remove what it has read.
    hold::let_go(held);
    say(&mut control, &report);
    Ok(())
}

/// Sends the last report, waiting until the keeper has taken it.
fn say(control: &mut Lines, report: &Report) {
    let _ = control.socket().set_nonblocking(false);
    control.send(report);
}

/// How a child is ended, and what is done behind it.
#[derive(Default)]
struct EndPlan {
    /// Time between TERM and KILL; `None`: KILL at once.
    grace: Option<Duration>,
    /// What is done once its first process has ended.
    parting: Parting,
}

impl EndPlan {
    fn of(child: &Child) -> Self {
        Self {
            grace: match child {
                Child::Step => None,
                Child::Engine { grace_ms, .. } => Some(Duration::from_millis(*grace_ms)),
            },
            parting: Parting::of(child),
        }
    }
}

/// What is done behind a child, by whoever is left to do it.
#[derive(Debug, Clone, Default)]
pub(super) struct Parting {
    withdraw: Vec<Removal>,
    farewell: Option<Box<Farewell>>,
    remove: Vec<Removal>,
}

impl Parting {
    pub(super) fn of(child: &Child) -> Self {
        match child {
            Child::Step => Self::default(),
            Child::Engine {
                withdraw,
                farewell,
                remove,
                ..
            } => Self {
                withdraw: withdraw.clone(),
                farewell: farewell.clone(),
                remove: remove.clone(),
            },
        }
    }

    /// Whether the child is still making what its farewell removes.
    fn is_half_made(&self) -> bool {
        self.farewell.as_ref().is_some_and(|it| it.is_half_made())
    }

    /// Nobody is to find it any more.
    pub(super) fn withdraw(&mut self) {
        self.withdraw.drain(..).for_each(|it| it.carry_out());
    }

    /// Whether it takes commands, and with them time.
    pub(super) fn takes_time(&self) -> bool {
        self.farewell.is_some()
    }

    /// Its first process has ended: nobody is to find it, and what it has left elsewhere goes. Blocks
    /// for as long as the farewell's limits allow.
    pub(super) fn begin(&mut self) {
        self.withdraw();
        if let Some(farewell) = self.farewell.take()
            && !farewell.carry_out()
        {
            // Its record stays, by which the next one who looks removes what is left.
            self.remove.clear();
        }
    }

    /// Nothing of its tree is left.
    pub(super) fn complete(&mut self) {
        self.begin();
        self.remove.drain(..).for_each(|it| it.carry_out());
    }
}

struct Minder {
    control: Lines,
    signals: OwnedFd,
    first: i32,
    end: EndPlan,
    started: Instant,
    /// How the first process ended, once it has.
    exited: Option<Exited>,
    /// Until when what is left of the tree may end by itself.
    tidying: Option<Instant>,
    /// When KILL follows on TERM.
    terminated: Option<Instant>,
    /// Since when the tree is being killed.
    killing: Option<Instant>,
}

impl Minder {
    fn until_the_end(mut self) -> (Lines, Report) {
        loop {
            let left = self.reap();
            if self.exited.is_some() && self.end.parting.takes_time() {
                // Before the rest of its tree is killed: a container's own monitor is in it, and what
                // it is still writing down tells how the container ended.
                self.end.parting.begin();
                self.killing = None;
                self.tidying = Some(Instant::now() + TIDY_LIMIT);
                continue;
            }
            let overdue = self
                .killing
                .is_some_and(|since| since.elapsed() > KILL_LIMIT);
            if !left || overdue {
                return self.finish(left);
            }
            if self.is_half_made() {
                // Podman loses a container's network, rules of the packet filter included, when it is
                // ended while it starts one; docker's daemon makes a container all the same.
                std::thread::sleep(INTERVAL);
                continue;
            }
            let tidies = self.tidying.is_some_and(|limit| limit > Instant::now());
            if (self.exited.is_some() || self.killing.is_some()) && !tidies {
                self.kill();
            }
            if self.terminated.is_some_and(|limit| limit <= Instant::now()) {
                self.kill();
            }
            if self.control.is_over() {
                // The keeper is gone, or has let go of this child. Seen before the wait: what a failed
                // answer has told ends no wait.
                self.begin_end();
            }
            self.wait();
            startup::asked_to_end(&self.signals);
            for order in self.control.receive() {
                self.obey(order);
            }
        }
    }

    /// Whether orders have to wait.
    fn is_half_made(&self) -> bool {
        self.exited.is_none()
            && self.started.elapsed() < HALF_MADE_LIMIT
            && self.end.parting.is_half_made()
    }

    fn obey(&mut self, order: Order) {
        match order {
            Order::Signal(number) => {
                if let Some(signal) = Signal::from_named_raw(number) {
                    self.signal(signal);
                }
            }
            Order::End => self.begin_end(),
            Order::Kill => self.kill(),
        }
    }

    fn begin_end(&mut self) {
        match self.end.grace {
            None => self.kill(),
            Some(grace) if self.terminated.is_none() => {
                self.terminated = Some(Instant::now() + grace);
                self.signal(Signal::TERM);
            }
            Some(_) => {}
        }
    }

    /// Signals the first process, which cannot have been reaped unnoticed.
    fn signal(&self, signal: Signal) {
        if self.exited.is_none() {
            let _ = rustix::process::kill_process(pid(self.first), signal);
        }
    }

    /// Kills whatever is left of the tree. What is forked meanwhile is met on the next round.
    fn kill(&mut self) {
        self.killing.get_or_insert_with(Instant::now);
        if self.exited.is_none() {
            let _ = rustix::process::kill_process_group(pid(self.first), Signal::KILL);
        }
        if self.exited.is_none() && self.end.parting.takes_time() {
            // The rest is the farewell's matter first.
            return;
        }
        let own = rustix::process::getpid().as_raw_pid();
        for process in descendants(own) {
            let _ = process.signal(Signal::KILL);
        }
    }

    /// Collects what has ended; whether anything is left.
    fn reap(&mut self) -> bool {
        loop {
            match rustix::process::wait(WaitOptions::NOHANG) {
                Ok(Some((ended, status))) if ended.as_raw_pid() == self.first => {
                    self.exited = Some(how(status));
                }
                Ok(Some(_)) | Err(rustix::io::Errno::INTR) => {}
                Ok(None) => return true,
                Err(_) => return false,
            }
        }
    }

    fn wait(&self) {
        let limit = if self.killing.is_some() || self.tidying.is_some() {
            Some(INTERVAL)
        } else {
            self.terminated
                .map(|limit| limit.saturating_duration_since(Instant::now()))
        };
        let limit = limit.map(|limit| Timespec::try_from(limit).unwrap_or_default());
        let mut interests = vec![PollFd::new(&self.signals, PollFlags::IN)];
        if !self.control.is_over() {
            interests.push(PollFd::new(self.control.socket(), self.control.interest()));
        }
        let _ = poll(&mut interests, limit.as_ref());
    }

    fn finish(mut self, left: bool) -> (Lines, Report) {
        // One that even KILL does not end was killed all the same.
        let exited = self.exited.unwrap_or(Exited::Signal(libc::SIGKILL));
        self.end.parting.complete();
        let own = rustix::process::getpid().as_raw_pid();
        let survivors = if left {
            descendants(own).iter().map(|process| process.pid).collect()
        } else {
            Vec::new()
        };
        (self.control, Report::Ended { exited, survivors })
    }
}

fn pid(raw: i32) -> Pid {
    Pid::from_raw(raw).expect("a child's pid is positive")
}

fn how(status: WaitStatus) -> Exited {
    let status = std::process::ExitStatus::from_raw(status.as_raw());
    Exited::of(status.code(), status.signal())
}
