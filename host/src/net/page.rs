//! Small texts.

use reqwest::header::{ACCEPT, CONTENT_TYPE, HeaderMap, HeaderValue};
use tokio_util::sync::CancellationToken;
use url::Url;

use super::{
    Net, NetError,
    client::{Trust, status_error},
    shown,
    transfer::{TRIES, next_chunk, pause},
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
        let tries = async {
            let mut failures = 0;
            loop {
                match self.page_once(url, accept, limit_bytes, trust).await {
                    Err(error) if error.is_worth_retrying() && failures + 1 < TRIES => {
                        failures += 1;
                        tokio::time::sleep(pause(failures, &error)).await;
                    }
                    other => return other,
                }
            }
        };
        tokio::select! {
            () = cancel.cancelled() => Err(NetError::Cancelled { url: shown(url) }),
            result = tries => result,
        }
    }

    async fn page_once(
        &self,
        url: &Url,
        accept: &'static str,
        limit_bytes: u64,
        trust: Trust,
    ) -> Result<Page, NetError> {
        let headers = HeaderMap::from_iter([(ACCEPT, HeaderValue::from_static(accept))]);
        let (mut response, last) = self.get(url, None, &headers, trust).await?;
        if !response.status().is_success() {
            return Err(status_error(&response));
        }
        let mut bytes = Vec::new();
        while let Some(chunk) = next_chunk(url, &mut response).await? {
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
            url: last,
            content_type,
            text: String::from_utf8_lossy(&bytes).into_owned(),
        })
    }
}
