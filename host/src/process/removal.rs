//! Files that are removed together with a child, as long as they are still that child's.

use std::{
    collections::BTreeMap,
    fs::{self, OpenOptions},
    io::Read,
    os::unix::fs::OpenOptionsExt,
    path::PathBuf,
};

use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Longest document that is looked at, in bytes.
const LENGTH_LIMIT: u64 = 1 << 20;

/// A JSON document that is removed while it says certain things. Another one in its place, written by
/// somebody else since, stays.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Removal {
    /// Absolute path of the document.
    pub path: PathBuf,
    /// Fields that it must have, with these values.
    pub says: BTreeMap<String, Value>,
}

impl Removal {
    /// Removes the document, if it is there and says so.
    pub fn carry_out(&self) {
        if self.applies() {
            let _ = fs::remove_file(&self.path);
        }
    }

    /// Whether the document is there and says so.
    pub(crate) fn applies(&self) -> bool {
        // Neither a link nor a pipe in its place is waited for or followed.
        let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let file = OpenOptions::new()
            .read(true)
            .custom_flags(flags.bits().cast_signed())
            .open(&self.path);
        let mut text = Vec::new();
        let read = file.and_then(|file| file.take(LENGTH_LIMIT).read_to_end(&mut text));
        let document: Option<Map<String, Value>> =
            read.ok().and_then(|_| serde_json::from_slice(&text).ok());
        document.is_some_and(|document| {
            let holds = |(name, value)| document.get(name) == Some(value);
            self.says.iter().all(holds)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_document_that_says_so_is_removed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("x.json");
        let removal = Removal {
            path: path.clone(),
            says: BTreeMap::from([("url".to_owned(), "http://a".into())]),
        };
        removal.carry_out();
        for other in ["", "[]", "{}", r#"{"url":"http://b"}"#, "not JSON"] {
            fs::write(&path, other).unwrap();
            removal.carry_out();
            assert!(path.exists(), "{other}");
        }
        fs::write(&path, r#"{"url":"http://a","more":1}"#).unwrap();
        let link = directory.path().join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        let through = Removal {
            path: link.clone(),
            ..removal.clone()
        };
        through.carry_out();
        assert!(link.is_symlink() && path.exists());
        removal.carry_out();
        assert!(!path.exists());
    }
}
