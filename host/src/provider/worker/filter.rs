//! The system calls a worker may make: an allow-list, everything else fails with EPERM.
//!
//! A provider computes. It needs memory, locks, clocks, its own threads, the loader's reads and the
//! two pipes it was started with. Calls that could reach another process take only this one as
//! their target. `clone3` answers ENOSYS, because its flags lie in memory where no filter can see
//! them; the C library then uses `clone`, which may make threads only.

use std::collections::BTreeMap;

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen as Length, SeccompCmpOp as Compare,
    SeccompCondition, SeccompFilter, SeccompRule, TargetArch,
};

/// Calls that may be made with any arguments.
const ALLOWED: &[libc::c_long] = &[
    // Memory.
    libc::SYS_brk,
    libc::SYS_madvise,
    libc::SYS_membarrier,
    libc::SYS_mmap,
    libc::SYS_mprotect,
    libc::SYS_mremap,
    libc::SYS_munmap,
    libc::SYS_get_mempolicy,
    // Descriptors there are, and files that Landlock lets be read.
    libc::SYS_close,
    libc::SYS_dup,
    libc::SYS_dup3,
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    libc::SYS_eventfd2,
    libc::SYS_faccessat,
    libc::SYS_faccessat2,
    libc::SYS_fstat,
    libc::SYS_getcwd,
    libc::SYS_getdents64,
    libc::SYS_lseek,
    libc::SYS_newfstatat,
    libc::SYS_openat,
    libc::SYS_pipe2,
    libc::SYS_ppoll,
    libc::SYS_pread64,
    libc::SYS_read,
    libc::SYS_readlinkat,
    libc::SYS_readv,
    libc::SYS_statx,
    libc::SYS_write,
    libc::SYS_writev,
    // Threads and locks.
    libc::SYS_clone3,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_futex,
    libc::SYS_get_robust_list,
    libc::SYS_gettid,
    libc::SYS_rseq,
    libc::SYS_sched_getaffinity,
    libc::SYS_sched_yield,
    libc::SYS_set_robust_list,
    libc::SYS_set_tid_address,
    // Signals of its own: handlers, masks, stacks.
    libc::SYS_restart_syscall,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sigaltstack,
    // Clocks and randomness.
    libc::SYS_clock_getres,
    libc::SYS_clock_gettime,
    libc::SYS_clock_nanosleep,
    libc::SYS_getrandom,
    libc::SYS_gettimeofday,
    libc::SYS_nanosleep,
    // What it may know about itself.
    libc::SYS_getegid,
    libc::SYS_geteuid,
    libc::SYS_getgid,
    libc::SYS_getpid,
    libc::SYS_getppid,
    libc::SYS_getrusage,
    libc::SYS_getuid,
    libc::SYS_sysinfo,
    libc::SYS_uname,
];

/// Older forms that only some processors have.
#[cfg(target_arch = "x86_64")]
const ALLOWED_HERE: &[libc::c_long] = &[
    libc::SYS_access,
    libc::SYS_arch_prctl,
    libc::SYS_dup2,
    libc::SYS_epoll_wait,
    libc::SYS_lstat,
    libc::SYS_open,
    libc::SYS_poll,
    libc::SYS_readlink,
    libc::SYS_stat,
    libc::SYS_time,
];
#[cfg(not(target_arch = "x86_64"))]
const ALLOWED_HERE: &[libc::c_long] = &[];

/// Filters the system calls of this thread and of all it will make. Cannot be undone.
pub(super) fn apply() -> Result<(), String> {
    let own = u64::from(std::process::id());
    let programs = programs(own).map_err(|error| error.to_string())?;
    for program in &programs {
        seccompiler::apply_filter(program).map_err(|error| error.to_string())?;
    }
    Ok(())
}

/// The filters, in the order of their installation: the list comes last, because it does not let
/// another one be installed. It has `clone3`, which the other one answers: of two verdicts the
/// kernel takes the stricter.
fn programs(own: u64) -> Result<Vec<BpfProgram>, seccompiler::BackendError> {
    let arch: TargetArch = std::env::consts::ARCH.try_into()?;
    let refuse = |errno: i32| SeccompAction::Errno(errno.cast_unsigned());
    let list = SeccompFilter::new(rules(own)?, refuse(libc::EPERM), SeccompAction::Allow, arch)?;
    let unseen = SeccompFilter::new(
        BTreeMap::from([(libc::SYS_clone3, Vec::new())]),
        SeccompAction::Allow,
        refuse(libc::ENOSYS),
        arch,
    )?;
    Ok(vec![unseen.try_into()?, list.try_into()?])
}

fn rules(own: u64) -> Result<BTreeMap<i64, Vec<SeccompRule>>, seccompiler::BackendError> {
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> = ALLOWED
        .iter()
        .chain(ALLOWED_HERE)
        .map(|number| (*number, Vec::new()))
        .collect();
    let when = |number: u8, length: Length, compare: Compare, value: u64| {
        SeccompRule::new(vec![SeccompCondition::new(number, length, compare, value)?])
    };
    // Threads: the process's own descriptors and signal handlers stay shared, nothing is forked.
    let thread = (libc::CLONE_THREAD | libc::CLONE_VM | libc::CLONE_SIGHAND) as u64;
    let namespaces = (libc::CLONE_NEWUSER
        | libc::CLONE_NEWNET
        | libc::CLONE_NEWNS
        | libc::CLONE_NEWPID
        | libc::CLONE_NEWIPC
        | libc::CLONE_NEWUTS
        | libc::CLONE_NEWCGROUP) as u64;
    let mask = thread | namespaces;
    rules.insert(
        libc::SYS_clone,
        vec![when(0, Length::Qword, Compare::MaskedEq(mask), thread)?],
    );
    // Signals only to itself: that is how abort(3) ends.
    rules.insert(
        libc::SYS_tgkill,
        vec![when(0, Length::Dword, Compare::Eq, own)?],
    );
    // Limits only of itself, and none can be raised.
    rules.insert(
        libc::SYS_prlimit64,
        vec![when(0, Length::Dword, Compare::Eq, 0)?],
    );
    // Names for threads and for mappings.
    rules.insert(
        libc::SYS_prctl,
        vec![
            when(0, Length::Dword, Compare::Eq, libc::PR_SET_NAME as u64)?,
            when(0, Length::Dword, Compare::Eq, libc::PR_SET_VMA as u64)?,
        ],
    );
    // Flags and copies of descriptors, but not whom they signal: that could be made the host.
    let flags = [
        libc::F_DUPFD,
        libc::F_DUPFD_CLOEXEC,
        libc::F_GETFD,
        libc::F_GETFL,
        libc::F_SETFD,
        libc::F_SETFL,
    ];
    let flags: Result<_, _> = flags
        .into_iter()
        .map(|command| {
            when(
                1,
                Length::Dword,
                Compare::Eq,
                u64::from(command.cast_unsigned()),
            )
        })
        .collect();
    rules.insert(libc::SYS_fcntl, flags?);
    // Whether a descriptor is a terminal.
    rules.insert(
        libc::SYS_ioctl,
        vec![when(1, Length::Dword, Compare::Eq, libc::TCGETS)?],
    );
    Ok(rules)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_filters_compile_for_this_processor() {
        let programs = programs(1).unwrap();
        assert_eq!(programs.len(), 2);
        assert!(programs.iter().all(|program| program.len() < 4096));
    }

    #[test]
    fn nothing_that_reaches_outside_is_on_the_list() {
        let rules = rules(1).unwrap();
        for number in [
            libc::SYS_socket,
            libc::SYS_connect,
            libc::SYS_sendmsg,
            libc::SYS_sendto,
            libc::SYS_io_uring_setup,
            libc::SYS_execve,
            libc::SYS_execveat,
            libc::SYS_ptrace,
            libc::SYS_process_vm_readv,
            libc::SYS_process_vm_writev,
            libc::SYS_kill,
            libc::SYS_tkill,
            libc::SYS_pidfd_open,
            libc::SYS_pidfd_getfd,
            libc::SYS_unshare,
            libc::SYS_setns,
            libc::SYS_mount,
            libc::SYS_bpf,
            libc::SYS_memfd_create,
            libc::SYS_fchmodat,
            libc::SYS_unlinkat,
            libc::SYS_truncate,
            libc::SYS_keyctl,
            libc::SYS_seccomp,
        ] {
            assert!(!rules.contains_key(&number), "{number}");
        }
    }
}
