//! One registry: requests, and proving who we are.

use reqwest::header::{ACCEPT, AUTHORIZATION, HeaderMap, HeaderValue, WWW_AUTHENTICATE};
use serde::Deserialize;
use url::Url;

use super::{
    Inquirer, RegistryError, challenge,
    manifest::{
        self, CONFIGURATION_LIMIT_BYTES, Configuration, Descriptor, MANIFEST_LIMIT_BYTES, Manifest,
    },
};
use crate::{
    container::{Endpoint, credentials::Found, registries_conf::authorities},
    net::{Answer, Ask, Digest, Net, NetError, Source, Trust, Verification, is_loopback},
};

/// What a registry says is the digest of a manifest.
const DIGEST_HEADER: &str = "docker-content-digest";

/// Which manifest.
#[derive(Clone, Copy)]
pub(super) enum Wanted<'a> {
    Tag(&'a str),
    Digest(&'a Digest),
}

/// A conversation with one registry about one repository.
pub(super) struct Session<'a> {
    pub(super) inquirer: &'a Inquirer<'a>,
    /// Reaches this registry, verified as it is to be.
    pub(super) net: Net,
    identity: Verification,
    pub(super) endpoint: &'a Endpoint,
    /// The registry that vouches for this one, which may be a mirror.
    pub(super) vouched: Option<String>,
    pub(super) found: Option<Found>,
    /// Bases to try until one answers, the last one first.
    bases: Vec<Url>,
    authorization: Option<HeaderValue>,
}

impl<'a> Session<'a> {
    pub(super) fn new(
        inquirer: &'a Inquirer<'a>,
        endpoint: &'a Endpoint,
        vouched: Option<String>,
        found: Option<Found>,
    ) -> Result<Self, RegistryError> {
        let authority = endpoint.reference.authority();
        let base = |scheme: &str| {
            Url::parse(&format!("{scheme}://{authority}/v2/")).map_err(|error| {
                RegistryError::Malformed {
                    what: format!("the registry `{authority}`"),
                    reason: error.to_string(),
                }
            })
        };
        let secure = base("https")?;
        let bases = if is_loopback(&secure) {
            vec![secure, base("http")?]
        } else if endpoint.insecure {
            vec![base("http")?, secure]
        } else {
            vec![secure]
        };
        let identity = Verification {
            authorities: authorities(inquirer.environment, endpoint.reference.registry()),
            off: endpoint.insecure,
        };
        Ok(Self {
            inquirer,
            net: inquirer.net.verifying(&identity),
            identity,
            endpoint,
            vouched,
            found,
            bases,
            authorization: None,
        })
    }

    /// Whether the registry was asked without encryption.
    pub(super) fn is_plain(&self) -> bool {
        self.bases
            .last()
            .is_some_and(|base| base.scheme() == "http")
    }

    /// Fetches a manifest and gives it with its digest, which was compared.
    pub(super) async fn manifest(
        &mut self,
        wanted: Wanted<'_>,
    ) -> Result<(Manifest, Digest), RegistryError> {
        let name = match wanted {
            Wanted::Tag(tag) => tag.to_owned(),
            Wanted::Digest(digest) => digest.to_string(),
        };
        let trust = match wanted {
            Wanted::Digest(_) => Trust::Digest,
            Wanted::Tag(_) => Trust::Transport,
        };
        let path = format!("manifests/{name}");
        let answer = self
            .get(&path, manifest::ACCEPT, MANIFEST_LIMIT_BYTES, trust)
            .await?;
        let what = || {
            format!(
                "manifest {name} of {}",
                self.endpoint.reference.repository()
            )
        };
        let expected = match wanted {
            Wanted::Digest(digest) => Some(digest.clone()),
            Wanted::Tag(_) => answer
                .headers
                .get(DIGEST_HEADER)
                .and_then(|value| Digest::parse(value.to_str().ok()?).ok()),
        };
        let digest = match expected {
            Some(expected) => compare(what(), expected, &answer.body)?,
            None => Digest::of(&answer.body),
        };
        let manifest =
            Manifest::parse(&answer.body).map_err(|reason| RegistryError::Malformed {
                what: what(),
                reason,
            })?;
        Ok((manifest, digest))
    }

    /// Fetches an image's configuration.
    pub(super) async fn configuration(
        &mut self,
        config: &Descriptor,
    ) -> Result<Configuration, RegistryError> {
        let body = self.small_blob(config).await?;
        Configuration::parse(&body).map_err(|reason| RegistryError::Malformed {
            what: self.what_configuration(config),
            reason,
        })
    }

    /// Fetches a configuration as it is.
    pub(super) async fn small_blob(
        &mut self,
        config: &Descriptor,
    ) -> Result<Vec<u8>, RegistryError> {
        let path = format!("blobs/{}", config.digest);
        let answer = self
            .get(&path, "*/*", CONFIGURATION_LIMIT_BYTES, Trust::Digest)
            .await?;
        let what = self.what_configuration(config);
        compare(what, config.digest.clone(), &answer.body)?;
        Ok(answer.body)
    }

    fn what_configuration(&self, config: &Descriptor) -> String {
        let repository = self.endpoint.reference.repository();
        format!("configuration {} of {repository}", config.digest)
    }

    /// Where a blob can be had, with what proved who we are, and how the registry does.
    pub(super) fn blob(&self, digest: &Digest) -> Result<Source, RegistryError> {
        let mut source = Source::from(self.url(&format!("blobs/{digest}"))?);
        let authorization = self.authorization.clone();
        source
            .headers
            .extend(authorization.map(|value| (AUTHORIZATION, value)));
        source.named_by.clone_from(&self.vouched);
        source.identity = self.identity.clone();
        Ok(source)
    }

    /// Asks, proves who we are where that is asked for, and asks again.
    async fn get(
        &mut self,
        path: &str,
        accept: &'static str,
        limit_bytes: u64,
        trust: Trust,
    ) -> Result<Answer, RegistryError> {
        let mut answer = self.send(path, accept, limit_bytes, trust).await?;
        if answer.status == 401 {
            let headers = answer.headers.get_all(WWW_AUTHENTICATE).iter();
            let asked = challenge::parse(headers.filter_map(|value| value.to_str().ok()));
            if let Some(authorization) = self.authorize(asked).await? {
                self.authorization = Some(authorization);
                answer = self.send(path, accept, limit_bytes, trust).await?;
            }
        }
        match answer.status {
            200 => Ok(answer),
            401 | 403 => Err(self.unauthorized(answer.status, &answer.body)),
            404 => Err(RegistryError::NotFound {
                image: self.endpoint.reference.to_string(),
                registry: self.registry(),
                said: said(&answer.body),
            }),
            status => Err(self.failed(NetError::Status {
                url: crate::net::shown(&self.url(path)?),
                status,
                retry_after: None,
            })),
        }
    }

    /// Sends a request; the first time over each base until one answers as a registry does.
    async fn send(
        &mut self,
        path: &str,
        accept: &'static str,
        limit_bytes: u64,
        trust: Trust,
    ) -> Result<Answer, RegistryError> {
        loop {
            let url = self.url(path)?;
            let mut headers = HeaderMap::from_iter([(ACCEPT, HeaderValue::from_static(accept))]);
            headers.extend(
                self.authorization
                    .clone()
                    .map(|value| (AUTHORIZATION, value)),
            );
            let ask = Ask {
                url: &url,
                named_by: self.vouched.as_deref(),
                headers: &headers,
                trust: if self.endpoint.insecure {
                    Trust::Operator
                } else {
                    trust
                },
                limit_bytes,
            };
            let answer = self.net.ask(&ask, self.inquirer.cancel).await;
            let others = self.bases.len() > 1;
            match answer {
                // Who is spoken to in the wrong protocol breaks off, or says 400 (Go's server).
                Err(NetError::Connection { .. }) if others => {}
                Ok(answer) if others && answer.status == 400 => {}
                answer => {
                    let answer = answer.map_err(|error| self.failed(error));
                    self.bases.drain(..self.bases.len() - 1);
                    return answer;
                }
            }
            self.bases.pop();
        }
    }

    pub(super) fn url(&self, path: &str) -> Result<Url, RegistryError> {
        let base = self.bases.last().expect("one base is always left");
        base.join(&format!("{}/{path}", self.endpoint.reference.path()))
            .map_err(|error| RegistryError::Malformed {
                what: format!("`{path}`"),
                reason: error.to_string(),
            })
    }

    pub(super) fn registry(&self) -> String {
        self.endpoint.reference.registry().to_owned()
    }

    pub(super) fn unauthorized(&self, status: u16, body: &[u8]) -> RegistryError {
        RegistryError::Unauthorized {
            image: self.endpoint.reference.to_string(),
            registry: self.registry(),
            status,
            said: said(body),
            sent: self.found.as_ref().map(|found| found.place.clone()),
            runtime: self.inquirer.runtime,
        }
    }

    pub(super) fn failed(&self, source: NetError) -> RegistryError {
        RegistryError::Net {
            registry: self.registry(),
            source: Box::new(source),
        }
    }
}

fn compare(what: String, expected: Digest, body: &[u8]) -> Result<Digest, RegistryError> {
    let actual = Digest::of_like(body, &expected);
    if actual == expected {
        return Ok(expected);
    }
    Err(RegistryError::Mismatch {
        what,
        expected,
        actual,
    })
}

/// What a registry said in its own words (distribution specification, error codes); short.
fn said(body: &[u8]) -> String {
    #[derive(Deserialize)]
    struct Answer {
        errors: Vec<One>,
    }
    #[derive(Deserialize)]
    struct One {
        #[serde(default)]
        code: String,
        #[serde(default)]
        message: String,
    }
    const LONGEST: usize = 200;
    let Ok(answer) = serde_json::from_slice::<Answer>(body) else {
        return String::new();
    };
    let words = answer
        .errors
        .into_iter()
        .map(|one| match one.message.as_str() {
            "" => one.code,
            message => format!("{}: {message}", one.code),
        });
    let plain = words.collect::<Vec<_>>().join("; ");
    plain
        .chars()
        .filter(|character| !character.is_control())
        .take(LONGEST)
        .collect()
}
