//! The file that is being collected, possibly over several connections and runs.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, IoSlice},
    ops::Range,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use rustix::{fs::FallocateFlags, io::Errno};
use tokio_util::bytes::Bytes;

use super::journal::{Journal, Version};
use crate::store::{self, StoreError};

/// Bytes after which the journal is written again, and the time after which it is for fewer.
const JOURNAL_BYTES: u64 = 8 << 20;
const JOURNAL_INTERVAL: Duration = Duration::from_millis(500);

/// Bytes after which the file is synced, so that a crash of the machine does not cost all of it.
const SYNC_BYTES: u64 = 1 << 30;

/// Bytes that one call writes at most. The kernel keeps them in one piece of memory of that size, and a
/// guest whose hypervisor takes free pieces back (from 128 KiB; Linux's page reporting) gets each larger one
/// anew: measured there, writing 128 MiB in pieces of 512 KiB took thirteen times the processor time.
const CALL_BYTES: usize = 64 << 10;

/// Buffers that one call writes at most (IOV_MAX is 1024).
const BUFFERS: usize = 512;

/// The file and its journal. One thread writes both.
pub(super) struct Partial {
    path: PathBuf,
    file: Arc<File>,
    pub(super) journal: Journal,
    journaled: Instant,
    since_journal: u64,
    since_sync: u64,
}

/// What is to be known before bytes of a version are kept.
#[derive(Debug, Clone)]
pub(super) struct Header {
    pub(super) url: String,
    pub(super) version: Version,
    pub(super) size_bytes: Option<u64>,
}

impl Partial {
    /// Opens what is there, or starts anew. What cannot be told apart from another version's bytes
    /// is thrown away, unless `compared`: a digest will tell.
    pub(super) fn open(path: &Path, compared: bool) -> Result<Self, StoreError> {
        let failed = |source| StoreError::io("open", path, source);
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)
            .map_err(failed)?;
        let length = file.metadata().map_err(failed)?.len();
        let mut journal = Journal::read(path).unwrap_or_else(|| Journal::of_unbroken(length));
        journal.written = journal.reliable().clone();
        let usable = compared || journal.version.if_range().is_some();
        let mut partial = Self {
            path: path.to_owned(),
            file: Arc::new(file),
            journal,
            journaled: Instant::now(),
            since_journal: 0,
            since_sync: 0,
        };
        if !usable || partial.journal.written.end() > length {
            partial.reset()?;
        }
        Ok(partial)
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn file(&self) -> Arc<File> {
        Arc::clone(&self.file)
    }

    /// Notes which version comes, and makes room for the rest of it.
    pub(super) fn begin(&mut self, header: Header) -> Result<(), StoreError> {
        self.journal.url = header.url;
        self.journal.version = header.version;
        self.journal.size_bytes = header.size_bytes;
        if let Some(size) = header.size_bytes {
            self.reserve(size)?;
        }
        self.save()
    }

    /// Asks the file system for the space, so that a disk that is too small is known before it is
    /// full. Not every file system can reserve: then the question alone has to do.
    fn reserve(&self, size: u64) -> Result<(), StoreError> {
        let there = self.file.metadata().map_or(0, |it| it.blocks() * 512);
        let needed = size.saturating_sub(there.max(self.journal.written.count()));
        store::ensure_space(&self.path, needed)?;
        match rustix::fs::fallocate(&self.file, FallocateFlags::KEEP_SIZE, 0, size) {
            Err(Errno::NOSPC | Errno::DQUOT) => Err(StoreError::full(&self.path, Some(needed))),
            _ => Ok(()),
        }
    }

    /// Writes bytes, and from time to time the journal after them.
    pub(super) fn write(
        &mut self,
        offset: u64,
        chunks: &[Bytes],
    ) -> Result<Range<u64>, StoreError> {
        let (mut at, mut call, mut length) = (offset, Vec::new(), 0);
        for piece in chunks.iter().flat_map(|chunk| chunk.chunks(CALL_BYTES)) {
            if length + piece.len() > CALL_BYTES || call.len() == BUFFERS {
                at = self.write_at(at, &mut call)?;
                (call, length) = (Vec::new(), 0);
            }
            length += piece.len();
            call.push(IoSlice::new(piece));
        }
        at = self.write_at(at, &mut call)?;
        let (range, bytes) = (offset..at, at - offset);
        self.journal.written.insert(range.clone());
        self.since_journal += bytes;
        self.since_sync += bytes;
        if self.since_journal >= JOURNAL_BYTES || self.journaled.elapsed() >= JOURNAL_INTERVAL {
            self.save()?;
        }
        Ok(range)
    }

    /// Writes all of these, one behind the other; where the last one ends.
    fn write_at(&self, mut at: u64, mut rest: &mut [IoSlice<'_>]) -> Result<u64, StoreError> {
        let failed = |source| StoreError::io("write", &self.path, source);
        while !rest.is_empty() {
            match rustix::io::pwritev(&self.file, rest, at) {
                Ok(0) => return Err(failed(io::ErrorKind::WriteZero.into())),
                Ok(written) => {
                    at += written as u64;
                    IoSlice::advance_slices(&mut rest, written);
                }
                Err(Errno::INTR) => {}
                Err(error) => return Err(failed(error.into())),
            }
        }
        Ok(at)
    }

    /// Writes the journal if it says less than there is.
    pub(super) fn settle(&mut self) -> Result<(), StoreError> {
        match self.since_journal {
            0 => Ok(()),
            _ => self.save(),
        }
    }

    /// Writes the journal, after syncing the file where much came since the last time.
    pub(super) fn save(&mut self) -> Result<(), StoreError> {
        if self.since_sync >= SYNC_BYTES {
            rustix::fs::fdatasync(&self.file)
                .map_err(|error| StoreError::io("sync", &self.path, error.into()))?;
            self.journal.durable = self.journal.written.clone();
            self.since_sync = 0;
        }
        self.journal.write(&self.path)?;
        self.journaled = Instant::now();
        self.since_journal = 0;
        Ok(())
    }

    /// Throws away what is there.
    pub(super) fn reset(&mut self) -> Result<(), StoreError> {
        // First the claim, then what it is about.
        Journal::remove(&self.path);
        self.journal = Journal::default();
        self.since_journal = 0;
        self.since_sync = 0;
        self.file
            .set_len(0)
            .map_err(|source| StoreError::io("shorten", &self.path, source))
    }

    /// Leaves what is there to a later run: the space that was reserved beyond it is given back.
    pub(super) fn leave(mut self) {
        if self.journal.written.is_empty() {
            return self.discard();
        }
        // A journal that says less than there is costs some bytes, no more.
        let _ = self.save();
        if let Ok(metadata) = self.file.metadata() {
            let _ = self.file.set_len(metadata.len());
        }
    }

    /// Removes the file: what was collected is of no use.
    pub(super) fn discard(self) {
        // What stays is hashed, and found wrong, next time.
        Journal::remove(&self.path);
        let _ = fs::remove_file(&self.path);
    }

    /// The file is whole and has this size: forgets how it was collected.
    pub(super) fn finish(self, size: u64) -> Result<PathBuf, StoreError> {
        self.file
            .set_len(size)
            .map_err(|source| StoreError::io("shorten", &self.path, source))?;
        Journal::remove(&self.path);
        Ok(self.path)
    }
}
