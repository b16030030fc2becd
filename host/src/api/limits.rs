//! What a client may cost.

use std::time::Duration;

use axum::{
    body::Body,
    http::{Request, StatusCode, header},
};
use http_body_util::{BodyExt as _, LengthLimitError, Limited};

use super::answer::Refusal;
use crate::pool::Code;

/// What a connection may cost.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Connections at a time, through each door. Whoever comes beyond them is told so.
    pub connections: usize,
    /// Bytes of a request's head.
    pub head_bytes: usize,
    /// Header lines of a request.
    pub headers: usize,
    /// Bytes of a request's body.
    pub body_bytes: usize,
    /// Longest time until a request's head is there, and until its body is.
    pub head_time: Duration,
    /// Longest time that a client may take nothing of what is sent to it.
    pub write_time: Duration,
    /// Longest time that who follows events hears nothing: proxies in between give up on silent
    /// connections.
    pub heartbeat: Duration,
    /// Longest time that open connections are waited for at the end.
    pub end_time: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 256,
            head_bytes: 32 * 1024,
            headers: 64,
            body_bytes: 64 * 1024,
            head_time: Duration::from_secs(10),
            write_time: Duration::from_secs(60),
            heartbeat: Duration::from_secs(15),
            end_time: Duration::from_secs(5),
        }
    }
}

impl Limits {
    /// Refuses a head that is too large. What is several times larger is not even read.
    pub(super) fn check_head<B>(&self, request: &Request<B>) -> Result<(), Refusal> {
        let target = request.uri().to_string().len();
        if target > self.head_bytes / 2 {
            let message = format!(
                "a path and its query have {} bytes at most",
                self.head_bytes / 2
            );
            return Err(too_large(StatusCode::URI_TOO_LONG, &message));
        }
        let headers = request.headers();
        let of_headers = headers.iter().map(|(name, value)| {
            // `: ` and the end of the line.
            name.as_str().len() + value.len() + 4
        });
        let bytes = target + of_headers.sum::<usize>();
        if headers.len() > self.headers || bytes > self.head_bytes {
            let message = format!(
                "a request has {} headers and {} bytes before its body at most",
                self.headers, self.head_bytes
            );
            let status = StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE;
            return Err(too_large(status, &message));
        }
        Ok(())
    }

    /// Takes in a body. No operation has one: an empty one, and what clients send in its place, is
    /// accepted.
    pub(super) async fn take_body(&self, request: Request<Body>) -> Result<Request<Body>, Refusal> {
        let (parts, body) = request.into_parts();
        let too_long = || {
            let message = format!("a body has {} bytes at most", self.body_bytes);
            too_large(StatusCode::PAYLOAD_TOO_LARGE, &message)
        };
        let told = parts.headers.get(header::CONTENT_LENGTH);
        let told = told.and_then(|it| it.to_str().ok()?.parse::<u64>().ok());
        if told.is_some_and(|told| usize::try_from(told).is_ok_and(|it| it > self.body_bytes)) {
            return Err(too_long());
        }
        let whole = Limited::new(body, self.body_bytes).collect();
        let Ok(read) = tokio::time::timeout(self.head_time, whole).await else {
            return Err(too_slow());
        };
        let bytes = match read {
            Ok(read) => read.to_bytes(),
            Err(error) if error.is::<LengthLimitError>() => return Err(too_long()),
            Err(_) => return Err(Refusal::senseless("the body broke off")),
        };
        match bytes.trim_ascii() {
            b"" | b"{}" => Ok(Request::from_parts(parts, Body::empty())),
            _ => {
                let message = "no operation takes a body; what is asked for stands in the query";
                Err(Refusal::senseless(message))
            }
        }
    }
}

/// The request did not come in time.
pub(super) fn too_slow() -> Refusal {
    let message = "the request did not come in time";
    Refusal::later(StatusCode::REQUEST_TIMEOUT, Code::InvalidParams, message)
}

/// There is no room for another client.
pub(super) fn too_many() -> Refusal {
    let message = "too many clients are connected";
    let status = StatusCode::SERVICE_UNAVAILABLE;
    Refusal::later(status, Code::PoolUnready, message)
}

fn too_large(status: StatusCode, message: &str) -> Refusal {
    Refusal::new(status, Code::InvalidParams, message)
}
