//! Ports that are given to programs which bind them later.

use std::{
    fs,
    net::{Ipv4Addr, SocketAddrV4},
    ops::Range,
    sync::atomic::{AtomicU32, Ordering},
};

use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, socket_with, sockopt};

/// Below it lie the ports that the program and its engines take of themselves, and other well-known ones.
const LOWEST: u32 = 10_240;

/// The first number that is none of a port.
const BEYOND: u32 = 1 << 16;

/// How far apart processes begin that were started one after the other.
const STRIDE: u32 = 401;

/// A port of the loopback address that nobody has now, and that this process is never given again.
///
/// Whoever asks binds it much later, in a child. So it is none that the kernel may give to somebody else
/// meanwhile, and tests that run beside each other in several processes look in different places.
///
/// # Panics
///
/// When there is none left.
#[must_use]
pub fn free_port() -> u16 {
    static GIVEN: AtomicU32 = AtomicU32::new(0);
    let ports = lasting_ports();
    let count = ports.end - ports.start;
    let first = std::process::id().wrapping_mul(STRIDE) % count;
    loop {
        let number = GIVEN.fetch_add(1, Ordering::Relaxed);
        assert!(number < count, "all of {ports:?} were looked at");
        let port = ports.start + (first + number) % count;
        let port = u16::try_from(port).expect("it is within the range");
        if is_free(port) {
            return port;
        }
    }
}

/// Ports that no outgoing connection and no `bind` to port 0 is given; the larger part, below the kernel's
/// own range or above it.
///
/// # Panics
///
/// When the kernel's range leaves none.
fn lasting_ports() -> Range<u32> {
    let path = "/proc/sys/net/ipv4/ip_local_port_range";
    let text = fs::read_to_string(path).unwrap_or_else(|error| panic!("{path}: {error}"));
    let ends: Vec<u32> = text
        .split_whitespace()
        .map(|end| end.parse().expect("a port"))
        .collect();
    let (below, above) = (LOWEST..ends[0], ends[1] + 1..BEYOND);
    let larger = if below.len() >= above.len() {
        below
    } else {
        above
    };
    assert!(!larger.is_empty(), "{path} leaves no ports: {text}");
    larger
}

/// Whether one could listen there now; what a connection has left behind does not count. Nobody listens for the
/// question: a program that another test is just starting has a copy of the socket until its exec, and one that
/// listened would keep out whom the port is for.
fn is_free(port: u16) -> bool {
    let socket = socket_with(
        AddressFamily::INET,
        SocketType::STREAM,
        SocketFlags::CLOEXEC,
        None,
    );
    let socket = socket.expect("a socket can be made");
    sockopt::set_socket_reuseaddr(&socket, true).expect("an option of every socket");
    bind(&socket, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, port)).is_ok()
}
