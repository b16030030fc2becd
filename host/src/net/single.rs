//! Single requests of protocols that sign them: a signature is for one server, so that no redirect is
//! followed.

use std::{net::IpAddr, time::Duration};

use reqwest::{Client, Method, header::HeaderMap};
use tokio_util::sync::CancellationToken;
use url::Url;

use super::{
    Answer, Ask, Net, NetError,
    client::{check_scheme, connection},
    is_aws_metadata, is_loopback, shown,
};

/// Longest answer of a service on this machine or its link.
const NEARBY_LIMIT_BYTES: u64 = 1 << 20;

impl Net {
    /// Sends a request without a body. A server that fails is asked again after a pause; any other
    /// status is an answer, redirects included.
    pub(crate) async fn single(
        &self,
        method: Method,
        ask: &Ask<'_>,
        cancel: &CancellationToken,
    ) -> Result<Answer, NetError> {
        self.patiently(ask.url, cancel, || self.single_once(method.clone(), ask))
            .await
    }

    async fn single_once(&self, method: Method, ask: &Ask<'_>) -> Result<Answer, NetError> {
        check_scheme(ask.url, ask.trust)?;
        self.check(ask.url, ask.named_by)?;
        let request = self.client()?.request(method, ask.url.clone());
        let request = request.headers(ask.headers.clone());
        let response = self.answer_of(ask.url, request).await?;
        self.read(ask, response).await
    }

    /// Asks a service of this machine or its link, such as a cloud's metadata service: once, through no
    /// proxy, for so long at most. Other hosts are refused: what they say could be anybody's.
    pub(crate) async fn nearby(
        &self,
        method: Method,
        url: &Url,
        headers: &HeaderMap,
        limit: Duration,
        cancel: &CancellationToken,
    ) -> Result<Answer, NetError> {
        if url.scheme() != "https" && !is_nearby(url) {
            return Err(NetError::Insecure { url: shown(url) });
        }
        self.check(url, None)?;
        let ask = Ask {
            url,
            named_by: None,
            headers,
            trust: super::Trust::Operator,
            limit_bytes: NEARBY_LIMIT_BYTES,
        };
        // Reading the certificates of this machine is none of the service's time.
        let client = direct_client(limit).map_err(|error| connection(url, error))?;
        let asked = async {
            let request = client.request(method, url.clone()).headers(headers.clone());
            self.read(&ask, self.answer_of(url, request).await?).await
        };
        tokio::select! {
            () = cancel.cancelled() => Err(NetError::Cancelled { url: shown(url) }),
            result = tokio::time::timeout(limit, asked) => result.unwrap_or_else(|_| {
                Err(NetError::Stalled { url: shown(url), bytes: 0, limit })
            }),
        }
    }
}

fn direct_client(limit: Duration) -> reqwest::Result<Client> {
    // Fails when it was done before, which is as good.
    let _ = rustls::crypto::ring::default_provider().install_default();
    Client::builder()
        .http1_only()
        .redirect(reqwest::redirect::Policy::none())
        .connect_timeout(limit)
        .no_proxy()
        .build()
}

/// Whether a host is this machine or on its own link, where nobody else can answer for it: loopback,
/// 169.254.0.0/16, and the IPv6 addresses of AWS's metadata services.
fn is_nearby(url: &Url) -> bool {
    let host = url.host_str().unwrap_or_default();
    let address = host.trim_start_matches('[').trim_end_matches(']').parse();
    is_loopback(url)
        || match address {
            Ok(IpAddr::V4(address)) => address.is_link_local(),
            Ok(IpAddr::V6(address)) => is_aws_metadata(address),
            Err(_) => false,
        }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::net::{
        Trust,
        testing::{Reply, Server, open_net},
    };

    #[test]
    fn only_this_machine_and_its_link_are_nearby() {
        let nearby = |text: &str| is_nearby(&Url::parse(text).unwrap());
        for near in [
            "http://127.0.0.1:80/",
            "http://localhost/",
            "http://169.254.169.254/latest",
            "http://169.254.170.2/v2",
            "http://[fd00:ec2::254]/",
        ] {
            assert!(nearby(near), "{near}");
        }
        for far in [
            "http://10.0.0.1/",
            "http://metadata/",
            "http://[fd00:1::1]/",
        ] {
            assert!(!nearby(far), "{far}");
        }
    }

    #[tokio::test]
    async fn a_redirect_is_an_answer_and_not_followed() {
        let server = Server::start(|_, _| Reply::redirect("/elsewhere"));
        let url = server.url("x");
        let ask = Ask {
            url: &url,
            named_by: None,
            headers: &HeaderMap::new(),
            trust: Trust::Transport,
            limit_bytes: 100,
        };
        let cancel = CancellationToken::new();
        let answer = open_net().single(Method::HEAD, &ask, &cancel).await;
        assert_eq!(answer.unwrap().status, 302);
        assert_eq!(server.requests().len(), 1);
    }

    #[tokio::test]
    async fn a_nearby_service_that_fails_is_not_asked_again() {
        let asked = std::sync::Arc::new(AtomicUsize::new(0));
        let count = std::sync::Arc::clone(&asked);
        let server = Server::start(move |_, _| {
            count.fetch_add(1, Ordering::Relaxed);
            Reply::status(503)
        });
        let limit = Duration::from_secs(5);
        let cancel = CancellationToken::new();
        let headers = HeaderMap::new();
        let url = server.url("x");
        let net = open_net();
        let answer = net.nearby(Method::GET, &url, &headers, limit, &cancel);
        assert!(answer.await.is_err());
        assert_eq!(asked.load(Ordering::Relaxed), 1);
        let far = Url::parse("http://192.0.2.1/").unwrap();
        let refused = net.nearby(Method::GET, &far, &headers, limit, &cancel);
        assert!(matches!(refused.await, Err(NetError::Insecure { .. })));
    }
}
