//! Little main memory, for real: a control group of one's own.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU32, Ordering},
};

/// Where control groups are mounted: version 1 has a directory for memory, version 2 has one for all.
const FIRST: &str = "/sys/fs/cgroup/memory";
const SECOND: &str = "/sys/fs/cgroup";

/// A control group whose processes may use so much main memory together, and no swap; removed when
/// dropped, once they have ended.
pub struct MemoryGroup {
    directory: PathBuf,
}

impl MemoryGroup {
    /// An empty one.
    ///
    /// # Panics
    ///
    /// When it cannot be made: that takes root, or a control group that is delegated.
    #[must_use]
    pub fn limited_to(bytes: u64) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("engine-host-tests-{}-{number}", std::process::id());
        let first = Path::new(FIRST).is_dir();
        let parent = Path::new(if first { FIRST } else { SECOND });
        if !first {
            // On already, or the limit below says that it is not.
            let _ = fs::write(parent.join("cgroup.subtree_control"), "+memory");
        }
        let directory = parent.join(name);
        fs::create_dir(&directory)
            .expect("control groups can be made: tests of memory run as root");
        let group = Self { directory };
        let (limit, swap, swapped) = match first {
            true => (
                "memory.limit_in_bytes",
                "memory.memsw.limit_in_bytes",
                bytes,
            ),
            false => ("memory.max", "memory.swap.max", 0),
        };
        group.write(limit, bytes).expect("memory can be limited");
        // A kernel without accounts for swap has no such file; then there is none to use.
        let _ = group.write(swap, swapped);
        group
    }

    fn write(&self, name: &str, value: u64) -> std::io::Result<()> {
        let path = self.directory.join(name);
        fs::OpenOptions::new().write(true).open(&path)?;
        fs::write(path, value.to_string())
    }

    /// Takes in a process; what it starts from then on is in it too.
    ///
    /// # Panics
    ///
    /// When it is gone.
    pub fn take(&self, pid: u32) {
        self.write("cgroup.procs", pid.into())
            .expect("the process is there");
    }

    /// Whether a process is in it.
    ///
    /// # Panics
    ///
    /// When the group is gone.
    #[must_use]
    pub fn has(&self, pid: i32) -> bool {
        let all = fs::read_to_string(self.directory.join("cgroup.procs")).unwrap();
        all.lines().any(|line| line.parse() == Ok(pid))
    }
}

impl Drop for MemoryGroup {
    fn drop(&mut self) {
        // Refused while a process is in it, which a test that fails may have left.
        let _ = fs::remove_dir(&self.directory);
    }
}
