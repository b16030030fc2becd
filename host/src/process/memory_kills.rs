//! How often the kernel has killed processes for want of memory: whether a KILL may have been its own.

use std::{
    fs,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use super::ProcessIdentity;

/// Where control groups are mounted (cgroups(7)).
const GROUPS: &str = "/sys/fs/cgroup";

/// A count taken at one moment, to be compared with later ones.
///
/// A control group counts its own processes alone; where it does not count, the whole machine's is
/// taken, in which a stranger's end shows too. Counts start anew with every boot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryKills {
    /// File that counts.
    counter: PathBuf,
    /// What it said.
    count: u64,
}

impl MemoryKills {
    /// The count for a process that has just been started.
    #[must_use]
    pub fn around(process: ProcessIdentity) -> Self {
        let groups = fs::read_to_string(format!("/proc/{}/cgroup", process.pid));
        let counters = counters(&groups.unwrap_or_default());
        let found = counters.into_iter().find_map(|counter| {
            let count = read(&counter)?;
            Some(Self { counter, count })
        });
        found.unwrap_or_else(|| {
            let counter = PathBuf::from("/proc/vmstat");
            Self {
                count: read(&counter).unwrap_or(u64::MAX),
                counter,
            }
        })
    }

    /// Whether there have been more since.
    #[must_use]
    pub fn have_risen(&self) -> bool {
        read(&self.counter).is_some_and(|now| now > self.count)
    }
}

/// Files that count for the groups of a process, as in `/proc/PID/cgroup`: of version 2, then of 1.
fn counters(groups: &str) -> Vec<PathBuf> {
    let root = Path::new(GROUPS);
    let below = |path: &str| path.trim_start_matches('/').to_owned();
    let second = groups
        .lines()
        .filter_map(|line| line.strip_prefix("0::"))
        .map(|path| root.join(below(path)).join("memory.events"));
    let first = groups.lines().filter_map(|line| {
        let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
        let is_memory = controllers.split(',').any(|name| name == "memory");
        is_memory.then(|| {
            root.join("memory")
                .join(below(path))
                .join("memory.oom_control")
        })
    });
    second.chain(first).collect()
}

/// The line `oom_kill N` that all these files have.
fn read(counter: &Path) -> Option<u64> {
    count_in(&fs::read_to_string(counter).ok()?)
}

fn count_in(text: &str) -> Option<u64> {
    text.lines()
        .find_map(|line| line.strip_prefix("oom_kill "))?
        .trim()
        .parse()
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_counters_of_both_versions_of_control_groups_are_found() {
        let name = |path: &Path| path.to_string_lossy().into_owned();
        let found = |text| counters(text).iter().map(|it| name(it)).collect::<Vec<_>>();
        assert_eq!(
            found("0::/system.slice/x.service\n"),
            ["/sys/fs/cgroup/system.slice/x.service/memory.events"]
        );
        assert_eq!(
            found("9:cpu,memory:/a\n1:name=systemd:/b\n0::/\n"),
            [
                "/sys/fs/cgroup/memory.events",
                "/sys/fs/cgroup/memory/a/memory.oom_control"
            ]
        );
        assert!(found("").is_empty());
    }

    #[test]
    fn only_the_count_of_kills_is_read() {
        let events = "low 0\nhigh 0\nmax 7\noom 3\noom_kill 2\noom_group_kill 1\n";
        assert_eq!(count_in(events), Some(2));
        assert_eq!(count_in("oom_kill_disable 0\nunder_oom 0\n"), None);
    }

    #[test]
    fn a_count_that_rises_is_noticed() {
        let place = tempfile::tempdir().unwrap();
        let counter = place.path().join("memory.events");
        let before = MemoryKills {
            counter: counter.clone(),
            count: 1,
        };
        assert!(!before.have_risen());
        fs::write(&counter, "oom_kill 1\n").unwrap();
        assert!(!before.have_risen());
        fs::write(&counter, "oom_kill 2\n").unwrap();
        assert!(before.have_risen());
    }

    #[test]
    fn every_process_has_a_counter_here() {
        let kills = MemoryKills::around(ProcessIdentity::of_this_process());
        assert_ne!(kills.count, u64::MAX, "{}", kills.counter.display());
    }
}
