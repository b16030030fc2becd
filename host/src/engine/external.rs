//! Engines that run already: where they are, and the watcher that stands in for their process.
//!
//! The keeper's child is this program again: it asks the engine from time to time and ends when the
//! engine is gone. So everything that goes by processes (`ps`, `stop`, `--detach`, the removal of the
//! handoff) holds for engines of others, which are never signalled themselves.

use std::{
    net::{SocketAddr, ToSocketAddrs},
    process::ExitCode,
    time::Duration,
};

use tokio::net::TcpStream;

use super::{
    EngineError,
    http::{self, Want},
};

/// First argument that makes a program a watcher; then address and path.
const MARKER: &str = "__watch-engine";

/// Pause between two questions to the engine.
const INTERVAL: Duration = Duration::from_secs(2);

/// Longest time one question may take. An engine under load answers late.
const ASK_LIMIT: Duration = Duration::from_secs(10);

/// Longest time to find out whether somebody listens on one of several addresses.
const CONNECT_LIMIT: Duration = Duration::from_secs(2);

/// Questions in a row without any answer after which the engine counts as gone.
const MISSED: u32 = 5;

/// Code that a watcher ends with when its engine is gone.
pub(super) const GONE: i32 = 3;

/// An engine of somebody else, by its URL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct External {
    /// `http://host:port`, as it is handed on.
    pub(super) url: String,
    host: String,
    port: u16,
}

impl External {
    /// Reads `http://HOST[:PORT]`. Anything else is refused: probes speak plain HTTP, and a path in
    /// front of an engine's own would have to be known to everybody who uses the handoff.
    pub(super) fn parse(url: &str) -> Result<Self, EngineError> {
        let refuse = |reason: &str| EngineError::ExternalUrl {
            url: url.to_owned(),
            reason: reason.to_owned(),
        };
        let rest = url
            .strip_prefix("http://")
            .ok_or_else(|| refuse("only `http://HOST:PORT` can be attached to"))?;
        let rest = rest.strip_suffix('/').unwrap_or(rest);
        if rest.contains(['/', '?', '#']) {
            return Err(refuse("it has a path; the engine's own address is wanted"));
        }
        if rest.contains('@') {
            return Err(refuse("it has a user name in it"));
        }
        let (host, port) = match rest.rsplit_once(':') {
            Some((host, port)) if !port.ends_with(']') => {
                let port = port.parse().map_err(|_| refuse("its port is no number"))?;
                (host, port)
            }
            _ => (rest, 80),
        };
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b".-_:[]".contains(&byte);
        if host.is_empty() || !host.bytes().all(plain) {
            return Err(refuse("it names no host"));
        }
        Ok(Self {
            url: format!("http://{rest}"),
            host: host.to_owned(),
            port,
        })
    }

    pub(super) fn port(&self) -> u16 {
        self.port
    }

    /// Where it answers. A name is looked up once: the engine is this address from then on. Of several,
    /// as `localhost` has them, it is the first one where somebody listens.
    pub(super) async fn address(&self) -> Result<SocketAddr, EngineError> {
        Ok(first_that_listens(&self.addresses().await?).await)
    }

    /// All addresses of its name, at least one.
    async fn addresses(&self) -> Result<Vec<SocketAddr>, EngineError> {
        let (host, port) = (self.host.clone(), self.port);
        let host = host.trim_matches(['[', ']']).to_owned();
        let looked_up = tokio::task::spawn_blocking(move || {
            let addresses: Vec<SocketAddr> = (host.as_str(), port).to_socket_addrs()?.collect();
            match addresses.is_empty() {
                true => Err(std::io::ErrorKind::NotFound.into()),
                false => Ok(addresses),
            }
        });
        let found: std::io::Result<Vec<SocketAddr>> = looked_up
            .await
            .unwrap_or_else(|_| Err(std::io::ErrorKind::Interrupted.into()));
        found.map_err(|error| EngineError::ExternalUrl {
            url: self.url.clone(),
            reason: format!("`{}` has no address ({error})", self.host),
        })
    }
}

/// The first address where somebody listens, else the first one. At least one must be given.
async fn first_that_listens(addresses: &[SocketAddr]) -> SocketAddr {
    if let [only] = addresses {
        return *only;
    }
    for address in addresses {
        let connected = tokio::time::timeout(CONNECT_LIMIT, TcpStream::connect(address)).await;
        if let Ok(Ok(_)) = connected {
            return *address;
        }
    }
    addresses[0]
}

/// Arguments that make this program the watcher of an engine.
pub(super) fn watcher_arguments(address: SocketAddr, path: &str) -> Vec<String> {
    vec![MARKER.to_owned(), address.to_string(), path.to_owned()]
}

/// Becomes the watcher if this program was started as one, and returns how it ended. To be called at
/// the top of `main`.
#[must_use]
pub fn run_if_watcher() -> Option<ExitCode> {
    let mut arguments = std::env::args().skip(1);
    if arguments.next()? != MARKER {
        return None;
    }
    let address: SocketAddr = arguments.next()?.parse().ok()?;
    let path = arguments.next()?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .ok()?;
    runtime.block_on(watch(address, &path));
    Some(ExitCode::from(GONE as u8))
}

/// Returns when the engine has given no answer for [`MISSED`] times in a row. Any answer counts: one
/// that loads or complains is there.
async fn watch(address: SocketAddr, path: &str) {
    println!("watching http://{address}{path}, an engine that this host has not started");
    let mut missed = 0;
    while missed < MISSED {
        tokio::time::sleep(INTERVAL).await;
        match http::get(address, path, Want::Status, ASK_LIMIT).await {
            Ok(_) => missed = 0,
            Err(error) => {
                missed += 1;
                println!("no answer ({error}), {missed} of {MISSED}");
            }
        }
    }
    println!("the engine on http://{address} is gone");
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;
    use crate::net::testing::{FreePort, close};

    #[test]
    fn only_an_engine_s_own_address_is_attached_to() {
        let parse = |url: &str| External::parse(url).map(|found| (found.url.clone(), found.port));
        assert_eq!(
            parse("http://127.0.0.1:8080/").unwrap(),
            ("http://127.0.0.1:8080".to_owned(), 8080)
        );
        assert_eq!(parse("http://[::1]:9").unwrap().1, 9);
        assert_eq!(parse("http://engine").unwrap().1, 80);
        for bad in [
            "https://engine:8000",
            "engine:8000",
            "http://",
            "http://a:b",
            "http://a:1/v1",
            "http://user:word@a:1",
            "http://a b:1",
        ] {
            let error = parse(bad).unwrap_err();
            assert!(matches!(error, EngineError::ExternalUrl { .. }), "{bad}");
        }
    }

    #[tokio::test]
    async fn a_name_is_looked_up() {
        let external = External::parse("http://localhost:18080").unwrap();
        assert_eq!(external.address().await.unwrap().port(), 18080);
    }

    #[tokio::test]
    async fn of_several_addresses_the_one_is_taken_where_somebody_listens() {
        let port = FreePort::at(Ipv4Addr::LOCALHOST);
        let (listener, open) = (port.listen(), port.address());
        let closed = SocketAddr::new([127, 0, 0, 2].into(), open.port());
        assert_eq!(first_that_listens(&[closed, open]).await, open);
        close(listener);
        assert_eq!(first_that_listens(&[closed, open]).await, closed);
    }
}
