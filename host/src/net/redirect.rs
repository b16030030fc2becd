//! Redirects, followed hop by hop.
//!
//! Every hop is asked of the gate. None leaves https for http, and none leads from elsewhere to this machine
//! or its own link: neither by address nor by a name that stands for one. With a proxy names are looked up
//! there, and it is the proxy's matter where they lead.

use reqwest::{
    Response,
    header::{ACCEPT, ACCEPT_ENCODING, HeaderMap, HeaderName, IF_RANGE, LOCATION, RANGE},
};
use tokio::time::timeout;
use url::Url;

use super::{
    Net, NetError,
    client::{CONNECT_TIMEOUT, Trust, check_scheme},
    is_local, is_local_address, is_loopback, shown,
};

/// Redirects followed for one request.
const HOPS: usize = 10;

/// The end of a chain of redirects.
pub(super) struct Reached {
    /// What the last hop answered, whatever its status.
    pub(super) response: Response,
    /// Its URL, credentials included, which the answer's own lacks.
    pub(super) url: Url,
    /// Whether there were redirects.
    pub(super) redirected: bool,
}

/// What another server than the one that was named gets to see; the rest may be secret.
const FOR_EVERYBODY: [HeaderName; 4] = [ACCEPT, ACCEPT_ENCODING, RANGE, IF_RANGE];

/// Headers for a server that a redirect led to.
pub(super) fn without_secrets(headers: &HeaderMap) -> HeaderMap {
    let known = |(name, value)| {
        FOR_EVERYBODY
            .contains(name)
            .then_some((name.clone(), value))
    };
    let pairs = headers.iter().filter_map(known);
    pairs
        .map(|(name, value): (_, &reqwest::header::HeaderValue)| (name, value.clone()))
        .collect()
}

impl Net {
    /// Sends a GET and follows its redirects, hop by hop. The gate is told who vouches for a hop: the
    /// host that named the URL, else the first one.
    pub(super) async fn get(
        &self,
        url: &Url,
        named_by: Option<&str>,
        headers: &HeaderMap,
        trust: Trust,
    ) -> Result<Reached, NetError> {
        let mut current = url.clone();
        let mut from = named_by;
        // Whoever names the first URL may name what is here.
        let mut from_here = true;
        let mut headers = headers.clone();
        for hop in 0..=HOPS {
            check_scheme(&current, trust)?;
            self.check(&current, from)?;
            let response = self.send(&current, &headers).await?;
            // Its name may have come to stand for another address since it was looked up.
            if !from_here && self.is_here(&current, &response) {
                return Err(back_here(url, &current));
            }
            let Some(next) = next_hop(&current, &response)? else {
                return Ok(Reached {
                    response,
                    url: current,
                    redirected: hop > 0,
                });
            };
            if !matches!(next.scheme(), "http" | "https") {
                return Err(NetError::Redirect {
                    url: shown(url),
                    reason: format!("to {}, which is no http or https URL", shown(&next)),
                });
            }
            if current.scheme() == "https" && next.scheme() != "https" && !is_loopback(&next) {
                return Err(NetError::Redirect {
                    url: shown(url),
                    reason: format!("away from https, to {}", shown(&next)),
                });
            }
            from_here = self.is_here(&current, &response);
            // What listens here, or knows this machine's secrets, is not theirs to ask.
            if !from_here && self.leads_here(&next).await {
                return Err(back_here(url, &next));
            }
            if next.origin() != current.origin() {
                headers = without_secrets(&headers);
            }
            from = named_by.or(url.host_str());
            current = next;
        }
        Err(NetError::Redirect {
            url: shown(url),
            reason: format!("more than {HOPS} times"),
        })
    }

    /// Whether an answer came from this machine.
    fn is_here(&self, url: &Url, response: &Response) -> bool {
        let address = response.remote_addr().filter(|_| !self.has_proxy());
        is_local(url) || address.is_some_and(|address| is_local_address(address.ip()))
    }

    /// Whether a URL leads to this machine, by what its name stands for now. One that stands for nothing
    /// does not: then it cannot be connected to either.
    async fn leads_here(&self, url: &Url) -> bool {
        if is_local(url) || self.has_proxy() {
            return is_local(url);
        }
        let (Some(url::Host::Domain(name)), Some(port)) = (url.host(), url.port_or_known_default())
        else {
            return false;
        };
        let found = timeout(CONNECT_TIMEOUT, tokio::net::lookup_host((name, port))).await;
        let mut addresses = found.into_iter().flatten().flatten();
        addresses.any(|address| is_local_address(address.ip()))
    }
}

fn back_here(url: &Url, to: &Url) -> NetError {
    NetError::Redirect {
        url: shown(url),
        reason: format!("back to this machine or its own link, {}", shown(to)),
    }
}

fn next_hop(current: &Url, response: &Response) -> Result<Option<Url>, NetError> {
    if !matches!(response.status().as_u16(), 301 | 302 | 303 | 307 | 308) {
        return Ok(None);
    }
    response
        .headers()
        .get(LOCATION)
        .and_then(|location| location.to_str().ok())
        .and_then(|location| current.join(location).ok())
        .map(Some)
        .ok_or_else(|| NetError::Redirect {
            url: shown(current),
            reason: "nowhere".to_owned(),
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::testing::open_net;

    #[tokio::test]
    async fn a_name_leads_here_when_one_of_its_addresses_does() {
        let net = open_net();
        let here = async |url: &str| net.leads_here(&Url::parse(url).unwrap()).await;
        // By name as by address; the dot at its end makes it another name of the same.
        for url in [
            "http://localhost/",
            "http://localhost./",
            "http://127.1/",
            "http://[::1]:9/",
            "http://[fd00:ec2::254]/latest",
        ] {
            assert!(here(url).await, "{url}");
        }
        for url in [
            "http://192.0.2.1/",
            "http://[fd00:1::1]/",
            "http://no-such-name.invalid/",
        ] {
            assert!(!here(url).await, "{url}");
        }
    }
}
