//! What the tests share beside the room: that nothing is left in it, a host in a process of its own.

use std::{
    fs,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    ops::Deref,
    path::Path,
    process::{Child, Command, Stdio},
    time::Duration,
};

use engine_host::{engine, process::ProcessIdentity};
use fakes::{Job, until};

/// Longest time anything here may take.
pub(crate) const LIMIT: Duration = Duration::from_secs(30);

/// A home, a keeper and an ear, for one test.
pub(crate) struct Room(fakes::Room);

impl Deref for Room {
    type Target = fakes::Room;

    fn deref(&self) -> &fakes::Room {
        &self.0
    }
}

impl Room {
    pub(crate) fn new() -> Self {
        Self(fakes::Room::new(
            env!("CARGO_BIN_EXE_fake-host"),
            env!("CARGO_BIN_EXE_fake-engine"),
        ))
    }

    /// A job of an unprivileged user, in a place that it can enter.
    pub(crate) fn job_of_another_user(&self) -> Job {
        use std::os::unix::fs::PermissionsExt;
        for directory in [&self.root, &self.root.join("home")] {
            fs::create_dir_all(directory).unwrap();
            fs::set_permissions(directory, fs::Permissions::from_mode(0o755)).unwrap();
        }
        // The build directory may be closed to others. Another process writes the copy: what is open for
        // writing cannot be run, and what other tests start has for an instant whatever this one has open.
        let program = self.root.join("fake-engine");
        let installed = Command::new("install")
            .args(["-m", "755", "--", env!("CARGO_BIN_EXE_fake-engine")])
            .arg(&program)
            .status();
        assert!(installed.unwrap().success());
        let mut job = self.job(&[]);
        job.program = program;
        job.uid = Some(65_534);
        job
    }

    /// Nothing is left of any engine: no handoff, no record, no process, no lock.
    pub(crate) async fn assert_empty(&self) {
        assert!(!self.handoff_path().exists(), "a handoff is left");
        assert_eq!(engine::instances(&self.home).unwrap(), []);
        assert_eq!(self.records(), Vec::<String>::new());
        let locks = fs::read_dir(self.home.state().join("instances")).unwrap();
        for entry in locks.flatten() {
            let name = entry.file_name().into_string().unwrap();
            // A program that another test starts in this process holds a copy until its exec.
            until("a free lock", || {
                match engine_host::store::try_lock(&entry.path(), "a test").unwrap() {
                    Some(_) => Ok(()),
                    None => Err(format!("{name} is held")),
                }
            })
            .await;
        }
        if let Some(keeper) = self.keeper.process() {
            until(
                "an idle keeper",
                || match engine_host::process::descendants(keeper.pid) {
                    left if left.is_empty() => Ok(()),
                    left => Err(format!("{left:?}")),
                },
            )
            .await;
        }
    }
}

pub(crate) async fn gone(process: ProcessIdentity) {
    until("the end of a process", || {
        if process.is_alive() {
            Err(format!("{process:?} is alive"))
        } else {
            Ok(())
        }
    })
    .await;
}

pub(crate) async fn pid_in(path: &Path) -> ProcessIdentity {
    until("a pid", || {
        let text = fs::read_to_string(path).map_err(|error| error.to_string())?;
        let pid = text.trim().parse().map_err(|_| format!("{text:?}"))?;
        ProcessIdentity::of(pid).ok_or_else(|| format!("{pid} is gone"))
    })
    .await
}

pub(crate) fn status(url: &str, path: &str) -> String {
    let address = url.strip_prefix("http://").unwrap();
    let mut stream = std::net::TcpStream::connect(address).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text.split(' ').nth(1).unwrap().to_owned()
}

/// Makes an engine fail in one way, now; it may end before it answers.
pub(crate) fn fail(url: &str, how: &str) {
    let _ = e2e::http_get(&format!("{url}/fail/{how}"));
}

/// A host in a process of its own.
pub(crate) struct Host {
    pub(crate) child: Child,
    lines: BufReader<std::process::ChildStdout>,
}

impl Host {
    pub(crate) fn start(room: &Room, job: &Job) -> Self {
        Self::start_by(room, job, &[])
    }

    /// Starts it by another program, for example with fewer privileges.
    pub(crate) fn start_by(room: &Room, job: &Job, by: &[&str]) -> Self {
        let path = room.write_job("job", job);
        let words = [by, &[env!("CARGO_BIN_EXE_fake-host")]].concat();
        let mut child = Command::new(words[0])
            .args(&words[1..])
            .arg(path)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        Self { child, lines }
    }

    /// Its next line; empty once it says nothing more.
    pub(crate) fn line(&mut self) -> String {
        let mut line = String::new();
        self.lines.read_line(&mut line).unwrap();
        line.trim().to_owned()
    }
}

impl Drop for Host {
    /// A test that fails leaves no host behind.
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
