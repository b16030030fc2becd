//! Which port an engine listens on.
//!
//! A port is reserved by a lock in `state/ports/`, so that two hosts that start at the same time do not
//! choose the same one. It is held for as long as somebody looks after the engine: one that closes its
//! port and lives on would else be thought alive by the answers of the engine that got the port after
//! it. Somebody outside may still take it before the engine does: it then fails, and the next port is
//! tried.

use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
    path::Path,
};

use engine_provider_api::ExtraPort;

use super::EngineError;
use crate::{
    config::paths::Home,
    store::{Lock, StoreError, try_lock},
};

/// Ports tried above the engine's usual one.
const UPWARD: u16 = 100;

/// A port that is ours until this is dropped.
#[derive(Debug)]
pub(super) struct Reserved {
    pub(super) port: u16,
    _lock: Lock,
}

/// Every port of one attempt.
#[derive(Debug)]
pub(super) struct Ports {
    /// The one that answers requests.
    pub(super) main: Reserved,
    /// The others by name.
    pub(super) more: BTreeMap<String, Reserved>,
}

/// Ports as they are filled in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Numbers {
    pub(super) port: String,
    pub(super) more: BTreeMap<String, String>,
}

impl Ports {
    /// The port of an engine that runs already; `None` where another host holds it.
    pub(super) fn of_running(home: &Home, port: u16) -> Option<Self> {
        let lock = lock(&home.state().join("ports"), port).ok()??;
        Some(Self {
            main: Reserved { port, _lock: lock },
            more: BTreeMap::new(),
        })
    }

    /// Reserves the others beside the main one, each from its usual port upward.
    pub(super) fn reserve(
        home: &Home,
        host: IpAddr,
        main: Reserved,
        others: &[ExtraPort],
    ) -> Result<Self, EngineError> {
        let mut more = BTreeMap::new();
        for port in others {
            let tried = candidates(&[], port.usual_port);
            let Some((_, reserved)) = reserve(home, host, &tried)? else {
                return Err(EngineError::NoPort {
                    host: host.to_string(),
                    tried,
                    named: false,
                });
            };
            more.insert(port.name.clone(), reserved);
        }
        Ok(Self { main, more })
    }

    /// Whether an engine that ended for want of a port meant another one than its main one: that is as
    /// free as before.
    pub(super) fn is_another_one(&self, main: SocketAddr, error: &EngineError) -> bool {
        let ended = matches!(error, EngineError::Died { .. });
        ended && !self.more.is_empty() && is_free(main)
    }

    pub(super) fn numbers(&self) -> Numbers {
        let more = self.more.iter();
        Numbers {
            port: self.main.port.to_string(),
            more: more
                .map(|(name, reserved)| (name.clone(), reserved.port.to_string()))
                .collect(),
        }
    }

    pub(super) fn more_numbers(&self) -> BTreeMap<String, u16> {
        let more = self.more.iter();
        more.map(|(name, reserved)| (name.clone(), reserved.port))
            .collect()
    }
}

/// Ports in the order in which they are tried: the pool's, else the usual one and those above it.
pub(super) fn candidates(pool_ports: &[u16], usual: u16) -> Vec<u16> {
    if pool_ports.is_empty() {
        (usual..=usual.saturating_add(UPWARD)).collect()
    } else {
        pool_ports.to_vec()
    }
}

/// The first candidate that is free and not reserved, and how many candidates it took.
pub(super) fn reserve(
    home: &Home,
    host: IpAddr,
    candidates: &[u16],
) -> Result<Option<(usize, Reserved)>, EngineError> {
    let directory = home.state().join("ports");
    std::fs::create_dir_all(&directory)
        .map_err(|source| StoreError::io("create", &directory, source))?;
    for (index, &port) in candidates.iter().enumerate() {
        if let Some(lock) = lock(&directory, port)?
            && is_free(SocketAddr::new(host, port))
        {
            let reserved = Reserved { port, _lock: lock };
            return Ok(Some((index, reserved)));
        }
    }
    Ok(None)
}

fn lock(directory: &Path, port: u16) -> Result<Option<Lock>, EngineError> {
    let path = directory.join(format!("{port}.lock"));
    Ok(try_lock(&path, "starting an engine")?)
}

/// Whether one could listen there now. The question takes the port from nobody: a copy of the socket may
/// be in a process that this one is just starting, and one that listened would keep the engine out.
fn is_free(address: SocketAddr) -> bool {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, socket_with, sockopt};
    let family = match address {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let bound = || {
        let socket = socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        sockopt::set_socket_reuseaddr(&socket, true)?;
        bind(&socket, &address)
    };
    bound().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::testing::FreePort;

    #[test]
    fn the_pool_s_ports_come_before_the_usual_one() {
        assert_eq!(candidates(&[9000, 8000], 8080), [9000, 8000]);
        assert_eq!(candidates(&[], 8080)[..2], [8080, 8081]);
        assert_eq!(candidates(&[], 65_535), [65_535]);
    }

    #[test]
    fn taken_and_reserved_ports_are_passed_over() {
        let directory = tempfile::tempdir().unwrap();
        let home = Home::at(directory.path());
        let host: IpAddr = std::net::Ipv4Addr::LOCALHOST.into();
        let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let first = taken.local_addr().unwrap().port();
        // Two where nobody listens, and that no other test is given meanwhile.
        let kept = [(); 2].map(|()| FreePort::at(host));
        let free = kept.each_ref().map(|it| it.address().port());
        let all = [first, free[0], free[1]];
        let (index, one) = reserve(&home, host, &all).unwrap().unwrap();
        assert_eq!((index, one.port), (1, free[0]));
        let (index, two) = reserve(&home, host, &all).unwrap().unwrap();
        assert_eq!((index, two.port), (2, free[1]));
        assert!(reserve(&home, host, &all).unwrap().is_none());
        drop(one);
        assert_eq!(reserve(&home, host, &all).unwrap().unwrap().1.port, free[0]);
    }
}
