//! A sealed chain as a `bytes::Buf`, for hyper, tokio and whoever else takes one.

use std::fmt;
use std::io::IoSlice;

use bytes::Buf;

use super::segment::Content;

/// The bytes of a [`SealedChain`](super::SealedChain) from a position on.
#[derive(Clone)]
pub struct ChainBuf<'s> {
    content: Content<'s>,
    position: u64,
}

impl<'s> ChainBuf<'s> {
    pub(super) fn new(content: Content<'s>, from: u64) -> Self {
        Self { content, position: from.min(content.segments.len()) }
    }

    /// Bytes from the chain's start.
    pub fn position(&self) -> u64 {
        self.position
    }
}

impl Buf for ChainBuf<'_> {
    /// On a 32-bit machine a longer chain counts as `usize::MAX` until less is left.
    fn remaining(&self) -> usize {
        usize::try_from(self.content.segments.len() - self.position).unwrap_or(usize::MAX)
    }

    fn chunk(&self) -> &[u8] {
        self.content.chunk(self.position)
    }

    /// As `Buf` asks, panics if `count` is more than what is left.
    fn advance(&mut self, count: usize) {
        assert!(count <= self.remaining(), "advance past the end: {count} > {}", self.remaining());
        self.position += count as u64;
    }

    fn chunks_vectored<'a>(&'a self, out: &mut [IoSlice<'a>]) -> usize {
        let mut at = self.position;
        let mut filled = 0;
        for slice in out {
            let chunk = self.content.chunk(at);
            if chunk.is_empty() {
                break;
            }
            *slice = IoSlice::new(chunk);
            at += chunk.len() as u64;
            filled += 1;
        }
        filled
    }
}

/// Shape only: lengths and counts, never payload.
impl fmt::Debug for ChainBuf<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChainBuf")
            .field("segments", self.content.segments)
            .field("position", &self.position)
            .finish_non_exhaustive()
    }
}
