//! The socket as hyper sees it during the handshake, with two additions: bytes that shall leave in the same segment
//! as the `101`, and writes of one byte at a time.

use core::pin::Pin;
use core::task::{Context, Poll, ready};
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// How many bytes a write may take at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pace {
    /// As many as there are.
    Whole,
    /// One.
    OneByte,
}

/// A writer at a pace.
#[derive(Debug)]
pub(crate) struct Paced<W> {
    pub(crate) inner: W,
    pub(crate) pace: Pace,
}

impl<W: AsyncWrite + Unpin> AsyncWrite for Paced<W> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let bytes = match self.pace {
            Pace::Whole => bytes,
            Pace::OneByte => &bytes[..bytes.len().min(1)],
        };
        Pin::new(&mut self.inner).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.pace {
            Pace::Whole => Pin::new(&mut self.inner).poll_write_vectored(cx, slices),
            Pace::OneByte => {
                let first = slices.iter().find(|slice| !slice.is_empty());
                self.poll_write(cx, first.map_or(&[], |slice| slice))
            }
        }
    }

    fn is_write_vectored(&self) -> bool {
        self.pace == Pace::Whole && self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}

impl<W: AsyncRead + Unpin> AsyncRead for Paced<W> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_read(cx, buf)
    }
}

/// Bytes for the segment that carries the response head; shared with the handler that decides about them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Tail(Arc<Mutex<Vec<u8>>>);

impl Tail {
    pub(crate) fn set(&self, bytes: Vec<u8>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = bytes;
    }

    fn take(&self) -> Vec<u8> {
        core::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// A stream whose first write after [`Tail::set`] gets those bytes appended, in one write.
#[derive(Debug)]
pub(crate) struct Wire<S> {
    inner: S,
    tail: Tail,
    /// Accepted from the writer but not yet written.
    pending: Vec<u8>,
}

impl<S> Wire<S> {
    pub(crate) fn new(inner: S, tail: Tail) -> Self {
        Self { inner, tail, pending: Vec::new() }
    }

    pub(crate) fn into_inner(self) -> S {
        self.inner
    }
}

impl<S: AsyncWrite + Unpin> Wire<S> {
    fn poll_pending(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.pending.is_empty() {
            let written = ready!(Pin::new(&mut self.inner).poll_write(cx, &self.pending))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.pending.drain(..written);
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Wire<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        ready!(self.poll_pending(cx))?;
        let tail = self.tail.take();
        if tail.is_empty() {
            return Pin::new(&mut self.inner).poll_write(cx, bytes);
        }
        self.pending = [bytes, &tail].concat();
        // Whatever does not leave now leaves before the next write or at the flush.
        match self.poll_pending(cx) {
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            _ => Poll::Ready(Ok(bytes.len())),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_pending(cx))?;
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_pending(cx))?;
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Wire<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_read(cx, buf)
    }
}
