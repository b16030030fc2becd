//! What runs on this machine, as /proc tells it.

use std::{fs, path::Path, time::Duration};

use rustix::{
    io::Errno,
    process::{Pid, Signal, kill_process},
};

/// A process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process {
    /// Its id.
    pub pid: u32,
    /// Its parent's id.
    pub parent: u32,
    /// Its arguments, joined by spaces.
    pub command: String,
    /// State letter of /proc/PID/stat; `Z` is a zombie.
    pub state: char,
}

impl Process {
    /// The one with this id, while it is there.
    pub(crate) fn of(pid: u32) -> Option<Self> {
        look(pid, "")
    }
}

/// Processes that have anything to do with a directory: program, arguments, working directory or
/// `HOST_HOME` lie in it. The calling process is left out.
#[must_use]
pub fn processes_below(directory: &Path) -> Vec<Process> {
    let needle = directory.to_str().expect("test directories are UTF-8");
    let this = std::process::id();
    let mut found: Vec<Process> = fs::read_dir("/proc")
        .expect("/proc is mounted")
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter(|pid| *pid != this)
        .filter_map(|pid| look(pid, needle))
        .collect();
    found.sort_by_key(|process| process.pid);
    found
}

/// Children of a process, whatever they show of themselves: a sandboxed worker has no environment and
/// no directory by which [`processes_below`] could find it.
#[must_use]
pub fn children_of(parent: u32) -> Vec<Process> {
    let mut all = processes_below(Path::new(""));
    all.retain(|process| process.parent == parent);
    all
}

fn look(pid: u32, needle: &str) -> Option<Process> {
    let text = |name: &str| {
        fs::read(format!("/proc/{pid}/{name}"))
            .map(|bytes| String::from_utf8_lossy(&bytes).replace('\0', " "))
            .unwrap_or_default()
    };
    let link = |name: &str| {
        fs::read_link(format!("/proc/{pid}/{name}"))
            .map(|path| path.to_string_lossy().into_owned())
            .unwrap_or_default()
    };
    let command = text("cmdline");
    let concerned = [&command, &text("environ"), &link("cwd"), &link("exe")]
        .iter()
        .any(|part| part.contains(needle));
    let stat = text("stat");
    let mut fields = stat.rsplit_once(") ")?.1.split(' ');
    let state = fields.next()?.chars().next()?;
    let parent = fields.next()?.parse().ok()?;
    concerned.then_some(Process {
        pid,
        parent,
        command,
        state,
    })
}

/// Real user id of a process; `None`: it is gone.
#[must_use]
pub fn uid_of(pid: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    line.split_whitespace().next()?.parse().ok()
}

/// Environment a process was started with, sorted; `None`: it has ended, with which its environment goes before
/// itself does, or may not be looked at.
#[must_use]
pub fn environment_of(pid: u32) -> Option<Vec<String>> {
    let bytes = fs::read(format!("/proc/{pid}/environ")).ok()?;
    let mut all: Vec<String> = bytes
        .split(|byte| *byte == 0)
        .filter(|pair| !pair.is_empty())
        .map(|pair| String::from_utf8_lossy(pair).into_owned())
        .collect();
    all.sort();
    (!all.is_empty()).then_some(all)
}

/// Sends a signal to a process.
///
/// # Panics
///
/// When it is gone.
pub fn signal(pid: u32, signal: Signal) {
    assert!(signal_if_there(pid, signal), "process {pid} is gone");
}

/// The same to one that may have ended since it was seen; whether it was there.
///
/// # Panics
///
/// When it may not be sent.
pub fn signal_if_there(pid: u32, signal: Signal) -> bool {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    match kill_process(pid.expect("a process id"), signal) {
        Ok(()) => true,
        Err(Errno::SRCH) => false,
        Err(error) => panic!("{signal:?} cannot be sent to {pid:?}: {error}"),
    }
}

/// Processor time that a process itself has used, its children left out.
///
/// # Panics
///
/// When it is gone.
#[must_use]
pub fn processor_time(pid: u32) -> Duration {
    // utime and stime
    times(pid, [14, 15])
}

/// Processor time that the children of a process have used which it has waited for, and theirs.
///
/// # Panics
///
/// When it is gone.
#[must_use]
pub fn processor_time_of_children(pid: u32) -> Duration {
    // cutime and cstime
    times(pid, [16, 17])
}

/// The sum of two times among the fields of `/proc/PID/stat` (proc_pid_stat(5)), which count from 1.
fn times(pid: u32, fields: [usize; 2]) -> Duration {
    /// Number of the first field after the name, in which blanks may be.
    const FIRST: usize = 3;
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let all: Vec<&str> = stat.rsplit_once(") ").unwrap().1.split(' ').collect();
    let ticks: u64 = fields
        .iter()
        .map(|field| all[field - FIRST].parse::<u64>().unwrap())
        .sum();
    // USER_HZ: 100 per second on every machine that Linux shows to programs.
    Duration::from_millis(ticks * 10)
}

/// Memory that processes occupy together, in bytes: what they share counts once.
///
/// The kernel divides a shared page among those that map it (`Pss` in proc(5)).
///
/// # Panics
///
/// When one is gone, or may not be looked at.
#[must_use]
pub fn resident_bytes(pids: &[u32]) -> u64 {
    pids.iter().map(|pid| rolled_up(*pid, "Pss:")).sum()
}

/// Memory that a process occupies itself, in bytes, whoever else has the same code in memory (`Rss` in
/// proc(5)).
///
/// # Panics
///
/// When it is gone, or may not be looked at.
#[must_use]
pub fn own_resident_bytes(pid: u32) -> u64 {
    rolled_up(pid, "Rss:")
}

/// A line of `/proc/PID/smaps_rollup`, in bytes.
fn rolled_up(pid: u32, name: &str) -> u64 {
    let path = format!("/proc/{pid}/smaps_rollup");
    let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    let kibibytes = line.and_then(|line| line.split_whitespace().next());
    kibibytes.unwrap().parse::<u64>().unwrap() * 1024
}
