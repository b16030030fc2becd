//! What the keeper needs of the system before and around its loop.
#![expect(
    unsafe_code,
    reason = "fork, signalfd and closing inherited descriptors have no safe interface"
)]

use std::{
    io,
    os::fd::{AsFd, FromRawFd, OwnedFd},
    os::unix::net::UnixStream,
};

use rustix::{fs::OFlags, stdio};

/// Signals that a keeper or minder reads instead of being interrupted by.
const WATCHED: [i32; 5] = [
    libc::SIGCHLD,
    libc::SIGTERM,
    libc::SIGINT,
    libc::SIGHUP,
    // A peer that is gone is an error of write, not a reason to end.
    libc::SIGPIPE,
];

/// Which side of [`fork`] this is.
pub(super) enum Side {
    /// The caller, with the new process's id.
    Parent(i32),
    /// The new process.
    Child,
}

/// Blocks the watched signals and returns a descriptor from which they are read.
pub(super) fn watch_signals() -> io::Result<OwnedFd> {
    // SAFETY: the set is initialised by sigemptyset before anything reads it, every pointer is to
    // this frame, and a descriptor that signalfd returns is ours alone.
    unsafe {
        let mut set = std::mem::zeroed::<libc::sigset_t>();
        libc::sigemptyset(&raw mut set);
        for signal in WATCHED {
            libc::sigaddset(&raw mut set, signal);
        }
        if libc::sigprocmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()) != 0 {
            return Err(io::Error::last_os_error());
        }
        let descriptor = libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK);
        if descriptor < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(OwnedFd::from_raw_fd(descriptor))
    }
}

/// Reads the signals that came since; whether one of them asks this process to end.
pub(super) fn asked_to_end(signals: &OwnedFd) -> bool {
    const SIZE: usize = size_of::<libc::signalfd_siginfo>();
    let mut buffer = [0_u8; SIZE * 8];
    let mut end = false;
    while let Ok(read) = rustix::io::read(signals, &mut buffer) {
        if read == 0 {
            break;
        }
        for record in buffer[..read].chunks_exact(SIZE) {
            // `ssi_signo` is the first field.
            let number = record.first_chunk().map(|bytes| i32::from_ne_bytes(*bytes));
            end |= matches!(number, Some(libc::SIGTERM | libc::SIGINT | libc::SIGHUP));
        }
    }
    end
}

/// Takes the socket a keeper is born with, its standard input, and puts `/dev/null` in its place.
/// Fails when standard input is no socket: the keeper was not started by a host.
pub(super) fn take_host_socket() -> io::Result<UnixStream> {
    rustix::net::sockopt::socket_type(stdio::stdin())?;
    let socket = rustix::io::fcntl_dupfd_cloexec(stdio::stdin(), 3)?;
    silence([Standard::Input, Standard::Output, Standard::Error])?;
    let socket = UnixStream::from(socket);
    socket.set_nonblocking(true)?;
    Ok(socket)
}

/// A standard stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Standard {
    /// Descriptor 0.
    Input,
    /// Descriptor 1.
    Output,
    /// Descriptor 2.
    Error,
}

/// Lets go of standard streams: what they led to is not held open any longer.
pub(super) fn silence(streams: impl IntoIterator<Item = Standard>) -> io::Result<()> {
    let null = null()?;
    for stream in streams {
        match stream {
            Standard::Input => stdio::dup2_stdin(&null)?,
            Standard::Output => stdio::dup2_stdout(&null)?,
            Standard::Error => stdio::dup2_stderr(&null)?,
        }
    }
    Ok(())
}

/// Opens `/dev/null`.
pub(super) fn null() -> io::Result<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    let mode = rustix::fs::Mode::empty();
    Ok(rustix::fs::open("/dev/null", flags, mode)?)
}

/// Makes a copy of this process. Only for a single-threaded one: then all of Rust may be used in
/// the copy, which must end with [`leave`] and never return into its caller's frames.
pub(super) fn fork() -> io::Result<Side> {
    // SAFETY: the keeper has one thread, so no lock is held by one that the copy lacks.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => Ok(Side::Child),
        pid => Ok(Side::Parent(pid)),
    }
}

/// In the copy: makes these three its standard streams and closes everything else, above all the
/// sockets by whose closing others notice the keeper's death.
pub(super) fn keep_only(
    input: impl AsFd,
    output: impl AsFd,
    error: impl AsFd,
) -> io::Result<UnixStream> {
    stdio::dup2_stdin(input)?;
    stdio::dup2_stdout(output)?;
    stdio::dup2_stderr(error)?;
    // SAFETY: nothing in the copy uses a descriptor above 2 any more: it owns none but through
    // values of its caller's frames, to which it never returns.
    if unsafe { libc::close_range(3, libc::c_uint::MAX, 0) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let control = rustix::io::fcntl_dupfd_cloexec(stdio::stdin(), 3)?;
    silence([Standard::Input])?;
    Ok(UnixStream::from(control))
}

/// Ends the copy at once: nothing that belongs to the original is flushed or dropped.
pub(super) fn leave(code: i32) -> ! {
    // SAFETY: _exit never returns and touches no memory.
    unsafe { libc::_exit(code) }
}
