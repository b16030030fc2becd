//! What is known of a file that is being collected, written beside it.
//!
//! The journal follows the data: a part stands in it only once it was written. After KILL that holds,
//! since the kernel has what was written. After a crash of the machine it does not: then only what was
//! synced before (`durable`) counts. The boot is named to tell the two apart.

use std::{
    fs,
    path::{Path, PathBuf},
};

use reqwest::header::{DATE, ETAG, HeaderMap, HeaderValue, LAST_MODIFIED};
use serde::{Deserialize, Serialize};

use super::{super::describe::text, ranges::Ranges};
use crate::store::StoreError;

/// Layout of the document; another one is as good as none.
const SCHEMA: u32 = 1;

/// Where Linux says which boot this is (random(4)).
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// Seconds after which a change shows in `Last-Modified` for sure (RFC 9110, 8.8.2.2).
const SETTLED_SECONDS: i64 = 60;

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Journal {
    schema: u32,
    boot: String,
    /// Where it comes from, without secrets.
    pub(super) url: String,
    /// Which version of it.
    pub(super) version: Version,
    pub(super) size_bytes: Option<u64>,
    /// What was written.
    pub(super) written: Ranges,
    /// What of it was synced as well.
    pub(super) durable: Ranges,
}

/// What tells versions of a file apart.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Version {
    /// A strong `ETag`, quoted as sent.
    etag: Option<String>,
    /// `Last-Modified`, where it was long enough ago to be as good.
    last_modified: Option<String>,
}

impl Version {
    pub(super) fn of(headers: &HeaderMap) -> Self {
        let etag = text(headers, &ETAG).filter(|etag| etag.starts_with('"'));
        let last_modified = text(headers, &LAST_MODIFIED).filter(|modified| {
            let date = text(headers, &DATE).and_then(|date| seconds(&date));
            let both = date.zip(seconds(modified));
            both.is_some_and(|(date, modified)| date - modified >= SETTLED_SECONDS)
        });
        Self {
            etag,
            last_modified,
        }
    }

    /// What a server is told so that it sends parts of this version alone; `None` where nothing tells
    /// versions apart.
    pub(super) fn if_range(&self) -> Option<HeaderValue> {
        let mark = self.etag.as_ref().or(self.last_modified.as_ref())?;
        HeaderValue::try_from(mark).ok()
    }

    /// Whether both are surely the same.
    pub(super) fn is(&self, other: &Self) -> bool {
        match (&self.etag, &other.etag) {
            (None, None) => {
                self.last_modified.is_some() && self.last_modified == other.last_modified
            }
            (one, another) => one == another,
        }
    }
}

fn seconds(date: &str) -> Option<i64> {
    let date = jiff::fmt::rfc2822::parse(date).ok()?;
    Some(date.timestamp().as_second())
}

impl Journal {
    /// The journal of this file, if it has one that can be read.
    pub(super) fn read(partial: &Path) -> Option<Self> {
        let journal: Self = serde_json::from_slice(&fs::read(path_of(partial)).ok()?).ok()?;
        (journal.schema == SCHEMA).then_some(journal)
    }

    /// The journal of a file that has none: it was not written out of order.
    pub(super) fn of_unbroken(bytes: u64) -> Self {
        Self {
            durable: Ranges::up_to(bytes),
            ..Self::default()
        }
    }

    /// What can be relied on of what it says was written.
    pub(super) fn reliable(&self) -> &Ranges {
        if boot().is_some_and(|boot| boot == self.boot) {
            &self.written
        } else {
            &self.durable
        }
    }

    /// Replaces the journal of this file. The caller has written, or synced, what it says.
    pub(super) fn write(&mut self, partial: &Path) -> Result<(), StoreError> {
        self.schema = SCHEMA;
        self.boot = boot().unwrap_or_default();
        let (path, new) = (path_of(partial), new_path_of(partial));
        let text = serde_json::to_vec(self).expect("a journal is plain data");
        fs::write(&new, text)
            .and_then(|()| fs::rename(&new, &path))
            .map_err(|source| StoreError::io("write", path, source))
    }

    /// Removes what is there of it. What stays is found to be of no use next time.
    pub(super) fn remove(partial: &Path) {
        let _ = fs::remove_file(path_of(partial));
        let _ = fs::remove_file(new_path_of(partial));
    }
}

fn boot() -> Option<String> {
    let text = fs::read_to_string(BOOT_ID).ok()?;
    Some(text.trim().to_owned())
}

fn path_of(partial: &Path) -> PathBuf {
    partial.with_extension("partial.json")
}

fn new_path_of(partial: &Path) -> PathBuf {
    partial.with_extension("partial.json.new")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(pairs: &[(&'static str, &str)]) -> Version {
        let pairs = pairs.iter().map(|(name, value)| {
            let name = reqwest::header::HeaderName::from_static(name);
            (name, HeaderValue::try_from(*value).unwrap())
        });
        Version::of(&pairs.collect())
    }

    #[test]
    fn only_marks_that_change_with_every_byte_tell_versions_apart() {
        let strong = version(&[("etag", "\"a\"")]);
        assert_eq!(strong.if_range().unwrap(), "\"a\"");
        assert!(strong.is(&strong) && !strong.is(&version(&[("etag", "\"b\"")])));
        assert_eq!(version(&[("etag", "W/\"a\"")]).if_range(), None);
        let modified = ("last-modified", "Sun, 06 Nov 1994 08:49:37 GMT");
        let old = version(&[modified, ("date", "Sun, 06 Nov 1994 08:50:37 GMT")]);
        assert_eq!(old.if_range().unwrap(), modified.1);
        assert!(old.is(&old) && !old.is(&strong) && !strong.is(&old));
        // It may have changed again within the same second.
        let fresh = version(&[modified, ("date", "Sun, 06 Nov 1994 08:49:38 GMT")]);
        assert_eq!(fresh.if_range(), None);
        assert!(!fresh.is(&fresh));
    }

    #[test]
    fn after_a_crash_of_the_machine_only_what_was_synced_counts() {
        let directory = tempfile::tempdir().unwrap();
        let partial = directory.path().join("x.partial");
        let mut journal = Journal {
            written: Ranges::up_to(100),
            durable: Ranges::up_to(40),
            ..Journal::default()
        };
        journal.write(&partial).unwrap();
        let mut journal = Journal::read(&partial).unwrap();
        assert_eq!(journal.reliable().front(), 100);
        journal.boot = "another".to_owned();
        assert_eq!(journal.reliable().front(), 40);
        fs::write(path_of(&partial), "{\"schema\":1").unwrap();
        assert_eq!(Journal::read(&partial), None);
        Journal::remove(&partial);
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
    }
}
