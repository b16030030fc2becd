//! Small texts.

use reqwest::header::{ACCEPT, CONTENT_TYPE, HeaderMap, HeaderValue};
use tokio_util::sync::CancellationToken;
use url::Url;

use super::{
    Net, NetError,
    client::{Trust, status_error},
    pace::Pace,
    shown,
};

/// A small text that was fetched.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Page {
    /// Where it was in the end, with credentials, for relative links.
    pub(super) url: Url,
    pub(super) content_type: String,
    pub(super) text: String,
}

impl Net {
    /// Fetches a small text, with the same retries. `trust` says how what it names will be judged.
    pub(super) async fn page(
        &self,
        url: &Url,
        accept: &'static str,
        limit_bytes: u64,
        trust: Trust,
        cancel: &CancellationToken,
    ) -> Result<Page, NetError> {
        self.patiently(url, cancel, || {
            self.page_once(url, accept, limit_bytes, trust)
        })
        .await
    }

    async fn page_once(
        &self,
        url: &Url,
        accept: &'static str,
        limit_bytes: u64,
        trust: Trust,
    ) -> Result<Page, NetError> {
        let headers = HeaderMap::from_iter([(ACCEPT, HeaderValue::from_static(accept))]);
        let reached = self.get(url, None, &headers, trust).await?;
        let mut response = reached.response;
        if !response.status().is_success() {
            return Err(status_error(&response));
        }
        let mut bytes = Vec::new();
        let mut pace = Pace::default();
        while let Some(chunk) = self.next_chunk(url, &mut response, &mut pace).await? {
            bytes.extend_from_slice(&chunk);
            if bytes.len() as u64 > limit_bytes {
                return Err(NetError::TooLarge {
                    url: shown(url),
                    limit_bytes,
                });
            }
        }
        let content_type = response
            .headers()
            .get(CONTENT_TYPE)
            .and_then(|value| value.to_str().ok())
            .unwrap_or_default()
            .to_owned();
        Ok(Page {
            url: reached.url,
            content_type,
            text: String::from_utf8_lossy(&bytes).into_owned(),
        })
    }
}
