//! Locks that a minder shares for as long as anything of its child is left: of what the child reads, and
//! somebody else, of another installation too, may want to remove. However a minder ends, they are free then.

use std::{
    fs::File,
    path::{Path, PathBuf},
    thread::sleep,
    time::{Duration, Instant, SystemTime},
};

use rustix::{
    fs::{FlockOperation, flock},
    io::Errno,
};

use crate::process::StartFailure;

/// How long somebody may have a lock alone who only asks whether it is held, and how often it is tried again
/// meanwhile.
const ASKING_LIMIT: Duration = Duration::from_millis(500);
const RETRY: Duration = Duration::from_millis(2);

/// Shares all of these locks until the files are closed, or says why the child cannot be started.
pub(super) fn share(paths: &[PathBuf]) -> Result<Vec<File>, StartFailure> {
    paths.iter().map(|path| share_one(path)).collect()
}

fn share_one(path: &Path) -> Result<File, StartFailure> {
    let failed = |reason: &dyn std::fmt::Display| StartFailure::Other {
        reason: format!("what it reads cannot be held, {}: {reason}", path.display()),
    };
    let file = File::open(path).map_err(|error| failed(&error))?;
    let start = Instant::now();
    loop {
        match flock(&file, FlockOperation::NonBlockingLockShared) {
            Ok(()) => return Ok(file),
            Err(Errno::WOULDBLOCK) if start.elapsed() < ASKING_LIMIT => sleep(RETRY),
            Err(Errno::WOULDBLOCK) => return Err(failed(&"somebody is removing it")),
            Err(error) => return Err(failed(&error)),
        }
    }
}

/// Gives them back, and notes on each that what it is for was used until now.
pub(super) fn let_go(held: Vec<File>) {
    for file in held {
        // Only the order of clean-ups suffers without it.
        let _ = file.set_modified(SystemTime::now());
        // It is closed next, which would unlock it only once no process has a copy of it.
        let _ = file.unlock();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_shared_is_nobodys_alone_and_who_has_it_alone_keeps_a_child_from_starting() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("model.lock");
        let alone = File::create(&path).unwrap();
        let is_free = || flock(&alone, FlockOperation::NonBlockingLockExclusive).is_ok();
        let paths = [path.clone()];
        let held = [share(&paths).unwrap(), share(&paths).unwrap()];
        assert!(!is_free());
        let long_ago = SystemTime::now() - Duration::from_secs(3600);
        alone.set_modified(long_ago).unwrap();
        held.into_iter().for_each(let_go);
        assert!(is_free());
        let noted = alone.metadata().unwrap().modified().unwrap();
        assert!(noted > long_ago + Duration::from_secs(60), "{noted:?}");
        let StartFailure::Other { reason } = share(&paths).unwrap_err() else {
            panic!("another failure");
        };
        assert!(reason.contains("somebody is removing it"), "{reason}");
        assert!(share(&[path.with_extension("none")]).is_err());
    }
}
