//! Reading that takes long, told and ended while it lasts.

use std::{
    fmt,
    io::{self, Read},
    path::Path,
};

/// Told how far the reading of a file is.
pub(crate) trait Watch: Send + Sync {
    /// So many bytes of so many are read; at the end of the file both are the same. Gives whether to go on.
    fn goes_on(&self, path: &Path, read_bytes: u64, total_bytes: u64) -> bool;
}

impl fmt::Debug for dyn Watch {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Watch")
    }
}

/// A reader whose progress is told, and which fails once its watch has it end.
pub(crate) struct Watched<'a, R> {
    inner: R,
    path: &'a Path,
    watch: Option<&'a dyn Watch>,
    read_bytes: u64,
    total_bytes: u64,
}

/// Why a watched reader fails that could go on.
#[derive(Debug, thiserror::Error)]
#[error("ended while it was read")]
struct Ended;

/// Whether a reader failed because its watch had it end.
pub(super) fn is_ended(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|inner| inner.is::<Ended>())
}

impl<'a, R: Read> Watched<'a, R> {
    /// Reads a file of this size.
    pub(crate) fn new(
        inner: R,
        path: &'a Path,
        total_bytes: u64,
        watch: Option<&'a dyn Watch>,
    ) -> Self {
        Self {
            inner,
            path,
            watch,
            read_bytes: 0,
            total_bytes,
        }
    }
}

impl<R: Read> Read for Watched<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buffer)?;
        self.read_bytes += count as u64;
        // What was written to meanwhile may be longer or shorter than it was.
        let total = match count {
            0 => self.read_bytes,
            _ => self.total_bytes.max(self.read_bytes.saturating_add(1)),
        };
        match self.watch {
            Some(watch) if !watch.goes_on(self.path, self.read_bytes, total) => {
                Err(io::Error::other(Ended))
            }
            _ => Ok(count),
        }
    }
}
