//! What a machine has on it: files, handoffs, processes, and that nothing is left of them.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use super::Machine;
use crate::{Process, processes_below, wait_for};

/// Longest time until nothing is left of what was ended.
const END_LIMIT: Duration = Duration::from_secs(60);

impl Machine {
    /// Files below a directory, relative to it and sorted; directories themselves are left out.
    ///
    /// # Panics
    ///
    /// When it cannot be read.
    #[must_use]
    pub fn files_below(&self, directory: &Path) -> Vec<String> {
        fn walk(root: &Path, directory: &Path, found: &mut Vec<String>) {
            for entry in fs::read_dir(directory).unwrap() {
                let entry = entry.unwrap();
                if entry.file_type().unwrap().is_dir() {
                    walk(root, &entry.path(), found);
                } else {
                    let path = entry.path();
                    let relative = path.strip_prefix(root).expect("it was found below");
                    found.push(relative.to_string_lossy().into_owned());
                }
            }
        }
        let mut found = Vec::new();
        walk(directory, directory, &mut found);
        found.sort();
        found
    }

    /// What lies in the root.
    #[must_use]
    pub fn names_in_root(&self) -> Vec<String> {
        let entries = fs::read_dir(self.root()).unwrap();
        let mut names: Vec<String> = entries
            .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    }

    /// Handoff files in the default directory.
    #[must_use]
    pub fn handoffs(&self) -> Vec<PathBuf> {
        let directory = self.work().join(".runtime/engines");
        let Ok(entries) = fs::read_dir(directory) else {
            return Vec::new();
        };
        // A hidden one is being written: it appears by a rename.
        let is_hidden = |path: &PathBuf| path.file_name().unwrap().as_encoded_bytes()[0] == b'.';
        let paths = entries.map(|entry| entry.unwrap().path());
        paths.filter(|path| !is_hidden(path)).collect()
    }

    /// The one handoff there is, read.
    ///
    /// # Panics
    ///
    /// When there is none, several, or it is not JSON.
    #[must_use]
    pub fn handoff(&self) -> serde_json::Value {
        let handoffs = self.handoffs();
        let [path] = handoffs.as_slice() else {
            panic!("one handoff expected: {handoffs:?}");
        };
        serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
    }

    /// Processes that belong to this installation.
    #[must_use]
    pub fn processes(&self) -> Vec<Process> {
        processes_below(&self.directory)
    }

    /// Asserts that nothing was done at all: no home, no handoff directory, no process.
    #[track_caller]
    pub fn assert_untouched(&self) {
        assert!(!self.home().exists(), "something was kept in the home");
        assert!(!self.work().join(".runtime").exists(), "a handoff was made");
        self.assert_clean();
    }

    /// Asserts that nothing is left behind: no process, no handoff, no lock held.
    #[track_caller]
    pub fn assert_clean(&self) {
        wait_for("every process to end", END_LIMIT, || {
            let left = self.processes();
            if left.is_empty() { Ok(()) } else { Err(left) }
        });
        assert_eq!(self.handoffs(), Vec::<PathBuf>::new(), "stale handoff");
        let home = self.home();
        if !home.is_dir() {
            return;
        }
        let files = self.files_below(&home);
        for name in files.iter().filter(|name| name.ends_with(".lock")) {
            let file = fs::File::open(home.join(name)).unwrap();
            // One that was killed holds it until the kernel has closed its files.
            wait_for(&format!("{name} to be free"), END_LIMIT, || file.try_lock());
            // Closing it is not enough: a child that another test is just starting may have a copy.
            file.unlock().unwrap();
        }
    }
}
