//! Progress, read from the growing log of a command.

use std::{
    fs::File,
    io::{Read as _, Seek as _, SeekFrom},
    path::{Path, PathBuf},
    sync::LazyLock,
};

use regex::Regex;

use crate::narrate::{Narrator, Progress, Unit};

/// Bytes at the end of a log that are searched.
const TAIL_BYTES: u64 = 16 << 10;

/// How progress is read from a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Meter {
    /// `[12/345]` (Ninja).
    Counter,
    /// `[ 12%]` (GNU make under cmake).
    Percent,
    /// `12% (345/2900)` (git).
    Git,
}

/// Reads progress from a growing log.
pub(super) struct Watch {
    meter: Meter,
    task: String,
    log: PathBuf,
    offset: u64,
    last: Option<(u64, u64)>,
}

impl Watch {
    pub(super) fn new(meter: Meter, task: &str, log: &Path) -> Self {
        Self {
            meter,
            task: task.to_owned(),
            log: log.to_owned(),
            offset: 0,
            last: None,
        }
    }

    pub(super) fn look(&mut self, narrator: &Narrator) {
        let Some(text) = self.news() else { return };
        if let Some((done, total)) = read_progress(self.meter, &text)
            && self.last != Some((done, total))
        {
            self.last = Some((done, total));
            narrator.progress(&self.progress(false));
        }
    }

    pub(super) fn finish(&self, narrator: &Narrator) {
        if self.last.is_some() {
            narrator.progress(&self.progress(true));
        }
    }

    fn progress(&self, finished: bool) -> Progress {
        let (done, total) = self.last.unwrap_or_default();
        Progress {
            task: self.task.clone(),
            done,
            total: Some(total),
            unit: Unit::Items,
            finished,
        }
    }

    /// What was written since the last look; a log that was shortened is read from its end.
    fn news(&mut self) -> Option<String> {
        let mut file = File::open(&self.log).ok()?;
        let length = file.metadata().ok()?.len();
        if length == self.offset {
            return None;
        }
        let from = if length < self.offset { 0 } else { self.offset };
        let from = from.max(length.saturating_sub(TAIL_BYTES));
        file.seek(SeekFrom::Start(from)).ok()?;
        let mut bytes = Vec::new();
        file.take(TAIL_BYTES).read_to_end(&mut bytes).ok()?;
        self.offset = length;
        Some(String::from_utf8_lossy(&bytes).into_owned())
    }
}

/// The last progress that a text tells: done and total.
fn read_progress(meter: Meter, text: &str) -> Option<(u64, u64)> {
    static COUNTER: LazyLock<Regex> =
        LazyLock::new(|| Regex::new(r"(?m)^\[(\d+)/(\d+)\]").expect("a constant"));
    static PERCENT: LazyLock<Regex> =
        LazyLock::new(|| Regex::new(r"(?m)^\[\s*(\d+)%\]").expect("a constant"));
    static GIT: LazyLock<Regex> =
        LazyLock::new(|| Regex::new(r"\d+% \((\d+)/(\d+)\)").expect("a constant"));
    let pattern = match meter {
        Meter::Counter => &COUNTER,
        Meter::Percent => &PERCENT,
        Meter::Git => &GIT,
    };
    let found = pattern.captures_iter(text).last()?;
    let done = found[1].parse().ok()?;
    let total = match meter {
        Meter::Percent => 100,
        _ => found[2].parse().ok()?,
    };
    (done <= total).then_some((done, total))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_is_read_from_ninja_make_and_git() {
        let cases = [
            (
                Meter::Counter,
                "[1/20] a\n[3/20] b\nx [9/20]",
                Some((3, 20)),
            ),
            (Meter::Percent, "[  5%] a\n[ 12%] b\n", Some((12, 100))),
            (
                Meter::Git,
                "Receiving objects:  5% (1/20)\rReceiving objects: 10% (2/20), 1 MiB",
                Some((2, 20)),
            ),
            (Meter::Counter, "[21/20] a", None),
            (Meter::Counter, "nothing", None),
        ];
        for (meter, text, expected) in cases {
            assert_eq!(read_progress(meter, text), expected, "{text}");
        }
    }
}
