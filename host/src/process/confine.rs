//! The last steps before a child becomes its program: everything that is taken from it.
//!
//! Order matters: the network namespace needs the privileges that changing the user drops, and
//! changing the user clears the parent-death signal. The seccomp filter comes last, because it may
//! forbid what the steps before it need. Privileges can never come back (`no_new_privs`), but for a
//! container runtime without root, which needs set-uid helpers.
#![expect(
    unsafe_code,
    reason = "code between fork and exec, and resetting signal handlers, has no safe interface"
)]

use std::{
    collections::BTreeMap,
    fs::File,
    io,
    os::unix::process::CommandExt,
    path::Path,
    process::{Child, Command, Stdio},
};

use rustix::{
    process::{Pid, Resource, Rlimit, Signal},
    thread::UnshareFlags,
};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule,
};

use super::{Identity, Network, Privileges, Spec, StartFailure, busy};

/// Bit that marks system calls of the x32 ABI on x86-64.
#[cfg(target_arch = "x86_64")]
const X32: i64 = 0x4000_0000;

/// Starts a command with standard output and standard error of this process, everything else as the
/// specification says. Must be called by a single-threaded process that outlives the child: its
/// death kills it, unless what runs is not the child itself.
pub(super) fn spawn(spec: &Spec) -> Result<Child, StartFailure> {
    let own = rustix::process::geteuid().as_raw();
    if let Some(identity) = spec.identity
        && own != 0
        && identity.uid != own
    {
        return Err(StartFailure::IdentityRefused {
            uid: identity.uid,
            own,
        });
    }
    // The C library would hand a file that the kernel cannot run to a shell.
    if is_no_program(&spec.program) {
        return Err(StartFailure::NotAProgram {
            path: spec.program.clone(),
        });
    }
    let filter = match spec.network {
        Network::Host => None,
        Network::None => Some(filter_without_network().map_err(other)?),
    };
    let parent = rustix::process::getpid();
    let identity = spec.identity.filter(|_| own == 0);
    let privileges = spec.privileges;
    let dies_with_parent = !spec.child.is_a_client();

    #[expect(
        clippy::disallowed_methods,
        reason = "process/ is the room that starts processes"
    )]
    let mut command = Command::new(&spec.program);
    command
        .args(&spec.args)
        .env_clear()
        .envs(&spec.env)
        .current_dir(&spec.directory)
        .stdin(Stdio::null())
        .process_group(0);
    // SAFETY: the closure runs in the child between fork and exec. The parent is single-threaded
    // (this function's contract), so no lock can be held by a thread that does not exist any more.
    unsafe {
        command.pre_exec(move || {
            confine(
                parent,
                dies_with_parent,
                identity,
                privileges,
                filter.as_ref(),
            )
        });
    }
    busy::start(|| command.spawn()).map_err(|error| diagnose(spec, &error))
}

/// Starts a command that cleans up behind a child: this process's own rights, no parent-death signal,
/// because what is half removed is worse than what is removed a moment later. Must be called by a
/// single-threaded process.
pub(super) fn spawn_last(
    program: &Path,
    args: &[String],
    env: &BTreeMap<String, String>,
    output: File,
    error: File,
) -> io::Result<Child> {
    #[expect(
        clippy::disallowed_methods,
        reason = "process/ is the room that starts processes"
    )]
    let mut command = Command::new(program);
    command
        .args(args)
        .env_clear()
        .envs(env)
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(output)
        .stderr(error)
        .process_group(0);
    // SAFETY: as in `spawn`.
    unsafe {
        command.pre_exec(|| {
            default_signals();
            unblock_signals()
        });
    }
    command.spawn()
}

fn confine(
    parent: Pid,
    dies_with_parent: bool,
    identity: Option<Identity>,
    privileges: Privileges,
    filter: Option<&BpfProgram>,
) -> io::Result<()> {
    default_signals();
    unblock_signals()?;
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
    if filter.is_some() {
        // Refused in many containers: then the filter alone stands.
        #[expect(
            deprecated,
            reason = "unsharing the network affects no file descriptor of ours"
        )]
        let _ = rustix::thread::unshare(UnshareFlags::NEWNET);
    }
    if let Some(Identity { uid, gid }) = identity {
        let (uid, gid) = (
            rustix::process::Uid::from_raw(uid),
            rustix::process::Gid::from_raw(gid),
        );
        rustix::thread::set_thread_groups(&[])?;
        rustix::thread::set_thread_res_gid(gid, gid, gid)?;
        rustix::thread::set_thread_res_uid(uid, uid, uid)?;
    }
    if dies_with_parent {
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    }
    if rustix::process::getppid() != Some(parent) {
        // It died before the signal was asked for.
        return Err(io::ErrorKind::BrokenPipe.into());
    }
    rustix::process::setrlimit(
        Resource::Core,
        Rlimit {
            current: Some(0),
            maximum: Some(0),
        },
    )?;
    if privileges == Privileges::Fixed || filter.is_some() {
        rustix::thread::set_no_new_privs(true)?;
    }
    if let Some(filter) = filter {
        seccompiler::apply_filter(filter).map_err(|_| io::Error::last_os_error())?;
    }
    Ok(())
}

/// Gives every signal its default action back: ignored ones would stay ignored in the program.
fn default_signals() {
    for signal in 1..=64 {
        // SAFETY: SIG_DFL is a valid disposition; the call changes only this process. It fails
        // harmlessly for KILL, STOP and the two that the C library keeps for itself.
        unsafe {
            libc::signal(signal, libc::SIG_DFL);
        }
    }
}

/// Unblocks what the keeper has blocked: a mask is inherited through exec, too.
fn unblock_signals() -> io::Result<()> {
    // SAFETY: the set is initialised by sigemptyset before it is read, and lives in this frame.
    let failed = unsafe {
        let mut none = std::mem::zeroed::<libc::sigset_t>();
        libc::sigemptyset(&raw mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const none, std::ptr::null_mut())
    };
    if failed == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// A filter under which only Unix sockets can be made, and no io_uring, which could make others.
pub(super) fn filter_without_network() -> Result<BpfProgram, seccompiler::BackendError> {
    let other_family = || {
        SeccompRule::new(vec![SeccompCondition::new(
            0,
            SeccompCmpArgLen::Dword,
            SeccompCmpOp::Ne,
            libc::AF_UNIX as u64,
        )?])
    };
    let mut rules = vec![
        (libc::SYS_socket, vec![other_family()?]),
        (libc::SYS_io_uring_setup, Vec::new()),
    ];
    #[cfg(target_arch = "x86_64")]
    rules.extend([
        (libc::SYS_socket | X32, Vec::new()),
        (libc::SYS_io_uring_setup | X32, Vec::new()),
    ]);
    SeccompFilter::new(
        rules.into_iter().collect(),
        SeccompAction::Allow,
        SeccompAction::Errno(libc::EACCES as u32),
        std::env::consts::ARCH.try_into()?,
    )?
    .try_into()
}

/// Whether a file is readable and neither a script with an interpreter nor an ELF file for this
/// machine (elf(5): magic at 0, machine at 18).
fn is_no_program(path: &Path) -> bool {
    let header = |path: &Path| -> io::Result<[u8; 20]> {
        let mut header = [0; 20];
        // Shorter files keep zeros at the end.
        let _ = io::Read::read(&mut std::fs::File::open(path)?, &mut header)?;
        Ok(header)
    };
    let Ok(file) = header(path) else {
        return false;
    };
    if file.starts_with(b"#!") {
        return false;
    }
    let Ok(own) = header(Path::new("/proc/self/exe")) else {
        return false;
    };
    let machine = |header: &[u8; 20]| u16::from_ne_bytes([header[18], header[19]]);
    let runs_here = match (machine(&file), machine(&own)) {
        (libc::EM_386, libc::EM_X86_64) => true,
        (file, own) => file == own,
    };
    !file.starts_with(b"\x7fELF") || !runs_here
}

fn other(error: impl std::fmt::Display) -> StartFailure {
    StartFailure::Other {
        reason: error.to_string(),
    }
}

/// Says what an error number of exec means here.
fn diagnose(spec: &Spec, error: &io::Error) -> StartFailure {
    let path = spec.program.clone();
    if !spec.directory.is_dir() {
        return StartFailure::DirectoryMissing {
            path: spec.directory.clone(),
        };
    }
    let own = rustix::process::geteuid().as_raw();
    match error.raw_os_error() {
        Some(libc::ENOENT) if spec.program.exists() => StartFailure::InterpreterMissing { path },
        Some(libc::ENOENT | libc::ENOTDIR) => StartFailure::ProgramMissing { path },
        Some(libc::ENOEXEC) => StartFailure::NotAProgram { path },
        Some(libc::EACCES) => StartFailure::NotPermitted {
            path,
            uid: spec.identity.map_or(own, |identity| identity.uid),
        },
        _ => other(error),
    }
}
