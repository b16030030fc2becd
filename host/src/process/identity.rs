//! Who a process is: a pid alone may have been given to somebody else since.
//!
//! Read from `/proc` (proc_pid_stat(5)); everything here only looks.

use std::{collections::BTreeMap, fs};

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};

/// A process that cannot be mistaken for a later one with the same pid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ProcessIdentity {
    /// Process id.
    pub pid: i32,
    /// Start, in clock ticks since the machine was booted.
    pub start_time_ticks: u64,
}

/// The fields of `/proc/PID/stat` that matter here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stat {
    state: u8,
    parent: i32,
    start_time_ticks: u64,
}

impl ProcessIdentity {
    /// No process at all.
    pub const NOBODY: Self = Self {
        pid: 0,
        start_time_ticks: 0,
    };

    /// The identity of a process that exists now, a zombie included.
    #[must_use]
    pub fn of(pid: i32) -> Option<Self> {
        Some(Self {
            pid,
            start_time_ticks: read_stat(pid)?.start_time_ticks,
        })
    }

    /// The identity of this process.
    #[must_use]
    pub fn of_this_process() -> Self {
        let pid = rustix::process::getpid().as_raw_pid();
        Self::of(pid).unwrap_or(Self {
            pid,
            start_time_ticks: 0,
        })
    }

    /// Whether this very process still runs. A zombie does not.
    #[must_use]
    pub fn is_alive(self) -> bool {
        read_stat(self.pid).is_some_and(|stat| self.is(stat) && !matches!(stat.state, b'Z' | b'X'))
    }

    /// The process that started it, or that has adopted it since.
    #[must_use]
    pub fn parent(self) -> Option<Self> {
        Self::of(read_stat(self.pid).filter(|stat| self.is(*stat))?.parent)
    }

    /// Sends a signal to this very process, never to a later one with its pid. Returns whether it
    /// was there to receive it.
    pub fn signal(self, signal: Signal) -> std::io::Result<bool> {
        let Some(pid) = Pid::from_raw(self.pid) else {
            return Ok(false);
        };
        let handle = match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(handle) => handle,
            Err(rustix::io::Errno::SRCH) => return Ok(false),
            Err(error) => return Err(error.into()),
        };
        // The handle pins the process: if it is the right one now, it stays the right one.
        if !read_stat(self.pid).is_some_and(|stat| self.is(stat)) {
            return Ok(false);
        }
        match pidfd_send_signal(&handle, signal) {
            Ok(()) => Ok(true),
            Err(rustix::io::Errno::SRCH) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// This process and all its descendants, itself first. Empty when it is gone.
    #[must_use]
    pub fn tree(self) -> Vec<Self> {
        if !read_stat(self.pid).is_some_and(|stat| self.is(stat)) {
            return Vec::new();
        }
        let mut tree = vec![self];
        tree.extend(descendants(self.pid));
        tree
    }

    fn is(self, stat: Stat) -> bool {
        stat.start_time_ticks == self.start_time_ticks
    }
}

/// All descendants of a process, parents before children.
#[must_use]
pub fn descendants(root: i32) -> Vec<ProcessIdentity> {
    let mut children: BTreeMap<i32, Vec<ProcessIdentity>> = BTreeMap::new();
    for pid in all_processes() {
        if let Some(stat) = read_stat(pid) {
            let identity = ProcessIdentity {
                pid,
                start_time_ticks: stat.start_time_ticks,
            };
            children.entry(stat.parent).or_default().push(identity);
        }
    }
    let mut found = children.remove(&root).unwrap_or_default();
    let mut next = 0;
    while next < found.len() {
        let below = children.remove(&found[next].pid).unwrap_or_default();
        found.extend(below);
        next += 1;
    }
    found
}

/// The processes whose parent a process is, zombies left out.
pub(super) fn children(parent: i32) -> Vec<ProcessIdentity> {
    all_processes()
        .filter_map(|pid| Some((pid, read_stat(pid)?)))
        .filter(|(_, stat)| stat.parent == parent && !matches!(stat.state, b'Z' | b'X'))
        .map(|(pid, stat)| ProcessIdentity {
            pid,
            start_time_ticks: stat.start_time_ticks,
        })
        .collect()
}

/// How much processes have read so far (proc_pid_io(5)).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct BytesRead {
    /// By read(2) and alike, cached files and some sockets included.
    pub by_calls: u64,
    /// From storage, mapped files included.
    pub from_storage: u64,
}

/// How much these processes have read so far; those that may not be looked at count as nothing.
#[must_use]
pub fn bytes_read(processes: &[ProcessIdentity]) -> BytesRead {
    processes
        .iter()
        .filter_map(|process| fs::read_to_string(format!("/proc/{}/io", process.pid)).ok())
        .filter_map(|text| parse_bytes_read(&text))
        .fold(BytesRead::default(), |sum, one| BytesRead {
            by_calls: sum.by_calls.saturating_add(one.by_calls),
            from_storage: sum.from_storage.saturating_add(one.from_storage),
        })
}

fn all_processes() -> impl Iterator<Item = i32> {
    fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

fn read_stat(pid: i32) -> Option<Stat> {
    // The command's name may hold any byte, so this is not read as UTF-8.
    let bytes = fs::read(format!("/proc/{pid}/stat")).ok()?;
    parse_stat(&String::from_utf8_lossy(&bytes))
}

fn parse_stat(text: &str) -> Option<Stat> {
    // The second field, the command's name, may itself hold spaces and parentheses.
    let mut fields = text.rsplit_once(')')?.1.split_whitespace();
    let state = *fields.next()?.as_bytes().first()?;
    let parent = fields.next()?.parse().ok()?;
    // Field 22; `fields` stands before field 5.
    let start_time_ticks = fields.nth(17)?.parse().ok()?;
    Some(Stat {
        state,
        parent,
        start_time_ticks,
    })
}

fn parse_bytes_read(text: &str) -> Option<BytesRead> {
    let value = |name: &str| -> Option<u64> {
        text.lines()
            .find_map(|line| line.strip_prefix(name))?
            .trim()
            .parse()
            .ok()
    };
    Some(BytesRead {
        by_calls: value("rchar:")?,
        from_storage: value("read_bytes:")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_name_with_parentheses_does_not_confuse() {
        let text = "77 (a) b (c) S 5 77 77 0 -1 4194304 1 2 3 4 5 6 7 8 20 0 1 0 123456 9 9";
        assert_eq!(
            parse_stat(text),
            Some(Stat {
                state: b'S',
                parent: 5,
                start_time_ticks: 123_456
            })
        );
        assert_eq!(parse_stat("77 (x"), None);
    }

    #[test]
    fn this_process_is_alive_and_a_namesake_is_not() {
        let this = ProcessIdentity::of_this_process();
        assert!(this.is_alive());
        let namesake = ProcessIdentity {
            start_time_ticks: this.start_time_ticks + 1,
            ..this
        };
        assert!(!namesake.is_alive());
        assert!(!namesake.signal(Signal::TERM).unwrap());
        assert!(namesake.tree().is_empty());
    }

    #[test]
    fn reading_counts_as_progress() {
        let text = "rchar: 100\nwchar: 1\nread_bytes: 4096\n";
        let read = parse_bytes_read(text).unwrap();
        assert_eq!((read.by_calls, read.from_storage), (100, 4096));
        assert!(bytes_read(&[ProcessIdentity::of_this_process()]).by_calls > 0);
    }
}
