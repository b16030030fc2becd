//! The walls a worker puts up around itself before any foreign code runs.
//!
//! | measure | keeps out | needs |
//! |---|---|---|
//! | empty environment, no inherited descriptors | secrets of the host's process | nothing |
//! | resource limits | running out of memory, core files with its contents, written files | nothing |
//! | empty network namespace | every network, Unix sockets by abstract name | privilege, or user namespaces |
//! | unprivileged user | what the host's user may do; only when that is root | root |
//! | no new privileges | set-user-id programs | nothing |
//! | Landlock | all files but the system's library directories, all writing | Linux 5.13 with Landlock |
//! | system-call filter | sockets, programs, other processes, io_uring, anything not listed | seccomp |
//!
//! Applied in this order by a process that still has a single thread, so that no thread stays
//! outside. What could not be put up is reported as data; the host decides whether that will do.

use std::{
    collections::BTreeSet,
    fs::File,
    path::{Path, PathBuf},
};

use landlock::{
    ABI, Access as _, AccessFs, AccessNet, PathBeneath, PathFd, Ruleset, RulesetAttr as _,
    RulesetCreatedAttr as _, RulesetStatus, Scope,
};
use rustix::{
    process::{Resource, Rlimit, setrlimit},
    thread::{Gid, Uid, UnshareFlags},
};
use serde::{Deserialize, Serialize};

use super::{filter, wire::Terms};

/// User and group of a worker whose host is root: a number without a name, in the range that
/// systemd documents as free, so that no other service shares it.
const WORKER_ID: u32 = 60_777;

/// Memory a worker may map. Documents have kilobytes; the library and its threads fit many times.
const MEMORY_BYTES: u64 = 2 * 1024 * 1024 * 1024;

/// Descriptors a worker may have: the loader needs a few at a time.
const DESCRIPTORS: u64 = 64;

/// Processor time of a whole session, in seconds; a bound even if the host is gone and the worker's
/// own watcher was disabled.
const PROCESSOR_SECONDS: u64 = 600;

/// Library directories every distribution uses; those of the C library in use are added.
const LIBRARY_DIRECTORIES: &[&str] =
    &["/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib"];

/// Files the loader reads beside the libraries.
const LOADER_FILES: &[&str] = &["/etc/ld.so.cache"];

/// Newest Landlock interface whose rights are asked for; older kernels give fewer.
const LANDLOCK: ABI = ABI::V6;

/// What holds around a worker, in the order of application.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sandbox {
    /// Every measure with its outcome.
    pub measures: Vec<Outcome>,
}

/// A measure and what came of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outcome {
    /// Which one.
    pub measure: Measure,
    /// Why it does not hold; `None` where it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lacking: Option<String>,
}

/// One wall.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Measure {
    /// No variable and no descriptor of the host's process.
    CleanStart,
    /// Limits on memory, descriptors, processor time, files.
    ResourceLimits,
    /// A network namespace without any interface.
    NetworkNamespace,
    /// A user id without any right.
    UnprivilegedUser,
    /// No set-user-id program gives rights.
    NoNewPrivileges,
    /// Files that may be read, none that may be written.
    Landlock,
    /// System calls that may be made.
    SystemCalls,
}

impl Measure {
    /// Whether a third party's provider is refused without it. The network namespace is a second
    /// wall behind the system-call filter, and many containers cannot make one.
    #[must_use]
    pub fn is_required(self) -> bool {
        self != Self::NetworkNamespace
    }

    fn title(self) -> &'static str {
        match self {
            Self::CleanStart => "clean start",
            Self::ResourceLimits => "resource limits",
            Self::NetworkNamespace => "empty network namespace",
            Self::UnprivilegedUser => "unprivileged user",
            Self::NoNewPrivileges => "no new privileges",
            Self::Landlock => "Landlock",
            Self::SystemCalls => "system-call filter",
        }
    }
}

impl Sandbox {
    /// Whether a measure was taken and holds.
    #[must_use]
    pub fn holds(&self, measure: Measure) -> bool {
        self.measures
            .iter()
            .any(|outcome| outcome.measure == measure && outcome.lacking.is_none())
    }

    /// Measures that are required and do not hold, with the reason, one line each.
    #[must_use]
    pub fn lacking(&self) -> Vec<String> {
        self.measures
            .iter()
            .filter(|outcome| outcome.measure.is_required())
            .filter_map(|outcome| {
                let reason = outcome.lacking.as_ref()?;
                Some(format!("no {}: {reason}", outcome.measure.title()))
            })
            .collect()
    }

    pub(super) fn note(&mut self, measure: Measure, result: Result<(), String>) {
        self.measures.push(Outcome {
            measure,
            lacking: result.err(),
        });
    }
}

/// Puts up every wall that this machine allows around this process, which has one thread.
///
/// `library` stays openable through its descriptor.
pub(super) fn enter(sandbox: &mut Sandbox, library: &File, terms: &Terms) {
    sandbox.note(Measure::ResourceLimits, limit_resources());
    sandbox.note(Measure::NetworkNamespace, leave_network());
    if terms.drop_user {
        sandbox.note(Measure::UnprivilegedUser, give_up_root());
    }
    sandbox.note(
        Measure::NoNewPrivileges,
        rustix::thread::set_no_new_privs(true).map_err(|error| error.to_string()),
    );
    sandbox.note(
        Measure::Landlock,
        restrict_files((!terms.in_memory).then_some(library)),
    );
    sandbox.note(Measure::SystemCalls, filter::apply());
}

fn limit_resources() -> Result<(), String> {
    let limits = [
        (Resource::As, MEMORY_BYTES),
        (Resource::Core, 0),
        (Resource::Fsize, 0),
        (Resource::Nofile, DESCRIPTORS),
        (Resource::Cpu, PROCESSOR_SECONDS),
    ];
    for (resource, most) in limits {
        let hard = rustix::process::getrlimit(resource).maximum;
        let most = Some(hard.map_or(most, |hard| hard.min(most)));
        let limit = Rlimit {
            current: most,
            maximum: most,
        };
        setrlimit(resource, limit).map_err(|error| format!("{resource:?}: {error}"))?;
    }
    Ok(())
}

/// Enters a network namespace of its own, through a user namespace where that is the only way.
#[expect(
    unsafe_code,
    reason = "leaving namespaces can break what other threads rely on"
)]
fn leave_network() -> Result<(), String> {
    // SAFETY: this process has a single thread, and neither flag touches descriptors or memory.
    let unshare = |flags| unsafe { rustix::thread::unshare_unsafe(flags) };
    unshare(UnshareFlags::NEWNET)
        .or_else(|_| unshare(UnshareFlags::NEWUSER | UnshareFlags::NEWNET))
        .map_err(|error| error.to_string())
}

/// Becomes a user without rights. Threads made later inherit it; there are none before.
fn give_up_root() -> Result<(), String> {
    let (uid, gid) = (Uid::from_raw(WORKER_ID), Gid::from_raw(WORKER_ID));
    rustix::thread::set_thread_groups(&[])
        .and_then(|()| rustix::thread::set_thread_res_gid(gid, gid, gid))
        .and_then(|()| rustix::thread::set_thread_res_uid(uid, uid, uid))
        .map_err(|error| error.to_string())
}

fn restrict_files(library: Option<&File>) -> Result<(), String> {
    let say = |error: landlock::RulesetError| crate::narrate::chain(&error);
    let mut ruleset = Ruleset::default()
        .handle_access(AccessFs::from_all(LANDLOCK))
        .and_then(|ruleset| ruleset.handle_access(AccessNet::from_all(LANDLOCK)))
        .and_then(|ruleset| ruleset.scope(Scope::from_all(LANDLOCK)))
        .and_then(|ruleset| ruleset.create())
        .map_err(say)?;
    for path in readable_paths() {
        // What is not there need not be allowed.
        let Ok(descriptor) = PathFd::new(&path) else {
            continue;
        };
        let rights = if path.is_dir() {
            AccessFs::ReadFile | AccessFs::ReadDir
        } else {
            AccessFs::ReadFile.into()
        };
        ruleset = ruleset
            .add_rule(PathBeneath::new(descriptor, rights))
            .map_err(say)?;
    }
    if let Some(library) = library {
        ruleset = ruleset
            .add_rule(PathBeneath::new(library, AccessFs::ReadFile))
            .map_err(say)?;
    }
    let status = ruleset.restrict_self().map_err(say)?;
    match status.ruleset {
        RulesetStatus::NotEnforced => Err("this kernel has it not or switched off".to_owned()),
        RulesetStatus::PartiallyEnforced | RulesetStatus::FullyEnforced => Ok(()),
    }
}

fn readable_paths() -> BTreeSet<PathBuf> {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    LIBRARY_DIRECTORIES
        .iter()
        .chain(LOADER_FILES)
        .map(PathBuf::from)
        .chain(c_library_directory(&maps))
        .collect()
}

/// Directory of the C library in use, for systems that keep it elsewhere.
fn c_library_directory(maps: &str) -> Option<PathBuf> {
    maps.lines()
        .filter_map(|line| line.split_ascii_whitespace().nth(5))
        .map(Path::new)
        .find(|path| {
            path.file_name()
                .and_then(|name| name.to_str())
                .is_some_and(|name| name.starts_with("libc.so") || name.starts_with("libc-"))
        })
        .and_then(Path::parent)
        .map(Path::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_lacking_is_told_only_where_it_is_required() {
        let mut sandbox = Sandbox::default();
        sandbox.note(Measure::NetworkNamespace, Err("EPERM".to_owned()));
        sandbox.note(Measure::Landlock, Err("switched off".to_owned()));
        sandbox.note(Measure::SystemCalls, Ok(()));
        assert_eq!(sandbox.lacking(), ["no Landlock: switched off"]);
        assert!(sandbox.holds(Measure::SystemCalls));
        assert!(!sandbox.holds(Measure::CleanStart));
    }

    #[test]
    fn the_c_library_is_found_where_it_really_lies() {
        let maps = "7f-8f r-xp 00000000 08:01 1 /nix/store/abc-glibc-2.40/lib/libc.so.6\n\
                    9f-af rw-p 00000000 00:00 0 [stack]";
        assert_eq!(
            c_library_directory(maps),
            Some(PathBuf::from("/nix/store/abc-glibc-2.40/lib"))
        );
    }
}
