//! Where engines' logs are: `logs/<pool>-<replica>/engine-<time>.log`, one per start, the newest
//! also as `latest.log`; and how they are read on.

mod lines;
mod tail;

use std::{
    ffi::OsStr,
    fs, io,
    path::{Path, PathBuf},
};

use jiff::Timestamp;

use crate::{config::paths::Home, store::StoreError};

pub use lines::Lines;
pub use tail::Tail;

/// Most bytes of one log.
pub(super) const LIMIT_BYTES: u64 = 64 * 1024 * 1024;

/// Logs kept per pool and replica.
const KEPT: usize = 10;

/// Name of the newest log.
const LATEST: &str = "latest.log";

/// Names a log for a start.
pub(super) fn begin(
    home: &Home,
    pool: &str,
    replica: &str,
    now: Timestamp,
) -> Result<PathBuf, StoreError> {
    let directory = directory(home, pool, replica);
    fs::create_dir_all(&directory)
        .map_err(|source| StoreError::io("create", &directory, source))?;
    Ok(directory.join(format!("engine-{}.log", now.strftime("%Y%m%dT%H%M%S%.6fZ"))))
}

/// Makes a log that has begun the latest and removes the oldest ones. Failing to is no reason not to
/// start.
pub(super) fn make_latest(log: &Path) {
    if let (Some(directory), Some(name)) = (log.parent(), log.file_name()) {
        // For people; this program goes by the names of the logs themselves.
        let _ = point_latest(directory, name);
        let logs = engine_logs(directory);
        let surplus = logs.len().saturating_sub(KEPT);
        for path in &logs[..surplus] {
            let _ = fs::remove_file(path);
            let _ = fs::remove_file(answer(path));
        }
    }
}

/// What a container's runtime said about its end: beside the log.
pub(super) fn answer(log: &Path) -> PathBuf {
    log.with_extension("container.json")
}

/// The newest log of a pool's replica, if there is one.
#[must_use]
pub fn log_path(home: &Home, pool: &str, replica: &str) -> Option<PathBuf> {
    engine_logs(&directory(home, pool, replica)).pop()
}

/// Names `<pool>-<replica>` that have a log, the most recently started first.
#[must_use]
pub fn logged(home: &Home) -> Vec<(String, PathBuf)> {
    let mut found: Vec<(String, PathBuf)> = fs::read_dir(home.logs())
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            Some((name, engine_logs(&entry.path()).pop()?))
        })
        .collect();
    found.sort_by(|a, b| b.1.file_name().cmp(&a.1.file_name()));
    found
}

fn directory(home: &Home, pool: &str, replica: &str) -> PathBuf {
    home.logs().join(format!("{pool}-{replica}"))
}

fn point_latest(directory: &Path, name: &OsStr) -> io::Result<()> {
    let beside = directory.join(".latest.partial");
    let _ = fs::remove_file(&beside);
    std::os::unix::fs::symlink(name, &beside)?;
    fs::rename(beside, directory.join(LATEST))
}

/// Engines' logs in a directory, oldest first: their names say when they were begun.
fn engine_logs(directory: &Path) -> Vec<PathBuf> {
    let mut logs: Vec<PathBuf> = fs::read_dir(directory)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| {
            let name = path.file_name().and_then(|name| name.to_str());
            name.is_some_and(|name| name.starts_with("engine-") && name.ends_with(".log"))
        })
        .collect();
    logs.sort();
    logs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_are_kept_and_the_latest_is_found() {
        let directory = tempfile::tempdir().unwrap();
        let home = Home::at(directory.path());
        assert_eq!(log_path(&home, "chat", "r0"), None);
        let mut paths = Vec::new();
        for second in 0..15 {
            let now = Timestamp::from_second(1_700_000_000 + second).unwrap();
            let path = begin(&home, "chat", "r0", now).unwrap();
            fs::write(&path, "x").unwrap();
            make_latest(&path);
            paths.push(path);
        }
        let left: Vec<&PathBuf> = paths.iter().filter(|path| path.exists()).collect();
        assert_eq!(left, paths[5..].iter().collect::<Vec<_>>());
        assert_eq!(log_path(&home, "chat", "r0").as_ref(), paths.last());
        assert_eq!(logged(&home), [("chat-r0".to_owned(), paths[14].clone())]);
    }
}
