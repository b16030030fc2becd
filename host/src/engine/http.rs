//! One small GET on loopback.
//!
//! A whole HTTP client would spend more time setting up TLS than a warm engine takes to start.
//! HTTP/1.1 as in RFC 9112: status line, headers, then a body that is chunked, of a given length,
//! or ends with the connection.

use std::{io, net::SocketAddr, time::Duration};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

/// Most bytes read of an answer.
const ANSWER_LIMIT: usize = 4 * 1024 * 1024;

/// An answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Answer {
    /// Status code.
    pub(super) status: u16,
    /// Body; empty where only the status was asked for.
    pub(super) body: Vec<u8>,
}

/// How much of an answer is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Want {
    /// The status only.
    Status,
    /// The body too.
    Body,
}

/// Asks once. Refused, reset and closed connections and silence beyond `limit` are errors.
pub(super) async fn get(
    address: SocketAddr,
    path: &str,
    want: Want,
    limit: Duration,
) -> io::Result<Answer> {
    let asked = async { exchange(TcpStream::connect(address).await?, address, path, want).await };
    within(limit, asked).await
}

/// Connects and asks nothing yet. Silence beyond `limit` is an error.
pub(super) async fn connect(address: SocketAddr, limit: Duration) -> io::Result<TcpStream> {
    within(limit, TcpStream::connect(address)).await
}

/// Asks for the status through a connection of [`connect`].
pub(super) async fn status(
    stream: TcpStream,
    address: SocketAddr,
    path: &str,
    limit: Duration,
) -> io::Result<u16> {
    let answer = within(limit, exchange(stream, address, path, Want::Status)).await?;
    Ok(answer.status)
}

async fn within<T>(limit: Duration, work: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    tokio::time::timeout(limit, work)
        .await
        .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

async fn exchange(
    mut stream: TcpStream,
    address: SocketAddr,
    path: &str,
    want: Want,
) -> io::Result<Answer> {
    stream.set_nodelay(true)?;
    let request = format!(
        "GET {path} HTTP/1.1\r\nHost: {address}\r\nUser-Agent: engine-host\r\nAccept: */*\r\nConnection: close\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).await?;
    let mut bytes = Vec::new();
    loop {
        let ended = stream.read_buf(&mut bytes).await? == 0;
        if let Some(answer) = parse(&bytes, want, ended)? {
            return Ok(answer);
        }
        if ended {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if bytes.len() > ANSWER_LIMIT {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "the answer is too long",
            ));
        }
    }
}

/// How the body ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Framing {
    Length(usize),
    Chunked,
    UntilClosed,
}

/// Reads an answer as far as it has come; `None` while more is needed.
fn parse(bytes: &[u8], want: Want, ended: bool) -> io::Result<Option<Answer>> {
    let Some(end) = find(bytes, b"\r\n\r\n") else {
        return Ok(None);
    };
    let head = String::from_utf8_lossy(&bytes[..end]);
    let status = head
        .strip_prefix("HTTP/1.")
        .and_then(|rest| rest.split(' ').nth(1))
        .and_then(|code| code.parse().ok())
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "the answer is not HTTP"))?;
    if want == Want::Status {
        return Ok(Some(Answer {
            status,
            body: Vec::new(),
        }));
    }
    let rest = &bytes[end + 4..];
    let body = match framing(&head) {
        Framing::Length(length) if rest.len() >= length => Some(rest[..length].to_vec()),
        Framing::Length(_) => None,
        Framing::Chunked => dechunk(rest)?,
        Framing::UntilClosed => ended.then(|| rest.to_vec()),
    };
    Ok(body.map(|body| Answer { status, body }))
}

fn framing(head: &str) -> Framing {
    let header = |name: &str| {
        head.lines().skip(1).find_map(|line| {
            let (key, value) = line.split_once(':')?;
            key.trim().eq_ignore_ascii_case(name).then(|| value.trim())
        })
    };
    if header("transfer-encoding").is_some_and(|value| value.eq_ignore_ascii_case("chunked")) {
        return Framing::Chunked;
    }
    match header("content-length").and_then(|value| value.parse().ok()) {
        Some(length) => Framing::Length(length),
        None => Framing::UntilClosed,
    }
}

/// The body of a chunked answer; `None` until its last chunk has come.
fn dechunk(mut rest: &[u8]) -> io::Result<Option<Vec<u8>>> {
    let mut body = Vec::new();
    loop {
        let Some(end) = find(rest, b"\r\n") else {
            return Ok(None);
        };
        let line = String::from_utf8_lossy(&rest[..end]);
        let size = line.split(';').next().unwrap_or_default().trim();
        let size = usize::from_str_radix(size, 16)
            .ok()
            .filter(|size| *size <= ANSWER_LIMIT)
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "a chunk has no size"))?;
        if size == 0 {
            return Ok(Some(body));
        }
        let start = end + 2;
        if rest.len() < start + size + 2 {
            return Ok(None);
        }
        body.extend_from_slice(&rest[start..start + size]);
        rest = &rest[start + size + 2..];
    }
}

fn find(bytes: &[u8], needle: &[u8]) -> Option<usize> {
    bytes
        .windows(needle.len())
        .position(|window| window == needle)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn body(text: &str, ended: bool) -> Option<String> {
        let answer = parse(text.as_bytes(), Want::Body, ended).unwrap()?;
        Some(String::from_utf8(answer.body).unwrap())
    }

    #[test]
    fn a_body_ends_as_its_headers_say() {
        let length = "HTTP/1.1 200 OK\r\ncontent-LENGTH: 2\r\n\r\n{}rest";
        assert_eq!(body(length, false).as_deref(), Some("{}"));
        let chunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3;x=y\r\nabc\r\n2\r\nde\r\n0\r\n\r\n";
        assert_eq!(body(chunked, false).as_deref(), Some("abcde"));
        let closed = "HTTP/1.0 200 OK\r\n\r\nabc";
        assert_eq!(body(closed, false), None);
        assert_eq!(body(closed, true).as_deref(), Some("abc"));
    }

    #[test]
    fn the_status_is_known_before_the_body() {
        let answer = parse(
            b"HTTP/1.1 503 \r\ncontent-length: 9\r\n\r\n",
            Want::Status,
            false,
        );
        assert_eq!(answer.unwrap().unwrap().status, 503);
        assert_eq!(parse(b"HTTP/1.1 503", Want::Status, false).unwrap(), None);
    }

    proptest::proptest! {
        #[test]
        fn no_answer_panics(bytes: Vec<u8>, ended: bool) {
            let _ = parse(&bytes, Want::Body, ended);
            let mut answer = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec();
            answer.extend(bytes);
            let _ = parse(&answer, Want::Body, ended);
        }
    }
}
