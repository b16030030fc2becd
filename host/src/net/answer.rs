//! Single answers, whatever their status: for protocols that talk over HTTP, such as a registry's.

use reqwest::{Response, header::HeaderMap};
use tokio_util::sync::CancellationToken;
use url::Url;

use super::{
    Net, NetError, Trust,
    client::status_error,
    shown,
    transfer::{next_chunk, pause},
};

/// Times that a server is asked that does not answer.
const TRIES: u32 = 3;

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

impl Net {
    /// Asks, and follows redirects. A server that fails is asked again after a pause; any other
    /// status is an answer.
    pub(crate) async fn ask(
        &self,
        ask: &Ask<'_>,
        cancel: &CancellationToken,
    ) -> Result<Answer, NetError> {
        let tries = async {
            let mut failures = 0;
            loop {
                match self.ask_once(ask).await {
                    Err(error) if error.is_worth_retrying() && failures + 1 < TRIES => {
                        failures += 1;
                        tokio::time::sleep(pause(failures, &error)).await;
                    }
                    other => return other,
                }
            }
        };
        tokio::select! {
            () = cancel.cancelled() => Err(NetError::Cancelled { url: shown(ask.url) }),
            result = tries => result,
        }
    }

    /// Sends a form, for which a redirect is no answer. Not sent twice: it may count.
    pub(crate) async fn submit(
        &self,
        ask: &Ask<'_>,
        form: &[(&str, &str)],
        cancel: &CancellationToken,
    ) -> Result<Answer, NetError> {
        let submitted = async {
            let response = self.post(ask.url, ask.named_by, form, ask.trust).await?;
            read(ask, response).await
        };
        tokio::select! {
            () = cancel.cancelled() => Err(NetError::Cancelled { url: shown(ask.url) }),
            result = submitted => result,
        }
    }

    async fn ask_once(&self, ask: &Ask<'_>) -> Result<Answer, NetError> {
        let (response, _) = self
            .get(ask.url, ask.named_by, ask.headers, ask.trust)
            .await?;
        read(ask, response).await
    }
}

async fn read(ask: &Ask<'_>, mut response: Response) -> Result<Answer, NetError> {
    let status = response.status().as_u16();
    if status == 429 || status >= 500 {
        return Err(status_error(&response));
    }
    let mut body = Vec::new();
    while let Some(chunk) = next_chunk(ask.url, &mut response).await? {
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
