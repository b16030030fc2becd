//! One look at a directory: every file read once and again when it has changed, and told apart.
//!
//! A reader of a directory that others write in: links and pipes are not opened, large files not read,
//! files of strangers not believed. A file is known by device, inode, size and times; one that was
//! written a moment ago is read again, since a clock's tick may hide a second writing.

use std::{
    collections::BTreeMap,
    ffi::{OsStr, OsString},
    fs::File,
    io::Read,
    os::{fd::OwnedFd, unix::ffi::OsStrExt},
    path::{Path, PathBuf},
    time::{Duration, Instant, SystemTime},
};

use rustix::{
    fs::{AtFlags, Dir, FileType, Mode, OFlags, Stat, fstat, openat, statat},
    io::Errno,
};
use serde_json::error::Category;

use super::Binding;
use crate::engine::handoff::{HANDOFF_SCHEMA, Handoff};

/// Longest handoff that is read, in bytes.
const LENGTH_LIMIT: u64 = 1 << 20;

/// Most files that are looked at; what else lies there is passed over.
const FILE_LIMIT: usize = 10_000;

/// A file younger than this may be written again within the same tick of the clock that stamps it.
const TICK: Duration = Duration::from_millis(50);

/// How soon to look again while something may still be written.
const SOON: Duration = Duration::from_millis(100);

/// What is known of a directory.
#[derive(Debug, Default)]
pub(super) struct Looked {
    files: BTreeMap<OsString, Known>,
    directory: PathBuf,
}

#[derive(Debug)]
struct Known {
    stamp: Stamp,
    /// Whether it was written so recently that its stamp says nothing.
    fresh: bool,
    content: Content,
}

/// What tells that a file has not been touched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stamp {
    device: u64,
    inode: u64,
    size: i64,
    modified: (i64, u64),
    changed: (i64, u64),
}

#[derive(Debug)]
enum Content {
    Handoff(Box<Handoff>),
    /// No handoff, and none of our business.
    Foreign,
    /// It ends in the middle: what it said before, and since when it does not.
    Half {
        before: Option<Box<Handoff>>,
        since: Instant,
    },
}

/// What a text is.
#[derive(Debug, PartialEq, Eq)]
enum Text {
    Handoff(Box<Handoff>),
    Foreign(String),
    Half,
}

impl Looked {
    /// Looks again; gives when to look next, where that is soon.
    pub(super) fn again(&mut self, directory: &Path, patience: Duration) -> Option<Duration> {
        self.directory = directory.to_owned();
        match self.look(directory, patience) {
            Ok(()) => {
                let mut known = self.files.values();
                known.any(Known::is_unsettled).then_some(SOON)
            }
            Err(Errno::NOENT | Errno::NOTDIR) => {
                self.files.clear();
                None
            }
            // No descriptors left, for example: what is known still holds.
            Err(_) => Some(SOON),
        }
    }

    /// Every handoff that was found, several for one replica among them: the one that counts last.
    pub(super) fn handoffs(&self) -> Vec<Binding> {
        let mut found: Vec<_> = self
            .files
            .iter()
            .filter_map(|(name, known)| Some((name, known, known.content.handoff()?)))
            .collect();
        // By name they are in order already.
        found.sort_by_key(|(_, known, handoff)| (handoff.started_at, known.stamp.modified));
        let binding = |(name, _, handoff): (&OsString, &Known, &Handoff)| Binding {
            path: self.directory.join(name),
            handoff: handoff.clone(),
        };
        found.into_iter().map(binding).collect()
    }

    fn look(&mut self, directory: &Path, patience: Duration) -> Result<(), Errno> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let place = rustix::fs::open(directory, flags, Mode::empty())?;
        let owner = fstat(&place)?.st_uid;
        let names = names(&place)?;
        self.files
            .retain(|name, _| names.binary_search(name).is_ok());
        for name in names {
            match self.look_at(&place, &name, owner, patience) {
                Ok(Some(known)) => drop(self.files.insert(name, known)),
                Ok(None) => {}
                Err(Errno::NOENT) => drop(self.files.remove(&name)),
                // What is known of it still holds.
                Err(_) => {}
            }
        }
        Ok(())
    }

    /// What is to be known of a file from now on; `None`: what is known already.
    fn look_at(
        &self,
        place: &OwnedFd,
        name: &OsStr,
        owner: u32,
        patience: Duration,
    ) -> Result<Option<Known>, Errno> {
        let status = statat(place, name, AtFlags::SYMLINK_NOFOLLOW)?;
        let before = self.files.get(name);
        if before.is_some_and(|known| known.holds(Stamp::of(&status), patience)) {
            return Ok(None);
        }
        let (status, text) = match strange(&status, owner) {
            Some(reason) => (status, Text::Foreign(reason.to_owned())),
            None => match read(place, name) {
                Ok((status, bytes)) => (status, understand(&bytes)),
                Err(Errno::ACCESS | Errno::PERM | Errno::LOOP | Errno::NXIO) => {
                    (status, Text::Foreign("it cannot be opened".to_owned()))
                }
                Err(error) => return Err(error),
            },
        };
        let stamp = Stamp::of(&status);
        Ok(Some(Known {
            fresh: stamp.is_fresh(),
            stamp,
            content: self.judge(name, text, before, patience),
        }))
    }

    fn judge(
        &self,
        name: &OsStr,
        text: Text,
        before: Option<&Known>,
        patience: Duration,
    ) -> Content {
        let reason = match text {
            Text::Handoff(handoff) => return Content::Handoff(handoff),
            Text::Foreign(reason) => reason,
            Text::Half => {
                let since = match before.map(|known| &known.content) {
                    Some(Content::Half { since, .. }) => *since,
                    // Judged before, and not touched since.
                    Some(Content::Foreign) => return Content::Foreign,
                    _ => Instant::now(),
                };
                let before = before.and_then(|known| known.content.handoff());
                if since.elapsed() < patience {
                    let before = before.cloned().map(Box::new);
                    return Content::Half { before, since };
                }
                "it ends in the middle".to_owned()
            }
        };
        let path = self.directory.join(name);
        tracing::debug!(target: "engine_host::handoff", path = %path.display(), "passed over: {reason}");
        Content::Foreign
    }
}

impl Known {
    /// Whether reading the file again would tell nothing new.
    fn holds(&self, stamp: Stamp, patience: Duration) -> bool {
        let waits_enough = match &self.content {
            Content::Half { since, .. } => since.elapsed() < patience,
            Content::Handoff(_) | Content::Foreign => true,
        };
        stamp == self.stamp && !self.fresh && waits_enough
    }

    fn is_unsettled(&self) -> bool {
        self.fresh || matches!(self.content, Content::Half { .. })
    }
}

impl Content {
    fn handoff(&self) -> Option<&Handoff> {
        match self {
            Self::Handoff(handoff) => Some(handoff),
            Self::Half { before, .. } => before.as_deref(),
            Self::Foreign => None,
        }
    }
}

impl Stamp {
    fn of(status: &Stat) -> Self {
        Self {
            device: status.st_dev,
            inode: status.st_ino,
            size: status.st_size,
            modified: (status.st_mtime, status.st_mtime_nsec),
            changed: (status.st_ctime, status.st_ctime_nsec),
        }
    }

    fn is_fresh(&self) -> bool {
        let (seconds, nanoseconds) = self.changed;
        let changed = Duration::new(
            u64::try_from(seconds).unwrap_or(0),
            u32::try_from(nanoseconds).unwrap_or(0),
        );
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        // A time in the future says nothing, however long one waits.
        now.is_ok_and(|now| now.checked_sub(changed).is_some_and(|age| age < TICK))
    }
}

/// Names of what may be handoffs, in order: `*.json`, and none that is hidden.
fn names(place: &OwnedFd) -> Result<Vec<OsString>, Errno> {
    let mut names = Vec::new();
    for entry in Dir::read_from(place)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if name.ends_with(b".json") && !name.starts_with(b".") {
            names.push(OsStr::from_bytes(name).to_owned());
        }
        if names.len() == FILE_LIMIT {
            break;
        }
    }
    names.sort();
    Ok(names)
}

/// Why a file is not even opened. `owner`: whose the directory is.
fn strange(status: &Stat, owner: u32) -> Option<&'static str> {
    let own = rustix::process::geteuid().as_raw();
    if !FileType::from_raw_mode(status.st_mode).is_file() {
        return Some("it is no plain file");
    }
    if u64::try_from(status.st_size).is_ok_and(|size| size > LENGTH_LIMIT) {
        return Some("it is too large");
    }
    // Root's, one's own, or of whoever the directory belongs to.
    (![0, own, owner].contains(&status.st_uid)).then_some("it belongs to somebody else")
}

/// The bytes of a file and what it looked like then, neither followed nor waited for.
fn read(place: &OwnedFd, name: &OsStr) -> Result<(Stat, Vec<u8>), Errno> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = openat(place, name, flags, Mode::empty())?;
    let status = fstat(&file)?;
    let mut bytes = Vec::new();
    let mut file = File::from(file).take(LENGTH_LIMIT + 1);
    match file.read_to_end(&mut bytes) {
        Ok(_) => Ok((status, bytes)),
        Err(error) => Err(Errno::from_io_error(&error).unwrap_or(Errno::IO)),
    }
}

/// Tells a handoff from what is none and from what is not finished.
fn understand(bytes: &[u8]) -> Text {
    if bytes.len() as u64 > LENGTH_LIMIT {
        return Text::Foreign("it is too large".to_owned());
    }
    let handoff: Handoff = match serde_json::from_slice(bytes) {
        Ok(handoff) => handoff,
        Err(error) => {
            return match error.classify() {
                Category::Eof | Category::Syntax | Category::Io => Text::Half,
                Category::Data => Text::Foreign(error.to_string()),
            };
        }
    };
    if handoff.schema > HANDOFF_SCHEMA {
        return Text::Foreign(format!("its schema is {}", handoff.schema));
    }
    if handoff.pool_id.is_empty() || handoff.replica_id.is_empty() {
        return Text::Foreign("it names no replica".to_owned());
    }
    match url::Url::parse(&handoff.url) {
        Ok(url) if matches!(url.scheme(), "http" | "https") && url.has_host() => {
            Text::Handoff(Box::new(handoff))
        }
        _ => Text::Foreign("its URL is none".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEAST: &str = r#"{"engine": "llamacpp", "engine_version": "b1", "provisioning_mode": "source",
        "url": "http://127.0.0.1:8080", "pool_id": "chat", "replica_id": "r0",
        "model": {"id": "m"}, "flags": []}"#;

    #[test]
    fn a_document_with_nothing_but_what_is_required_is_a_handoff() {
        assert!(matches!(understand(LEAST.as_bytes()), Text::Handoff(_)));
        let more = LEAST.replacen('{', r#"{"schema": 1, "of_a_later_writer": {"x": [1]},"#, 1);
        assert!(matches!(understand(more.as_bytes()), Text::Handoff(_)));
    }

    #[test]
    fn every_beginning_of_a_handoff_is_half_of_one() {
        for end in 0..LEAST.len() {
            assert_eq!(understand(&LEAST.as_bytes()[..end]), Text::Half, "{end}");
        }
    }

    #[test]
    fn other_documents_are_foreign() {
        for (from, to) in [
            (r#""r0""#, r#""""#),
            (r#""http://127.0.0.1:8080""#, r#""file:///etc/passwd""#),
            (r#""http://127.0.0.1:8080""#, r#""8080""#),
            (r#""source""#, r#""teleported""#),
            (r#""flags": []"#, r#""flags": [], "schema": 2"#),
            (r#", "flags": []"#, ""),
        ] {
            let text = LEAST.replacen(from, to, 1);
            assert_ne!(text, LEAST);
            assert!(
                matches!(understand(text.as_bytes()), Text::Foreign(_)),
                "{text}"
            );
        }
        for text in ["[]", "{}", "null", "7", r#"{"pid": 1}"#] {
            assert!(
                matches!(understand(text.as_bytes()), Text::Foreign(_)),
                "{text}"
            );
        }
    }

    proptest::proptest! {
        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..256)) {
            let _ = understand(&bytes);
        }
    }
}
