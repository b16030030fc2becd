//! The client, and single requests.

use std::{
    collections::HashMap,
    path::PathBuf,
    sync::{Arc, Mutex, OnceLock},
    time::Duration,
};

use reqwest::{
    Client, NoProxy, Proxy, RequestBuilder, Response,
    header::{CONTENT_TYPE, HeaderMap, HeaderValue},
    redirect,
};
use tokio_util::bytes::Bytes;
use url::Url;

use super::{
    Ask, Broken, Digest, NetError, SharedGate, certificates, is_loopback, limits::Limits,
    pace::Pace, retry::retry_after, shown,
};
use crate::config::environment::Environment;

/// Longest wait for a connection, name look-up and TLS included.
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(20);

/// The transfer engine. Cheap to clone; the client is made when it is first needed.
#[derive(Clone)]
pub struct Net {
    shared: Arc<Shared>,
}

struct Shared {
    environment: Environment,
    gate: SharedGate,
    identity: Verification,
    limits: Limits,
    client: OnceLock<Client>,
    /// Those that verify servers otherwise, each made once.
    others: Mutex<HashMap<Verification, Net>>,
}

/// How servers prove who they are, beyond what the environment says.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(crate) struct Verification {
    /// Files with certificate authorities that are trusted as well.
    pub(crate) authorities: Vec<PathBuf>,
    /// Whether they need not: by the operator's word.
    pub(crate) off: bool,
}

/// What forms are.
const FORM: &str = "application/x-www-form-urlencoded";

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
        Self::made_of(
            environment,
            gate,
            Verification::default(),
            Limits::default(),
        )
    }

    fn made_of(
        environment: &Environment,
        gate: SharedGate,
        identity: Verification,
        limits: Limits,
    ) -> Self {
        Self {
            shared: Arc::new(Shared {
                environment: environment.clone(),
                gate,
                identity,
                limits,
                client: OnceLock::new(),
                others: Mutex::default(),
            }),
        }
    }

    /// One that verifies servers so, everything else being the same; itself where nothing is said. Its
    /// connections are kept for whoever asks for the same later.
    pub(crate) fn verifying(&self, identity: &Verification) -> Self {
        let own = &self.shared;
        if own.identity == *identity || *identity == Verification::default() {
            return self.clone();
        }
        let mut others = own.others.lock().expect("no holder panics");
        let make = || {
            let gate = Arc::clone(&own.gate);
            Self::made_of(&own.environment, gate, identity.clone(), own.limits)
        };
        others.entry(identity.clone()).or_insert_with(make).clone()
    }

    /// One with other limits, everything else being the same.
    #[cfg(test)]
    pub(super) fn limited(&self, limits: Limits) -> Self {
        let own = &self.shared;
        let gate = Arc::clone(&own.gate);
        Self::made_of(&own.environment, gate, own.identity.clone(), limits)
    }

    /// Whether others connect to servers for us. Then they look up what names stand for.
    pub(super) fn has_proxy(&self) -> bool {
        proxies(&self.shared.environment).is_ok_and(|proxies| !proxies.is_empty())
    }

    pub(super) fn limits(&self) -> &Limits {
        &self.shared.limits
    }

    /// Asks whether a host may be reached, without reaching it.
    pub fn check_host(&self, url: &Url) -> Result<(), NetError> {
        self.check(url, None)
    }

    pub(super) fn check(&self, url: &Url, from: Option<&str>) -> Result<(), NetError> {
        let host = url.host_str().unwrap_or_default();
        self.shared
            .gate
            .check(host, from)
            .map_err(|source| NetError::Forbidden {
                url: shown(url),
                source: Box::new(source),
            })
    }

    pub(super) fn client(&self) -> Result<Client, NetError> {
        if let Some(client) = self.shared.client.get() {
            return Ok(client.clone());
        }
        let client = make_client(&self.shared.environment, &self.shared.identity)?;
        Ok(self.shared.client.get_or_init(|| client).clone())
    }

    /// Sends a form. Its redirects are not followed.
    pub(super) async fn post(&self, ask: &Ask<'_>, form: &str) -> Result<Response, NetError> {
        check_scheme(ask.url, ask.trust)?;
        self.check(ask.url, ask.named_by)?;
        let mut headers = ask.headers.clone();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(FORM));
        let request = self.client()?.post(ask.url.clone()).headers(headers);
        self.answer_of(ask.url, request.body(form.to_owned())).await
    }

    /// Sends a document. Its redirects are not followed.
    #[cfg(feature = "otlp")]
    pub(super) async fn send_document(
        &self,
        ask: &super::Ask<'_>,
        body: Vec<u8>,
    ) -> Result<Response, NetError> {
        check_scheme(ask.url, ask.trust)?;
        self.check(ask.url, ask.named_by)?;
        let request = self.client()?.post(ask.url.clone());
        let request = request.headers(ask.headers.clone()).body(body);
        self.answer_of(ask.url, request).await
    }

    pub(super) async fn send(&self, url: &Url, headers: &HeaderMap) -> Result<Response, NetError> {
        let request = self.client()?.get(url.clone()).headers(headers.clone());
        self.answer_of(url, request).await
    }

    pub(super) async fn answer_of(
        &self,
        url: &Url,
        request: RequestBuilder,
    ) -> Result<Response, NetError> {
        let limit = self.limits().silence;
        match tokio::time::timeout(limit, request.send()).await {
            Ok(Ok(response)) => Ok(response),
            Ok(Err(error)) => Err(self.not_connected(url, error)),
            Err(_) => Err(NetError::Stalled {
                url: shown(url),
                bytes: 0,
                limit,
            }),
        }
    }

    /// A connection error that says which proxy it was.
    fn not_connected(&self, url: &Url, source: reqwest::Error) -> NetError {
        let source = Broken::of(source);
        NetError::Connection {
            url: shown(url),
            source: match proxy_of(url, &self.shared.environment) {
                Some(proxy) => source.with_proxy(&proxy),
                None => source,
            },
        }
    }

    /// The next bytes of an answer; `None` at its end. `pace` is this answer's from its start.
    pub(super) async fn next_chunk(
        &self,
        url: &Url,
        response: &mut Response,
        pace: &mut Pace,
    ) -> Result<Option<Bytes>, NetError> {
        let limit = self.limits().silence;
        let stalled = |bytes| NetError::Stalled {
            url: shown(url),
            bytes,
            limit,
        };
        let chunk = match tokio::time::timeout(limit, response.chunk()).await {
            Ok(chunk) => chunk.map_err(|error| connection(url, error))?,
            Err(_) => return Err(stalled(0)),
        };
        let came = chunk.as_ref().map(|chunk| chunk.len() as u64);
        match came.and_then(|bytes| pace.too_slow(bytes, self.limits())) {
            Some(bytes) => Err(stalled(bytes)),
            None => Ok(chunk),
        }
    }
}

/// A connection error without its URL, which may hold secrets.
pub(super) fn connection(url: &Url, source: reqwest::Error) -> NetError {
    NetError::Connection {
        url: shown(url),
        source: Broken::of(source),
    }
}

/// The error for an answer that is not what was asked for.
pub(super) fn status_error(response: &Response) -> NetError {
    NetError::Status {
        url: shown(response.url()),
        status: response.status().as_u16(),
        retry_after: retry_after(response.headers()),
    }
}

/// Refuses a URL that nothing can be fetched from: plain http to another machine, where no digest says
/// what must arrive.
pub(crate) fn check_transport(url: &Url, digest: Option<&Digest>) -> Result<(), NetError> {
    let trust = match digest {
        Some(_) => Trust::Digest,
        None => Trust::Transport,
    };
    check_scheme(url, trust)
}

pub(super) fn check_scheme(url: &Url, trust: Trust) -> Result<(), NetError> {
    match url.scheme() {
        "https" => Ok(()),
        "http" if trust != Trust::Transport || is_loopback(url) => Ok(()),
        "http" => Err(NetError::Insecure { url: shown(url) }),
        _ => Err(NetError::BadUrl { url: shown(url) }),
    }
}

pub(super) fn make_client(
    environment: &Environment,
    identity: &Verification,
) -> Result<Client, NetError> {
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
    if let Some(authorities) = certificates::of_environment(environment)? {
        builder = builder.tls_certs_only(authorities);
    }
    for path in &identity.authorities {
        let more = certificates::of_file(path).map_err(|source| NetError::Setting {
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

type Make = fn(&str) -> reqwest::Result<Proxy>;

/// Variables that name proxies, in the order in which they are asked.
const PROXIES: [(&str, &str, Make); 3] = [
    ("HTTPS_PROXY", "https_proxy", |url| Proxy::https(url)),
    ("HTTP_PROXY", "http_proxy", |url| Proxy::http(url)),
    ("ALL_PROXY", "all_proxy", |url| Proxy::all(url)),
];

/// The proxy for a URL, in words without its password.
fn proxy_of(url: &Url, environment: &Environment) -> Option<String> {
    let own = format!("{}_proxy", url.scheme());
    let named = PROXIES
        .iter()
        .filter(|(_, lower, _)| [&*own, "all_proxy"].contains(lower));
    let mut named = named.filter_map(|(upper, lower, _)| {
        let text = environment.get(lower).or_else(|| environment.get(upper))?;
        Some((upper, text))
    });
    let (variable, text) = named.next()?;
    // Its scheme may be left out.
    let proxy = Url::parse(text).ok().filter(Url::has_host);
    let mut proxy = proxy.or_else(|| Url::parse(&format!("http://{text}")).ok())?;
    if proxy.password().is_some() {
        proxy.set_password(Some("***")).ok()?;
    }
    Some(format!("the proxy {proxy} ({variable})"))
}

fn proxies(environment: &Environment) -> Result<Vec<Proxy>, NetError> {
    let variable = |upper, lower| environment.get(lower).or_else(|| environment.get(upper));
    let except = format!(
        "{},localhost,127.0.0.0/8,::1",
        variable("NO_PROXY", "no_proxy").unwrap_or_default()
    );
    let mut proxies = Vec::new();
    for (upper, lower, make) in PROXIES {
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

    #[test]
    fn a_proxy_is_told_by_who_named_it_and_without_its_password() {
        let of = |url: &str, pairs: &[(&str, &str)]| {
            let environment = Environment::from_pairs(pairs.iter().copied());
            proxy_of(&url.parse().unwrap(), &environment)
        };
        let pairs = [
            ("https_proxy", "http://bob:secret@proxy:3128"),
            ("ALL_PROXY", "other:1080"),
        ];
        let told = of("https://models.test/m", &pairs).unwrap();
        assert_eq!(told, "the proxy http://bob:***@proxy:3128/ (HTTPS_PROXY)");
        let told = of("http://models.test/m", &pairs).unwrap();
        assert_eq!(told, "the proxy http://other:1080/ (ALL_PROXY)");
        assert_eq!(of("http://models.test/m", &pairs[..1]), None);
    }
}
