//! Fetching a file: resumed, retried, hashed, compared.

use std::{path::PathBuf, time::Duration};

use reqwest::{
    Response,
    header::{ACCEPT_ENCODING, ETAG, HeaderMap, HeaderValue, IF_RANGE, RANGE},
};
use tokio_util::sync::CancellationToken;
use url::Url;

use super::{
    Digest, Net, NetError,
    client::{STALL_TIMEOUT, Trust, connection, status_error},
    partial::{Partial, Validator},
    range::{content_range, unsatisfied_total},
    shown,
};
use crate::{
    narrate::{Narrator, Progress, Unit},
    store::{self, StoreError},
};

/// Failures in a row, none of them bringing a byte, before a transfer gives up.
pub(super) const TRIES: u32 = 5;

/// Connections for one transfer, however well each goes.
const CONNECTIONS: u32 = 200;

/// Pause after the first failure; doubled after each.
const FIRST_PAUSE: Duration = Duration::from_millis(250);

/// Longest pause that is chosen here.
const LONGEST_PAUSE: Duration = Duration::from_secs(8);

/// A file to fetch.
#[derive(Debug, Clone)]
pub struct Transfer {
    /// Where it is.
    pub url: Url,
    /// Host of the page that named the URL, if one did: policy may let it vouch.
    pub named_by: Option<String>,
    /// What it must be. Without one, whatever arrives is accepted.
    pub digest: Option<Digest>,
    /// How large it must be, where that is known.
    pub size_bytes: Option<u64>,
    /// Bytes accepted at most.
    pub limit_bytes: Option<u64>,
    /// Where it is collected, and left when whole. The caller holds a lock for it.
    pub partial: PathBuf,
    /// Name for progress, for example the step.
    pub task: String,
}

/// A file that was fetched and is what it should be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fetched {
    /// Where it lies: the transfer's `partial`.
    pub path: PathBuf,
    /// SHA-256 of its content, 64 hexadecimal digits.
    pub sha256: String,
    /// Its size.
    pub size_bytes: u64,
    /// Bytes that an earlier run had already brought.
    pub resumed_bytes: u64,
}

impl Net {
    /// Fetches a file. On failure what arrived stays for the next try, unless it was wrong.
    pub async fn fetch(
        &self,
        transfer: &Transfer,
        narrator: &Narrator,
        cancel: &CancellationToken,
    ) -> Result<Fetched, NetError> {
        tokio::select! {
            () = cancel.cancelled() => Err(NetError::Cancelled { url: shown(&transfer.url) }),
            result = self.fetch_with_retries(transfer, narrator) => {
                narrator.progress(&progress(transfer, 0, None, true));
                result
            }
        }
    }

    async fn fetch_with_retries(
        &self,
        transfer: &Transfer,
        narrator: &Narrator,
    ) -> Result<Fetched, NetError> {
        let mut partial = open_partial(transfer).await?;
        let mut failures = 0;
        for connection in 1.. {
            let before = partial.size_bytes;
            let error = match self.collect(transfer, &mut partial, narrator).await {
                Ok(()) => match verify(transfer, &partial) {
                    Ok(fetched) => {
                        partial.finish();
                        return Ok(fetched);
                    }
                    // What an earlier run left may be what is wrong: once more from the start.
                    Err(_) if partial.resumed_bytes > 0 => {
                        partial.reset().map_err(|error| keep(transfer, error))?;
                        continue;
                    }
                    Err(error) => {
                        partial.discard();
                        return Err(error);
                    }
                },
                Err(error) => error,
            };
            failures = if partial.size_bytes > before {
                1
            } else {
                failures + 1
            };
            if !error.is_worth_retrying() || failures >= TRIES || connection >= CONNECTIONS {
                return Err(error);
            }
            tokio::time::sleep(pause(failures, &error)).await;
        }
        unreachable!("the loop ends by returning")
    }

    /// Collects what is missing over one connection.
    async fn collect(
        &self,
        transfer: &Transfer,
        partial: &mut Partial,
        narrator: &Narrator,
    ) -> Result<(), NetError> {
        let url = &transfer.url;
        if partial.size_bytes > 0 && transfer.size_bytes == Some(partial.size_bytes) {
            return Ok(());
        }
        let (headers, asked_part) = request_headers(transfer, partial);
        let trust = match transfer.digest {
            Some(_) => Trust::Digest,
            None => Trust::Transport,
        };
        let named_by = transfer.named_by.as_deref();
        let (response, _) = self.get(url, named_by, &headers, trust).await?;
        let total = match (response.status().as_u16(), asked_part) {
            (206, true) => match content_range(&response) {
                Some((start, total)) if start == partial.size_bytes => total,
                _ => {
                    partial.reset().map_err(|error| keep(transfer, error))?;
                    return Err(NetError::WrongPart { url: shown(url) });
                }
            },
            (200, _) => {
                partial.reset().map_err(|error| keep(transfer, error))?;
                response.content_length()
            }
            (416, true) => {
                if unsatisfied_total(&response) == Some(partial.size_bytes) {
                    return Ok(());
                }
                partial.reset().map_err(|error| keep(transfer, error))?;
                return Err(NetError::WrongPart { url: shown(url) });
            }
            _ => return Err(status_error(&response)),
        };
        check_total(transfer, total)?;
        remember(transfer, partial, &response);
        if let Some(total) = total {
            store::ensure_space(partial.path(), total.saturating_sub(partial.size_bytes))
                .map_err(|error| keep(transfer, error))?;
        }
        self.drain(transfer, partial, response, total, narrator)
            .await
    }

    async fn drain(
        &self,
        transfer: &Transfer,
        partial: &mut Partial,
        mut response: Response,
        total: Option<u64>,
        narrator: &Narrator,
    ) -> Result<(), NetError> {
        while let Some(chunk) = next_chunk(&transfer.url, &mut response).await? {
            let size = partial.size_bytes + chunk.len() as u64;
            if let Some(limit_bytes) = transfer.limit_bytes.filter(|limit| size > *limit) {
                return Err(NetError::TooLarge {
                    url: shown(&transfer.url),
                    limit_bytes,
                });
            }
            partial
                .append(&chunk)
                .map_err(|error| keep(transfer, error))?;
            narrator.progress(&progress(transfer, size, total, false));
        }
        Ok(())
    }
}

pub(super) async fn next_chunk(
    url: &Url,
    response: &mut Response,
) -> Result<Option<impl AsRef<[u8]> + std::ops::Deref<Target = [u8]> + use<>>, NetError> {
    match tokio::time::timeout(STALL_TIMEOUT, response.chunk()).await {
        Ok(chunk) => chunk.map_err(|error| connection(url, error)),
        Err(_) => Err(NetError::Stalled {
            url: shown(url),
            limit: STALL_TIMEOUT,
        }),
    }
}

async fn open_partial(transfer: &Transfer) -> Result<Partial, NetError> {
    let path = transfer.partial.clone();
    let digest = transfer.digest.clone();
    tokio::task::spawn_blocking(move || Partial::open(&path, digest.as_ref()))
        .await
        .expect("opening a file does not panic")
        .map_err(|error| keep(transfer, error))
}

/// Headers of the request, and whether they ask for a part.
fn request_headers(transfer: &Transfer, partial: &Partial) -> (HeaderMap, bool) {
    let mut headers =
        HeaderMap::from_iter([(ACCEPT_ENCODING, HeaderValue::from_static("identity"))]);
    if partial.size_bytes == 0 {
        return (headers, false);
    }
    if transfer.digest.is_none() {
        // Nothing will tell whether two halves belong together, except the server's own mark.
        let validator = partial
            .validator()
            .filter(|validator| validator.url == shown(&transfer.url));
        match validator.and_then(|validator| HeaderValue::try_from(validator.etag).ok()) {
            Some(etag) => headers.insert(IF_RANGE, etag),
            None => return (headers, false),
        };
    }
    let range = format!("bytes={}-", partial.size_bytes);
    let range = HeaderValue::try_from(range).expect("digits are valid in a header");
    headers.insert(RANGE, range);
    (headers, true)
}

fn remember(transfer: &Transfer, partial: &Partial, response: &Response) {
    let etag = response
        .headers()
        .get(ETAG)
        .and_then(|etag| etag.to_str().ok());
    if let Some(etag) = etag.filter(|etag| transfer.digest.is_none() && !etag.starts_with("W/")) {
        partial.set_validator(&Validator {
            url: shown(&transfer.url),
            etag: etag.to_owned(),
        });
    }
}

fn check_total(transfer: &Transfer, total: Option<u64>) -> Result<(), NetError> {
    let url = || shown(&transfer.url);
    match (total, transfer.size_bytes, transfer.limit_bytes) {
        (Some(actual), Some(expected), _) if actual != expected => Err(NetError::Size {
            url: url(),
            expected,
            actual,
        }),
        (Some(total), _, Some(limit_bytes)) if total > limit_bytes => Err(NetError::TooLarge {
            url: url(),
            limit_bytes,
        }),
        _ => Ok(()),
    }
}

fn verify(transfer: &Transfer, partial: &Partial) -> Result<Fetched, NetError> {
    let url = || shown(&transfer.url);
    if let Some(expected) = transfer
        .size_bytes
        .filter(|expected| *expected != partial.size_bytes)
    {
        return Err(NetError::Size {
            url: url(),
            expected,
            actual: partial.size_bytes,
        });
    }
    if let Some(expected) = &transfer.digest {
        let actual = partial.hashes().like(expected);
        if actual != *expected {
            return Err(NetError::Mismatch {
                url: url(),
                expected: expected.clone(),
                actual,
            });
        }
    }
    Ok(Fetched {
        path: partial.path().to_owned(),
        sha256: partial.hashes().sha256(),
        size_bytes: partial.size_bytes,
        resumed_bytes: partial.resumed_bytes,
    })
}

fn keep(transfer: &Transfer, source: StoreError) -> NetError {
    NetError::Store {
        url: shown(&transfer.url),
        source,
    }
}

pub(super) fn pause(failures: u32, error: &NetError) -> Duration {
    if let NetError::Status {
        retry_after: Some(pause),
        ..
    } = error
    {
        return *pause;
    }
    let doubled = FIRST_PAUSE * 2_u32.saturating_pow(failures.saturating_sub(1));
    doubled.min(LONGEST_PAUSE)
}

fn progress(transfer: &Transfer, done: u64, total: Option<u64>, finished: bool) -> Progress {
    Progress {
        task: transfer.task.clone(),
        done,
        total: total.or(transfer.size_bytes),
        unit: Unit::Bytes,
        finished,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_a_limit_and_obey_the_server() {
        let stalled = NetError::WrongPart { url: String::new() };
        assert_eq!(pause(1, &stalled), FIRST_PAUSE);
        assert_eq!(pause(2, &stalled), FIRST_PAUSE * 2);
        assert_eq!(pause(60, &stalled), LONGEST_PAUSE);
        let asked = NetError::Status {
            url: String::new(),
            status: 503,
            retry_after: Some(Duration::from_secs(3)),
        };
        assert_eq!(pause(1, &asked), Duration::from_secs(3));
    }
}
