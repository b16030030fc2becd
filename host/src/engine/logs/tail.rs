//! Reading a log from its end: the last lines, then what is added until its engine is gone.

use std::{
    fs::File,
    io::{self, Read, Seek, SeekFrom},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use crate::{
    config::paths::Home,
    engine::{EngineError, Instance, instances},
};

/// Pause between two looks for more.
const INTERVAL: Duration = Duration::from_millis(100);

/// Most bytes looked through for the last lines.
const TAIL_BYTES: u64 = 4 * 1024 * 1024;

/// Most bytes given, and held, at a time: whoever reads slowly holds no more.
const CHUNK_BYTES: u64 = 64 * 1024;

/// A log that is read on. Nothing of it is kept, nor kept open: logs are removed while somebody reads them.
#[derive(Debug, Clone)]
pub struct Tail {
    home: Home,
    path: PathBuf,
    position: u64,
    /// Where it ended when it was opened.
    opened_at: u64,
    /// The engine that writes it, once it was found: it alone is asked for then.
    writer: Option<Arc<Instance>>,
}

/// What one look at a log gave.
enum Seen {
    /// These bytes, and where they end.
    More(Vec<u8>, u64),
    /// Nothing new, and its engine runs.
    Silence,
    /// Nothing new, and nothing will come.
    End,
}

impl Tail {
    /// A reader that begins with the last `lines` lines of a log; at most its last 4 MiB are looked
    /// through for them.
    pub fn open(home: &Home, path: &Path, lines: usize) -> Result<Self, EngineError> {
        let failed = |source| EngineError::Log {
            path: path.to_owned(),
            source,
        };
        let (position, opened_at) = last(path, lines).map_err(failed)?;
        Ok(Self {
            home: home.clone(),
            path: path.to_owned(),
            position,
            opened_at,
            writer: None,
        })
    }

    /// The next part of what was in the log when it was opened; `None` once all of it was given.
    pub async fn next_of_last(&mut self) -> Result<Option<Vec<u8>>, EngineError> {
        let left = self.opened_at.saturating_sub(self.position);
        if left == 0 {
            return Ok(None);
        }
        let tail = self.clone();
        let reading = move || added(&tail.path, tail.position, left.min(CHUNK_BYTES));
        let read = tokio::task::spawn_blocking(reading).await;
        let (bytes, end) = match read.expect("reading does not panic") {
            // Of too many logs the oldest ones are removed.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            read => read.map_err(|source| EngineError::Log {
                path: self.path.clone(),
                source,
            })?,
        };
        self.position = end;
        Ok((!bytes.is_empty()).then_some(bytes))
    }

    /// The next part, waiting for what is added; `None` once its engine is gone and all of it was given.
    /// May be dropped while it waits: nothing is lost.
    pub async fn next(&mut self) -> Result<Option<Vec<u8>>, EngineError> {
        loop {
            let mut tail = self.clone();
            let looked = tokio::task::spawn_blocking(move || {
                let seen = tail.look();
                (tail, seen)
            });
            let (tail, seen) = looked.await.expect("looking does not panic");
            self.writer = tail.writer;
            match seen? {
                Seen::More(bytes, end) => {
                    self.position = end;
                    return Ok(Some(bytes));
                }
                Seen::End => return Ok(None),
                Seen::Silence => tokio::time::sleep(INTERVAL).await,
            }
        }
    }

    fn look(&mut self) -> Result<Seen, EngineError> {
        // Asked before reading: what it says last is then still read.
        let lives = match &self.writer {
            // What it said last is written as long as somebody minds it.
            Some(writer) => writer.is_there(),
            None => self.find_writer()?,
        };
        let read = added(&self.path, self.position, CHUNK_BYTES);
        let (bytes, end) = match read {
            // Of too many logs the oldest ones are removed.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Seen::End),
            read => read.map_err(|source| EngineError::Log {
                path: self.path.clone(),
                source,
            })?,
        };
        Ok(match (bytes.is_empty(), lives) {
            (false, _) => Seen::More(bytes, end),
            (true, true) => Seen::Silence,
            (true, false) => Seen::End,
        })
    }

    fn find_writer(&mut self) -> Result<bool, EngineError> {
        let mut engines = instances(&self.home)?.into_iter();
        let writer = engines.find(|engine| engine.log == self.path);
        self.writer = writer.map(Arc::new);
        Ok(self.writer.is_some())
    }
}

/// Where the last lines begin, and where they end.
fn last(path: &Path, lines: usize) -> io::Result<(u64, u64)> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    Ok((start_of_last(&mut file, length, lines)?, length))
}

/// Where the last lines begin of what ends there, looked for from its end. Of a line that begins before
/// what is looked through nothing is given: its rest could be the end of a secret.
fn start_of_last(file: &mut File, length: u64, lines: usize) -> io::Result<u64> {
    let floor = length.saturating_sub(TAIL_BYTES);
    let (mut end, mut start, mut found) = (length, length, 0);
    while found < lines && end > floor {
        let from = end.saturating_sub(CHUNK_BYTES).max(floor);
        let bytes = read(file, from, end - from)?;
        let breaks = (from + 1..).zip(&bytes).filter(|(_, byte)| **byte == b'\n');
        // The last line's own end begins none.
        let begins: Vec<u64> = breaks.map(|(at, _)| at).filter(|at| *at < length).collect();
        for begin in begins.into_iter().rev().take(lines - found) {
            (start, found) = (begin, found + 1);
        }
        end = from;
    }
    Ok(match (found < lines, floor) {
        (true, 0) => 0,
        _ => start,
    })
}

/// What comes behind a position, and where it ends. A log that has been cut in the middle meanwhile is
/// given from the cut on.
fn added(path: &Path, position: u64, most: u64) -> io::Result<(Vec<u8>, u64)> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    let from = match length < position {
        true => length / 2,
        false => position,
    };
    let bytes = read(&mut file, from, most)?;
    let end = from + bytes.len() as u64;
    Ok((bytes, end))
}

fn read(file: &mut File, from: u64, most: u64) -> io::Result<Vec<u8>> {
    file.seek(SeekFrom::Start(from))?;
    let mut bytes = Vec::new();
    file.take(most).read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The last lines of a log with this text.
    fn last_lines(text: &[u8], lines: usize) -> Vec<u8> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("engine.log");
        std::fs::write(&path, text).unwrap();
        let (start, end) = last(&path, lines).unwrap();
        assert_eq!(end, text.len() as u64);
        text[usize::try_from(start).unwrap()..].to_vec()
    }

    #[test]
    fn the_last_lines_are_whole() {
        let text = b"one\ntwo\nthree\n";
        assert_eq!(last_lines(text, 2), b"two\nthree\n");
        assert_eq!(last_lines(text, 9), text);
        assert_eq!(last_lines(text, 0), b"");
        assert_eq!(last_lines(b"one\nunfinished", 1), b"unfinished");
        assert_eq!(last_lines(b"\n\n", 1), b"\n");
        assert_eq!(last_lines(b"", 3), b"");
    }

    #[test]
    fn lines_are_found_wherever_parts_and_what_is_looked_through_end() {
        for more in 0..3 {
            let line = vec![b'x'; usize::try_from(CHUNK_BYTES).unwrap() - 2 + more];
            let text = [&line[..], b"\n", &line, b"\n", &line].concat();
            assert_eq!(last_lines(&text, 1), line);
            assert_eq!(last_lines(&text, 2), [&line[..], b"\n", &line].concat());
            assert_eq!(last_lines(&text, 4), text);
        }
        let mut text = vec![b'x'; usize::try_from(TAIL_BYTES).unwrap()];
        text.extend(b"\nlast\n");
        assert_eq!(last_lines(&text, 9), b"last\n");
        let unbroken = vec![b'x'; usize::try_from(TAIL_BYTES).unwrap() + 1];
        assert_eq!(last_lines(&unbroken, 1), b"");
    }

    #[tokio::test]
    async fn whoever_reads_the_end_of_a_long_log_holds_a_small_part_of_it() {
        let directory = tempfile::tempdir().unwrap();
        let home = Home::at(directory.path());
        let path = directory.path().join("engine.log");
        let text: String = (0..200_000).map(|at| format!("line {at}\n")).collect();
        std::fs::write(&path, &text).unwrap();
        let mut tail = Tail::open(&home, &path, usize::MAX).unwrap();
        // What comes later is for those who follow.
        std::fs::write(&path, format!("{text}later\n")).unwrap();
        let mut given = Vec::new();
        while let Some(part) = tail.next_of_last().await.unwrap() {
            assert!(part.len() <= 64 << 10, "{} bytes at once", part.len());
            given.extend(part);
        }
        assert!(given == text.as_bytes(), "{} bytes", given.len());
        assert_eq!(tail.next().await.unwrap().unwrap(), b"later\n");
    }

    #[tokio::test]
    async fn what_a_dead_engine_has_left_is_given_to_its_end() {
        let directory = tempfile::tempdir().unwrap();
        let home = Home::at(directory.path());
        let path = directory.path().join("engine.log");
        std::fs::write(&path, "one\ntwo\n").unwrap();
        let mut tail = Tail::open(&home, &path, 1).unwrap();
        assert_eq!(tail.next().await.unwrap().unwrap(), b"two\n");
        std::fs::write(&path, "one\ntwo\nthree\n").unwrap();
        assert_eq!(tail.next().await.unwrap().unwrap(), b"three\n");
        assert_eq!(tail.next().await.unwrap(), None);
        // Cut in the middle: what stands behind the cut.
        std::fs::write(&path, "12345678").unwrap();
        assert_eq!(tail.next().await.unwrap().unwrap(), b"5678");
        std::fs::remove_file(&path).unwrap();
        assert_eq!(tail.next().await.unwrap(), None);
    }
}
