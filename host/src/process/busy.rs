//! Programs that were written a moment ago.
//!
//! Linux runs no file that somebody has open for writing (`ETXTBSY`). Whoever wrote it has closed it, but a
//! process that another thread started meanwhile has a copy of the open file until it executes its own
//! program, which takes moments.

use std::{
    io,
    thread::sleep,
    time::{Duration, Instant},
};

/// Longest wait.
const LIMIT: Duration = Duration::from_millis(500);
const RETRY: Duration = Duration::from_millis(2);

/// Starts a program, again as long as its file is open for writing.
pub(super) fn start<T>(mut start: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    let begun = Instant::now();
    loop {
        match start() {
            Err(error)
                if error.kind() == io::ErrorKind::ExecutableFileBusy && begun.elapsed() < LIMIT =>
            {
                sleep(RETRY);
            }
            started => return started,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    #[test]
    fn a_program_is_run_once_nobody_writes_it_and_not_waited_for_forever() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("program");
        std::fs::copy("/bin/true", &path).unwrap();
        let mut writer = Some(File::options().append(true).open(&path).unwrap());
        #[expect(clippy::disallowed_methods, reason = "the program is this test's own")]
        let run = || std::process::Command::new(&path).status();
        let error = start(run).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ExecutableFileBusy);
        let mut tries = 0;
        let status = start(|| {
            tries += 1;
            if tries == 3 {
                drop(writer.take());
            }
            run()
        });
        assert!(status.unwrap().success());
        assert!(tries >= 3);
    }
}
