//! Which of several handoffs speak of an engine that may still be there.
//!
//! A handoff is removed with its engine, unless everything that would have done so was killed too. Two
//! things tell then: the host's own record of the engine, where it can be read, and that nobody
//! listens at an address of this machine. What lies elsewhere is believed.

use std::{
    io::ErrorKind,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::Path,
    time::Duration,
};

use tokio::net::TcpStream;

use super::{Binding, Bindings, WatchSettings};
use crate::engine::{
    handoff::{Handoff, is_id},
    instance, records,
    sockets::Listeners,
};

/// Longest time in which a port of this machine says whether it is open.
const CONNECT_LIMIT: Duration = Duration::from_secs(1);

/// The bindings among handoffs; of several for one replica the last one counts.
pub(super) async fn living(
    handoffs: Vec<Binding>,
    directory: &Path,
    settings: &WatchSettings,
) -> Bindings {
    let mut bindings = Bindings::new();
    let mut listeners = None;
    for binding in handoffs {
        let handoff = &binding.handoff;
        if is_recorded_dead(handoff, directory, settings) {
            continue;
        }
        if settings.must_listen
            && let Some(address) = local_address(&handoff.url)
            && !listeners.get_or_insert_with(Listeners::now).is_at(address)
            && is_refused(address).await
        {
            continue;
        }
        let key = (handoff.pool_id.clone(), handoff.replica_id.clone());
        bindings.insert(key, binding);
    }
    bindings
}

/// Whether the host has written down that this very engine runs, and it does not.
fn is_recorded_dead(handoff: &Handoff, directory: &Path, settings: &WatchSettings) -> bool {
    let Some(home) = &settings.home else {
        return false;
    };
    // What names no instance of ours could lead elsewhere.
    if !is_id(&handoff.pool_id) || !is_id(&handoff.replica_id) {
        return false;
    }
    let key = instance::key(directory, &handoff.pool_id, &handoff.replica_id);
    let sides = records::recorded_sides(home, &key).unwrap_or_default();
    sides.iter().any(|record| {
        record.url == handoff.url
            && Some(record.started_at) == handoff.started_at
            && !record.is_alive()
    })
}

/// The address in a URL, where it is one of this machine alone.
fn local_address(url: &str) -> Option<SocketAddr> {
    let url = url::Url::parse(url).ok()?;
    let port = url.port_or_known_default()?;
    let ip: IpAddr = match url.host()? {
        url::Host::Ipv4(ip) => ip.into(),
        url::Host::Ipv6(ip) => ip.into(),
        url::Host::Domain("localhost") => Ipv4Addr::LOCALHOST.into(),
        url::Host::Domain(_) => return None,
    };
    ip.is_loopback().then(|| SocketAddr::new(ip, port))
}

/// Whether a connection is refused. The table of sockets does not show everything: a runtime may lead
/// a port on without listening.
async fn is_refused(address: SocketAddr) -> bool {
    let connecting = tokio::time::timeout(CONNECT_LIMIT, TcpStream::connect(address));
    matches!(connecting.await, Ok(Err(error)) if error.kind() == ErrorKind::ConnectionRefused)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_addresses_of_this_machine_are_looked_at() {
        let local = |url| local_address(url).map(|address| address.to_string());
        for (url, expected) in [
            ("http://127.0.0.1:8080", Some("127.0.0.1:8080")),
            ("http://localhost/v1", Some("127.0.0.1:80")),
            ("https://[::1]:9", Some("[::1]:9")),
            ("http://10.0.0.7:8080", None),
            ("http://engine.test:8080", None),
            ("8080", None),
        ] {
            assert_eq!(local(url).as_deref(), expected, "{url}");
        }
    }
}
