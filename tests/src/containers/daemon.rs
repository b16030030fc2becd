//! Daemons of the tests' own: they end with the process that started them, however it ends.

use std::{
    fs,
    io::{BufRead as _, BufReader, Write as _},
    net::TcpStream,
    os::unix::process::CommandExt as _,
    path::Path,
    process::{Child, Command, Stdio},
    time::Duration,
};

use crate::{Process, wait_for};

/// Longest one may take to answer after its start.
const START_LIMIT: Duration = Duration::from_secs(30);

/// Starts what it is given, waits until nobody holds its standard input any more, ends it and cleans
/// up. A parent-death signal would not do: it is sent when the *thread* that started it ends.
const WARDEN: &str = r#"
log=$1 afterwards=$2
shift 2
"$@" </dev/null >"$log" 2>&1 &
pid=$!
echo "$pid"
exec >/dev/null
cat
kill -TERM "$pid" 2>/dev/null
wait "$pid"
eval "$afterwards"
"#;

/// A program that serves the tests.
pub(crate) struct Daemon {
    warden: Child,
    /// Its own, the warden's child.
    pid: u32,
}

impl Daemon {
    /// Starts it; `afterwards` is shell that runs when it has ended.
    ///
    /// # Panics
    ///
    /// When there is no shell.
    pub(crate) fn start(command: &[&str], log: &Path, afterwards: &str) -> Self {
        let mut warden = Command::new("sh")
            .args(["-c", WARDEN, "warden"])
            .arg(log)
            .arg(afterwards)
            .args(command)
            // Ctrl-C ends the tests; their end ends this.
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("there is a shell");
        let mut said = String::new();
        let stdout = warden.stdout.take().expect("piped");
        BufReader::new(stdout).read_line(&mut said).unwrap();
        let pid = said.trim().parse().expect("it says whom it started");
        Self { warden, pid }
    }

    /// Starts one of whom everything lies in a directory, and waits until somebody listens on its port. Where
    /// the tests were killed, nobody else is left to remove the directory.
    ///
    /// # Panics
    ///
    /// When nobody does within `START_LIMIT`.
    pub(crate) fn listening(what: &str, command: &[&str], directory: &Path, port: u16) -> Self {
        let log = directory.join("log");
        let afterwards = format!(
            "[ -d /proc/{} ] || rm -rf '{}'",
            std::process::id(),
            directory.display()
        );
        let daemon = Self::start(command, &log, &afterwards);
        wait_for(&format!("{what} to answer"), START_LIMIT, || {
            let said = fs::read_to_string(&log).unwrap_or_default();
            assert!(!daemon.ended(), "{what} ended:\n{said}");
            TcpStream::connect(("127.0.0.1", port)).map_err(|_| said)
        });
        daemon
    }

    /// Whether it has ended by itself; what it said then stands in its log. The warden waits on, for the end of
    /// the tests.
    pub(crate) fn ended(&self) -> bool {
        let lives = |it: Process| it.state != 'Z' && it.parent == self.warden.id();
        !Process::of(self.pid).is_some_and(lives)
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        drop(self.warden.stdin.take());
        let _ = self.warden.wait();
    }
}

/// Runs a program that has to succeed.
///
/// # Panics
///
/// When it does not.
#[track_caller]
pub(crate) fn must(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .unwrap_or_else(|error| panic!("{program}: {error}; scripts/setup-tests installs it"));
    assert!(
        output.status.success(),
        "{program} {arguments:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The same with something to read.
///
/// # Panics
///
/// When it fails.
#[track_caller]
pub(crate) fn must_with(program: &str, arguments: &[&str], input: &str) -> String {
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("{program}: {error}; scripts/setup-tests installs it"));
    let mut pipe = child.stdin.take().expect("piped");
    pipe.write_all(input.as_bytes()).unwrap();
    drop(pipe);
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{program} {arguments:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Shell that removes a directory and whatever is mounted below it, deepest first.
pub(crate) fn removal(directory: &Path) -> String {
    let directory = directory.display();
    format!(
        "awk '$5 ~ \"^{directory}/\" {{ print $5 }}' /proc/self/mountinfo | sort -r | \
         while read -r mounted; do umount -l \"$mounted\"; done; rm -rf '{directory}'"
    )
}

/// Directories `PREFIX<pid>` in the directory for temporary files whose process is gone.
pub(crate) fn abandoned(prefix: &str) -> Vec<std::path::PathBuf> {
    let entries = fs::read_dir(std::env::temp_dir()).into_iter().flatten();
    entries
        .flatten()
        .filter(|entry| {
            let name = entry.file_name();
            let name = name.to_string_lossy();
            let pid = name
                .strip_prefix(prefix)
                .and_then(|rest| rest.split('-').next());
            pid.is_some_and(|pid| {
                pid.parse::<u32>().is_ok() && !Path::new("/proc").join(pid).exists()
            })
        })
        .map(|entry| entry.path())
        .collect()
}
