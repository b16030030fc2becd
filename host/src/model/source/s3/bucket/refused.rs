//! What a bucket's server means when it refuses.

use jiff::Timestamp;
use reqwest::header::{DATE, HeaderMap};

use super::{
    super::{
        S3Error,
        document::{self, Refused},
    },
    Bucket,
};
use crate::{net::Answer, process::quote};

impl Bucket<'_> {
    pub(super) fn garbled(&self, what: String, reason: String) -> S3Error {
        S3Error::Garbled {
            what,
            endpoint: self.endpoint(),
            reason,
        }
    }

    /// What a refusal means. `first`: the answer that came before, where this one is for its words.
    pub(super) fn refused(&self, what: String, answer: &Answer, first: Option<&Answer>) -> S3Error {
        let Refused {
            code,
            message,
            server_time,
            ..
        } = document::read_refused(&answer.body);
        let status = first.map_or(answer.status, |first| first.status);
        let endpoint = self.endpoint();
        let keys = self.signer.as_ref().map(|signer| signer.from.clone());
        match (code.as_str(), status) {
            ("NoSuchBucket", _) => S3Error::NoBucket {
                bucket: self.name.to_owned(),
                endpoint,
            },
            ("SignatureDoesNotMatch", _) => S3Error::Signature { endpoint, keys },
            ("InvalidAccessKeyId", _) => S3Error::UnknownKey { endpoint, keys },
            ("ExpiredToken" | "TokenRefreshRequired", _) => S3Error::Expired { keys },
            ("RequestTimeTooSkewed", _) => S3Error::Clock {
                endpoint,
                there: server_time.unwrap_or_else(|| date(&answer.headers)),
                here: Timestamp::now()
                    .round(jiff::Unit::Second)
                    .unwrap_or_default()
                    .to_string(),
            },
            ("PermanentRedirect" | "AuthorizationHeaderMalformed", _) | (_, 301) => {
                S3Error::Region {
                    bucket: self.name.to_owned(),
                    region: self.settings.region.clone(),
                }
            }
            ("NoSuchKey" | "NoSuchVersion", _) | ("", 404) => self.nothing(what),
            ("AccessDenied" | "AllAccessDisabled" | "Forbidden", _) | ("", 401 | 403) => {
                S3Error::Denied { what, keys }
            }
            _ => S3Error::Answer {
                what,
                endpoint,
                status,
                code,
                message,
            },
        }
    }

    /// The error for something that is not there.
    pub(in crate::model::source::s3) fn nothing(&self, what: String) -> S3Error {
        let above = what.rsplit_once('/').map_or("", |(above, _)| above);
        let list = format!("aws s3 ls {}", quote(&format!("{above}/")));
        let list = match &self.settings.endpoint {
            Some(endpoint) => format!("{list} --endpoint-url {}", quote(endpoint.as_str())),
            None => list,
        };
        S3Error::NoObject { what, list }
    }
}

/// The server's time.
fn date(headers: &HeaderMap) -> String {
    let date = headers.get(DATE).and_then(|date| date.to_str().ok());
    date.unwrap_or("another time").to_owned()
}
