//! A token service that the real registry believes (distribution's token authentication).

use std::{fs, path::Path, sync::Arc, time::Duration};

use base64::{
    Engine as _,
    engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD},
};
use ring::{
    rand::SystemRandom,
    signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair},
};
use serde_json::{Value, json};
use url::Url;

use super::certify;
use crate::net::testing::{Reply, Server};

/// What the registry adds to the life of a token, for clocks that differ.
const LEEWAY: i64 = 60;

const SERVICE: &str = "registry";

/// Signs tokens for one repository.
#[derive(Clone)]
pub(super) struct Issuer(Arc<Signing>);

struct Signing {
    key: EcdsaKeyPair,
    /// Base64 of the certificate.
    certificate: String,
    bundle: std::path::PathBuf,
    repository: String,
    realm: std::sync::OnceLock<Url>,
}

impl Issuer {
    /// Gives tokens to everybody who asks, until the test's process ends.
    pub(super) fn serve(
        directory: &Path,
        repository: &str,
        lifetime: impl Fn() -> Duration + Send + Sync + 'static,
    ) -> Self {
        let (key, certificate) = (directory.join("issuer.key"), directory.join("issuer.crt"));
        certify(&key, &certificate);
        let pem = |path| {
            let text: String = fs::read_to_string(path).unwrap();
            let lines = text.lines().filter(|line| !line.starts_with("-----"));
            lines.collect::<String>()
        };
        let key = STANDARD.decode(pem(&key)).unwrap();
        let random = SystemRandom::new();
        let issuer = Self(Arc::new(Signing {
            key: EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &key, &random).unwrap(),
            certificate: pem(&certificate),
            bundle: certificate,
            repository: repository.to_owned(),
            realm: std::sync::OnceLock::new(),
        }));
        let own = issuer.clone();
        let server = Server::start(move |_, _| {
            Reply::ok(json!({"token": own.token(lifetime())}).to_string())
        });
        issuer.0.realm.set(server.url("token")).unwrap();
        issuer
    }

    /// What the registry is configured with.
    pub(super) fn wanted(&self) -> Value {
        let realm = self.0.realm.get().unwrap().as_str();
        json!({"token": {"realm": realm, "service": SERVICE, "issuer": "test",
            "rootcertbundle": self.0.bundle}})
    }

    /// A token that the registry takes for so long.
    pub(super) fn token(&self, lifetime: Duration) -> String {
        let now = jiff::Timestamp::now().as_second();
        let end = now - LEEWAY + i64::try_from(lifetime.as_secs()).unwrap();
        let header = json!({"typ": "JWT", "alg": "ES256", "x5c": [self.0.certificate]});
        let claims = json!({"iss": "test", "sub": "", "aud": SERVICE, "exp": end,
            "nbf": now - 2 * LEEWAY, "iat": now, "jti": now.to_string(),
            "access": [{"type": "repository", "name": self.0.repository,
                "actions": ["pull", "push"]}]});
        let parts = [header, claims].map(|part| URL_SAFE_NO_PAD.encode(part.to_string()));
        let signed = parts.join(".");
        let random = SystemRandom::new();
        let signature = self.0.key.sign(&random, signed.as_bytes()).unwrap();
        format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature.as_ref()))
    }
}
