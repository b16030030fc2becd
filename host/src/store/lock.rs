//! Locks between threads and processes: advisory locks (flock) on files that are never deleted.
//!
//! Lock order: a key's lock may be held while a blob's is taken, never the other way round; no
//! two keys are locked at once by one task.

use std::{
    fmt,
    fs::{File, OpenOptions, TryLockError},
    io::{self, Read as _, Seek as _, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    time::{Duration, Instant, SystemTime},
};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;

use super::{StoreError, tree::make_directory};

/// How often a lock that somebody else holds is tried again.
const RETRY: Duration = Duration::from_millis(50);

/// A lock that is held until this is dropped, or its process ends, however it ends.
#[derive(Debug)]
pub struct Lock {
    file: File,
    path: PathBuf,
}

impl Lock {
    /// The file that is locked.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Notes that it was taken or let go of now. For people and for the order of clean-ups, so that failing to
    /// is no failure.
    pub(super) fn touch(&self) {
        let _ = self.file.set_modified(SystemTime::now());
    }

    /// Writes down who has it, for whoever looks later.
    pub(super) fn write_down(&self, document: &impl Serialize) {
        // Only a message: a full disk must not keep anybody from working.
        let _ = write_whole(&self.file, document);
    }

    fn of(file: File, path: &Path) -> Self {
        Self {
            file,
            path: path.to_owned(),
        }
    }
}

impl Drop for Lock {
    /// Closing alone would not do at once: a process that another thread starts has a copy of the file
    /// until it executes its program, and the lock is held as long as any copy is open.
    fn drop(&mut self) {
        // It is closed next, which unlocks a little later.
        let _ = self.file.unlock();
    }
}

/// Who holds a lock, as the holder wrote it down. For people: it may be outdated.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    /// Process id.
    pub pid: u32,
    /// What it is doing, in words.
    pub doing: String,
    /// Since when.
    pub since: Timestamp,
}

impl fmt::Display for Holder {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = Timestamp::now().duration_since(self.since).as_secs().max(0);
        write!(
            formatter,
            "process {} ({}, for {seconds} s)",
            self.pid, self.doing
        )
    }
}

/// How long to wait for a lock, and whom to tell.
#[derive(Clone, Copy)]
pub struct Patience<'a> {
    /// Longest wait.
    pub limit: Duration,
    /// Ends the wait.
    pub cancel: &'a CancellationToken,
    /// Called once, when there is something to wait for, with who holds the lock, in words.
    pub on_wait: &'a (dyn Fn(&str) + Send + Sync),
}

/// Takes a lock if it is free. `doing` says what for, to whoever waits.
pub fn try_lock(path: &Path, doing: &str) -> Result<Option<Lock>, StoreError> {
    let file = open(path)?;
    if !try_hold(&file).map_err(|source| StoreError::io("lock", path, source))? {
        return Ok(None);
    }
    // Only a message: a full disk must not keep anybody from working.
    let _ = sign(&file, doing);
    Ok(Some(Lock::of(file, path)))
}

/// Takes a lock together with others who share it, if nobody has it alone. Nothing is written down.
pub(crate) fn try_share(path: &Path) -> Result<Option<Lock>, StoreError> {
    if let Some(parent) = path.parent() {
        make_directory(parent)?;
    }
    let file = open(path)?;
    match file.try_lock_shared() {
        Ok(()) => Ok(Some(Lock::of(file, path))),
        Err(TryLockError::WouldBlock) => Ok(None),
        Err(TryLockError::Error(source)) => Err(StoreError::io("lock", path, source)),
    }
}

/// The same, waiting while somebody has it alone.
pub(crate) async fn share(
    path: &Path,
    what: &str,
    limit: Duration,
    cancel: &CancellationToken,
) -> Result<Lock, StoreError> {
    let start = Instant::now();
    loop {
        if let Some(lock) = try_share(path)? {
            return Ok(lock);
        }
        if start.elapsed() >= limit {
            return Err(StoreError::Busy {
                what: what.to_owned(),
                holder: None,
                limit,
            });
        }
        tokio::select! {
            () = cancel.cancelled() => {
                return Err(StoreError::Cancelled { what: what.to_owned() });
            }
            () = tokio::time::sleep(RETRY) => {}
        }
    }
}

/// Takes a lock if it is free, leaving the time at which it was last touched as it is.
pub(crate) fn try_lock_quietly(path: &Path) -> Result<Option<Lock>, StoreError> {
    if let Some(parent) = path.parent() {
        make_directory(parent)?;
    }
    let file = open(path)?;
    let held = try_hold(&file).map_err(|source| StoreError::io("lock", path, source))?;
    Ok(held.then(|| Lock::of(file, path)))
}

/// Whether somebody holds a lock. Creates nothing, so that it can be asked by whoever may only read.
pub(crate) fn is_held(path: &Path) -> Result<bool, StoreError> {
    let failed = |source| StoreError::io("open", path, source);
    match File::open(path) {
        Ok(file) => {
            let is_free = try_hold(&file).map_err(failed)?;
            // Not only closed: see `Lock::drop`.
            let _ = file.unlock();
            Ok(!is_free)
        }
        // What nobody ever locked is free.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(failed(error)),
    }
}

/// Locks an open file or directory until it is closed, if nobody else has.
pub(super) fn try_hold(file: &File) -> std::io::Result<bool> {
    #[expect(
        clippy::disallowed_methods,
        reason = "this is the file that takes locks"
    )]
    match file.try_lock() {
        Ok(()) => Ok(true),
        Err(TryLockError::WouldBlock) => Ok(false),
        Err(TryLockError::Error(source)) => Err(source),
    }
}

/// Takes a lock: tries, waits, tells who holds it.
pub async fn lock(path: &Path, doing: &str, patience: Patience<'_>) -> Result<Lock, StoreError> {
    if let Some(parent) = path.parent() {
        make_directory(parent)?;
    }
    if let Some(lock) = try_lock(path, doing)? {
        return Ok(lock);
    }
    let start = Instant::now();
    let mut told = false;
    loop {
        tokio::select! {
            () = patience.cancel.cancelled() => {
                return Err(StoreError::Cancelled { what: doing.to_owned() });
            }
            () = tokio::time::sleep(RETRY) => {}
        }
        if let Some(lock) = try_lock(path, doing)? {
            return Ok(lock);
        }
        // Told after the first pause: whoever has just taken it writes down who it is only then, and
        // a lock that is free by now was not worth a line.
        if !told {
            (patience.on_wait)(&describe(holder(path).as_ref()));
            told = true;
        }
        if start.elapsed() >= patience.limit {
            return Err(StoreError::Busy {
                what: doing.to_owned(),
                holder: holder(path),
                limit: patience.limit,
            });
        }
    }
}

/// Who holds a lock, in words, also where nobody wrote it down.
pub(super) fn describe(holder: Option<&Holder>) -> String {
    holder.map_or_else(|| "another process".to_owned(), Holder::to_string)
}

/// Who holds the lock at this path, as far as it was written down.
#[must_use]
pub fn holder(path: &Path) -> Option<Holder> {
    let mut text = String::new();
    File::open(path).ok()?.read_to_string(&mut text).ok()?;
    serde_json::from_str(&text).ok()
}

fn open(path: &Path) -> Result<File, StoreError> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o644)
        .custom_flags(rustix::fs::OFlags::NOFOLLOW.bits().cast_signed())
        .open(path)
        .map_err(|source| StoreError::io("open", path, source))
}

fn sign(file: &File, doing: &str) -> std::io::Result<()> {
    let holder = Holder {
        pid: std::process::id(),
        doing: doing.to_owned(),
        since: Timestamp::now(),
    };
    write_whole(file, &holder)
}

fn write_whole(mut file: &File, document: &impl Serialize) -> std::io::Result<()> {
    let text = serde_json::to_vec(document).expect("a holder is plain data");
    // Cut to its length afterwards: a file that was emptied first is flushed by ext4 when it is closed
    // (`auto_da_alloc`), and whoever is started next would wait for that.
    file.rewind()?;
    file.write_all(&text)?;
    file.set_len(text.len() as u64)
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[tokio::test]
    async fn the_second_is_told_who_holds_it_and_gets_it_afterwards() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("locks/x.lock");
        let cancel = CancellationToken::new();
        let told = Mutex::new(None);
        let on_wait = |who: &str| *told.lock().unwrap() = Some(who.to_owned());
        let patience = Patience {
            limit: Duration::from_secs(20),
            cancel: &cancel,
            on_wait: &on_wait,
        };
        let first = lock(&path, "building x", patience).await.unwrap();
        assert!(told.lock().unwrap().is_none());
        assert!(try_lock(&path, "other").unwrap().is_none());
        let release = async {
            // The waiter tells once it waits; only then is the lock given back.
            while told.lock().unwrap().is_none() {
                tokio::task::yield_now().await;
            }
            drop(first);
        };
        let (second, ()) = tokio::join!(lock(&path, "waiting", patience), release);
        second.unwrap();
        let who = told.lock().unwrap().clone().unwrap();
        let pid = std::process::id();
        let seconds = who.strip_prefix(&format!("process {pid} (building x, for "));
        let seconds = seconds.and_then(|rest| rest.strip_suffix(" s)"));
        assert!(seconds.is_some_and(|it| it.parse::<u64>().is_ok()), "{who}");
    }

    #[test]
    fn a_lock_is_free_at_once_though_a_copy_of_its_file_lives_on() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("x.lock");
        // What a process has that another thread starts, until it executes its program.
        let alone = try_lock(&path, "hold").unwrap().unwrap();
        let copy = alone.file.try_clone().unwrap();
        assert!(is_held(&path).unwrap());
        drop(alone);
        assert!(!is_held(&path).unwrap());
        let shared = try_share(&path).unwrap().unwrap();
        let other = shared.file.try_clone().unwrap();
        drop(shared);
        assert!(try_lock_quietly(&path).unwrap().is_some());
        drop((copy, other));
    }

    #[tokio::test]
    async fn waiting_ends_at_its_limit_and_when_cancelled() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("x.lock");
        let _held = try_lock(&path, "hold").unwrap().unwrap();
        let cancel = CancellationToken::new();
        let mut patience = Patience {
            limit: Duration::ZERO,
            cancel: &cancel,
            on_wait: &|_| {},
        };
        let error = lock(&path, "the engine", patience).await.unwrap_err();
        assert!(
            matches!(&error, StoreError::Busy { holder: Some(holder), .. } if holder.doing == "hold"),
            "{error}"
        );
        cancel.cancel();
        patience.limit = Duration::from_secs(60);
        let error = lock(&path, "the engine", patience).await.unwrap_err();
        assert!(matches!(error, StoreError::Cancelled { .. }), "{error}");
    }
}
