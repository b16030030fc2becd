//! Two threads beside the connections: one writes what they bring, one hashes it in order.
//!
//! The hasher follows the bytes that are there from the start of the file without a hole, and reads
//! them back from the page cache: so what is compared is what the file holds, parts may come in any
//! order, and what an earlier run left is hashed while the rest is on its way. The runtime neither
//! waits for the disk nor for the hash.

use std::{
    fs::File,
    io,
    os::unix::fs::FileExt as _,
    path::Path,
    sync::{Arc, Condvar, Mutex, MutexGuard},
};

use tokio::{
    sync::{mpsc, oneshot},
    task::JoinHandle,
};
use tokio_util::bytes::Bytes;

use super::{
    super::{Digest, digest::Hashes},
    partial::{Header, Partial},
    ranges::Ranges,
};
use crate::store::StoreError;

/// Writes that wait for the disk at most; connections wait beyond it.
const QUEUE: usize = 8;

/// Bytes hashed at once: they stay in the processor's cache between copy and hash.
const HASHED_AT_ONCE: usize = 256 << 10;

pub(super) struct Collector {
    board: Arc<Board>,
    /// What was written, and what is about to be.
    handed: Mutex<Ranges>,
    sender: mpsc::Sender<Message>,
    writer: JoinHandle<Partial>,
    hasher: JoinHandle<Result<Hashes, StoreError>>,
    stop: StopOnDrop,
}

const NO_PANIC: &str = "neither thread panics";

enum Message {
    /// Answered once there is room, or none.
    Begin(Header, oneshot::Sender<Result<(), StoreError>>),
    Write(u64, Vec<Bytes>),
    Settle,
}

/// What the two threads and the connections know together.
struct Board {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    written: Ranges,
    /// Size of the whole file, once all of it was sent to the writer.
    whole: Option<u64>,
    /// Why the writer gave up, until somebody is told.
    failure: Option<StoreError>,
    stopped: bool,
}

impl Collector {
    pub(super) fn start(partial: Partial, expected: Option<&Digest>) -> Self {
        let written = partial.journal.written.clone();
        let board = Arc::new(Board {
            state: Mutex::new(State {
                written: written.clone(),
                ..State::default()
            }),
            changed: Condvar::new(),
        });
        let (sender, receiver) = mpsc::channel(QUEUE);
        let (file, path) = (partial.file(), partial.path().to_owned());
        let hashes = Hashes::for_expected(expected);
        let (for_hasher, for_writer) = (Arc::clone(&board), Arc::clone(&board));
        Self {
            handed: Mutex::new(written),
            stop: StopOnDrop(Arc::clone(&board)),
            board,
            sender,
            writer: tokio::task::spawn_blocking(move || write(&for_writer, partial, receiver)),
            hasher: tokio::task::spawn_blocking(move || hash(&for_hasher, &file, &path, hashes)),
        }
    }

    /// What was handed over so far, and what was there before: written by now, or soon.
    pub(super) fn handed(&self) -> Ranges {
        self.handed.lock().expect(NO_PANIC).clone()
    }

    /// Notes which version comes, before the first of its bytes. Waits until there is room for it: what a
    /// server answers when it is asked for more must not hide that there is none.
    pub(super) async fn begin(&self, header: Header) -> Result<(), StoreError> {
        let (done, begun) = oneshot::channel();
        let sent = self.sender.send(Message::Begin(header, done)).await;
        sent.map_err(|_| self.failure())?;
        begun.await.unwrap_or_else(|_| Err(self.failure()))
    }

    /// Hands bytes over to be written. They are there some time later, or the writer fails.
    pub(super) async fn write(&self, offset: u64, chunks: Vec<Bytes>) -> Result<(), StoreError> {
        let length: usize = chunks.iter().map(Bytes::len).sum();
        let sent = self.sender.send(Message::Write(offset, chunks)).await;
        sent.map_err(|_| self.failure())?;
        let mut handed = self.handed.lock().expect(NO_PANIC);
        handed.insert(offset..offset + length as u64);
        Ok(())
    }

    /// Has the journal name all that was handed over: nothing more may come for a while.
    pub(super) async fn settle(&self) -> Result<(), StoreError> {
        let sent = self.sender.send(Message::Settle).await;
        sent.map_err(|_| self.failure())
    }

    /// Why the writer takes no more.
    fn failure(&self) -> StoreError {
        let failure = self.board.lock().failure.take();
        // Only one of the connections can be told, and the first one ends the transfer.
        failure.unwrap_or_else(|| StoreError::io("write", "the file", io::Error::other("given up")))
    }

    /// Waits until the first `size` bytes, which were all handed over, are written and hashed.
    pub(super) async fn finish(self, size: u64) -> (Partial, Result<Hashes, StoreError>) {
        drop(self.sender);
        let partial = self.writer.await.expect(NO_PANIC);
        if let Some(error) = self.board.lock().failure.take() {
            return (partial, Err(error));
        }
        self.board.set(|state| state.whole = Some(size));
        (partial, self.hasher.await.expect(NO_PANIC))
    }

    /// Ends both threads; what was handed over is written before.
    pub(super) async fn stop(self) -> Partial {
        drop(self.stop);
        drop(self.sender);
        let partial = self.writer.await.expect(NO_PANIC);
        // What it could not read is read again next time.
        let _ = self.hasher.await.expect(NO_PANIC);
        partial
    }
}

/// A transfer that is given up in the middle takes its hasher along.
struct StopOnDrop(Arc<Board>);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.set(|state| state.stopped = true);
    }
}

impl Board {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect(NO_PANIC)
    }

    fn set(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.lock());
        self.changed.notify_all();
    }

    /// Waits until there is more than the first `hashed` bytes, and says up to where; `None` when
    /// there will not be more, or nobody wants to know.
    fn wait_beyond(&self, hashed: u64) -> Option<u64> {
        let is_waiting = |state: &mut State| {
            let is_over = state.stopped || state.whole == Some(hashed);
            !is_over && state.written.front() <= hashed
        };
        let state = self.changed.wait_while(self.lock(), is_waiting);
        let state = state.expect(NO_PANIC);
        let whole = state.whole.unwrap_or(u64::MAX);
        let front = state.written.front().min(whole);
        (!state.stopped && front > hashed).then_some(front)
    }
}

/// Writes what comes until nobody sends any more. A failure ends it: senders notice.
fn write(board: &Board, mut partial: Partial, mut receiver: mpsc::Receiver<Message>) -> Partial {
    while let Some(message) = receiver.blocking_recv() {
        let result = match message {
            Message::Begin(header, done) => {
                let begun = partial.begin(header);
                let goes_on = begun.is_ok();
                // Who was cancelled meanwhile wants to know no more.
                let _ = done.send(begun);
                match goes_on {
                    true => Ok(()),
                    false => return partial,
                }
            }
            Message::Write(offset, chunks) => partial
                .write(offset, &chunks)
                .map(|range| board.set(|state| state.written.insert(range))),
            Message::Settle => partial.settle(),
        };
        if let Err(error) = result {
            board.set(|state| state.failure = Some(error));
            return partial;
        }
    }
    // Without it the next run fetches again what came last.
    let _ = partial.save();
    partial
}

fn hash(board: &Board, file: &File, path: &Path, mut hashes: Hashes) -> Result<Hashes, StoreError> {
    let failed = |source| StoreError::io("read", path, source);
    let mut buffer = vec![0; HASHED_AT_ONCE];
    let mut hashed = 0;
    while let Some(front) = board.wait_beyond(hashed) {
        let length = (front - hashed).min(HASHED_AT_ONCE as u64);
        let block = &mut buffer[..usize::try_from(length).expect("not more than the buffer")];
        file.read_exact_at(block, hashed).map_err(failed)?;
        hashes.update(block);
        hashed += length;
    }
    Ok(hashes)
}
