//! How much an archive may become.

use std::{
    cell::Cell,
    io::{self, Read},
    rc::Rc,
};

/// Bytes that any archive may unpack to.
const CONTENT_BYTES: u64 = 64 << 30;

/// Bytes that an archive of data may unpack to: the largest files of models have some hundred gigabytes.
const DATA_BYTES: u64 = 4 << 40;

/// Entries that an archive of data may have: the largest models have some hundred files.
const DATA_ENTRIES: usize = 20_000;

/// Entries that any archive may have.
const ENTRIES: usize = 1_000_000;

/// How many times its own size an archive may unpack to: programs and texts stay below 20.
const GROWTH: u64 = 200;

/// Bytes that even the smallest archive may unpack to.
const FLOOR_BYTES: u64 = 256 << 20;

/// Bytes between the contents of two entries: headers, long names, extended attributes. They are held
/// in memory.
const BETWEEN_BYTES: u64 = 4 << 20;

/// What an archive may unpack to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Limits {
    pub(super) content_bytes: u64,
    pub(super) entries: usize,
}

impl Limits {
    /// For a stream of unknown size.
    pub(super) const ABSOLUTE: Self = Self {
        content_bytes: CONTENT_BYTES,
        entries: ENTRIES,
    };

    /// For an archive of this size.
    pub(super) fn of_archive(size_bytes: u64) -> Self {
        let grown = size_bytes.saturating_mul(GROWTH).max(FLOOR_BYTES);
        Self {
            content_bytes: grown.min(CONTENT_BYTES),
            ..Self::ABSOLUTE
        }
    }

    /// For an archive of data of this size: models are larger than everything else.
    pub(super) fn of_data(size_bytes: u64) -> Self {
        let grown = size_bytes.saturating_mul(GROWTH).max(FLOOR_BYTES);
        Self {
            content_bytes: grown.min(DATA_BYTES),
            entries: DATA_ENTRIES,
        }
    }

    /// What is said of an archive that exceeds its bytes.
    pub(super) fn too_much(self) -> String {
        format!("it unpacks to more than {} bytes", self.content_bytes)
    }
}

/// Counts what comes out of a decompressor. Cheap to clone; clones share the count.
#[derive(Debug, Clone)]
pub(super) struct Meter {
    limits: Limits,
    left: Rc<Cell<u64>>,
    /// Bytes still accepted until the next content begins; `None` within content.
    between: Rc<Cell<Option<u64>>>,
    /// What was exceeded.
    exceeded: Rc<Cell<Option<Exceeded>>>,
}

#[derive(Debug, Clone, Copy)]
enum Exceeded {
    Content,
    Between,
}

impl Meter {
    pub(super) fn new(limits: Limits) -> Self {
        Self {
            limits,
            left: Rc::new(Cell::new(limits.content_bytes)),
            between: Rc::new(Cell::new(Some(BETWEEN_BYTES))),
            exceeded: Rc::default(),
        }
    }

    /// The content of an entry begins.
    pub(super) fn content(&self) {
        self.between.set(None);
    }

    /// The content of an entry is over.
    pub(super) fn over(&self) {
        self.between.set(Some(BETWEEN_BYTES));
    }

    /// Why reading failed, where that was this meter's doing.
    pub(super) fn verdict(&self) -> Option<String> {
        Some(match self.exceeded.get()? {
            Exceeded::Content => self.limits.too_much(),
            Exceeded::Between => {
                format!("the name or attributes of an entry take more than {BETWEEN_BYTES} bytes")
            }
        })
    }

    fn count(&self, bytes: u64) -> Result<(), Exceeded> {
        let left = self.left.get().checked_sub(bytes);
        self.left.set(left.ok_or(Exceeded::Content)?);
        if let Some(between) = self.between.get() {
            let rest = between.checked_sub(bytes).ok_or(Exceeded::Between)?;
            self.between.set(Some(rest));
        }
        Ok(())
    }
}

/// A reader that fails when more comes out of it than its meter accepts.
#[derive(Debug)]
pub(super) struct Metered<R> {
    pub(super) inner: R,
    pub(super) meter: Meter,
}

impl<R: Read> Read for Metered<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buffer)?;
        self.meter.count(count as u64).map_err(|exceeded| {
            self.meter.exceeded.set(Some(exceeded));
            io::Error::new(io::ErrorKind::InvalidData, "more than is accepted")
        })?;
        Ok(count)
    }
}
