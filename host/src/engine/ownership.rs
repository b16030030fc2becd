//! Whether it is our own engine that answers on a port.
//!
//! An answer alone proves nothing: another process may have taken the port a moment earlier and
//! answer just as an engine does. The listening socket, looked up in `/proc/net/tcp` and `tcp6`
//! (proc_pid_net(5)), must be held by a process of the engine's own tree.

use std::{
    collections::BTreeSet,
    fs, io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    path::PathBuf,
};

use tokio::net::TcpStream;

use crate::process::{Identity, Keeper, ProcessError, ProcessIdentity, sockets_of};

/// State `LISTEN` in `/proc/net/tcp`.
const LISTEN: &str = "0A";

/// Who listens on a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Listener {
    /// A process of the tree.
    Ours,
    /// Somebody else.
    Foreign,
    /// Somebody: not every process of the tree may be looked into.
    Unseen,
    /// Nobody, as far as can be seen.
    Nobody,
}

/// Looks who listens there. `own` are looked at before the whole `tree`; `identity` is whose they are,
/// where that is not this process's own user.
pub(super) async fn listener(
    address: SocketAddr,
    own: &[ProcessIdentity],
    tree: impl FnOnce() -> Vec<ProcessIdentity>,
    keeper: &Keeper,
    identity: Option<Identity>,
) -> Result<Listener, ProcessError> {
    // Reading a table takes milliseconds on a large machine, whatever is in it: the second one only
    // where it matters.
    let tcp = table("tcp");
    let mut listening = inodes(&bound_exactly(&rows(&tcp), address));
    if listening.is_empty() {
        listening = listening_in(&tcp, &table("tcp6"), address);
    }
    whose(&listening, own, tree, keeper, identity).await
}

/// Whose these listening sockets are.
pub(super) async fn whose(
    listening: &BTreeSet<u64>,
    own: &[ProcessIdentity],
    tree: impl FnOnce() -> Vec<ProcessIdentity>,
    keeper: &Keeper,
    identity: Option<Identity>,
) -> Result<Listener, ProcessError> {
    if listening.is_empty() {
        return Ok(Listener::Nobody);
    }
    let own = sockets_of(keeper, own, identity).await?;
    if listening.is_subset(&own.inodes) {
        return Ok(Listener::Ours);
    }
    let tree = sockets_of(keeper, &tree(), identity).await?;
    Ok(match listening.is_subset(&tree.inodes) {
        true => Listener::Ours,
        false if tree.may_be_more => Listener::Unseen,
        false => Listener::Foreign,
    })
}

/// A socket that listens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Row {
    bound: SocketAddr,
    inode: u64,
    /// Connections that have come to it and were not accepted yet.
    waiting: u32,
}

/// The sockets that listen, of one moment.
#[derive(Debug)]
pub(super) struct Tables {
    rows: Vec<Row>,
}

impl Tables {
    /// As they are now; empty where they cannot be read.
    pub(super) fn read() -> Self {
        let rows = [rows(&table("tcp")), rows(&table("tcp6"))].concat();
        Self { rows }
    }

    /// Inodes of the sockets that get a connection to this address.
    pub(super) fn listening_at(&self, address: SocketAddr) -> BTreeSet<u64> {
        inodes(&among(&self.rows, address))
    }

    /// Inodes of the sockets that get a connection to this address whatever their settings: one that
    /// listens on every address of the other family may not, nor one to which more have come than it
    /// accepts.
    pub(super) fn reached_at(&self, address: SocketAddr) -> BTreeSet<u64> {
        inodes(&idle(of_its_family(&self.rows, address)))
    }
}

/// Whether anybody listens at this address.
pub(super) fn is_listened_at(tables: &Tables, address: SocketAddr) -> bool {
    !tables.listening_at(address).is_empty()
}

/// Whether a connection to this address ends in this network namespace, and not where a rule leads it to:
/// its other end is among the sockets here. Nobody need accept it.
pub(super) async fn is_reached(address: SocketAddr) -> io::Result<bool> {
    // Held while it is looked for.
    let stream = TcpStream::connect(address).await?;
    let here = stream.local_addr()?;
    let other = |line: &str| ends_of(line) == Some((address, here));
    Ok(["tcp", "tcp6"]
        .into_iter()
        .any(|name| table(name).lines().any(other)))
}

/// Whether something listens at this port on every address of a network that one of these processes is in
/// and this one is not: a container's.
pub(super) fn listens_inside(tree: &[ProcessIdentity], port: u16) -> bool {
    let here = network_of("self");
    tree.iter().any(|process| {
        let process = process.pid.to_string();
        let network = network_of(&process);
        network.is_some() && network != here && {
            let tables = ["tcp", "tcp6"].map(|name| rows(&table_of(&process, name)));
            let everywhere = |ip: IpAddr| ip.is_unspecified();
            !idle(bound_to(&tables.concat(), port, everywhere)).is_empty()
        }
    })
}

/// What tells the network namespace of a process from others; `None` where that is not shown.
fn network_of(process: &str) -> Option<PathBuf> {
    fs::read_link(format!("/proc/{process}/ns/net")).ok()
}

/// Of the network namespace that the engine is in, which is this process's own too.
fn table(name: &str) -> String {
    table_of("self", name)
}

fn table_of(process: &str, name: &str) -> String {
    fs::read_to_string(format!("/proc/{process}/net/{name}")).unwrap_or_default()
}

/// Inodes of the sockets that get a connection to this address: those bound to it exactly, else
/// those bound to every address.
fn listening_in(tcp: &str, tcp6: &str, address: SocketAddr) -> BTreeSet<u64> {
    inodes(&among(&[rows(tcp), rows(tcp6)].concat(), address))
}

fn inodes(rows: &[Row]) -> BTreeSet<u64> {
    rows.iter().map(|row| row.inode).collect()
}

/// Those that have accepted whatever has come to them.
fn idle(mut rows: Vec<Row>) -> Vec<Row> {
    rows.retain(|row| row.waiting == 0);
    rows
}

fn among(rows: &[Row], address: SocketAddr) -> Vec<Row> {
    let same_family = of_its_family(rows, address);
    if !same_family.is_empty() {
        return same_family;
    }
    bound_to(rows, address.port(), |ip| ip.is_unspecified())
}

/// Those bound to this address exactly, else those bound to every address of its family.
fn of_its_family(rows: &[Row], address: SocketAddr) -> Vec<Row> {
    let exact = bound_exactly(rows, address);
    if !exact.is_empty() {
        return exact;
    }
    bound_to(rows, address.port(), |ip| {
        ip.is_unspecified() && ip.is_ipv4() == address.is_ipv4()
    })
}

fn bound_exactly(rows: &[Row], address: SocketAddr) -> Vec<Row> {
    bound_to(rows, address.port(), |ip| ip.to_canonical() == address.ip())
}

fn bound_to(rows: &[Row], port: u16, wanted: impl Fn(IpAddr) -> bool) -> Vec<Row> {
    let there = |row: &&Row| row.bound.port() == port && wanted(row.bound.ip());
    rows.iter().filter(there).copied().collect()
}

/// The listening rows of a table.
fn rows(table: &str) -> Vec<Row> {
    table.lines().filter_map(row).collect()
}

/// A listening row: local address in hexadecimal (field 2), state (4), queues to send and of those not
/// accepted yet (5), inode (10).
fn row(line: &str) -> Option<Row> {
    let fields: Vec<&str> = line.split_whitespace().collect();
    if *fields.get(3)? != LISTEN {
        return None;
    }
    let (_, waiting) = fields.get(4)?.split_once(':')?;
    Some(Row {
        bound: address_of(fields.get(1)?)?,
        inode: fields.get(9)?.parse().ok()?,
        waiting: u32::from_str_radix(waiting, 16).ok()?,
    })
}

/// Both ends of a connection, this one's first: fields 2 and 3.
fn ends_of(line: &str) -> Option<(SocketAddr, SocketAddr)> {
    let mut fields = line.split_whitespace().skip(1);
    let mut end = || {
        let end = address_of(fields.next()?)?;
        Some(SocketAddr::new(end.ip().to_canonical(), end.port()))
    };
    Some((end()?, end()?))
}

fn address_of(text: &str) -> Option<SocketAddr> {
    let (ip, port) = text.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    Some(SocketAddr::new(ip_of(ip)?, port))
}

/// Words of 32 bits, each in the machine's byte order.
fn ip_of(hex: &str) -> Option<IpAddr> {
    let word = |at: usize| -> Option<[u8; 4]> {
        let word = u32::from_str_radix(hex.get(at * 8..at * 8 + 8)?, 16).ok()?;
        Some(word.to_ne_bytes())
    };
    match hex.len() {
        8 => Some(Ipv4Addr::from(word(0)?).into()),
        32 => {
            let mut octets = [0; 16];
            for at in 0..4 {
                octets[at * 4..at * 4 + 4].copy_from_slice(&word(at)?);
            }
            Some(Ipv6Addr::from(octets).into())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::testing::{FreePort, close};

    const HEAD: &str = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n";

    fn line(local: &str, state: &str, inode: u64) -> String {
        format!(
            "   0: {local} 00000000:0000 {state} 00000000:00000000 00:00000000 00000000     0        0 {inode} 1 0 100 0 0 10 0\n"
        )
    }

    #[test]
    #[cfg(target_endian = "little")]
    fn the_exact_address_comes_before_the_wildcard() {
        let address = "127.0.0.1:8080".parse().unwrap();
        let tcp = format!(
            "{HEAD}{}{}{}",
            line("0100007F:1F90", "01", 1),
            line("00000000:1F90", "0A", 2),
            line("0100007F:1F91", "0A", 3)
        );
        let tcp6 = line("00000000000000000000000000000000:1F90", "0A", 4);
        assert_eq!(listening_in(&tcp, &tcp6, address), BTreeSet::from([2]));
        assert_eq!(listening_in(HEAD, &tcp6, address), BTreeSet::from([4]));
        let mapped = line("0000000000000000FFFF00000100007F:1F90", "0A", 5);
        assert_eq!(listening_in(&tcp, &mapped, address), BTreeSet::from([5]));
        assert!(listening_in(HEAD, HEAD, address).is_empty());
        let of_its_family = |tcp: &str, tcp6: &str| {
            let rows = [rows(tcp), rows(tcp6)].concat();
            inodes(&of_its_family(&rows, address))
        };
        assert_eq!(of_its_family(&tcp, &tcp6), BTreeSet::from([2]));
        assert!(of_its_family(HEAD, &tcp6).is_empty());
    }

    #[tokio::test]
    async fn a_connection_that_ends_here_is_seen_whatever_its_listener_listens_on() {
        for (bound, host) in [
            ("127.0.0.1", "127.0.0.1"),
            ("0.0.0.0", "127.0.0.1"),
            ("::", "127.0.0.1"),
            ("::1", "::1"),
        ] {
            let [own, host] = [bound, host].map(|ip| ip.parse::<IpAddr>().unwrap());
            let port = FreePort::at(own);
            let socket = port.listen();
            let address = SocketAddr::new(host, port.address().port());
            assert!(is_reached(address).await.unwrap(), "{bound}");
            close(socket);
            assert!(is_reached(address).await.is_err(), "{bound}");
        }
    }

    #[test]
    fn a_listener_of_this_machine_is_found() {
        use std::os::fd::AsFd;
        let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let inode = rustix::fs::fstat(socket.as_fd()).unwrap().st_ino;
        let tcp = fs::read_to_string("/proc/self/net/tcp").unwrap();
        let found = listening_in(&tcp, "", socket.local_addr().unwrap());
        assert_eq!(found, BTreeSet::from([inode]));
    }

    #[test]
    fn one_that_does_not_accept_what_comes_is_not_said_to_be_reached() {
        let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = socket.local_addr().unwrap();
        assert_eq!(Tables::read().reached_at(address).len(), 1);
        let _waits = std::net::TcpStream::connect(address).unwrap();
        assert!(Tables::read().reached_at(address).is_empty());
        assert_eq!(Tables::read().listening_at(address).len(), 1);
        let _accepted = socket.accept().unwrap();
        assert_eq!(Tables::read().reached_at(address).len(), 1);
    }
}
