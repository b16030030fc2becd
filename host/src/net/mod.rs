//! The one transfer engine: everything that is fetched over HTTP comes through here.
//!
//! What others reduce their sources to is a [`Transfer`]: URL, digest, size. This room adds what
//! holds for all of them:
//!
//! * Redirects are followed by hand; every hop is asked of the [`Gate`] (the network policy) and
//!   never leaves https for http. A server elsewhere cannot send a request back to this machine.
//! * Plain http is accepted for loopback hosts, and elsewhere only when a digest is expected, since
//!   then nobody on the way can change what arrives.
//! * Credentials go to the server they are for: a redirect to another one leaves them behind.
//! * HTTP/1.1 only: bulk transfers cost half as much as over HTTP/2.
//! * Nothing that a server says is believed to be small, true or soon over: answers have limits of size
//!   and pace, and sizes are held against the disk before anything is set aside.
//! * Access that ends during a transfer is had again from who gave it ([`Renew`]), and the transfer
//!   goes on.
//! * What breaks off is resumed (`Range`), what is worth it retried with growing pauses.
//! * Content is hashed while it streams and compared before anything is published.
//! * Certificates (`SSL_CERT_FILE`, `SSL_CERT_DIR`) and proxies (`HTTPS_PROXY`, `HTTP_PROXY`, `ALL_PROXY`,
//!   `NO_PROXY`) come from the environment that is given; loopback hosts never go through a proxy.

mod answer;
mod broken;
mod certificates;
mod client;
mod describe;
mod digest;
mod error;
mod index;
mod limits;
mod pace;
mod page;
mod range;
mod redirect;
mod renew;
mod retry;
#[cfg(feature = "s3")]
mod single;
mod tell;
mod transfer;

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    sync::Arc,
};

pub(crate) use answer::{Answer, Ask, form};
pub use broken::Broken;
pub use client::Net;
pub(crate) use client::{Trust, Verification, check_transport};
pub(crate) use describe::Described;
pub(crate) use digest::hash_file;
pub use digest::{Digest, DigestError};
pub use error::NetError;
pub use index::{IndexFile, find_sdist};
pub use renew::NotRenewed;
pub(crate) use renew::{Renew, Renewal};
pub(crate) use transfer::tell_passed_over;
pub use transfer::{Fetched, Source, Transfer};
pub use url::Url;

use crate::policy::Refusal;

/// Decides which hosts may be reached. Asked before every request, for every hop.
pub trait Gate: Send + Sync {
    /// Whether `host` may be reached; `from` is the host that vouches for it, by naming its URL or
    /// at the start of a chain of redirects.
    fn check(&self, host: &str, from: Option<&str>) -> Result<(), Refusal>;
}

impl<F> Gate for F
where
    F: Fn(&str, Option<&str>) -> Result<(), Refusal> + Send + Sync,
{
    fn check(&self, host: &str, from: Option<&str>) -> Result<(), Refusal> {
        self(host, from)
    }
}

/// A shared gate.
pub type SharedGate = Arc<dyn Gate>;

/// A URL without user, password, query and fragment: fit to be shown and stored.
#[must_use]
pub fn shown(url: &Url) -> String {
    let mut url = url.clone();
    // Fails for URLs that cannot have them, which then have none.
    let _ = url.set_username("");
    let _ = url.set_password(None);
    url.set_query(None);
    url.set_fragment(None);
    url.to_string()
}

/// The last part of a URL's path, for names; `download` where there is none.
pub(crate) fn file_name(url: &Url) -> &str {
    let last = url.path_segments().and_then(|mut parts| parts.next_back());
    last.filter(|name| !name.is_empty())
        .map_or("download", |name| {
            std::path::Path::new(name)
                .file_name()
                .and_then(|name| name.to_str())
                .unwrap_or("download")
        })
}

/// Whether a URL's host is this machine.
#[must_use]
pub fn is_loopback(url: &Url) -> bool {
    match url.host() {
        Some(url::Host::Domain(name)) => {
            let name = name.strip_suffix('.').unwrap_or(name);
            name == "localhost" || name.ends_with(".localhost")
        }
        Some(url::Host::Ipv4(address)) => address.is_loopback(),
        Some(url::Host::Ipv6(address)) => address.is_loopback(),
        None => false,
    }
}

/// Whether a URL leads to this machine or to its own link, where a cloud keeps what a machine may know
/// alone. Names are taken as they are; what they stand for, `redirect` asks.
#[must_use]
pub(crate) fn is_local(url: &Url) -> bool {
    match url.host() {
        Some(url::Host::Ipv4(address)) => is_local_address(address.into()),
        Some(url::Host::Ipv6(address)) => is_local_address(address.into()),
        _ => is_loopback(url),
    }
}

/// Whether an address is this machine's, or of its own link.
fn is_local_address(address: IpAddr) -> bool {
    let is_v4 = |address: Ipv4Addr| {
        address.is_loopback() || address.is_unspecified() || address.is_link_local()
    };
    match address {
        IpAddr::V4(address) => is_v4(address),
        IpAddr::V6(address) => {
            let mapped = address.to_ipv4_mapped().is_some_and(is_v4);
            let own = address.is_loopback() || address.is_unspecified();
            mapped || own || address.is_unicast_link_local() || is_aws_metadata(address)
        }
    }
}

/// Whether an address is of AWS's services for its own machines: local addresses, which lie beside the link's.
fn is_aws_metadata(address: Ipv6Addr) -> bool {
    address.segments()[..2] == [0xfd00, 0x0ec2]
}

#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
