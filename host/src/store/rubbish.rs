//! What crashed runs left.
//!
//! A host that is killed takes its commands with it, but not in the same instant: before a working
//! directory is used again, nobody may work in it any more.

use std::{fs, path::Path, time::Duration};

use super::{Store, StoreError, tree, try_lock};

/// Longest wait for commands of a killed host to end.
const LEAVE_LIMIT: Duration = Duration::from_secs(10);

/// How often it is looked whether they have.
const LOOK_INTERVAL: Duration = Duration::from_millis(20);

impl Store {
    /// Removes what crashed runs left in `tmp/`; what somebody works on, locks or still writes to is
    /// left alone. Gives the number of directories removed.
    pub fn sweep(&self) -> Result<usize, StoreError> {
        let Ok(directory) = fs::read_dir(self.root.join("tmp")) else {
            return Ok(0);
        };
        let mut removed = 0;
        for entry in directory.flatten() {
            let slug = entry.file_name().to_string_lossy().into_owned();
            let Ok(Some(_lock)) = try_lock(&self.lock_path(&slug), "sweeping") else {
                continue;
            };
            if !is_worked_in(&entry.path()) {
                tree::remove_tree(&entry.path())?;
                removed += 1;
            }
        }
        Ok(removed)
    }
}

/// Removes a working directory whose lock is held, once nobody works in it any more.
pub(super) async fn remove(path: &Path) -> Result<(), StoreError> {
    if !path.exists() {
        return Ok(());
    }
    let patience = tokio::time::timeout(LEAVE_LIMIT, async {
        while is_worked_in(path) {
            tokio::time::sleep(LOOK_INTERVAL).await;
        }
    });
    match patience.await {
        Ok(()) => tree::remove_tree(path),
        Err(_) => Err(StoreError::Unsound {
            path: path.to_owned(),
            reason: "is still worked in by a process that an earlier run started".to_owned(),
        }),
    }
}

/// Whether a process has its working directory here. Processes that may not be looked at are taken
/// to be elsewhere.
fn is_worked_in(path: &Path) -> bool {
    let Ok(processes) = fs::read_dir("/proc") else {
        return false;
    };
    processes
        .flatten()
        .filter_map(|entry| fs::read_link(entry.path().join("cwd")).ok())
        .any(|directory| directory.starts_with(path))
}
