//! Sockets of this machine: which listen, and whether a connection ends here.
//!
//! The kernel is asked for what is wanted alone (`asked`); where it does not answer, its tables are
//! read (`table`).

mod asked;
mod table;

use std::{
    collections::BTreeSet,
    fs, io,
    net::{IpAddr, SocketAddr},
    path::PathBuf,
};

use tokio::net::TcpStream;

use crate::process::ProcessIdentity;

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
pub(super) struct Listeners {
    rows: Vec<Row>,
}

impl Listeners {
    /// As they are now in this process's network namespace; none where they cannot be seen.
    pub(super) fn now() -> Self {
        let rows = asked::listening().unwrap_or_else(|error| {
            tracing::trace!("the kernel does not tell who listens: {error}");
            table::listening("self")
        });
        Self { rows }
    }

    /// Inodes of the sockets that get a connection to this address: those bound to it exactly, else those
    /// bound to every address.
    pub(super) fn at(&self, address: SocketAddr) -> BTreeSet<u64> {
        let same_family = self.of_its_family(address);
        if same_family.is_empty() {
            inodes(&self.bound_to(address.port(), |ip| ip.is_unspecified()))
        } else {
            inodes(&same_family)
        }
    }

    /// Inodes of the sockets that get a connection to this address whatever their settings: one that
    /// listens on every address of the other family may not, nor one to which more have come than it
    /// accepts.
    pub(super) fn reached_at(&self, address: SocketAddr) -> BTreeSet<u64> {
        inodes(&idle(self.of_its_family(address)))
    }

    /// Whether anybody listens at this address.
    pub(super) fn is_at(&self, address: SocketAddr) -> bool {
        !self.at(address).is_empty()
    }

    /// Those bound to this address exactly, else those bound to every address of its family.
    fn of_its_family(&self, address: SocketAddr) -> Vec<Row> {
        let exact = self.bound_to(address.port(), |ip| ip.to_canonical() == address.ip());
        if !exact.is_empty() {
            return exact;
        }
        self.bound_to(address.port(), |ip| {
            ip.is_unspecified() && ip.is_ipv4() == address.is_ipv4()
        })
    }

    fn bound_to(&self, port: u16, wanted: impl Fn(IpAddr) -> bool) -> Vec<Row> {
        let there = |row: &&Row| row.bound.port() == port && wanted(row.bound.ip());
        self.rows.iter().filter(there).copied().collect()
    }
}

fn inodes(rows: &[Row]) -> BTreeSet<u64> {
    rows.iter().map(|row| row.inode).collect()
}

/// Those that have accepted whatever has come to them.
fn idle(mut rows: Vec<Row>) -> Vec<Row> {
    rows.retain(|row| row.waiting == 0);
    rows
}

/// Both ends of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Ends {
    /// Of the socket that is looked for.
    near: SocketAddr,
    far: SocketAddr,
}

/// Whether a connection to this address ends in this network namespace, and not where a rule leads it to:
/// its other end is among the sockets here. Nobody need accept it.
pub(super) async fn is_reached(address: SocketAddr) -> io::Result<bool> {
    // Held while it is looked for.
    let stream = TcpStream::connect(address).await?;
    let ends = Ends {
        near: address,
        far: stream.local_addr()?,
    };
    // That nothing is there is also what a kernel says that answers no such questions.
    Ok(asked::has(ends).unwrap_or(false) || table::has(ends))
}

/// Whether something listens at this port on every address of a network that one of these processes is in
/// and this one is not: a container's.
pub(super) fn listens_inside(tree: &[ProcessIdentity], port: u16) -> bool {
    let here = network_of("self");
    tree.iter().any(|process| {
        let process = process.pid.to_string();
        let network = network_of(&process);
        network.is_some() && network != here && {
            // The kernel is asked from inside a namespace alone; its tables are shown from outside.
            let inside = Listeners {
                rows: table::listening(&process),
            };
            !idle(inside.bound_to(port, |ip| ip.is_unspecified())).is_empty()
        }
    })
}

/// What tells the network namespace of a process from others; `None` where that is not shown.
fn network_of(process: &str) -> Option<PathBuf> {
    fs::read_link(format!("/proc/{process}/ns/net")).ok()
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;
    use crate::net::testing::{FreePort, close};

    fn among(rows: &[(&str, u64)]) -> Listeners {
        let row = |(bound, inode): &(&str, u64)| Row {
            bound: bound.parse().unwrap(),
            inode: *inode,
            waiting: 0,
        };
        Listeners {
            rows: rows.iter().map(row).collect(),
        }
    }

    /// What the kernel answers, and what its tables show.
    fn both() -> [Listeners; 2] {
        let rows = [asked::listening().unwrap(), table::listening("self")];
        rows.map(|rows| Listeners { rows })
    }

    #[test]
    fn the_exact_address_comes_before_the_wildcard() {
        let address = "127.0.0.1:8080".parse().unwrap();
        let v4 = [("0.0.0.0:8080", 2), ("127.0.0.1:8081", 3)];
        let wild = ("[::]:8080", 4);
        let mapped = ("[::ffff:127.0.0.1]:8080", 5);
        let with = |more| among(&[&v4[..], &[more]].concat());
        assert_eq!(with(wild).at(address), BTreeSet::from([2]));
        assert_eq!(among(&[wild]).at(address), BTreeSet::from([4]));
        assert_eq!(with(mapped).at(address), BTreeSet::from([5]));
        assert!(!among(&[]).is_at(address));
        assert_eq!(with(wild).reached_at(address), BTreeSet::from([2]));
        assert!(among(&[wild]).reached_at(address).is_empty());
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
            let stream = TcpStream::connect(address).await.unwrap();
            let far = stream.local_addr().unwrap();
            let ends = Ends { near: address, far };
            assert!(asked::has(ends).unwrap(), "{bound}");
            assert!(table::has(ends), "{bound}");
            // Somebody listens there, and is not connected to this.
            let far = SocketAddr::new(far.ip(), 1);
            let ends = Ends { near: address, far };
            assert!(!asked::has(ends).unwrap(), "{bound}");
            assert!(!table::has(ends), "{bound}");
            close(socket);
            assert!(!asked::has(ends).unwrap(), "{bound}");
            assert!(is_reached(address).await.is_err(), "{bound}");
        }
    }

    #[test]
    fn a_listener_of_this_machine_is_found() {
        for (bound, host) in [
            ("127.0.0.1:0", "127.0.0.1"),
            ("0.0.0.0:0", "127.0.0.1"),
            ("[::1]:0", "::1"),
            ("[::]:0", "::1"),
        ] {
            let socket = std::net::TcpListener::bind(bound).unwrap();
            let inode = rustix::fs::fstat(socket.as_fd()).unwrap().st_ino;
            let port = socket.local_addr().unwrap().port();
            let address = SocketAddr::new(host.parse().unwrap(), port);
            for listeners in both() {
                assert_eq!(listeners.at(address), BTreeSet::from([inode]), "{bound}");
            }
        }
    }

    #[test]
    fn one_that_does_not_accept_what_comes_is_not_said_to_be_reached() {
        let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = socket.local_addr().unwrap();
        let reached = || both().map(|listeners| listeners.reached_at(address).len());
        assert_eq!(reached(), [1, 1]);
        let _waits = std::net::TcpStream::connect(address).unwrap();
        assert_eq!(reached(), [0, 0]);
        assert!(both().iter().all(|listeners| listeners.is_at(address)));
        let _accepted = socket.accept().unwrap();
        assert_eq!(reached(), [1, 1]);
    }
}
