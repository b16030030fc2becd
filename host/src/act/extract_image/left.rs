//! What is written down of a container before it is created: where its host is killed, whoever looks
//! next removes it, and no runtime is asked where there is nothing to remove.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use serde::{Deserialize, Serialize};

use crate::{
    config::paths::Home,
    process::{self, Question},
    store::{Store, StoreError, make_directory, read_document, try_lock, write_document},
};

/// Schema of the records that this version writes.
const SCHEMA: u32 = 1;

/// Longest time for removing a container that was never started.
const LIMIT: Duration = Duration::from_secs(120);

/// A container that files are copied out of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Left {
    /// Its name, and its record's.
    pub(super) name: String,
    /// Name of the lock of whoever works with it.
    pub(super) lock: String,
    /// The runtime's program.
    pub(super) program: PathBuf,
    /// What that sees of the environment.
    pub(super) env: BTreeMap<String, String>,
}

impl Left {
    /// To be done before the container is created.
    pub(super) fn write_down(&self, home: &Home) -> Result<(), StoreError> {
        make_directory(&directory(home))?;
        write_document(&self.record(home), SCHEMA, 0o600, self)
    }

    /// Whether that was done, and it was not removed since.
    pub(super) fn is_written_down(&self, home: &Home) -> bool {
        self.record(home).exists()
    }

    /// Removes the container, if there is one; it is forgotten once the runtime shows none. The lock is
    /// held.
    pub(super) async fn remove(&self, home: &Home) {
        self.ask(&["rm", "--force", "--volumes", &self.name]).await;
        let named = format!("name=^{}$", self.name);
        let list = ["ps", "--all", "--filter", &named, "--format", "{{.Names}}"];
        let shown = self.ask(&list).await;
        if shown.is_some_and(|names| !names.lines().any(|name| name == self.name)) {
            let _ = fs::remove_file(self.record(home));
        }
    }

    /// What the runtime answers; `None` where it fails. Not ended by cancellation: it cleans up.
    pub(super) async fn ask(&self, args: &[&str]) -> Option<String> {
        let question = Question {
            program: self.program.clone(),
            args: args.iter().map(|&argument| argument.to_owned()).collect(),
            env: self.env.clone(),
            identity: None,
            limit: LIMIT,
        };
        let answer = process::ask(&question).await.ok()?;
        answer.exited.success().then_some(answer.stdout)
    }

    fn record(&self, home: &Home) -> PathBuf {
        directory(home).join(format!("{}.json", self.name))
    }
}

/// Removes the containers of this home that nobody works with any more. What cannot be removed now is
/// tried again by whoever looks next.
pub(crate) async fn clear(home: &Home) {
    let store = Store::open(home);
    let entries = fs::read_dir(directory(home)).into_iter().flatten();
    for entry in entries.flatten() {
        if let Some(left) = read(&entry.path())
            && let Ok(Some(_held)) = try_lock(&store.lock_path(&left.lock), "removing what a killed run left")
            // Whoever held it may have removed it.
            && read(&entry.path()).is_some()
        {
            left.remove(home).await;
        }
    }
}

fn read(path: &Path) -> Option<Left> {
    read_document(path, SCHEMA).ok()?
}

fn directory(home: &Home) -> PathBuf {
    home.state().join("extractions")
}
