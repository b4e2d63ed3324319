//! The ways of tokio, over the same socket as all other methods: it is non-blocking only while one of these runs.

use std::io::{self, IoSlice};
use std::net::TcpStream;

use bytes::{Buf, BufMut, BytesMut};
use tokio::runtime::{Builder, Runtime};
use tokio_util::codec::Encoder;

use crate::pages::{CRC_AT, Message};

/// A current-thread runtime, so that the CPU time of this thread is all there is.
#[derive(Debug)]
pub struct Async<'s> {
    runtime: Runtime,
    socket: &'s TcpStream,
}

impl<'s> Async<'s> {
    /// A runtime for this socket.
    ///
    /// # Errors
    /// As tokio reports them.
    pub fn new(socket: &'s TcpStream) -> io::Result<Self> {
        Ok(Self { runtime: Builder::new_current_thread().enable_io().build()?, socket })
    }

    /// Runs one piece of work to its end.
    ///
    /// # Errors
    /// The work's own.
    pub fn run<T>(&self, work: impl AsyncFnOnce(tokio::net::TcpStream) -> io::Result<T>) -> io::Result<T> {
        self.socket.set_nonblocking(true)?;
        let result = self
            .runtime
            .block_on(async { work(tokio::net::TcpStream::from_std(self.socket.try_clone()?)?).await });
        self.socket.set_nonblocking(false)?;
        result
    }
}

/// Slices as a `bytes::Buf`, vectored: what an application hands to `write_all_buf` when it does not want to copy.
#[derive(Debug)]
pub struct Pieces<'p> {
    rest: &'p [IoSlice<'p>],
    /// Bytes of the first piece that are gone.
    skip: usize,
    remaining: usize,
}

impl<'p> Pieces<'p> {
    /// All of them.
    pub fn new(pieces: &'p [IoSlice<'p>]) -> Self {
        Self { rest: pieces, skip: 0, remaining: pieces.iter().map(|piece| piece.len()).sum() }
    }
}

impl Buf for Pieces<'_> {
    fn remaining(&self) -> usize {
        self.remaining
    }

    fn chunk(&self) -> &[u8] {
        self.rest.first().map_or(&[], |piece| &piece[self.skip..])
    }

    fn advance(&mut self, mut n: usize) {
        self.remaining -= n;
        while n > 0 {
            let left = self.rest[0].len() - self.skip;
            if n < left {
                self.skip += n;
                return;
            }
            n -= left;
            self.skip = 0;
            self.rest = &self.rest[1..];
        }
    }

    fn chunks_vectored<'a>(&'a self, out: &mut [IoSlice<'a>]) -> usize {
        let mut skip = self.skip;
        let mut count = 0;
        for (slot, piece) in out.iter_mut().zip(self.rest) {
            *slot = IoSlice::new(&piece[std::mem::take(&mut skip)..]);
            count += 1;
        }
        count
    }
}

/// The codec that people write: it copies the message into the one buffer that it is given.
#[derive(Debug)]
#[allow(clippy::exhaustive_structs)]
pub struct Copying {
    /// Whether it computes the checksum of the payload.
    pub sealed: bool,
}

impl Encoder<&Message<'_>> for Copying {
    type Error = io::Error;

    fn encode(&mut self, message: &Message<'_>, out: &mut BytesMut) -> io::Result<()> {
        out.reserve(message.head.len() + message.payload() as usize + message.foot.len());
        out.put_slice(&message.head);
        message.segments.iter().for_each(|segment| out.put_slice(segment));
        let at = out.len() + CRC_AT;
        out.put_slice(&message.foot);
        if self.sealed {
            out[at..at + 4].copy_from_slice(&message.crc_by_hand().to_le_bytes());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_the_same_bytes_however_they_are_advanced() {
        let parts = [IoSlice::new(b"abc"), IoSlice::new(b"d"), IoSlice::new(b"efgh")];
        for step in 1..=8 {
            let (mut pieces, mut seen) = (Pieces::new(&parts), Vec::new());
            while pieces.has_remaining() {
                let mut slices = [IoSlice::new(&[]); 2];
                let count = pieces.chunks_vectored(&mut slices);
                let bytes: Vec<u8> = slices[..count].iter().flat_map(|slice| slice.to_vec()).collect();
                assert_eq!(bytes[0], pieces.chunk()[0]);
                let n = step.min(bytes.len());
                seen.extend_from_slice(&bytes[..n]);
                pieces.advance(n);
            }
            assert_eq!(seen, b"abcdefgh");
        }
    }
}
