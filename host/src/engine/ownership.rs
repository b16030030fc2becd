//! Whether it is our own engine that answers on a port.
//!
//! An answer alone proves nothing: another process may have taken the port a moment earlier and
//! answer just as an engine does. The listening socket, looked up in `/proc/net/tcp` and `tcp6`
//! (proc_pid_net(5)), must be held by a process of the engine's own tree.

use std::{
    collections::BTreeSet,
    fs,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
};

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
    // Of the network namespace that the engine is in, which is this process's own too. Reading a table
    // takes milliseconds on a large machine, whatever is in it: the second one only where it matters.
    let table =
        |name: &str| fs::read_to_string(format!("/proc/self/net/{name}")).unwrap_or_default();
    let tcp = table("tcp");
    let mut listening = bound_exactly(&rows(&tcp), address);
    if listening.is_empty() {
        listening = listening_in(&tcp, &table("tcp6"), address);
    }
    if listening.is_empty() {
        return Ok(Listener::Nobody);
    }
    let own = sockets_of(keeper, own, identity).await?;
    if listening.is_subset(&own) {
        return Ok(Listener::Ours);
    }
    let tree = sockets_of(keeper, &tree(), identity).await?;
    if listening.is_subset(&tree) {
        Ok(Listener::Ours)
    } else {
        Ok(Listener::Foreign)
    }
}

/// Inodes of the sockets that get a connection to this address: those bound to it exactly, else
/// those bound to every address.
fn listening_in(tcp: &str, tcp6: &str, address: SocketAddr) -> BTreeSet<u64> {
    let rows = [rows(tcp), rows(tcp6)].concat();
    let exact = bound_exactly(&rows, address);
    if !exact.is_empty() {
        return exact;
    }
    let same_family = bound_to(&rows, address.port(), |ip| {
        ip.is_unspecified() && ip.is_ipv4() == address.is_ipv4()
    });
    if !same_family.is_empty() {
        return same_family;
    }
    bound_to(&rows, address.port(), |ip| ip.is_unspecified())
}

fn bound_exactly(rows: &[(SocketAddr, u64)], address: SocketAddr) -> BTreeSet<u64> {
    bound_to(rows, address.port(), |ip| ip.to_canonical() == address.ip())
}

fn bound_to(
    rows: &[(SocketAddr, u64)],
    port: u16,
    wanted: impl Fn(IpAddr) -> bool,
) -> BTreeSet<u64> {
    rows.iter()
        .filter(|(bound, _)| bound.port() == port && wanted(bound.ip()))
        .map(|(_, inode)| *inode)
        .collect()
}

/// The listening rows of a table.
fn rows(table: &str) -> Vec<(SocketAddr, u64)> {
    table.lines().filter_map(row).collect()
}

/// A listening row: local address in hexadecimal (field 2), state (4), inode (10).
fn row(line: &str) -> Option<(SocketAddr, u64)> {
    let fields: Vec<&str> = line.split_whitespace().collect();
    if *fields.get(3)? != LISTEN {
        return None;
    }
    let (ip, port) = fields.get(1)?.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    let inode = fields.get(9)?.parse().ok()?;
    Some((SocketAddr::new(ip_of(ip)?, port), inode))
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
}
