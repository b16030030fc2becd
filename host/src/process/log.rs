//! A log file that never grows beyond its limit.
//!
//! The first half of the limit holds how it began, the second half what came last; a marker line
//! between them says how much was dropped. When the file is full, the older part of the second half
//! makes room, so the newest quarter at least is always there. A full disk drops bytes too: a child
//! never waits for its log.

use std::{
    fs::{File, OpenOptions},
    io,
    os::unix::fs::{FileExt, OpenOptionsExt},
};

use super::LogFile;

/// Below this limit there is no room for a marker: only the beginning is kept.
const SMALLEST_SPLIT: u64 = 512;

/// Bytes moved at a time when room is made.
const CHUNK: usize = 64 * 1024;

/// Where a child's output ends up.
#[derive(Debug)]
pub(super) struct CappedLog {
    file: File,
    limit: u64,
    /// Length of the file.
    length: u64,
    /// Bytes dropped so far.
    dropped: u64,
    /// Length of the marker in the middle of the file, 0 before there is one.
    marker: u64,
}

impl CappedLog {
    /// Creates the file anew; one that a reader still has open is left to that reader.
    pub(super) fn create(log: &LogFile) -> io::Result<Self> {
        match std::fs::remove_file(&log.path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .mode(0o640)
            .open(&log.path)?;
        Ok(Self {
            file,
            limit: log.limit_bytes,
            length: 0,
            dropped: 0,
            marker: 0,
        })
    }

    /// Appends, dropping from the middle what does not fit.
    pub(super) fn write(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let room = self.limit.saturating_sub(self.length);
            if room == 0 {
                if self.limit < SMALLEST_SPLIT || self.make_room().is_err() {
                    self.dropped += bytes.len() as u64;
                    return;
                }
                continue;
            }
            let now = bytes.len().min(usize::try_from(room).unwrap_or(usize::MAX));
            match self.file.write_at(&bytes[..now], self.length) {
                Ok(0) => return,
                Ok(written) => {
                    self.length += written as u64;
                    bytes = &bytes[written..];
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => {
                    self.dropped += bytes.len() as u64;
                    return;
                }
            }
        }
    }

    /// Moves the newest quarter of the limit to the middle, behind a marker.
    fn make_room(&mut self) -> io::Result<()> {
        let middle = self.limit / 2;
        let from = self.line_start_after(self.length - self.limit / 4)?;
        let dropped = self.dropped + (from - middle - self.marker);
        let marker = format!(
            "\n[... {dropped} bytes dropped here to keep this log within {} ...]\n",
            self.limit
        );
        let mut to = middle + marker.len() as u64;
        if to >= from {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        self.file.write_all_at(marker.as_bytes(), middle)?;
        let mut chunk = vec![0; CHUNK];
        let mut at = from;
        while at < self.length {
            let read = self.file.read_at(&mut chunk, at)?;
            if read == 0 {
                break;
            }
            self.file.write_all_at(&chunk[..read], to)?;
            at += read as u64;
            to += read as u64;
        }
        self.file.set_len(to)?;
        self.length = to;
        self.dropped = dropped;
        self.marker = marker.len() as u64;
        Ok(())
    }

    /// First start of a line at or after `position`; `position` itself where lines are very long.
    fn line_start_after(&self, position: u64) -> io::Result<u64> {
        let mut chunk = [0; 4096];
        let most = usize::try_from(self.limit / 8)
            .unwrap_or(usize::MAX)
            .min(chunk.len());
        let read = self.file.read_at(&mut chunk[..most], position)?;
        let newline = chunk[..read].iter().position(|byte| *byte == b'\n');
        Ok(newline.map_or(position, |at| position + at as u64 + 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(limit: u64, pieces: impl Iterator<Item = String>) -> (String, u64) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        let mut log = CappedLog::create(&LogFile {
            path: path.clone(),
            limit_bytes: limit,
        })
        .unwrap();
        let mut longest = 0;
        for piece in pieces {
            log.write(piece.as_bytes());
            longest = longest.max(std::fs::metadata(&path).unwrap().len());
        }
        (std::fs::read_to_string(path).unwrap(), longest)
    }

    #[test]
    fn what_fits_is_kept_as_it_came() {
        let (text, _) = written(1000, ["one\n", "two\n"].map(String::from).into_iter());
        assert_eq!(text, "one\ntwo\n");
    }

    #[test]
    fn beginning_and_newest_stay_and_the_file_never_exceeds_its_limit() {
        let (text, longest) = written(4000, (0..10_000).map(|line| format!("line {line}\n")));
        assert!(longest <= 4000, "{longest}");
        assert!(text.starts_with("line 0\nline 1\n"));
        assert!(text.ends_with("line 9998\nline 9999\n"));
        let (head, rest) = text.split_once("\n[... ").expect("a marker");
        let (dropped, tail) = rest.split_once(" bytes dropped here").expect("a count");
        assert!(head.len() as u64 >= 1990);
        let all: usize = (0..10_000).map(|line| format!("line {line}\n").len()).sum();
        let tail = tail.split_once("...]\n").unwrap().1;
        // The marker's own newline stands for nothing that was printed.
        assert_eq!(
            dropped.parse::<usize>().unwrap(),
            all - head.len() - tail.len()
        );
        assert!(tail.starts_with("line "), "cut between lines: {tail}");
        assert!(tail.len() >= 900, "{}", tail.len());
    }

    #[test]
    fn a_single_endless_line_and_a_tiny_limit_are_bounded_too() {
        let (text, longest) = written(2048, std::iter::repeat_n("x".repeat(1500), 50));
        assert!(longest <= 2048 && text.contains("bytes dropped"));
        let (text, _) = written(100, std::iter::repeat_n("y".repeat(90), 5));
        assert_eq!(text, "y".repeat(100));
    }
}
