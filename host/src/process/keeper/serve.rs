//! The keeper's loop.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    os::fd::OwnedFd,
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    process::{Signal, WaitOptions},
};

use super::{
    child::Minded,
    line::Lines,
    peers::Peers,
    protocol::{Ask, ChildId, Ended, Order, Request, Tell, VERSION},
    startup,
    stay::Stay,
};
use crate::process::{Child, Spec, identity::children};

/// How often an end is looked at while its output is still being drained.
const DRAIN_INTERVAL: Duration = Duration::from_millis(20);

/// Runs until there is neither host nor child. The working directory is where the socket goes.
pub(super) fn serve() -> io::Result<()> {
    let host = Lines::new(startup::take_host_socket()?)?;
    // Fails only for a group leader, which is out of the terminal's foreground group as well.
    let _ = rustix::process::setsid();
    let _ = rustix::thread::set_name(c"host-keeper");
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    let mut keeper = Keeper {
        signals: startup::watch_signals()?,
        host: Some(host),
        peers: Peers::default(),
        children: BTreeMap::new(),
        next: 1,
        ending: false,
        buffer: vec![0; 64 * 1024],
    };
    while !keeper.is_done() {
        keeper.turn();
    }
    keeper.peers.close();
    Ok(())
}

struct Keeper {
    signals: OwnedFd,
    /// The host; `None` once it is gone.
    host: Option<Lines>,
    peers: Peers,
    children: BTreeMap<ChildId, Minded>,
    next: ChildId,
    /// Whether it was told to end by a signal.
    ending: bool,
    buffer: Vec<u8>,
}

/// Who said something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum From {
    Host,
    Peer(usize),
}

impl Keeper {
    fn is_done(&self) -> bool {
        (self.host.is_none() || self.ending) && self.children.is_empty()
    }

    fn turn(&mut self) {
        self.wait();
        if startup::asked_to_end(&self.signals) {
            self.ending = true;
            self.children.values_mut().for_each(Minded::let_go);
        }
        self.peers.let_in();
        self.hear_host();
        self.hear_peers();
        self.end_what_is_left_alone();
        self.hear_minders();
        self.reap();
        for child in self.children.values_mut() {
            for pump in &mut child.pumps {
                pump.carry(&mut self.buffer);
            }
        }
        self.tell_ends();
    }

    fn wait(&self) {
        let mut interests = vec![PollFd::new(&self.signals, PollFlags::IN)];
        interests.extend(self.peers.interests());
        let minders = self.children.values().map(|child| &child.minder);
        for lines in self.host.iter().chain(minders) {
            if !lines.interest().is_empty() {
                interests.push(PollFd::new(lines.socket(), lines.interest()));
            }
        }
        let pumps = self.children.values().flat_map(|child| &child.pumps);
        for pipe in pumps.filter_map(|pump| pump.pipe()) {
            interests.push(PollFd::new(pipe, PollFlags::IN));
        }
        let draining = self.children.values().any(|child| child.ended.is_some());
        let now = Instant::now();
        let left = self.children.values().filter_map(|it| it.stay.left(now));
        let limit = left.chain(draining.then_some(DRAIN_INTERVAL)).min();
        // Whoever was found gone while something was sent to it makes no sound any more: nothing that
        // is polled for would end the wait.
        let gone = self.host.as_ref().is_some_and(Lines::is_over) || self.peers.is_any_over();
        let limit = if gone { Some(Duration::ZERO) } else { limit };
        let limit = limit.map(|limit| Timespec::try_from(limit).unwrap_or_default());
        let _ = poll(&mut interests, limit.as_ref());
    }

    fn hear_host(&mut self) {
        let Some(host) = &mut self.host else { return };
        host.flush();
        let requests = host.receive();
        let gone = host.is_over();
        for request in requests {
            self.obey(From::Host, request);
        }
        if gone {
            self.host = None;
            let all = self.children.values_mut();
            all.filter(|child| child.stay == Stay::Bound)
                .for_each(Minded::let_go);
        }
    }

    fn hear_peers(&mut self) {
        for peer in 0..self.peers.count() {
            for request in self.peers.hear(peer) {
                self.obey(From::Peer(peer), request);
            }
        }
        self.peers.leave();
    }

    /// Ends what was kept for a while and nobody has come for.
    fn end_what_is_left_alone(&mut self) {
        let (now, has_host) = (Instant::now(), self.host.is_some());
        for (number, child) in &mut self.children {
            let attended = has_host || self.peers.attend(*number);
            if child.stay.runs_out(attended, now) {
                child.give_up();
            }
        }
    }

    fn obey(&mut self, from: From, request: Request) {
        let id = request.id;
        let done = match (request.ask, from) {
            (Ask::Hello { version }, _) => {
                let version = version.min(VERSION);
                return self.tell(from, &Tell::Hello { id, version });
            }
            (Ask::Spawn { spec }, From::Host) if !self.ending => return self.spawn(id, &spec),
            (Ask::Spawn { .. }, From::Host) => Err("the keeper is ending"),
            (Ask::Keep { child, limit_ms }, _) if self.looks_after(from, child) => {
                self.with(child, |child| child.stay = Stay::kept(limit_ms))
            }
            (Ask::Adopt { child }, From::Peer(peer)) => self.adopt(peer, child),
            (Ask::Spawn { .. } | Ask::Keep { .. } | Ask::Adopt { .. }, _) => {
                Err("only its host may")
            }
            (Ask::Signal { child, signal }, _) => {
                self.order(from, child, Order::Signal(signal), false)
            }
            (Ask::End { child }, _) => self.order(from, child, Order::End, true),
            (Ask::Kill { child }, _) => self.order(from, child, Order::Kill, true),
        };
        let answer = match done {
            Ok(()) => Tell::Done { id },
            Err(reason) => Tell::Refused {
                id,
                reason: reason.to_owned(),
            },
        };
        self.tell(from, &answer);
    }

    /// Whether it is this one's engine: started by it, or adopted.
    fn looks_after(&self, from: From, child: ChildId) -> bool {
        match from {
            From::Host => true,
            From::Peer(peer) => self.peers.has_adopted(peer, child),
        }
    }

    fn adopt(&mut self, peer: usize, number: ChildId) -> Result<(), &'static str> {
        let child = self.children.get(&number).ok_or("it has ended")?;
        if child.stay == Stay::Bound {
            return Err("it is bound to its host");
        }
        if child.stay.is_over() || child.ended.is_some() {
            return Err("it is being ended");
        }
        self.peers.adopt(peer, number);
        Ok(())
    }

    fn spawn(&mut self, id: u64, spec: &Spec) {
        if matches!(spec.child, Child::Engine { .. }) {
            self.peers.make_a_door();
        }
        let children = &mut self.children;
        match Minded::start(id, spec, || children.clear()) {
            Ok(child) => {
                self.children.insert(self.next, child);
                self.next += 1;
            }
            Err(reason) => self.tell(From::Host, &Tell::NotStarted { id, reason }),
        }
    }

    fn order(
        &mut self,
        from: From,
        child: ChildId,
        order: Order,
        ends: bool,
    ) -> Result<(), &'static str> {
        let elsewhere = ends && !self.looks_after(from, child);
        self.with(child, |child| {
            child.asked_elsewhere |= elsewhere;
            child.order(order);
        })
    }

    fn with(&mut self, child: ChildId, act: impl FnOnce(&mut Minded)) -> Result<(), &'static str> {
        let child = self.children.get_mut(&child).ok_or("it has ended")?;
        act(child);
        Ok(())
    }

    fn tell(&mut self, to: From, tell: &Tell) {
        match to {
            From::Host => self.host.iter_mut().for_each(|host| host.send(tell)),
            From::Peer(peer) => self.peers.tell(peer, tell),
        }
    }

    fn hear_minders(&mut self) {
        let mut started = Vec::new();
        for (&number, child) in &mut self.children {
            if child.hear()
                && let Some(process) = child.process
            {
                started.push(Tell::Started {
                    id: child.request,
                    child: number,
                    process,
                });
            }
            if child.minder.is_over() {
                child.orphaned();
            }
        }
        for tell in started {
            self.tell(From::Host, &tell);
        }
    }

    /// Collects minders, and kills what a killed minder has left to this subreaper.
    fn reap(&mut self) {
        let reap = || rustix::process::wait(WaitOptions::NOHANG);
        while let Ok(Some(_)) | Err(rustix::io::Errno::INTR) = reap() {}
        if self.children.values().any(|child| child.abandoned) {
            let orphans = self.kill_orphans();
            let abandoned = self.children.values_mut().filter(|child| child.abandoned);
            abandoned.for_each(|child| child.orphans = orphans);
        }
    }

    /// Kills what has come to this process because its minder was killed; whether there was anything.
    ///
    /// Only this process's own children are looked at: what a living minder has below it can never be
    /// one, whatever it forks meanwhile. What they leave behind comes here in turn.
    fn kill_orphans(&self) -> bool {
        let minders: BTreeSet<i32> = self.children.values().map(|it| it.minder_pid).collect();
        let own = rustix::process::getpid().as_raw_pid();
        let mut found = false;
        for process in children(own) {
            if !minders.contains(&process.pid) {
                found = true;
                let _ = process.signal(Signal::KILL);
            }
        }
        found
    }

    fn tell_ends(&mut self) {
        let over: Vec<ChildId> = self
            .children
            .iter()
            .filter(|(_, child)| child.is_over())
            .map(|(&number, _)| number)
            .collect();
        for number in over {
            let Some(child) = self.children.remove(&number) else {
                continue;
            };
            if let Some(reason) = child.refused {
                let id = child.request;
                self.tell(From::Host, &Tell::NotStarted { id, reason });
            } else if let Some((exited, survivors, _)) = child.ended {
                let ended = Ended {
                    exited,
                    asked_elsewhere: child.asked_elsewhere,
                    survivors,
                };
                let tell = Tell::Exited {
                    child: number,
                    ended,
                };
                self.tell(From::Host, &tell);
                self.peers.tell_end(number, &tell);
            }
        }
    }
}
