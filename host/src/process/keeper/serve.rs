//! The keeper's loop.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    os::fd::{AsFd, OwnedFd},
    os::unix::{
        fs::PermissionsExt,
        net::{UnixListener, UnixStream},
    },
    path::PathBuf,
    time::Duration,
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    process::{Signal, WaitOptions},
};

use super::{
    child::Minded,
    line::Lines,
    protocol::{Ask, ChildId, Ended, Order, Request, Tell, VERSION, socket_name},
    startup,
};
use crate::process::{Child, Spec, identity::children};

/// Most peers served at a time; more are turned away.
const PEER_LIMIT: usize = 32;

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
        door: None,
        peers: Vec::new(),
        children: BTreeMap::new(),
        next: 1,
        ending: false,
        buffer: vec![0; 64 * 1024],
    };
    while !keeper.is_done() {
        keeper.turn();
    }
    if let Some((_, path)) = &keeper.door {
        let _ = fs::remove_file(path);
    }
    Ok(())
}

struct Keeper {
    signals: OwnedFd,
    /// The host; `None` once it is gone.
    host: Option<Lines>,
    /// Where other processes of this user knock; open while there is an engine.
    door: Option<(UnixListener, PathBuf)>,
    peers: Vec<Lines>,
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
        self.open_the_door();
        self.hear_host();
        self.hear_peers();
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
        let talks = self.host.iter().chain(&self.peers);
        let minders = self.children.values().map(|child| &child.minder);
        for lines in talks.chain(minders) {
            if !lines.interest().is_empty() {
                interests.push(PollFd::new(lines.socket(), lines.interest()));
            }
        }
        if let Some((listener, _)) = &self.door {
            interests.push(PollFd::new(listener, PollFlags::IN));
        }
        let pumps = self.children.values().flat_map(|child| &child.pumps);
        for pipe in pumps.filter_map(|pump| pump.pipe()) {
            interests.push(PollFd::new(pipe, PollFlags::IN));
        }
        let draining = self.children.values().any(|child| child.ended.is_some());
        let limit = draining.then(|| Timespec::try_from(DRAIN_INTERVAL).unwrap_or_default());
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
            let bound = self.children.values_mut().filter(|child| !child.kept);
            bound.for_each(Minded::let_go);
        }
    }

    fn hear_peers(&mut self) {
        for index in 0..self.peers.len() {
            self.peers[index].flush();
            for request in self.peers[index].receive() {
                self.obey(From::Peer(index), request);
            }
        }
        self.peers.retain(|peer| !peer.is_over());
    }

    fn obey(&mut self, from: From, request: Request) {
        let id = request.id;
        let done = match (request.ask, from) {
            (Ask::Hello { .. }, _) => {
                let version = VERSION;
                return self.tell(from, &Tell::Hello { id, version });
            }
            (Ask::Spawn { spec }, From::Host) if !self.ending => return self.spawn(id, &spec),
            (Ask::Spawn { .. }, From::Host) => Err("the keeper is ending"),
            (Ask::Keep { child }, From::Host) => self.with(child, |child| child.kept = true),
            (Ask::Spawn { .. } | Ask::Keep { .. }, From::Peer(_)) => Err("only its host may"),
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

    fn spawn(&mut self, id: u64, spec: &Spec) {
        if matches!(spec.child, Child::Engine { .. }) {
            self.make_a_door();
        }
        match Minded::start(id, spec) {
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
        self.with(child, |child| {
            child.asked_elsewhere |= ends && from != From::Host;
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
            From::Peer(index) => self.peers[index].send(tell),
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
                self.peers.iter_mut().for_each(|peer| peer.send(&tell));
            }
        }
    }

    /// Opens the socket at which other processes of this user can ask for an end. Without it the
    /// engine still runs: they signal it themselves then.
    fn make_a_door(&mut self) {
        if self.door.is_some() {
            return;
        }
        let path = PathBuf::from(socket_name(rustix::process::getpid().as_raw_pid()));
        let _ = fs::remove_file(&path);
        let Ok(listener) = UnixListener::bind(&path) else {
            return;
        };
        // The directory is closed to others already; this is the second bolt.
        let _ = fs::set_permissions(&path, fs::Permissions::from_mode(0o600));
        if listener.set_nonblocking(true).is_ok() {
            self.door = Some((listener, path));
        }
    }

    fn open_the_door(&mut self) {
        let Some((listener, _)) = &self.door else {
            return;
        };
        while let Ok((socket, _)) = listener.accept() {
            if self.peers.len() < PEER_LIMIT
                && is_one_of_us(&socket)
                && let Ok(lines) = Lines::new(socket)
            {
                self.peers.push(lines);
            }
        }
    }
}

/// Whether the other side runs as this user or as root.
fn is_one_of_us(socket: &UnixStream) -> bool {
    let own = rustix::process::geteuid();
    rustix::net::sockopt::socket_peercred(socket.as_fd())
        .is_ok_and(|peer| peer.uid == own || peer.uid.is_root())
}
