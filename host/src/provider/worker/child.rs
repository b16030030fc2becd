//! The worker's own side: shuts itself in, loads one library, answers until told to quit.
//!
//! Its standard input is the socket to the host. It is moved to a descriptor of its own first, and
//! what the library prints goes to standard error, so that nothing printed can be taken for an
//! answer. The process ends through `_exit` alone: exit handlers belong to the library.
#![expect(
    unsafe_code,
    reason = "descriptors of unknown origin are closed, and the process ends without exit handlers"
)]

use std::{
    ffi::OsStr,
    fs::File,
    io,
    mem::MaybeUninit,
    os::fd::{AsFd as _, AsRawFd as _, OwnedFd},
};

use engine_provider_api::abi::Provider;
use rustix::{
    event::{PollFd, PollFlags, poll},
    net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg},
};

use super::{
    sandbox::{self, Measure, Sandbox},
    wire::{self, Kind, PROTOCOL, Terms},
};
use crate::provider::load;

/// First argument of a worker. Not for people.
pub(crate) const ARGUMENT: &str = "__provider-worker";

/// Turns this process into a provider worker if it was started as one, and then never returns.
///
/// The host starts its own executable again as the worker, so this belongs at the very top of
/// `main`, before any thread is started and before arguments are read. In every other process it
/// does nothing.
pub fn run_if_worker() {
    if is_worker() {
        let code = match serve() {
            Ok(()) => 0,
            Err(error) => {
                eprintln!("provider worker: {error}");
                1
            }
        };
        end(code);
    }
}

/// Whether this process was started as a worker.
pub(in crate::provider) fn is_worker() -> bool {
    std::env::args_os().nth(1).as_deref() == Some(OsStr::new(ARGUMENT))
}

/// Ends the process without exit handlers, which the library may have registered.
fn end(code: i32) -> ! {
    // SAFETY: takes a number and does not return.
    unsafe { libc::_exit(code) }
}

fn serve() -> io::Result<()> {
    let mut socket = take_socket()?;
    let (terms, library) = receive_terms(&socket)?;
    if terms.protocol != PROTOCOL {
        return Err(io::Error::other(format!(
            "the host speaks worker protocol {}, this program {PROTOCOL}",
            terms.protocol
        )));
    }
    let report = shut_in(&socket, &library, &terms);
    wire::send(&mut socket, Kind::Sandboxed, &json(&report))?;
    end_with_the_host(socket.try_clone()?)?;

    match wire::receive(&mut socket)? {
        (Kind::Load, _) => {}
        (kind, _) => return Err(unexpected(kind)),
    }
    match load::load(library) {
        Ok(provider) => {
            wire::send(&mut socket, Kind::Ready, b"")?;
            answer(&mut socket, provider)
        }
        Err(failure) => wire::send(&mut socket, Kind::Failed, &json(&failure)),
    }
}

/// Answers calls until the host quits.
fn answer(socket: &mut File, provider: Provider) -> io::Result<()> {
    loop {
        let (kind, payload) = wire::receive(socket)?;
        match kind {
            Kind::Call => {
                let (op, document) = wire::split_call(&payload).ok_or_else(|| unexpected(kind))?;
                match provider.call(op, document) {
                    Ok(text) => wire::send(socket, Kind::Answer, text.as_bytes())?,
                    Err(text) => wire::send(socket, Kind::Error, text.as_bytes())?,
                }
            }
            Kind::Quit => {
                drop(provider);
                return wire::send(socket, Kind::Bye, b"");
            }
            other => return Err(unexpected(other)),
        }
    }
}

fn unexpected(kind: Kind) -> io::Error {
    io::Error::other(format!("unexpected frame {kind:?}"))
}

fn json(value: &impl serde::Serialize) -> Vec<u8> {
    serde_json::to_vec(value).expect("reports have string keys and no fallible parts")
}

/// Moves the socket away from standard input, to a descriptor that no started program would get.
///
/// As a file, whose reads and writes are plain `read` and `write`: the filter knows no socket calls.
fn take_socket() -> io::Result<File> {
    let socket: OwnedFd = rustix::io::fcntl_dupfd_cloexec(io::stdin(), 3)?;
    let null = File::open("/dev/null")?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(io::stderr())?;
    Ok(File::from(socket))
}

/// Receives the first frame and the library's descriptor that comes with it.
fn receive_terms(socket: &File) -> io::Result<(Terms, File)> {
    let mut bytes = [0; 512];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let received = recvmsg(
        socket,
        &mut [io::IoSliceMut::new(&mut bytes)],
        &mut ancillary,
        RecvFlags::CMSG_CLOEXEC,
    )?;
    let library = ancillary
        .drain()
        .find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
            _ => None,
        })
        .ok_or_else(|| io::Error::other("this program is started by its host only"))?;
    let (kind, payload) = wire::receive(&mut &bytes[..received.bytes])?;
    if kind != Kind::Open {
        return Err(unexpected(kind));
    }
    Ok((serde_json::from_slice(&payload)?, File::from(library)))
}

fn shut_in(socket: &File, library: &File, terms: &Terms) -> Sandbox {
    let mut report = Sandbox::default();
    report.note(Measure::CleanStart, clean_start(socket, library));
    sandbox::enter(&mut report, library, terms);
    report
}

/// Checks and makes true that nothing of the host's process came along.
fn clean_start(socket: &File, library: &File) -> Result<(), String> {
    close_others(socket.as_raw_fd(), library.as_raw_fd());
    let threads = std::fs::read_dir("/proc/self/task").map_or(1, Iterator::count);
    if threads != 1 {
        return Err(format!(
            "{threads} threads run already: call run_if_worker() before any is started"
        ));
    }
    #[expect(
        clippy::disallowed_methods,
        reason = "a worker makes sure that it was given none"
    )]
    let mut environment = std::env::vars_os();
    if environment.next().is_some() {
        return Err("the environment is not empty".to_owned());
    }
    std::env::set_current_dir("/").map_err(|error| error.to_string())
}

/// Closes every descriptor but the standard ones and these two.
fn close_others(socket: i32, library: i32) {
    let (low, high) = (socket.min(library), socket.max(library));
    for (first, last) in [(3, low - 1), (low + 1, high - 1), (high + 1, i32::MAX)] {
        if first <= last {
            // SAFETY: nothing in this young process owns a descriptor in these ranges.
            unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) };
        }
    }
}

/// Ends the worker when the host is gone, even while the library is busy.
///
/// A parent-death signal would not do: it fires when the *thread* that started the worker ends, and
/// hosts start workers from pools of threads.
fn end_with_the_host(socket: File) -> io::Result<()> {
    std::thread::Builder::new()
        .name("host-watch".to_owned())
        .stack_size(128 * 1024)
        .spawn(move || {
            loop {
                let mut watched = [PollFd::from_borrowed_fd(socket.as_fd(), PollFlags::RDHUP)];
                match poll(&mut watched, None) {
                    Err(rustix::io::Errno::INTR) => {}
                    _ => end(1),
                }
            }
        })
        .map(drop)
}
