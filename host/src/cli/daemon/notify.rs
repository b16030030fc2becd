//! Telling a service manager such as systemd: ready, stopping, still alive (sd_notify(3)).
//!
//! Whether one wants to hear, and where, it says in the environment: `NOTIFY_SOCKET`, `WATCHDOG_USEC`
//! and `WATCHDOG_PID`. Each message is a datagram of its own, so that one that was started anew
//! meanwhile hears the next.

use std::{
    io,
    os::{
        linux::net::SocketAddrExt as _,
        unix::net::{SocketAddr, UnixDatagram},
    },
    time::{Duration, Instant},
};

use tokio_util::sync::CancellationToken;

use crate::config::environment::Environment;

/// Longest wait for a service manager that does not read.
const SEND_LIMIT: Duration = Duration::from_secs(1);

/// A service manager that asks how the daemon is; does nothing where there is none.
#[derive(Debug, Clone, Default)]
pub(super) struct ServiceManager {
    address: Option<SocketAddr>,
    /// The daemon counts as hung when it is silent for longer.
    watchdog: Option<Duration>,
}

impl ServiceManager {
    /// The one that started this process, by what it left in the environment.
    pub(super) fn of(environment: &Environment) -> Self {
        let address = environment.get("NOTIFY_SOCKET").and_then(address);
        Self {
            watchdog: address.is_some().then(|| watchdog(environment)).flatten(),
            address,
        }
    }

    /// Says that the daemon serves, and where.
    pub(super) fn ready(&self, human: &str) {
        self.tell(&format!("READY=1\nSTATUS={human}\n"));
    }

    /// Says that it ends.
    pub(super) fn stopping(&self) {
        self.tell("STOPPING=1\n");
    }

    /// Feeds the watchdog, where there is one, as long as this runtime turns.
    pub(super) async fn feed(self, cancel: CancellationToken) {
        let Some(limit) = self.watchdog else {
            return;
        };
        let mut last = Instant::now();
        let pause = (limit / 3).max(Duration::from_millis(10));
        loop {
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = cancel.cancelled() => return,
            }
            // A runtime that was stuck meanwhile has not lived.
            if last.elapsed() < limit {
                self.tell("WATCHDOG=1\n");
            }
            last = Instant::now();
        }
    }

    fn tell(&self, states: &str) {
        if let Some(address) = &self.address {
            // Whoever listens badly must not stop the daemon.
            let _ = send(address, states);
        }
    }
}

fn send(address: &SocketAddr, states: &str) -> io::Result<()> {
    let socket = UnixDatagram::unbound()?;
    socket.set_write_timeout(Some(SEND_LIMIT))?;
    socket.send_to_addr(states.as_bytes(), address).map(drop)
}

/// A path, or a name in the abstract namespace, which begins with `@`. `None`: a kind not known here.
fn address(text: &str) -> Option<SocketAddr> {
    match text.strip_prefix('@') {
        Some(name) => SocketAddr::from_abstract_name(name).ok(),
        None if text.starts_with('/') => SocketAddr::from_pathname(text).ok(),
        None => None,
    }
}

/// How long this process may be silent. What is set for another process is not meant for this one.
fn watchdog(environment: &Environment) -> Option<Duration> {
    let pid = environment.get("WATCHDOG_PID");
    if pid.is_some_and(|pid| pid.parse() != Ok(std::process::id())) {
        return None;
    }
    let micros = environment.get("WATCHDOG_USEC")?.parse().ok()?;
    Some(Duration::from_micros(micros)).filter(|limit| !limit.is_zero())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manager(variables: &[(&str, &str)]) -> ServiceManager {
        ServiceManager::of(&Environment::from_pairs(variables.iter().copied()))
    }

    fn heard(socket: &UnixDatagram) -> String {
        socket
            .set_read_timeout(Some(Duration::from_secs(10)))
            .unwrap();
        let mut bytes = [0; 256];
        let length = socket.recv(&mut bytes).unwrap();
        String::from_utf8_lossy(&bytes[..length]).into_owned()
    }

    #[test]
    fn both_kinds_of_socket_are_told() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("notify");
        let name = format!("engine-host-test-{}", std::process::id());
        let abstract_address = SocketAddr::from_abstract_name(&name).unwrap();
        for (socket, text) in [
            (UnixDatagram::bind(&path).unwrap(), path.to_str().unwrap()),
            (
                UnixDatagram::bind_addr(&abstract_address).unwrap(),
                &*format!("@{name}"),
            ),
        ] {
            let manager = manager(&[("NOTIFY_SOCKET", text)]);
            manager.ready("serves");
            assert_eq!(heard(&socket), "READY=1\nSTATUS=serves\n");
            manager.stopping();
            assert_eq!(heard(&socket), "STOPPING=1\n");
        }
    }

    #[test]
    fn nobody_who_hears_is_no_error() {
        for variables in [
            &[][..],
            &[("NOTIFY_SOCKET", "vsock:2:1234")],
            &[("NOTIFY_SOCKET", "/nobody/listens")],
        ] {
            manager(variables).ready("serves");
        }
    }

    #[test]
    fn a_watchdog_is_fed_where_it_means_this_process() {
        let own = std::process::id().to_string();
        let with = |more: &[(&str, &str)]| {
            let mut all = vec![("NOTIFY_SOCKET", "/run/systemd/notify")];
            all.extend(more);
            manager(&all).watchdog
        };
        let limit = ("WATCHDOG_USEC", "300000");
        let expected = Some(Duration::from_millis(300));
        assert_eq!(with(&[limit]), expected);
        assert_eq!(with(&[limit, ("WATCHDOG_PID", own.as_str())]), expected);
        assert_eq!(with(&[limit, ("WATCHDOG_PID", "1")]), None);
        assert_eq!(with(&[("WATCHDOG_USEC", "0")]), None);
        assert_eq!(manager(&[limit]).watchdog, None, "nobody would hear it");
    }
}
