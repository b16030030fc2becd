//! What files take on disk.

use std::{collections::BTreeSet, fs, os::unix::fs::MetadataExt as _, path::Path};

/// Files that were counted, so that one with two names takes its space once.
#[derive(Debug, Default)]
pub struct Counted(BTreeSet<(u64, u64)>);

impl Counted {
    /// Bytes on disk of a file or of everything in a directory, as far as it was not counted. What
    /// vanishes meanwhile takes none.
    pub fn bytes(&mut self, path: &Path) -> u64 {
        let Ok(metadata) = fs::symlink_metadata(path) else {
            return 0;
        };
        if metadata.is_dir() {
            let inside = fs::read_dir(path).into_iter().flatten().flatten();
            return inside.map(|entry| self.bytes(&entry.path())).sum();
        }
        let fresh = self.0.insert((metadata.dev(), metadata.ino()));
        // Counted in units of 512 bytes whatever the file system uses (stat(2)).
        if fresh { metadata.blocks() * 512 } else { 0 }
    }
}
