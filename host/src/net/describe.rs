//! What a server says of a file, and parts of it, before all of it is fetched.
//!
//! Both ask with GET and a range, never HEAD: URLs that are signed for one method answer no other, and
//! a range shows whether ranges work. Both talk to plain http as well: what is decided here is
//! decided again about the file itself, which needs a digest there.

use std::ops::Range;

use reqwest::{
    Response,
    header::{
        ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_LENGTH, ETAG, HeaderMap, HeaderName,
        HeaderValue, RANGE,
    },
};
use tokio_util::sync::CancellationToken;

use super::{
    Net, NetError, Source, Trust,
    client::status_error,
    pace::Pace,
    range::{content_range, unsatisfied_total},
    redirect::Reached,
    shown,
};

/// Bytes read over, of a server that ignores ranges, to get to the part that is wanted.
const SKIPPED_BYTES: u64 = 16 << 20;

/// What a server says of a file.
#[derive(Debug, Clone)]
pub(crate) struct Described {
    /// Size, where it is told.
    pub(crate) size_bytes: Option<u64>,
    /// `ETag` of the last hop, as sent: quoted, weak with `W/` before it.
    pub(crate) etag: Option<String>,
}

impl Described {
    /// The `ETag` without quotes, if it is a strong one: equal only while every byte is.
    pub(crate) fn strong_etag(&self) -> Option<&str> {
        self.etag.as_deref()?.strip_prefix('"')?.strip_suffix('"')
    }
}

impl Net {
    /// Asks what a file is, following redirects; none of it is kept.
    pub(crate) async fn describe(
        &self,
        source: &Source,
        cancel: &CancellationToken,
    ) -> Result<Described, NetError> {
        self.patiently(&source.url, cancel, || self.describe_once(source))
            .await
    }

    /// Reads a part of a file: fewer bytes than asked for where it ends before.
    pub(crate) async fn read_range(
        &self,
        source: &Source,
        range: Range<u64>,
        cancel: &CancellationToken,
    ) -> Result<Vec<u8>, NetError> {
        self.patiently(&source.url, cancel, || self.read_range_once(source, &range))
            .await
    }

    async fn describe_once(&self, source: &Source) -> Result<Described, NetError> {
        let reached = self.get_range(source, &(0..1)).await?;
        let response = &reached.response;
        let size_bytes = match response.status().as_u16() {
            206 => content_range(response).and_then(|range| range.total),
            // Also where the file is empty, which has no first byte.
            416 => unsatisfied_total(response),
            200 => content_length(response),
            _ => return Err(status_error(response)),
        };
        Ok(Described {
            size_bytes,
            etag: text(response.headers(), &ETAG),
        })
    }

    async fn read_range_once(
        &self,
        source: &Source,
        range: &Range<u64>,
    ) -> Result<Vec<u8>, NetError> {
        let url = &source.url;
        if range.is_empty() {
            return Ok(Vec::new());
        }
        let mut response = self.get_range(source, range).await?.response;
        if let Some(encoding) = surprising_encoding(response.headers()) {
            return Err(NetError::Encoded {
                url: shown(url),
                encoding,
            });
        }
        let wrong = || NetError::WrongPart { url: shown(url) };
        let mut skip = match response.status().as_u16() {
            206 => match content_range(&response) {
                Some(part) if part.bytes.start == range.start => 0,
                _ => return Err(wrong()),
            },
            200 if range.start <= SKIPPED_BYTES => range.start,
            200 => return Err(wrong()),
            416 if unsatisfied_total(&response).is_some_and(|total| total <= range.start) => {
                return Ok(Vec::new());
            }
            _ => return Err(status_error(&response)),
        };
        let wanted = range.end - range.start;
        let (mut bytes, mut pace) = (Vec::new(), Pace::default());
        while (bytes.len() as u64) < wanted
            && let Some(chunk) = self.next_chunk(url, &mut response, &mut pace).await?
        {
            let skipped = skip.min(chunk.len() as u64);
            skip -= skipped;
            let rest = &chunk[to_usize(skipped)..];
            let missing = to_usize(wanted - bytes.len() as u64);
            bytes.extend_from_slice(&rest[..missing.min(rest.len())]);
        }
        Ok(bytes)
    }

    async fn get_range(&self, source: &Source, range: &Range<u64>) -> Result<Reached, NetError> {
        let mut headers = source.headers.clone();
        headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        headers.insert(RANGE, range_header(range));
        let named_by = source.named_by.as_deref();
        let net = self.verifying(&source.identity);
        net.get(&source.url, named_by, &headers, Trust::Digest)
            .await
    }
}

/// `Range` for a part that is not empty.
pub(super) fn range_header(range: &Range<u64>) -> HeaderValue {
    let text = format!("bytes={}-{}", range.start, range.end - 1);
    HeaderValue::try_from(text).expect("digits are valid in a header")
}

/// How the content is packed, where it is, though `identity` was asked for.
pub(super) fn surprising_encoding(headers: &HeaderMap) -> Option<String> {
    text(headers, &CONTENT_ENCODING).filter(|encoding| !encoding.eq_ignore_ascii_case("identity"))
}

/// `Content-Length`, also of an answer whose body was not looked at yet.
pub(super) fn content_length(response: &Response) -> Option<u64> {
    text(response.headers(), &CONTENT_LENGTH)?.parse().ok()
}

pub(super) fn text(headers: &HeaderMap, name: &HeaderName) -> Option<String> {
    headers.get(name)?.to_str().ok().map(str::to_owned)
}

fn to_usize(bytes: u64) -> usize {
    usize::try_from(bytes).expect("no more than a chunk")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::net::{
        limits::Limits,
        testing::{Reply, Server, open_net},
    };

    const BODY: &[u8] = b"0123456789";

    async fn described(server: &Server) -> Described {
        let cancel = CancellationToken::new();
        let source = server.url("m").into();
        open_net().describe(&source, &cancel).await.unwrap()
    }

    #[tokio::test]
    async fn a_file_is_described_by_the_server_that_redirects_lead_to() {
        let target = Server::start(|_, request| {
            assert_eq!(request.headers.get("x-secret"), None);
            Reply::file(request, BODY).with("ETag", "\"v1\"")
        });
        let location = target.url("m").to_string();
        let server = Server::start(move |_, request| {
            assert_eq!(request.headers["x-secret"], "s");
            Reply::redirect(&location)
        });
        let mut source = Source::from(server.url("m"));
        let secret = HeaderValue::from_static("s");
        source.headers.insert("x-secret", secret);
        let cancel = CancellationToken::new();
        let described = open_net().describe(&source, &cancel).await.unwrap();
        assert_eq!(described.size_bytes, Some(10));
        assert_eq!(described.strong_etag(), Some("v1"));
    }

    #[tokio::test]
    async fn empty_files_and_servers_without_ranges_are_described() {
        let empty = Server::start(|_, request| Reply::file(request, b""));
        assert_eq!(described(&empty).await.size_bytes, Some(0));
        let whole = Server::start(|_, _| Reply::ok(BODY).with("ETag", "W/\"v\""));
        let whole = described(&whole).await;
        assert_eq!(whole.size_bytes, Some(10));
        assert_eq!(whole.strong_etag(), None);
    }

    #[tokio::test]
    async fn a_part_is_read_whether_or_not_the_server_knows_ranges() {
        let (net, cancel) = (open_net(), CancellationToken::new());
        let with = Server::start(|_, request| Reply::file(request, BODY));
        let without = Server::start(|_, _| Reply::ok(BODY));
        let busy = Server::start(|number, request| match number {
            0 => Reply::status(503),
            _ => Reply::file(request, BODY),
        });
        for server in [with, without, busy] {
            let source = server.url("m").into();
            let read = async |range| net.read_range(&source, range, &cancel).await.unwrap();
            assert_eq!(read(2..5).await, b"234");
            assert_eq!(read(8..50).await, b"89");
            assert_eq!(read(20..50).await, b"");
        }
    }

    #[tokio::test]
    async fn another_part_and_packed_content_are_refused() {
        let (net, cancel) = (open_net(), CancellationToken::new());
        let lies = Server::start(|_, _| Reply {
            status: 206,
            ..Reply::ok(BODY).with("Content-Range", "bytes 0-9/10")
        });
        let source = lies.url("m").into();
        let error = net.read_range(&source, 5..7, &cancel).await.unwrap_err();
        assert!(matches!(error, NetError::WrongPart { .. }), "{error}");
        let packed = Server::start(|_, _| Reply::ok(BODY).with("Content-Encoding", "gzip"));
        let source = packed.url("m").into();
        let error = net.read_range(&source, 0..2, &cancel).await.unwrap_err();
        assert!(matches!(error, NetError::Encoded { .. }), "{error}");
    }

    #[tokio::test]
    async fn an_answer_that_drips_is_given_up() {
        let server = Server::start(|_, request| {
            Reply::file(request, &[b' '; 500]).dripping(10, Duration::from_millis(10))
        });
        let net = open_net().limited(Limits {
            silence: Duration::from_secs(1),
            first_pause: Duration::from_millis(1),
            longest_pause: Duration::from_millis(1),
            ..Limits::default()
        });
        let (cancel, source) = (CancellationToken::new(), server.url("m").into());
        let error = net.read_range(&source, 0..500, &cancel).await.unwrap_err();
        assert!(
            matches!(error, NetError::Stalled { bytes: 1.., .. }),
            "{error}"
        );
    }
}
