//! Proving who we are: by user and password, or by a token that a service gives for them.

use reqwest::header::{AUTHORIZATION, HeaderMap, HeaderValue};
use serde::Deserialize;
use url::Url;

use super::{RegistryError, challenge::Challenge, client::Session};
use crate::{
    container::credentials::{self, Credential},
    net::{Answer, Ask, NetError, Trust, is_local, shown},
};

/// Longest answer of a token service.
const TOKEN_LIMIT_BYTES: u64 = 1 << 20;

/// What we call ourselves to token services.
const CLIENT: &str = "engine-host";

impl Session<'_> {
    /// What proves who we are; `None` where nothing can.
    pub(super) async fn authorize(
        &self,
        asked: Option<Challenge>,
    ) -> Result<Option<HeaderValue>, RegistryError> {
        match asked {
            None => Ok(None),
            Some(Challenge::Basic) => Ok(self.login()),
            Some(Challenge::Bearer {
                realm,
                service,
                scope,
            }) => {
                let own = format!("repository:{}:pull", self.endpoint.reference.path());
                let scope = scope.unwrap_or(own);
                let token = self.token(&realm, service.as_deref(), &scope).await?;
                Ok(Some(secret_header(&format!("Bearer {token}"))))
            }
        }
    }

    fn login(&self) -> Option<HeaderValue> {
        match &self.found.as_ref()?.credential {
            Credential::Login { user, password } => {
                let pair = credentials::basic(user, password);
                Some(secret_header(&format!("Basic {pair}")))
            }
            Credential::Identity { .. } => None,
        }
    }

    fn identity(&self) -> Option<&str> {
        match &self.found.as_ref()?.credential {
            Credential::Identity { token } => Some(token),
            Credential::Login { .. } => None,
        }
    }

    /// Asks a token service (distribution's token authentication).
    async fn token(
        &self,
        realm: &str,
        service: Option<&str>,
        scope: &str,
    ) -> Result<String, RegistryError> {
        let malformed = |reason: String| RegistryError::Malformed {
            what: format!("what {} says of its token service", self.registry()),
            reason,
        };
        let url = Url::parse(realm).map_err(|error| malformed(error.to_string()))?;
        if is_local(&url) && !is_local(&self.url("")?) {
            let reason = format!("{} is this machine or its own link", shown(&url));
            return Err(malformed(reason));
        }
        let answer = match self.identity() {
            Some(identity) => self.exchange(&url, service, scope, identity).await,
            None => self.fetch(url.clone(), service, scope).await,
        };
        let answer = answer.map_err(|error| self.failed(error))?;
        match answer.status {
            200 => {}
            400 | 401 | 403 => return Err(self.unauthorized(answer.status, &answer.body)),
            status => {
                return Err(self.failed(NetError::Status {
                    url: shown(&url),
                    status,
                    retry_after: None,
                }));
            }
        }
        let token = read_token(&answer.body)
            .ok_or_else(|| malformed(format!("{} gave no token", shown(&url))))?;
        self.inquirer.secrets.register(&token);
        Ok(token)
    }

    /// With user and password, or as nobody.
    async fn fetch(
        &self,
        mut url: Url,
        service: Option<&str>,
        scope: &str,
    ) -> Result<Answer, NetError> {
        if let Some(service) = service {
            url.query_pairs_mut().append_pair("service", service);
        }
        url.query_pairs_mut().append_pair("scope", scope);
        let login = self.login().map(|value| (AUTHORIZATION, value));
        let headers = login.into_iter().collect();
        let ask = self.ask(&url, &headers);
        self.net.ask(&ask, self.inquirer.cancel).await
    }

    /// With an identity token (the service's OAuth 2 form).
    async fn exchange(
        &self,
        url: &Url,
        service: Option<&str>,
        scope: &str,
        identity: &str,
    ) -> Result<Answer, NetError> {
        let form = [
            ("grant_type", "refresh_token"),
            ("service", service.unwrap_or_default()),
            ("scope", scope),
            ("client_id", CLIENT),
            ("refresh_token", identity),
        ];
        let headers = HeaderMap::new();
        let ask = self.ask(url, &headers);
        let cancel = self.inquirer.cancel;
        self.net
            .submit(&ask, &crate::net::form(&form), cancel)
            .await
    }

    fn ask<'b>(&'b self, url: &'b Url, headers: &'b HeaderMap) -> Ask<'b> {
        Ask {
            url,
            named_by: self.vouched.as_deref(),
            headers,
            trust: if self.endpoint.insecure {
                Trust::Operator
            } else {
                Trust::Transport
            },
            limit_bytes: TOKEN_LIMIT_BYTES,
        }
    }
}

/// A header that no log shows. What cannot stand in a header is left out, and refused then.
fn secret_header(text: &str) -> HeaderValue {
    let mut value = HeaderValue::from_str(text).unwrap_or(HeaderValue::from_static(""));
    value.set_sensitive(true);
    value
}

fn read_token(body: &[u8]) -> Option<String> {
    #[derive(Deserialize)]
    struct Token {
        #[serde(default)]
        token: String,
        #[serde(default)]
        access_token: String,
    }
    let read: Token = serde_json::from_slice(body).ok()?;
    [read.token, read.access_token]
        .into_iter()
        .find(|token| !token.is_empty())
}
