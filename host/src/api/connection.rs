//! One connection, from its first request to its end.

use std::{convert::Infallible, future::poll_fn, pin::Pin, time::Duration};

use axum::{
    body::Body,
    http::{Request, Response, StatusCode},
    response::IntoResponse as _,
};
use http_body_util::BodyExt as _;
use hyper::{
    body::Incoming,
    server::conn::http1::{self, Parts},
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio_util::sync::CancellationToken;

use super::{Limits, Peer, gate::Gate, limits, patience::Patient};

/// How far beyond the limits a head is still read, so that it can be answered with a document.
const LENIENCE: usize = 4;

/// Longest time that is spent on whoever is turned away.
const TURN_AWAY_TIME: Duration = Duration::from_secs(2);

/// Whether there is a place for a connection.
#[derive(Debug, Clone, Copy)]
pub(super) enum Room {
    /// This one may ask.
    Enough(Peer),
    /// It is told to come later.
    None,
}

/// A connection, and what it is held to.
pub(super) struct Attended<S> {
    pub(super) stream: TokioIo<S>,
    pub(super) room: Room,
    pub(super) gate: Gate,
    pub(super) limits: Limits,
    /// Ends it once what it asked for has been answered.
    pub(super) end: CancellationToken,
}

type Answering = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

/// Answers until the client goes, breaks a limit, or is told to come later.
pub(super) async fn attend<S: AsyncRead + AsyncWrite + Send + Unpin + 'static>(
    attended: Attended<S>,
) {
    match attended.room {
        Room::Enough(_) => converse(attended).await,
        Room::None => {
            // Whether or not it heard.
            let _ = tokio::time::timeout(TURN_AWAY_TIME, converse(attended)).await;
        }
    }
}

async fn converse<S: AsyncRead + AsyncWrite + Send + Unpin + 'static>(attended: Attended<S>) {
    let Attended {
        stream,
        room,
        gate,
        limits,
        end,
    } = attended;
    let answer = move |request: Request<Incoming>| -> Answering {
        let gate = gate.clone();
        Box::pin(async move {
            Ok(match room {
                Room::Enough(peer) => gate.pass(peer, request.map(Body::new)).await,
                Room::None => limits::too_many().into_response(),
            })
        })
    };
    let stream = TokioIo::new(Patient::new(stream.into_inner(), limits.write_time));
    let mut connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .keep_alive(matches!(room, Room::Enough(_)))
        .header_read_timeout(limits.head_time)
        .max_headers(limits.headers * LENIENCE)
        .max_buf_size(limits.head_bytes * LENIENCE)
        .serve_connection(stream, service_fn(answer));
    let ended = tokio::select! {
        ended = poll_fn(|cx| connection.poll_without_shutdown(cx)) => Some(ended),
        () = end.cancelled() => None,
    };
    let ended = match ended {
        Some(ended) => ended,
        None => {
            Pin::new(&mut connection).graceful_shutdown();
            poll_fn(|cx| connection.poll_without_shutdown(cx)).await
        }
    };
    let Parts { io, read_buf, .. } = connection.into_parts();
    let too_slow = ended.is_err_and(|error| error.is_timeout()) && !read_buf.is_empty();
    // What breaks off is the client's matter.
    let _ = tokio::time::timeout(TURN_AWAY_TIME, close(io.into_inner(), too_slow)).await;
}

/// Ends a connection, so that what was answered arrives: one that is closed with something unread is
/// reset.
async fn close<S>(mut stream: S, too_slow: bool) -> std::io::Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    if too_slow {
        let text = in_full(limits::too_slow().into_response()).await;
        stream.write_all(&text).await?;
    }
    stream.shutdown().await?;
    let mut unread = [0; 4096];
    while stream.read(&mut unread).await? > 0 {}
    Ok(())
}

/// An answer that no request is there for, as it is sent.
async fn in_full(answer: Response<Body>) -> Vec<u8> {
    let status: StatusCode = answer.status();
    let mut text = format!("HTTP/1.1 {status}\r\nConnection: close\r\n").into_bytes();
    for (name, value) in answer.headers() {
        text.extend_from_slice(name.as_str().as_bytes());
        text.extend_from_slice(b": ");
        text.extend_from_slice(value.as_bytes());
        text.extend_from_slice(b"\r\n");
    }
    let body = answer.into_body().collect().await;
    let body = body.map(|it| it.to_bytes()).unwrap_or_default();
    text.extend_from_slice(format!("Content-Length: {}\r\n\r\n", body.len()).as_bytes());
    text.extend_from_slice(&body);
    text
}
