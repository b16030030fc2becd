//! Progress, read from the growing log of a command.

use std::{
    collections::BTreeSet,
    fs::File,
    io::{Read as _, Seek as _, SeekFrom},
    path::{Path, PathBuf},
    sync::{Arc, LazyLock},
};

use regex::Regex;

use crate::{
    narrate::{Narrator, Progress, Unit},
    net::Digest,
};

/// Bytes at the end of a log that are searched.
const TAIL_BYTES: u64 = 16 << 10;

/// Bytes of a pull's log that are searched: a few lines for each layer.
const PULL_BYTES: u64 = 256 << 10;

/// How progress is read from a log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Meter {
    /// `[12/345]` (Ninja).
    Counter,
    /// `[ 12%]` (GNU make under cmake).
    Percent,
    /// `12% (345/2900)` (git).
    Git,
    /// Layers of an image that docker or podman pulls.
    Layers(Layers),
}

/// Layers of an image, by what their pull prints.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Layers {
    /// First digits of the digest, and size.
    all: Arc<Vec<(String, u64)>>,
}

/// Digits that docker prints of a digest.
const SHORT: usize = 12;

/// Layers that podman fetches at once: of more that were begun, the first are done.
const AT_ONCE: usize = 6;

impl Layers {
    pub(super) fn of(layers: &[(Digest, u64)]) -> Self {
        let short = |(digest, size): &(Digest, u64)| (digest.hex()[..SHORT].to_owned(), *size);
        Self {
            all: Arc::new(layers.iter().map(short).collect()),
        }
    }

    /// Bytes of the layers that are done at least, of all of them. Docker tells of each; podman, where
    /// no terminal is, only of the start of each.
    fn progress(&self, text: &str) -> Option<(u64, u64)> {
        static DONE: LazyLock<Regex> = LazyLock::new(|| {
            let words = "Download complete|Already exists|Pull complete";
            Regex::new(&format!("(?m)^([0-9a-f]{{12}}): (?:{words})")).expect("a constant")
        });
        static BEGUN: LazyLock<Regex> = LazyLock::new(|| {
            Regex::new(r"(?m)^Copying blob (?:sha256:)?([0-9a-f]{12})").expect("a constant")
        });
        let sum =
            |sizes: &mut dyn Iterator<Item = &u64>| sizes.fold(0, |a: u64, b| a.saturating_add(*b));
        let total = sum(&mut self.all.iter().map(|(_, size)| size));
        if text.contains("Copying config") {
            return Some((total, total));
        }
        let named = |pattern: &Regex| -> BTreeSet<String> {
            let found = pattern.captures_iter(text);
            found.map(|found| found[1].to_owned()).collect()
        };
        let sizes_of = |names: &BTreeSet<String>| -> u64 {
            let known = self.all.iter().filter(|(name, _)| names.contains(name));
            sum(&mut known.map(|(_, size)| size))
        };
        let done = named(&DONE);
        if !done.is_empty() {
            return Some((sizes_of(&done), total));
        }
        let begun = named(&BEGUN);
        let surely = begun.len().saturating_sub(AT_ONCE);
        let mut sizes: Vec<u64> = self.all.iter().map(|(_, size)| *size).collect();
        sizes.sort_unstable();
        let least = sum(&mut sizes.iter().take(surely));
        (!begun.is_empty()).then_some((least, total))
    }
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
        if let Some((done, total)) = read_progress(&self.meter, &text)
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
            unit: match self.meter {
                Meter::Layers(_) => Unit::Bytes,
                _ => Unit::Items,
            },
            finished,
        }
    }

    fn tail(&self) -> u64 {
        match self.meter {
            Meter::Layers(_) => PULL_BYTES,
            _ => TAIL_BYTES,
        }
    }

    /// What was written since the last look; a log that was shortened is read from its end.
    fn news(&mut self) -> Option<String> {
        let mut file = File::open(&self.log).ok()?;
        let length = file.metadata().ok()?.len();
        if length == self.offset {
            return None;
        }
        let from = match self.meter {
            // All that was told counts, and it is short.
            Meter::Layers(_) => 0,
            _ if length < self.offset => 0,
            _ => self.offset,
        };
        let from = from.max(length.saturating_sub(self.tail()));
        file.seek(SeekFrom::Start(from)).ok()?;
        let mut bytes = Vec::new();
        file.take(self.tail()).read_to_end(&mut bytes).ok()?;
        self.offset = length;
        Some(String::from_utf8_lossy(&bytes).into_owned())
    }
}

/// The last progress that a text tells: done and total.
fn read_progress(meter: &Meter, text: &str) -> Option<(u64, u64)> {
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
        Meter::Layers(layers) => return layers.progress(text),
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
            assert_eq!(read_progress(&meter, text), expected, "{text}");
        }
    }

    #[test]
    fn progress_of_a_pull_counts_bytes_of_layers() {
        let layer = |digit: &str, size| {
            let digest = Digest::parse(&format!("sha256:{}", digit.repeat(64))).unwrap();
            (digest, size)
        };
        let layers = Layers::of(&[layer("a", 100), layer("b", 30), layer("c", 7)]);
        let (a, b) = ("a".repeat(12), "b".repeat(12));
        let docker = format!(
            "{a}: Pulling fs layer\n{b}: Already exists\n{a}: Download complete\n{a}: Pull complete\n"
        );
        assert_eq!(layers.progress(&docker), Some((130, 137)));
        assert_eq!(layers.progress(&format!("{a}: Pulling fs layer")), None);
        let podman = format!("Copying blob sha256:{}\n", "a".repeat(64));
        assert_eq!(layers.progress(&podman), Some((0, 137)));
        let end = format!("{podman}Copying config sha256:00\n");
        assert_eq!(layers.progress(&end), Some((137, 137)));
        let absurd = Layers::of(&[layer("a", u64::MAX), layer("b", 1)]);
        assert_eq!(absurd.progress(&end), Some((u64::MAX, u64::MAX)));
    }
}
