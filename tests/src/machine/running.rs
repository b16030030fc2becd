//! The program while it runs: what it says, signals to it, its end.

use std::{
    io::Read,
    path::{Path, PathBuf},
    process::{Child, ExitStatus},
    sync::{Arc, Mutex},
    thread::JoinHandle,
    time::Duration,
};

use super::{RUN_LIMIT, Run};
use crate::{processes_below, wait_for};

/// Characters of the command of a process that is told to have been left.
const COMMAND_SHOWN: usize = 160;

/// The program while it runs; killed with everything it started when dropped.
pub struct Running {
    child: Child,
    home: PathBuf,
    stdout: Captured,
    stderr: Captured,
}

/// What a pipe gave so far; read from the start, so that a full pipe never stops the program.
struct Captured {
    text: Arc<Mutex<Vec<u8>>>,
    reader: JoinHandle<()>,
}

impl Running {
    /// A child whose outputs are piped, in whose home nothing is to be left.
    pub(super) fn of(mut child: Child, home: &Path) -> Self {
        Self {
            stdout: Captured::of(child.stdout.take().expect("piped")),
            stderr: Captured::of(child.stderr.take().expect("piped")),
            child,
            home: home.to_owned(),
        }
    }

    /// Process id of the program.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal to the program alone.
    pub fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).expect("the program is still there");
    }

    /// Sends a signal to its process group, as a terminal does.
    pub fn signal_group(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process_group(pid, signal).expect("the group is still there");
    }

    /// Waits until its engine is ready and gives the URL.
    ///
    /// # Panics
    ///
    /// When the program ends before, or takes longer than any run may.
    pub fn wait_ready(&mut self) -> String {
        self.wait_ready_for(RUN_LIMIT)
    }

    /// The same with a limit of one's own.
    ///
    /// # Panics
    ///
    /// When the program ends before, or takes longer.
    pub fn wait_ready_for(&mut self, limit: Duration) -> String {
        wait_for("the engine to be ready", limit, || {
            let said = self.stdout();
            if let Some((_, rest)) = said.split_once(" is ready at ")
                && let Some((url, _)) = rest.split_once('\n')
            {
                return Ok(url.to_owned());
            }
            if let Some(status) = self.ended() {
                panic!("ended with {status}:\n{said}{}", self.stderr());
            }
            Err(self.stderr())
        })
    }

    /// Waits until standard error says this.
    ///
    /// # Panics
    ///
    /// When the program ends before, or takes longer than any run may.
    pub fn wait_said(&mut self, text: &str) {
        wait_for(&format!("`{text}`"), RUN_LIMIT, || {
            let said = self.stderr();
            if said.contains(text) {
                return Ok(());
            }
            assert!(self.ended().is_none(), "ended without `{text}`:\n{said}");
            Err(said)
        });
    }

    /// Sends a signal and waits for the end.
    #[must_use]
    pub fn end(self, signal: rustix::process::Signal) -> Run {
        self.signal(signal);
        self.finish(RUN_LIMIT)
    }

    /// Whether it has ended.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().unwrap()
    }

    /// Waits for its end and takes what it printed.
    ///
    /// # Panics
    ///
    /// When it takes longer than `limit`.
    #[must_use]
    pub fn finish(mut self, limit: Duration) -> Run {
        let status = wait_for("the program to end", limit, || {
            self.child.try_wait().unwrap().ok_or("still running")
        });
        // A pipe that stays open means that something inherited it and outlived the program.
        wait_for("its output", Duration::from_secs(5), || {
            let done = self.stdout.reader.is_finished() && self.stderr.reader.is_finished();
            if done {
                Ok(())
            } else {
                Err("pipes still open")
            }
        });
        Run {
            code: exit_code(status),
            stdout: self.stdout(),
            stderr: self.stderr(),
        }
    }

    /// What it printed on standard output so far.
    #[must_use]
    pub fn stdout(&self) -> String {
        self.stdout.so_far()
    }

    /// What it printed on standard error so far.
    #[must_use]
    pub fn stderr(&self) -> String {
        self.stderr.so_far()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            for mut process in processes_below(&self.home) {
                process.command = process.command.chars().take(COMMAND_SHOWN).collect();
                eprintln!("left behind: {process:?}");
            }
        }
    }
}

impl Captured {
    fn of(mut pipe: impl Read + Send + 'static) -> Self {
        let text = Arc::new(Mutex::new(Vec::new()));
        let shared = Arc::clone(&text);
        let reader = std::thread::spawn(move || {
            let mut block = [0; 4096];
            while let Ok(length @ 1..) = pipe.read(&mut block) {
                shared.lock().unwrap().extend_from_slice(&block[..length]);
            }
        });
        Self { text, reader }
    }

    fn so_far(&self) -> String {
        String::from_utf8_lossy(&self.text.lock().unwrap()).into_owned()
    }
}

fn exit_code(status: ExitStatus) -> i32 {
    use std::os::unix::process::ExitStatusExt;
    status
        .code()
        .unwrap_or_else(|| 128 + status.signal().expect("it ended one way or the other"))
}
