//! A non-blocking stream of JSON lines.

use std::{
    io::{self, Read, Write},
    os::unix::net::UnixStream,
};

use rustix::event::PollFlags;
use serde::{Serialize, de::DeserializeOwned};

use super::protocol::LINE_LIMIT;

/// A peer that does not read is dropped once this much waits for it.
const BACKLOG_LIMIT: usize = 1024 * 1024;

/// One end of a conversation.
#[derive(Debug)]
pub(super) struct Lines {
    socket: UnixStream,
    incoming: Vec<u8>,
    outgoing: Vec<u8>,
    over: bool,
}

impl Lines {
    pub(super) fn new(socket: UnixStream) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        Ok(Self {
            socket,
            incoming: Vec::new(),
            outgoing: Vec::new(),
            over: false,
        })
    }

    pub(super) fn socket(&self) -> &UnixStream {
        &self.socket
    }

    /// What to poll for.
    pub(super) fn interest(&self) -> PollFlags {
        let mut flags = PollFlags::empty();
        flags.set(PollFlags::IN, !self.over);
        flags.set(PollFlags::OUT, !self.outgoing.is_empty());
        flags
    }

    /// Whether the other side will say nothing more.
    pub(super) fn is_over(&self) -> bool {
        self.over
    }

    /// Takes what has come. Lines that are no documents of this kind are skipped: a newer peer may
    /// say more than this version knows.
    pub(super) fn receive<T: DeserializeOwned>(&mut self) -> Vec<T> {
        // On the stack of every minder, which stays as large as it was once.
        let mut buffer = [0; 2 * 1024];
        while !self.over {
            match self.socket.read(&mut buffer) {
                Ok(0) => self.over = true,
                Ok(read) => self.incoming.extend_from_slice(&buffer[..read]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => self.over = true,
            }
            self.over |= self.incoming.len() > LINE_LIMIT;
        }
        self.whole_lines()
    }

    fn whole_lines<T: DeserializeOwned>(&mut self) -> Vec<T> {
        let Some(end) = self.incoming.iter().rposition(|byte| *byte == b'\n') else {
            return Vec::new();
        };
        let whole: Vec<u8> = self.incoming.drain(..=end).collect();
        whole
            .split(|byte| *byte == b'\n')
            .filter_map(|line| serde_json::from_slice(line).ok())
            .collect()
    }

    /// Sends a document, now or when the peer reads again.
    pub(super) fn send(&mut self, document: &impl Serialize) {
        let mut line = serde_json::to_vec(document).expect("protocol documents are plain data");
        line.push(b'\n');
        self.outgoing.extend(line);
        self.flush();
    }

    /// Sends what waits, as far as the peer takes it.
    pub(super) fn flush(&mut self) {
        while !self.outgoing.is_empty() {
            match self.socket.write(&self.outgoing) {
                Ok(written) => drop(self.outgoing.drain(..written)),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    if self.outgoing.len() > BACKLOG_LIMIT {
                        self.give_up();
                    }
                    return;
                }
                Err(_) => self.give_up(),
            }
        }
    }

    fn give_up(&mut self) {
        self.outgoing.clear();
        self.over = true;
    }
}
