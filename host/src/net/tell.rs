//! Telling a server something: one document, posted once.

use reqwest::header::HeaderMap;
use tokio_util::sync::CancellationToken;
use url::Url;

use super::{
    Net, NetError, Trust,
    client::{check_scheme, status_error},
    shown,
};

impl Net {
    /// Posts a document. Its redirects are not followed: what was meant for one server is not given to
    /// another. What is answered beside the status is not read. Whoever calls asks again.
    pub(crate) async fn tell(
        &self,
        url: &Url,
        headers: &HeaderMap,
        document: Vec<u8>,
        cancel: &CancellationToken,
    ) -> Result<(), NetError> {
        check_scheme(url, Trust::Transport)?;
        self.check(url, None)?;
        let request = self.client()?.post(url.clone()).headers(headers.clone());
        let response = tokio::select! {
            () = cancel.cancelled() => Err(NetError::Cancelled { url: shown(url) }),
            answered = self.answer_of(url, request.body(document)) => answered,
        }?;
        match response.status().is_success() {
            true => Ok(()),
            false => Err(status_error(&response)),
        }
    }
}
