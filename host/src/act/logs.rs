//! Logs of commands: `logs/<pool>/<job>/<step>.<command>.log`.
//!
//! Every run has a directory of its own, so that no run reads, or judges by, what another one
//! printed. What a program prints for this process to read is no log: it goes to a temporary
//! directory.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
    time::SystemTime,
};

use crate::{
    config::paths::Home,
    store::{self, StoreError},
};

/// Runs whose logs are kept, per pool.
const KEPT: usize = 10;

/// Runs that may share the name of a job, for example of one daemon.
const NAMESAKES: usize = 10_000;

/// The logs of one run. Cheap to clone; the directory is made when it is first needed.
#[derive(Debug, Clone)]
pub struct Logs {
    pool: PathBuf,
    job: String,
    run: Arc<Mutex<Option<Run>>>,
}

#[derive(Debug)]
struct Run {
    directory: PathBuf,
    /// Tells other runs that it is not to be removed.
    _held: Option<store::Held>,
}

impl Logs {
    /// Logs of a run for this pool; `job` is its job id, where it has one.
    #[must_use]
    pub fn new(home: &Home, pool_id: &str, job: Option<&str>) -> Self {
        Self {
            pool: home.logs().join(pool_id),
            job: job.unwrap_or("job").to_owned(),
            run: Arc::default(),
        }
    }

    /// The file of a step's command. Its directory exists.
    pub(super) fn path(&self, step: &str, command: &str) -> Result<PathBuf, StoreError> {
        let name = if step == command {
            format!("{step}.log")
        } else {
            format!("{step}.{command}.log")
        };
        let mut run = self.run.lock().expect("no holder panics");
        if run.is_none() {
            *run = Some(self.begin()?);
        }
        let run = run.as_ref().expect("it was just made");
        Ok(run.directory.join(name))
    }

    fn begin(&self) -> Result<Run, StoreError> {
        store::make_directory(&self.pool)?;
        for number in 1..=NAMESAKES {
            let directory = self.pool.join(match number {
                1 => self.job.clone(),
                number => format!("{}-{number}", self.job),
            });
            match fs::create_dir(&directory) {
                Ok(()) => {
                    let held = store::hold(&directory)?;
                    prune(&self.pool);
                    return Ok(Run {
                        directory,
                        _held: held,
                    });
                }
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(source) => return Err(StoreError::io("create", directory, source)),
            }
        }
        Err(StoreError::Unsound {
            path: self.pool.clone(),
            reason: format!("has {NAMESAKES} logs of job {}", self.job),
        })
    }
}

/// Removes the logs of the oldest runs that have ended. Failing to is no reason not to run.
fn prune(pool: &Path) {
    let mut runs: Vec<(SystemTime, PathBuf)> = fs::read_dir(pool)
        .into_iter()
        .flatten()
        .flatten()
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .filter_map(|entry| Some((entry.metadata().ok()?.modified().ok()?, entry.path())))
        .collect();
    runs.sort();
    let surplus = runs.len().saturating_sub(KEPT);
    for (_, directory) in &runs[..surplus] {
        if let Ok(Some(_held)) = store::hold(directory) {
            let _ = store::remove_tree(directory);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_run_has_its_own_directory_and_the_newest_are_kept() {
        let directory = tempfile::tempdir().unwrap();
        let home = Home::at(directory.path());
        let logs = |job: &str| Logs::new(&home, "chat", Some(job));
        let first = logs("a");
        let path = first.path("build", "compile").unwrap();
        assert!(path.ends_with("logs/chat/a/build.compile.log"), "{path:?}");
        assert!(first.path("x", "x").unwrap().ends_with("a/x.log"));
        let again = logs("a").path("build", "compile").unwrap();
        assert!(again.ends_with("a-2/build.compile.log"), "{again:?}");

        for number in 0..15 {
            logs(&format!("b{number:02}")).path("x", "x").unwrap();
        }
        let left = fs::read_dir(home.logs().join("chat")).unwrap().count();
        assert!(left <= KEPT + 1, "{left}");
        assert!(path.parent().unwrap().exists(), "it has not ended");
        assert!(home.logs().join("chat/b14").exists());
    }
}
