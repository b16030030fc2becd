//! Signatures of requests: AWS Signature Version 4, in headers and in URLs.
//!
//! A request for metadata is signed in its headers. A file is fetched by a URL that carries its own
//! signature, so that the transfer engine needs to know nothing of keys: it holds for hours and for
//! any part of the file.

use std::time::Duration;

use jiff::Timestamp;
use reqwest::header::{AUTHORIZATION, HeaderMap, HeaderName, HeaderValue};
use ring::hmac;
use url::Url;

use crate::{net::Digest, store};

const ALGORITHM: &str = "AWS4-HMAC-SHA256";

/// What stands for the content of a request whose content is not signed.
const UNSIGNED: &str = "UNSIGNED-PAYLOAD";

/// A pair of keys, with the token that temporary ones have.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Key {
    /// Names the pair; no secret.
    pub(super) id: String,
    /// The secret one.
    pub(super) secret: String,
    /// The token of temporary keys.
    pub(super) token: Option<String>,
}

impl std::fmt::Debug for Key {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Key(***)")
    }
}

/// What a signature is good for.
#[derive(Debug, Clone, Copy)]
pub(super) struct Scope<'a> {
    /// `s3` or `sts`.
    pub(super) service: &'static str,
    pub(super) region: &'a str,
    pub(super) at: Timestamp,
}

impl Scope<'_> {
    fn day(&self) -> String {
        self.at.strftime("%Y%m%d").to_string()
    }

    fn moment(&self) -> String {
        self.at.strftime("%Y%m%dT%H%M%SZ").to_string()
    }

    fn text(&self) -> String {
        let (day, service) = (self.day(), self.service);
        format!("{day}/{}/{service}/aws4_request", self.region)
    }
}

/// Signs a request: adds what proves who sends it to its headers, all of which are signed.
pub(super) fn sign(
    key: &Key,
    scope: Scope<'_>,
    (method, url): (&str, &Url),
    headers: &mut HeaderMap,
    body: &[u8],
) {
    let mut add = |name: &'static str, value: &str| {
        // What cannot stand in a header is left out, and the server refuses the rest.
        if let Ok(mut value) = HeaderValue::from_str(value) {
            value.set_sensitive(true);
            headers.insert(HeaderName::from_static(name), value);
        }
    };
    let content = Digest::of(body);
    add("x-amz-date", &scope.moment());
    add("x-amz-content-sha256", content.hex());
    if let Some(token) = &key.token {
        add("x-amz-security-token", token);
    }
    let mut signed: Vec<(String, String)> = headers
        .iter()
        .map(|(name, value)| {
            let text = String::from_utf8_lossy(value.as_bytes());
            (name.as_str().to_owned(), text.trim().to_owned())
        })
        .collect();
    signed.push(("host".to_owned(), host(url)));
    signed.sort();
    let names: Vec<&str> = signed.iter().map(|(name, _)| name.as_str()).collect();
    let names = names.join(";");
    let query = canonical_query(url.query().unwrap_or_default());
    let request = canonical(method, url.path(), &query, &signed, &names, content.hex());
    let signature = signature(key, scope, &request);
    let text = format!(
        "{ALGORITHM} Credential={}/{},SignedHeaders={names},Signature={signature}",
        key.id,
        scope.text()
    );
    if let Ok(mut value) = HeaderValue::from_str(&text) {
        value.set_sensitive(true);
        headers.insert(AUTHORIZATION, value);
    }
}

/// A URL that carries the right to GET it for a while, whatever other headers the request has.
pub(super) fn presign(key: &Key, scope: Scope<'_>, url: &Url, valid: Duration) -> Url {
    let credential = format!("{}/{}", key.id, scope.text());
    let (moment, seconds) = (scope.moment(), valid.as_secs().to_string());
    let mut pairs = vec![
        ("X-Amz-Algorithm", ALGORITHM),
        ("X-Amz-Credential", &credential),
        ("X-Amz-Date", &moment),
        ("X-Amz-Expires", &seconds),
        ("X-Amz-SignedHeaders", "host"),
    ];
    if let Some(token) = &key.token {
        pairs.push(("X-Amz-Security-Token", token));
    }
    let own = pairs
        .iter()
        .map(|(name, value)| format!("{name}={}", encode(value)));
    let all: Vec<String> = url
        .query()
        .map(str::to_owned)
        .into_iter()
        .chain(own)
        .collect();
    let query = canonical_query(&all.join("&"));
    let headers = [("host".to_owned(), host(url))];
    let request = canonical("GET", url.path(), &query, &headers, "host", UNSIGNED);
    let signature = signature(key, scope, &request);
    let mut signed = url.clone();
    signed.set_query(Some(&format!("{query}&X-Amz-Signature={signature}")));
    signed
}

/// A text as paths and queries of signed requests have it: all but letters, digits and `-._~` by its
/// bytes.
pub(super) fn encode(text: &str) -> String {
    use std::fmt::Write as _;
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            write!(encoded, "%{byte:02X}").expect("writing to a text does not fail");
        }
    }
    encoded
}

/// Host and port as the request's header has them.
fn host(url: &Url) -> String {
    let host = url.host_str().unwrap_or_default();
    match url.port() {
        Some(port) => format!("{host}:{port}"),
        None => host.to_owned(),
    }
}

/// Sorted by name, then by value, each with its `=`. They are encoded already.
fn canonical_query(query: &str) -> String {
    let mut pairs: Vec<(&str, &str)> = query
        .split('&')
        .filter(|pair| !pair.is_empty())
        .map(|pair| pair.split_once('=').unwrap_or((pair, "")))
        .collect();
    pairs.sort_unstable();
    let texts: Vec<String> = pairs
        .iter()
        .map(|(name, value)| format!("{name}={value}"))
        .collect();
    texts.join("&")
}

fn canonical(
    method: &str,
    path: &str,
    query: &str,
    headers: &[(String, String)],
    names: &str,
    content: &str,
) -> String {
    let headers: String = headers
        .iter()
        .map(|(name, value)| format!("{name}:{value}\n"))
        .collect();
    format!("{method}\n{path}\n{query}\n{headers}\n{names}\n{content}")
}

fn signature(key: &Key, scope: Scope<'_>, request: &str) -> String {
    let text = format!(
        "{ALGORITHM}\n{}\n{}\n{}",
        scope.moment(),
        scope.text(),
        Digest::of(request.as_bytes()).hex()
    );
    let day = scope.day();
    let parts = [&day, scope.region, scope.service, "aws4_request", &text];
    let secret = format!("AWS4{}", key.secret).into_bytes();
    let last = parts.iter().fold(secret, |secret, part| {
        let secret = hmac::Key::new(hmac::HMAC_SHA256, &secret);
        hmac::sign(&secret, part.as_bytes()).as_ref().to_vec()
    });
    store::hex(&last)
}

#[cfg(test)]
mod tests {
    use super::*;

    // Keys, requests and signatures of the examples in "Authenticating Requests (AWS Signature
    // Version 4)" of the Amazon S3 API reference.
    fn key() -> Key {
        Key {
            id: "AKIAIOSFODNN7EXAMPLE".to_owned(),
            secret: "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY".to_owned(),
            token: None,
        }
    }

    fn scope() -> Scope<'static> {
        Scope {
            service: "s3",
            region: "us-east-1",
            at: "2013-05-24T00:00:00Z".parse().unwrap(),
        }
    }

    fn signed(path: &str, more: &[(&'static str, &str)]) -> String {
        let url = format!("https://examplebucket.s3.amazonaws.com/{path}");
        let mut headers = HeaderMap::new();
        for (name, value) in more {
            headers.insert(*name, value.parse().unwrap());
        }
        let url = url.parse().unwrap();
        sign(&key(), scope(), ("GET", &url), &mut headers, b"");
        headers[AUTHORIZATION].to_str().unwrap().to_owned()
    }

    #[test]
    fn requests_are_signed_as_in_the_published_examples() {
        assert_eq!(
            signed("test.txt", &[("range", "bytes=0-9")]),
            "AWS4-HMAC-SHA256 \
             Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request,\
             SignedHeaders=host;range;x-amz-content-sha256;x-amz-date,\
             Signature=f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41"
        );
        let lifecycle = "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543";
        assert!(signed("?lifecycle", &[]).ends_with(lifecycle));
        let list = "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7";
        assert!(signed("?prefix=J&max-keys=2", &[]).ends_with(list));
    }

    #[test]
    fn urls_are_signed_as_in_the_published_example() {
        let url = "https://examplebucket.s3.amazonaws.com/test.txt";
        let signed = presign(
            &key(),
            scope(),
            &url.parse().unwrap(),
            Duration::from_secs(86_400),
        );
        assert_eq!(
            signed.as_str(),
            "https://examplebucket.s3.amazonaws.com/test.txt?X-Amz-Algorithm=AWS4-HMAC-SHA256\
             &X-Amz-Credential=AKIAIOSFODNN7EXAMPLE%2F20130524%2Fus-east-1%2Fs3%2Faws4_request\
             &X-Amz-Date=20130524T000000Z&X-Amz-Expires=86400&X-Amz-SignedHeaders=host\
             &X-Amz-Signature=aeeed9bbccd4d02ee5c0109b86d86835f995330da4c265957d157751f604d404"
        );
    }

    #[test]
    fn forms_for_sts_are_signed_as_by_awss_own_tools() {
        let key = Key {
            token: Some("tok/en".to_owned()),
            ..key()
        };
        let scope = Scope {
            service: "sts",
            ..scope()
        };
        let url = "https://sts.us-east-1.amazonaws.com/".parse().unwrap();
        let body = "Action=AssumeRole&Version=2011-06-15&\
                    RoleArn=arn%3Aaws%3Aiam%3A%3A1%3Arole%2Fr&RoleSessionName=engine-host";
        let kind = HeaderValue::from_static("application/x-www-form-urlencoded");
        let mut headers = HeaderMap::from_iter([(reqwest::header::CONTENT_TYPE, kind)]);
        sign(&key, scope, ("POST", &url), &mut headers, body.as_bytes());
        // What botocore's `SigV4Auth` makes of the same request.
        let signature = "93fa0c55b369b949dd928b48f41604921d19f694ba2e9d49bd8c8dca36f6439c";
        let signed = headers[AUTHORIZATION].to_str().unwrap();
        assert!(signed.ends_with(signature), "{signed}");
    }

    #[test]
    fn a_token_is_signed_too_and_no_key_is_shown() {
        let key = Key {
            token: Some("tok/en".to_owned()),
            ..key()
        };
        let url = "http://127.0.0.1:9000/b/k?versionId=x".parse().unwrap();
        let signed = presign(&key, scope(), &url, Duration::from_secs(1));
        assert!(
            signed
                .query()
                .unwrap()
                .contains("X-Amz-Security-Token=tok%2Fen&")
        );
        assert!(
            signed
                .query()
                .unwrap()
                .contains("&versionId=x&X-Amz-Signature=")
        );
        assert_eq!(crate::net::shown(&signed), "http://127.0.0.1:9000/b/k");
        let mut headers = HeaderMap::new();
        sign(&key, scope(), ("HEAD", &url), &mut headers, b"");
        let text = format!("{key:?} {headers:?}");
        assert!(
            !text.contains("tok/en") && !text.contains("wJalr"),
            "{text}"
        );
    }
}
