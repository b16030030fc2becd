//! The kernel's own answers about TCP sockets (sock_diag(7)): it looks at the listening ones alone, or at
//! one connection, and takes some microseconds for what takes milliseconds to read from its tables.

use std::{
    io,
    net::{IpAddr, SocketAddr},
};

use netlink_packet_core::{
    NLM_F_DUMP, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload,
};
use netlink_packet_sock_diag::{
    AF_INET, AF_INET6, IPPROTO_TCP, SockDiagMessage, TCP_LISTEN,
    inet::{ExtensionFlags, InetRequest, InetResponseHeader, SocketId, StateFlags},
};
use rustix::{
    fd::OwnedFd,
    net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink},
};

use super::{Ends, Row};

/// Bytes of answers taken at once. The kernel puts at most as many into one message (netlink(7)).
const BUFFER: usize = 32 * 1024;

/// Any socket with the right ends: `INET_DIAG_NOCOOKIE`.
const ANY: [u8; 8] = [0xff; 8];

/// The sockets that listen in this process's network namespace.
pub(super) fn listening() -> io::Result<Vec<Row>> {
    let mut rows = Vec::new();
    for (family, socket_id) in [
        (AF_INET, SocketId::new_v4()),
        (AF_INET6, SocketId::new_v6()),
    ] {
        let answers = ask(family, StateFlags::LISTEN, socket_id, NLM_F_DUMP)?;
        rows.extend(answers.iter().map(|answer| Row {
            bound: near(&answer.socket_id),
            inode: answer.inode.into(),
            waiting: answer.recv_queue,
        }));
    }
    Ok(rows)
}

/// Whether a socket with these ends is in this process's network namespace.
pub(super) fn has(ends: Ends) -> io::Result<bool> {
    let family = match ends.near {
        SocketAddr::V4(_) => AF_INET,
        SocketAddr::V6(_) => AF_INET6,
    };
    let socket_id = SocketId {
        source_port: ends.near.port(),
        destination_port: ends.far.port(),
        source_address: ends.near.ip(),
        destination_address: ends.far.ip(),
        interface_id: 0,
        cookie: ANY,
    };
    match ask(family, StateFlags::all(), socket_id, 0) {
        // Where nobody is connected, it answers with who would be: the listener.
        Ok(answers) => Ok(answers
            .iter()
            .any(|answer| answer.state != TCP_LISTEN && ends_of(&answer.socket_id) == ends)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

fn near(id: &SocketId) -> SocketAddr {
    SocketAddr::new(id.source_address, id.source_port)
}

fn ends_of(id: &SocketId) -> Ends {
    let end = |ip: IpAddr, port| SocketAddr::new(ip.to_canonical(), port);
    Ends {
        near: end(id.source_address, id.source_port),
        far: end(id.destination_address, id.destination_port),
    }
}

/// One question, and all that is answered. Several answers end with one that says so, a single one does not.
fn ask(
    family: u8,
    states: StateFlags,
    socket_id: SocketId,
    flags: u16,
) -> io::Result<Vec<InetResponseHeader>> {
    let socket = rustix::net::socket_with(
        AddressFamily::NETLINK,
        SocketType::DGRAM,
        SocketFlags::CLOEXEC,
        Some(netlink::SOCK_DIAG),
    )?;
    let request = InetRequest {
        family,
        protocol: IPPROTO_TCP,
        extensions: ExtensionFlags::empty(),
        states,
        socket_id,
    };
    let mut header = NetlinkHeader::default();
    header.flags = NLM_F_REQUEST | flags;
    let mut message = NetlinkMessage::new(header, SockDiagMessage::InetRequest(request).into());
    message.finalize();
    let mut bytes = vec![0; message.buffer_len()];
    message.serialize(&mut bytes);
    rustix::net::send(&socket, &bytes, SendFlags::empty())?;
    let mut answers = Vec::new();
    loop {
        let is_last = receive(&socket, &mut answers)?;
        if is_last || flags & NLM_F_DUMP == 0 {
            return Ok(answers);
        }
    }
}

/// Takes what has been answered; `true` when nothing follows.
fn receive(socket: &OwnedFd, answers: &mut Vec<InetResponseHeader>) -> io::Result<bool> {
    let mut buffer = vec![0; BUFFER];
    // The kernel answers while it is asked: where nothing is there, nothing will come.
    let (count, _) = rustix::net::recv(socket, &mut buffer[..], RecvFlags::DONTWAIT)?;
    let mut rest = &buffer[..count];
    while !rest.is_empty() {
        let message = NetlinkMessage::<SockDiagMessage>::deserialize(rest)
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error.to_string()))?;
        match message.payload {
            NetlinkPayload::InnerMessage(SockDiagMessage::InetResponse(answer)) => {
                answers.push(answer.header);
            }
            NetlinkPayload::Done(_) => return Ok(true),
            NetlinkPayload::Error(error) => return Err(error.to_io()),
            _ => {}
        }
        // Messages begin at multiples of four bytes (NLMSG_ALIGN).
        let length = (message.header.length as usize).next_multiple_of(4);
        rest = rest.get(length..).unwrap_or_default();
    }
    Ok(false)
}
