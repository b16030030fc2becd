//! Other processes of this user: the door they come through, and what each of them looks after.

use std::{
    collections::BTreeSet,
    fs,
    io::ErrorKind,
    os::fd::AsFd,
    os::unix::{
        fs::PermissionsExt,
        net::{UnixListener, UnixStream},
    },
    path::PathBuf,
};

use rustix::event::{PollFd, PollFlags};

use super::{
    line::Lines,
    protocol::{ChildId, Request, Tell, keeper_of, socket_name},
};
use crate::process::ProcessIdentity;

/// Most peers served at a time; more are turned away.
const PEER_LIMIT: usize = 32;

/// Those who knock, and those who are in.
#[derive(Default)]
pub(super) struct Peers {
    /// Where they knock; open while there is an engine.
    door: Option<(UnixListener, PathBuf)>,
    all: Vec<Peer>,
}

struct Peer {
    lines: Lines,
    /// Children that it looks after.
    adopted: BTreeSet<ChildId>,
}

impl Peers {
    /// Opens the socket at which other processes of this user can ask for an end. Without it the
    /// engine still runs: they signal it themselves then.
    pub(super) fn make_a_door(&mut self) {
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
        sweep();
    }

    /// Takes the door away, with those that killed keepers have left.
    pub(super) fn close(&mut self) {
        if let Some((_, path)) = self.door.take() {
            let _ = fs::remove_file(path);
            sweep();
        }
    }

    /// Lets in who has knocked.
    pub(super) fn let_in(&mut self) {
        let Some((listener, _)) = &self.door else {
            return;
        };
        while let Ok((socket, _)) = listener.accept() {
            if self.all.len() < PEER_LIMIT
                && is_one_of_us(&socket)
                && let Ok(lines) = Lines::new(socket)
            {
                let adopted = BTreeSet::new();
                self.all.push(Peer { lines, adopted });
            }
        }
    }

    /// What to poll for.
    pub(super) fn interests(&self) -> impl Iterator<Item = PollFd<'_>> {
        let door = self.door.iter();
        let door = door.map(|(listener, _)| PollFd::new(listener, PollFlags::IN));
        let talks = self.all.iter().map(|peer| &peer.lines);
        let talks = talks.filter(|lines| !lines.interest().is_empty());
        door.chain(talks.map(|lines| PollFd::new(lines.socket(), lines.interest())))
    }

    /// Whether one of them says nothing more and is not let go of yet.
    pub(super) fn is_any_over(&self) -> bool {
        self.all.iter().any(|peer| peer.lines.is_over())
    }

    /// How many there are; they are called by their numbers until some [`Peers::leave`].
    pub(super) fn count(&self) -> usize {
        self.all.len()
    }

    /// Takes what one of them has said.
    pub(super) fn hear(&mut self, peer: usize) -> Vec<Request> {
        let lines = &mut self.all[peer].lines;
        lines.flush();
        lines.receive()
    }

    /// Lets go of those that say nothing more, and of what they looked after.
    pub(super) fn leave(&mut self) {
        self.all.retain(|peer| !peer.lines.is_over());
    }

    /// From now on this one looks after a child.
    pub(super) fn adopt(&mut self, peer: usize, child: ChildId) {
        self.all[peer].adopted.insert(child);
    }

    /// Whether this one looks after a child.
    pub(super) fn has_adopted(&self, peer: usize, child: ChildId) -> bool {
        self.all[peer].adopted.contains(&child)
    }

    /// Whether anybody here looks after a child.
    pub(super) fn attend(&self, child: ChildId) -> bool {
        self.all.iter().any(|peer| peer.adopted.contains(&child))
    }

    pub(super) fn tell(&mut self, peer: usize, tell: &Tell) {
        self.all[peer].lines.send(tell);
    }

    /// Tells everybody the end of a child.
    pub(super) fn tell_end(&mut self, child: ChildId, tell: &Tell) {
        for peer in &mut self.all {
            peer.adopted.remove(&child);
            peer.lines.send(tell);
        }
    }
}

/// Whether the other side runs as this user or as root.
/// Removes the doors of keepers that were killed: nobody has their number, and nobody answers. Either
/// alone could be said of one that lives in another namespace, or that is about to listen.
fn sweep() {
    let names = fs::read_dir(".").into_iter().flatten().flatten();
    for path in names.map(|entry| entry.path()) {
        let pid = path.file_name().and_then(|name| keeper_of(name.to_str()?));
        if pid.is_some_and(|pid| ProcessIdentity::of(pid).is_none())
            && UnixStream::connect(&path).is_err_and(|it| it.kind() == ErrorKind::ConnectionRefused)
        {
            let _ = fs::remove_file(path);
        }
    }
}

fn is_one_of_us(socket: &UnixStream) -> bool {
    let own = rustix::process::geteuid();
    rustix::net::sockopt::socket_peercred(socket.as_fd())
        .is_ok_and(|peer| peer.uid == own || peer.uid.is_root())
}
