//! Single answers, whatever their status: for protocols that talk over HTTP, such as a registry's.

use reqwest::{Response, header::HeaderMap};
use tokio_util::sync::CancellationToken;
use url::Url;

use super::{Net, NetError, Trust, client::status_error, pace::Pace, shown};

/// A question.
#[derive(Debug, Clone)]
pub(crate) struct Ask<'a> {
    pub(crate) url: &'a Url,
    /// Host that vouches for the URL's, where one does.
    pub(crate) named_by: Option<&'a str>,
    /// `Authorization` among them is not sent on to other servers.
    pub(crate) headers: &'a HeaderMap,
    pub(crate) trust: Trust,
    /// Longest body accepted.
    pub(crate) limit_bytes: u64,
}

/// What a server answered.
#[derive(Debug, Clone)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Vec<u8>,
}

/// The text of a form.
pub(crate) fn form(pairs: &[(&str, &str)]) -> String {
    let mut text = url::form_urlencoded::Serializer::new(String::new());
    text.extend_pairs(pairs).finish()
}

impl Net {
    /// Asks, and follows redirects. A server that fails is asked again after a pause; any other
    /// status is an answer.
    pub(crate) async fn ask(
        &self,
        ask: &Ask<'_>,
        cancel: &CancellationToken,
    ) -> Result<Answer, NetError> {
        self.patiently(ask.url, cancel, || self.ask_once(ask)).await
    }

    /// Sends a form, as [`form`] writes it, for which a redirect is no answer. Not sent twice: it may
    /// count.
    pub(crate) async fn submit(
        &self,
        ask: &Ask<'_>,
        form: &str,
        cancel: &CancellationToken,
    ) -> Result<Answer, NetError> {
        let submitted = async {
            let response = self.post(ask, form).await?;
            self.read(ask, response).await
        };
        tokio::select! {
            () = cancel.cancelled() => Err(NetError::Cancelled { url: shown(ask.url) }),
            result = submitted => result,
        }
    }

    /// Sends a document. It may arrive more than once: a server that fails is given it again after a
    /// pause. Redirects are answers, since what is sent may be meant for this server alone.
    #[cfg(feature = "otlp")]
    pub(crate) async fn deliver(
        &self,
        ask: &Ask<'_>,
        body: &[u8],
        cancel: &CancellationToken,
    ) -> Result<Answer, NetError> {
        self.patiently(ask.url, cancel, || self.deliver_once(ask, body))
            .await
    }

    #[cfg(feature = "otlp")]
    async fn deliver_once(&self, ask: &Ask<'_>, body: &[u8]) -> Result<Answer, NetError> {
        let response = self.send_document(ask, body.to_vec()).await?;
        self.read(ask, response).await
    }

    async fn ask_once(&self, ask: &Ask<'_>) -> Result<Answer, NetError> {
        let reached = self
            .get(ask.url, ask.named_by, ask.headers, ask.trust)
            .await?;
        self.read(ask, reached.response).await
    }

    pub(super) async fn read(
        &self,
        ask: &Ask<'_>,
        mut response: Response,
    ) -> Result<Answer, NetError> {
        let status = response.status().as_u16();
        if status == 429 || status >= 500 {
            return Err(status_error(&response));
        }
        let mut body = Vec::new();
        let mut pace = Pace::default();
        while let Some(chunk) = self.next_chunk(ask.url, &mut response, &mut pace).await? {
            body.extend_from_slice(&chunk);
            if body.len() as u64 > ask.limit_bytes {
                return Err(NetError::TooLarge {
                    url: shown(ask.url),
                    limit_bytes: ask.limit_bytes,
                });
            }
        }
        Ok(Answer {
            status,
            headers: response.headers().clone(),
            body,
        })
    }
}
