//! A connection whose other side must take what is sent to it.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::Sleep,
};

/// Breaks off when nothing could be sent for as long as its limit: who reads nothing and stays would
/// hold a place for ever.
pub(super) struct Patient<S> {
    stream: S,
    limit: Duration,
    /// Runs while the other side takes nothing.
    waiting: Option<Pin<Box<Sleep>>>,
}

impl<S> Patient<S> {
    pub(super) fn new(stream: S, limit: Duration) -> Self {
        Self {
            stream,
            limit,
            waiting: None,
        }
    }

    /// What became of sending, unless it has been waited for too long.
    fn judge<T>(
        &mut self,
        context: &mut Context<'_>,
        sent: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if sent.is_ready() {
            self.waiting = None;
            return sent;
        }
        let limit = self.limit;
        let waiting = self
            .waiting
            .get_or_insert_with(|| Box::pin(tokio::time::sleep(limit)));
        waiting.as_mut().poll(context).map(|()| {
            let words = "the client takes nothing of what is sent";
            Err(io::Error::new(io::ErrorKind::TimedOut, words))
        })
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Patient<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Patient<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let sent = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.judge(context, sent)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let sent = Pin::new(&mut self.stream).poll_write_vectored(context, parts);
        self.judge(context, sent)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let sent = Pin::new(&mut self.stream).poll_flush(context);
        self.judge(context, sent)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    #[tokio::test]
    async fn who_takes_nothing_is_broken_off_and_who_is_slow_is_not() {
        let limit = Duration::from_millis(200);
        let (mut reader, writer) = tokio::io::duplex(64);
        let mut patient = Patient::new(writer, limit);
        let read = tokio::spawn(async move {
            let mut bytes = [0; 64];
            for _ in 0..4 {
                reader.read_exact(&mut bytes).await.unwrap();
            }
            reader
        });
        patient.write_all(&[1; 256]).await.unwrap();
        let _reader = read.await.unwrap();
        let error = patient.write_all(&[1; 256]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }
}
