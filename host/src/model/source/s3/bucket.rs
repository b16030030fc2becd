//! One bucket: what it has.

mod refused;

use std::time::Duration;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use jiff::Timestamp;
use reqwest::{
    Method,
    header::{CONTENT_LENGTH, ETAG, HeaderMap, HeaderValue, IF_MATCH, RANGE},
};
use url::Url;

use super::{
    Account, S3Error,
    access::Access,
    credentials::{self, Signer},
    document::{self, Page},
    profile::Profile,
    settings::{Settings, is_region},
    sign::{self, Scope, encode},
};
use crate::{
    net::{Answer, Ask, Digest, Renewal, Source, Trust},
    store,
};

/// How long a URL stays valid that is fetched from: longer than the longest wait for a model.
const URL_LIFETIME: Duration = Duration::from_secs(12 * 60 * 60);

/// Longest page of a list: a thousand keys of a thousand bytes, encoded.
const LIMIT_BYTES: u64 = 16 << 20;

/// Objects of a prefix at most. The largest models have a few hundred files.
const OBJECTS: usize = 10_000;

/// Pages of a list at most: of a hundred objects each, where a server gives no more at once.
const PAGES: usize = OBJECTS / 100;

/// A conversation about one bucket.
pub(super) struct Bucket<'a> {
    account: Account<'a>,
    name: &'a str,
    settings: Settings,
    /// Host of the bucket in the region that is set: it may send on to the one that the bucket is in, whose
    /// name nobody knows beforehand.
    named_by: Option<String>,
    signer: Option<Signer>,
}

/// An object as its server describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Object {
    pub(super) key: String,
    pub(super) size_bytes: u64,
    /// Its strong `ETag`, quotes included.
    pub(super) etag: Option<String>,
    /// Its version, in buckets that keep them.
    pub(super) version: Option<String>,
    /// Its digest, where the server keeps it of the whole object and can be believed.
    pub(super) digest: Option<Digest>,
}

impl<'a> Bucket<'a> {
    pub(super) async fn open(account: Account<'a>, name: &'a str) -> Result<Self, S3Error> {
        let profile = Profile::read(account.environment)?;
        let settings = Settings::new(account.environment, &profile)?;
        let signer = credentials::find(&account, &profile, &settings).await?;
        let url = settings.url(name, "")?;
        Ok(Self {
            account,
            name,
            settings,
            named_by: url.host_str().map(str::to_owned),
            signer,
        })
    }

    /// Finds the region of the bucket where it is not the one that is set, by asking for anything.
    pub(super) async fn describe(
        &mut self,
        key: &str,
        version: Option<&str>,
    ) -> Result<Object, S3Error> {
        let mut answer = self.head(key, version).await?;
        if self.moves_to(&answer) {
            answer = self.head(key, version).await?;
        }
        self.read_head(key, version, answer).await
    }

    /// The same, in the region that is known by now.
    pub(super) async fn describe_here(
        &self,
        key: &str,
        version: Option<&str>,
    ) -> Result<Object, S3Error> {
        let answer = self.head(key, version).await?;
        self.read_head(key, version, answer).await
    }

    /// Keys and sizes of everything that begins so, in their order.
    pub(super) async fn list(&mut self, prefix: &str) -> Result<Vec<(String, u64)>, S3Error> {
        let what = self.what(prefix);
        let (mut all, mut next, mut pages) = (Vec::new(), None, 0);
        loop {
            let page = self.page(prefix, next.as_deref()).await?;
            all.extend(page.objects);
            // Also a server that goes on and on with nothing has an end.
            pages += 1;
            if all.len() > OBJECTS || pages > PAGES {
                return Err(S3Error::TooMany {
                    what,
                    limit: OBJECTS,
                });
            }
            next = page.next;
            if next.is_none() {
                return Ok(all);
            }
        }
    }

    /// Takes over a region that is known to be the bucket's.
    pub(super) fn be_in(&mut self, region: &str) {
        region.clone_into(&mut self.settings.region);
    }

    /// Where an object can be had, by a URL that needs nothing else for some hours. Another content
    /// under the same key is refused by the server.
    pub(super) fn source(&self, object: &Object) -> Result<Source, S3Error> {
        let mut url = self.settings.url(self.name, &object.key)?;
        if let Some(version) = &object.version {
            url.set_query(Some(&format!("versionId={}", encode(version))));
        }
        let mut source = Source::from(match &self.signer {
            Some(signer) => sign::presign(&signer.key, self.scope(), &url, lifetime(signer)),
            None => url,
        });
        source.named_by.clone_from(&self.named_by);
        let etag = object.etag.as_deref().map(HeaderValue::from_str);
        if let Some(Ok(etag)) = etag {
            source.headers.insert(IF_MATCH, etag);
        }
        if self.signer.is_some() {
            let access = Access::new(self.account, self.name, &self.settings.region, object);
            source.renewal = Some(Renewal::new(access));
        }
        Ok(source)
    }

    async fn page(&mut self, prefix: &str, next: Option<&str>) -> Result<Page, S3Error> {
        let mut query = format!("list-type=2&encoding-type=url&prefix={}", encode(prefix));
        if let Some(next) = next {
            query += &format!("&continuation-token={}", encode(next));
        }
        let mut answer = self
            .send(Method::GET, "", Some(&query), HeaderMap::new())
            .await?;
        if self.moves_to(&answer) {
            answer = self
                .send(Method::GET, "", Some(&query), HeaderMap::new())
                .await?;
        }
        let what = self.what(prefix);
        if answer.status != 200 {
            return Err(self.refused(what, &answer, None));
        }
        document::read_page(&answer.body).map_err(|reason| self.garbled(what, reason))
    }

    async fn head(&self, key: &str, version: Option<&str>) -> Result<Answer, S3Error> {
        let mut headers = HeaderMap::new();
        let enabled = HeaderValue::from_static("ENABLED");
        headers.insert("x-amz-checksum-mode", enabled);
        let query = version_query(version);
        self.send(Method::HEAD, key, query.as_deref(), headers)
            .await
    }

    async fn read_head(
        &self,
        key: &str,
        version: Option<&str>,
        answer: Answer,
    ) -> Result<Object, S3Error> {
        let what = match version_query(version) {
            Some(query) => format!("{}?{query}", self.what(key)),
            None => self.what(key),
        };
        if answer.status != 200 {
            // The answer to HEAD has no words: ask again for a byte, to hear them.
            let mut headers = HeaderMap::new();
            headers.insert(RANGE, HeaderValue::from_static("bytes=0-0"));
            let query = version_query(version);
            let words = self
                .send(Method::GET, key, query.as_deref(), headers)
                .await?;
            return Err(self.refused(what, &words, Some(&answer)));
        }
        let text = |name: &str| {
            answer
                .headers
                .get(name)
                .and_then(|value| value.to_str().ok())
        };
        let class = text("x-amz-storage-class").unwrap_or_default();
        let restored =
            text("x-amz-restore").is_some_and(|text| text.contains("ongoing-request=\"false\""));
        if matches!(class, "GLACIER" | "DEEP_ARCHIVE") && !restored {
            return Err(S3Error::Archived {
                what,
                class: class.to_owned(),
                object: (self.name.to_owned(), key.to_owned()),
            });
        }
        let size = text(CONTENT_LENGTH.as_str()).and_then(|size| size.parse().ok());
        let size_bytes = size.ok_or_else(|| self.garbled(what, "it has no size".to_owned()))?;
        let etag = text(ETAG.as_str()).filter(|etag| !etag.starts_with("W/"));
        let given = text("x-amz-version-id").filter(|version| *version != "null");
        Ok(Object {
            key: key.to_owned(),
            size_bytes,
            etag: etag.map(str::to_owned),
            version: given.or(version).map(str::to_owned),
            digest: match self.settings.is_open() {
                true => None,
                false => checksum(&answer.headers),
            },
        })
    }

    async fn send(
        &self,
        method: Method,
        key: &str,
        query: Option<&str>,
        mut headers: HeaderMap,
    ) -> Result<Answer, S3Error> {
        let mut url = self.settings.url(self.name, key)?;
        url.set_query(query);
        if let Some(signer) = &self.signer {
            let request = (method.as_str(), &url);
            sign::sign(&signer.key, self.scope(), request, &mut headers, b"");
        }
        let ask = Ask {
            url: &url,
            named_by: self.named_by.as_deref(),
            headers: &headers,
            // A server that is named by http is spoken to; what it says of digests is not believed.
            trust: match self.settings.is_open() {
                true => Trust::Operator,
                false => Trust::Transport,
            },
            limit_bytes: LIMIT_BYTES,
        };
        let answer = self
            .account
            .net
            .single(method, &ask, self.account.cancel)
            .await;
        answer.map_err(|source| S3Error::Net {
            what: self.what(key),
            endpoint: self.endpoint(),
            source: Box::new(source),
        })
    }

    /// Takes over the region that an answer names; whether to ask again there.
    fn moves_to(&mut self, answer: &Answer) -> bool {
        if !matches!(answer.status, 301 | 307 | 400 | 403) {
            return false;
        }
        let named = answer.headers.get("x-amz-bucket-region");
        let named = named.and_then(|value| value.to_str().ok());
        let named = named
            .map(str::to_owned)
            .or_else(|| document::read_refused(&answer.body).region);
        match named {
            Some(region) if region != self.settings.region && is_region(&region) => {
                self.settings.region = region;
                true
            }
            _ => false,
        }
    }

    fn scope(&self) -> Scope<'_> {
        Scope {
            service: "s3",
            region: &self.settings.region,
            at: Timestamp::now(),
        }
    }

    /// What is asked for, as references write it.
    pub(super) fn what(&self, key: &str) -> String {
        format!("s3://{}/{key}", self.name)
    }

    fn endpoint(&self) -> String {
        let url = self.settings.url(self.name, "");
        let url: Option<Url> = url.ok();
        url.and_then(|url| {
            let host = url.host_str()?;
            Some(
                url.port()
                    .map_or(host.to_owned(), |port| format!("{host}:{port}")),
            )
        })
        .unwrap_or_default()
    }
}

/// How long a URL of this signer's can be valid: no longer than its keys.
fn lifetime(signer: &Signer) -> Duration {
    let left = signer
        .expires
        .map(|end| end.duration_since(Timestamp::now()));
    let left = left.map(|left| Duration::try_from(left).unwrap_or_default());
    left.map_or(URL_LIFETIME, |left| {
        left.clamp(Duration::from_secs(1), URL_LIFETIME)
    })
}

fn version_query(version: Option<&str>) -> Option<String> {
    version.map(|version| format!("versionId={}", encode(version)))
}

/// The SHA-256 of the whole object; one that was made of its parts' is none.
fn checksum(headers: &HeaderMap) -> Option<Digest> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    if text("x-amz-checksum-type").is_some_and(|kind| kind != "FULL_OBJECT") {
        return None;
    }
    let bytes = STANDARD.decode(text("x-amz-checksum-sha256")?).ok()?;
    Digest::parse(&format!("sha256:{}", store::hex(&bytes))).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_lives_no_longer_than_its_keys() {
        let lives = |expires: Option<Timestamp>| {
            lifetime(&Signer {
                key: sign::Key {
                    id: String::new(),
                    secret: String::new(),
                    token: None,
                },
                from: String::new(),
                expires,
            })
        };
        let now = Timestamp::now();
        let hour = Duration::from_secs(3600);
        assert_eq!(lives(None), URL_LIFETIME);
        assert_eq!(lives(Some(now + 100 * hour)), URL_LIFETIME);
        assert!((hour / 2..=hour).contains(&lives(Some(now + hour))));
        assert_eq!(lives(Some(now - hour)), Duration::from_secs(1));
    }

    #[test]
    fn only_the_checksum_of_the_whole_object_is_its_digest() {
        let of = |pairs: &[(&'static str, &str)]| {
            let pairs = pairs.iter();
            let headers =
                pairs.map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap()));
            checksum(&headers.collect())
        };
        let name = "x-amz-checksum-sha256";
        let sum = STANDARD.encode([7; 32]);
        let digest = Digest::parse(&format!("sha256:{}", "07".repeat(32))).unwrap();
        let kind = "x-amz-checksum-type";
        assert_eq!(of(&[(name, &sum)]), Some(digest.clone()));
        assert_eq!(of(&[(name, &sum), (kind, "FULL_OBJECT")]), Some(digest));
        assert_eq!(of(&[(name, &sum), (kind, "COMPOSITE")]), None);
        for bad in [format!("{sum}-3"), STANDARD.encode([7; 31]), "-".to_owned()] {
            assert_eq!(of(&[(name, &bad)]), None, "{bad}");
        }
    }
}
