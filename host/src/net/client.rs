//! The client, and single requests with their redirects.

use std::{
    path::{Path, PathBuf},
    sync::{Arc, OnceLock},
    time::Duration,
};

use reqwest::{
    Client, NoProxy, Proxy, RequestBuilder, Response,
    header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap, LOCATION, RETRY_AFTER},
    redirect,
};
use url::Url;

use super::{NetError, SharedGate, is_loopback, shown};
use crate::config::environment::Environment;

/// Longest wait for a connection, name look-up and TLS included.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(20);

/// Longest silence accepted from a server.
pub(super) const STALL_TIMEOUT: Duration = Duration::from_secs(60);

/// Redirects followed for one request.
const HOPS: usize = 10;

/// Longest pause that a server may ask for.
const LONGEST_RETRY_AFTER: Duration = Duration::from_secs(60);

/// The transfer engine. Cheap to clone; the client is made when it is first needed.
#[derive(Clone)]
pub struct Net {
    shared: Arc<Shared>,
}

struct Shared {
    environment: Environment,
    gate: SharedGate,
    identity: Verification,
    client: OnceLock<Client>,
}

/// How servers prove who they are, beyond what the environment says.
#[derive(Debug, Clone, Default)]
pub(crate) struct Verification {
    /// Files with certificate authorities that are trusted as well.
    pub(crate) authorities: Vec<PathBuf>,
    /// Whether they need not: by the operator's word.
    pub(crate) off: bool,
}

/// What makes up for a connection that anybody on the way could change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Trust {
    /// What arrives will be compared with a digest.
    Digest,
    /// Nothing: it must be https, or this machine.
    Transport,
    /// The operator's word that this server need not prove who it is.
    Operator,
}

impl Net {
    /// A transfer engine with proxies and certificates of this environment, asking this gate.
    #[must_use]
    pub fn new(environment: &Environment, gate: SharedGate) -> Self {
        Self {
            shared: Arc::new(Shared {
                environment: environment.clone(),
                gate,
                identity: Verification::default(),
                client: OnceLock::new(),
            }),
        }
    }

    /// One that verifies servers otherwise, everything else being the same.
    pub(crate) fn verifying(&self, identity: Verification) -> Self {
        Self {
            shared: Arc::new(Shared {
                environment: self.shared.environment.clone(),
                gate: Arc::clone(&self.shared.gate),
                identity,
                client: OnceLock::new(),
            }),
        }
    }

    /// Asks whether a host may be reached, without reaching it.
    pub fn check_host(&self, url: &Url) -> Result<(), NetError> {
        self.check(url, None)
    }

    fn check(&self, url: &Url, from: Option<&str>) -> Result<(), NetError> {
        let host = url.host_str().unwrap_or_default();
        self.shared
            .gate
            .check(host, from)
            .map_err(|source| NetError::Forbidden {
                url: shown(url),
                source: Box::new(source),
            })
    }

    fn client(&self) -> Result<Client, NetError> {
        if let Some(client) = self.shared.client.get() {
            return Ok(client.clone());
        }
        let client = make_client(&self.shared.environment, &self.shared.identity)?;
        Ok(self.shared.client.get_or_init(|| client).clone())
    }

    /// Sends a GET and follows its redirects, hop by hop. The answer's status is what it is; it
    /// comes with the URL that gave it, credentials included, which the answer's own lacks. The gate is told who vouches for a hop: the host that named the URL, else the first one.
    pub(super) async fn get(
        &self,
        url: &Url,
        named_by: Option<&str>,
        headers: &HeaderMap,
        trust: Trust,
    ) -> Result<(Response, Url), NetError> {
        let mut current = url.clone();
        let mut from = named_by;
        let mut headers = headers.clone();
        for _ in 0..=HOPS {
            check_scheme(&current, trust)?;
            self.check(&current, from)?;
            let response = self.send(&current, &headers).await?;
            let Some(next) = next_hop(&current, &response)? else {
                return Ok((response, current));
            };
            if current.scheme() == "https" && next.scheme() != "https" && !is_loopback(&next) {
                return Err(NetError::Redirect {
                    url: shown(url),
                    reason: format!("away from https, to {}", shown(&next)),
                });
            }
            if next.origin() != current.origin() {
                headers.remove(AUTHORIZATION);
            }
            from = named_by.or(url.host_str());
            current = next;
        }
        Err(NetError::Redirect {
            url: shown(url),
            reason: format!("more than {HOPS} times"),
        })
    }

    /// Sends a form. Its redirects are not followed.
    pub(super) async fn post(
        &self,
        url: &Url,
        named_by: Option<&str>,
        form: &[(&str, &str)],
        trust: Trust,
    ) -> Result<Response, NetError> {
        check_scheme(url, trust)?;
        self.check(url, named_by)?;
        let text = url::form_urlencoded::Serializer::new(String::new())
            .extend_pairs(form)
            .finish();
        let request = self.client()?.post(url.clone());
        let request = request.header(CONTENT_TYPE, "application/x-www-form-urlencoded");
        answer_of(url, request.body(text)).await
    }

    async fn send(&self, url: &Url, headers: &HeaderMap) -> Result<Response, NetError> {
        let request = self.client()?.get(url.clone()).headers(headers.clone());
        answer_of(url, request).await
    }
}

async fn answer_of(url: &Url, request: RequestBuilder) -> Result<Response, NetError> {
    match tokio::time::timeout(STALL_TIMEOUT, request.send()).await {
        Ok(Ok(response)) => Ok(response),
        Ok(Err(error)) => Err(connection(url, error)),
        Err(_) => Err(NetError::Stalled {
            url: shown(url),
            limit: STALL_TIMEOUT,
        }),
    }
}

/// A connection error without its URL, which may hold secrets.
pub(super) fn connection(url: &Url, source: reqwest::Error) -> NetError {
    NetError::Connection {
        url: shown(url),
        source: source.without_url(),
    }
}

/// The error for an answer that is not what was asked for.
pub(super) fn status_error(response: &Response) -> NetError {
    let retry_after = response
        .headers()
        .get(RETRY_AFTER)
        .and_then(|value| value.to_str().ok()?.trim().parse().ok())
        .map(|seconds| Duration::from_secs(seconds).min(LONGEST_RETRY_AFTER));
    NetError::Status {
        url: shown(response.url()),
        status: response.status().as_u16(),
        retry_after,
    }
}

fn check_scheme(url: &Url, trust: Trust) -> Result<(), NetError> {
    match url.scheme() {
        "https" => Ok(()),
        "http" if trust != Trust::Transport || is_loopback(url) => Ok(()),
        "http" => Err(NetError::Insecure { url: shown(url) }),
        _ => Err(NetError::BadUrl { url: shown(url) }),
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

fn make_client(environment: &Environment, identity: &Verification) -> Result<Client, NetError> {
    // Fails when it was done before, which is as good.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let mut builder = Client::builder()
        .user_agent(concat!("engine-host/", env!("CARGO_PKG_VERSION")))
        .http1_only()
        .redirect(redirect::Policy::none())
        .connect_timeout(CONNECT_TIMEOUT)
        .no_proxy();
    for proxy in proxies(environment)? {
        builder = builder.proxy(proxy);
    }
    if let Some(path) = environment.path("SSL_CERT_FILE") {
        let setting = |source| NetError::Setting {
            setting: "SSL_CERT_FILE",
            source,
        };
        builder = builder.tls_certs_only(certificates(&path).map_err(setting)?);
    }
    for path in &identity.authorities {
        let more = certificates(path).map_err(|source| NetError::Setting {
            setting: "a certificate authority of certs.d",
            source,
        })?;
        builder = builder.tls_certs_merge(more);
    }
    builder = builder.tls_danger_accept_invalid_certs(identity.off);
    builder.build().map_err(|source| NetError::Setting {
        setting: "the TLS settings of this machine",
        source: source.into(),
    })
}

fn certificates(
    path: &Path,
) -> Result<Vec<reqwest::Certificate>, Box<dyn std::error::Error + Send + Sync>> {
    let text = std::fs::read(path).map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(reqwest::Certificate::from_pem_bundle(&text)?)
}

fn proxies(environment: &Environment) -> Result<Vec<Proxy>, NetError> {
    type Make = fn(&str) -> reqwest::Result<Proxy>;
    let kinds: [(&'static str, &str, Make); 3] = [
        ("HTTPS_PROXY", "https_proxy", |url| Proxy::https(url)),
        ("HTTP_PROXY", "http_proxy", |url| Proxy::http(url)),
        ("ALL_PROXY", "all_proxy", |url| Proxy::all(url)),
    ];
    let variable = |upper, lower| environment.get(lower).or_else(|| environment.get(upper));
    let except = format!(
        "{},localhost,127.0.0.0/8,::1",
        variable("NO_PROXY", "no_proxy").unwrap_or_default()
    );
    let mut proxies = Vec::new();
    for (upper, lower, make) in kinds {
        if let Some(url) = variable(upper, lower) {
            let proxy = make(url).map_err(|source| NetError::Setting {
                setting: upper,
                source: source.without_url().into(),
            })?;
            proxies.push(proxy.no_proxy(NoProxy::from_string(&except)));
        }
    }
    Ok(proxies)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fault::Fault as _;

    fn refused(name: &str, value: &str) -> NetError {
        let environment = Environment::from_pairs([(name, value)]);
        make_client(&environment, &Verification::default()).unwrap_err()
    }

    #[test]
    fn settings_that_cannot_be_used_are_named_and_their_secrets_are_not() {
        let error = refused("SSL_CERT_FILE", "/nowhere/ca.pem");
        assert_eq!(error.to_string(), "cannot use SSL_CERT_FILE");
        let error = refused("https_proxy", "http://user:secret@");
        assert_eq!(error.to_string(), "cannot use HTTPS_PROXY");
        assert!(!crate::narrate::chain(&error).contains("secret"));
        assert_eq!(error.kind(), "bad-setting");
    }
}
