//! A stream that arrives in pieces of given sizes, as a blocking and as an async reader; what is written to
//! it vanishes.

use core::pin::Pin;
use core::task::{Context, Poll};
use std::io;

use proptest::prelude::*;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Sizes of the pieces, used in turn: single bytes, a few bytes, up to everything at once.
pub(crate) fn sizes() -> impl Strategy<Value = Vec<usize>> {
    prop_oneof![
        Just(vec![1]),
        prop::collection::vec(1_usize..8, 1..12),
        prop::collection::vec(1_usize..3000, 1..12),
        Just(vec![usize::MAX]),
    ]
}

/// The pieces, as an iterator and as a stream.
pub(crate) struct Chunks<'a> {
    rest: &'a [u8],
    sizes: core::iter::Cycle<core::slice::Iter<'a, usize>>,
}

impl<'a> Chunks<'a> {
    pub(crate) fn new(bytes: &'a [u8], sizes: &'a [usize]) -> Self {
        Self { rest: bytes, sizes: sizes.iter().cycle() }
    }

    fn next_piece(&mut self, most: usize) -> &'a [u8] {
        let size = self.sizes.next().map_or(1, |size| *size).min(most).min(self.rest.len());
        let (piece, rest) = self.rest.split_at(size);
        self.rest = rest;
        piece
    }
}

impl<'a> Iterator for Chunks<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        Some(self.next_piece(usize::MAX)).filter(|piece| !piece.is_empty())
    }
}

impl io::Read for Chunks<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let piece = self.next_piece(out.len());
        out[..piece.len()].copy_from_slice(piece);
        Ok(piece.len())
    }
}

impl io::Write for Chunks<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl AsyncRead for Chunks<'_> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        out: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let piece = self.next_piece(out.remaining());
        out.put_slice(piece);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Chunks<'_> {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
