//! segchain's way to receive the messages of [`pages`](crate::pages): a deframer, into slabs or into the caller's pages.

use std::collections::VecDeque;
use std::io;
use std::net::TcpStream;
use std::ops::ControlFlow;

use segchain::checksum::Crc32c;
use segchain::framer::{BodyReq, Deframer, Filled, Landed, Place, Step, Targets};
use segchain::recv::{Receiver, RecvOptions, RecvStats};
use segchain::slab::{SlabBuf, SlabPool};
use segchain::transport::SocketRef;

use crate::contest::Counts;
use crate::pages::{CRC_AT, FOOT, HEAD, Sum};

/// A receiver into slabs that holds the newest bodies, so that memory is walked as a cache of pages would.
#[derive(Debug)]
pub struct Slabs<'s> {
    receiver: Receiver<SocketRef<&'s TcpStream>, Messages>,
    held: VecDeque<SlabBuf>,
    hold: usize,
}

impl<'s> Slabs<'s> {
    /// One that holds so many bodies, and checks the payload's checksum if it is `sealed`.
    pub fn new(socket: &'s TcpStream, sealed: bool, hold: usize) -> Self {
        let deframer = Messages { sealed, ..Messages::default() };
        Self { receiver: receiver(socket, deframer), held: VecDeque::new(), hold }
    }

    /// So many messages.
    ///
    /// # Errors
    /// As the receiver reports them; the end of the stream.
    pub fn receive(&mut self, count: u64, mut sum: Option<&mut Sum>) -> io::Result<Counts> {
        let before = self.receiver.stats();
        let Self { receiver, held, hold } = self;
        let mut left = count;
        let received = receiver.receive_blocking(&mut (), None, |(head, landed, foot)| {
            if let Landed::Slabs(body) = landed {
                see(&mut sum, &head, body.parts(), foot);
                held.push_back(body);
            }
            if held.len() > *hold {
                held.pop_front();
            }
            left -= 1;
            if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        let _ = received.map_err(io::Error::other)?;
        if left > 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(counts(before, receiver.stats()))
    }
}

/// What the receiver did between two looks at its statistics.
pub fn counts(before: RecvStats, after: RecvStats) -> Counts {
    Counts {
        calls: after.calls - before.calls,
        resumed: after.blocked - before.blocked,
        slices: after.slices - before.slices,
        copied: after.copied - before.copied,
        ..Counts::default()
    }
}

/// The messages of [`pages`](crate::pages) as a protocol.
#[derive(Debug, Default)]
pub struct Messages {
    /// Into the caller's pages, or into slabs.
    lent: bool,
    /// Whether the payload has a checksum, which is computed as it lands.
    sealed: bool,
    open: Option<([u8; HEAD], Landed)>,
    crc: u32,
}

impl Messages {
    /// Into the caller's pages: the target's key is the number of the message.
    pub fn lent() -> Self {
        Self { lent: true, ..Self::default() }
    }
}

/// One message: its head, where its payload is, its footer.
pub type Frame<'h> = ([u8; HEAD], Landed, &'h [u8; FOOT]);

impl Deframer for Messages {
    type Frame<'h> = Frame<'h>;
    type Error = io::Error;

    fn decode<'h>(&mut self, bytes: &'h [u8], targets: &mut dyn Targets) -> io::Result<Step<Frame<'h>>> {
        if self.open.is_some() {
            let Some(foot) = bytes.first_chunk() else { return Ok(Step::Need(FOOT)) };
            if self.sealed && foot[CRC_AT..CRC_AT + 4] != self.crc.to_le_bytes() {
                return Err(io::Error::other(format!("checksum {:x} of {:x?}", self.crc, foot)));
            }
            let (head, landed) = self.open.take().unwrap_or(([0; HEAD], Landed::Discarded));
            return Ok(Step::Frame { frame: (head, landed, foot), head: FOOT });
        }
        let Some(head) = bytes.first_chunk::<HEAD>() else { return Ok(Step::Need(HEAD)) };
        let [number, len] =
            [0, 8].map(|at| u64::from_le_bytes(head[at..at + 8].try_into().unwrap_or_default()));
        let place = if !self.lent {
            Place::Slabs { offset: 0 }
        } else if targets.expect(number) == Some(len) {
            Place::Target { key: number, at: 0 }
        } else {
            return Err(io::Error::other(format!("message {number} of {len} bytes")));
        };
        self.open = Some((*head, Landed::Discarded));
        let mut req = BodyReq::new(len, place);
        if self.sealed {
            req = req.digest(Crc32c::raw(0));
        }
        Ok(Step::Body { head: HEAD, req })
    }

    fn body(&mut self, piece: Filled) -> io::Result<()> {
        if let Some(open) = &mut self.open {
            open.1 = piece.landed;
        }
        self.crc = piece.sum.and_then(|sum| sum.value()).unwrap_or(0);
        Ok(())
    }
}

/// A receiver with default options, and slabs that are all kept.
pub fn receiver(socket: &TcpStream, deframer: Messages) -> Receiver<SocketRef<&TcpStream>, Messages> {
    let pool = SlabPool::new(1 << 16);
    Receiver::with_options(SocketRef::new(socket), deframer, RecvOptions::default(), pool)
}

/// Digests one message, if somebody asks for it.
pub fn see<'p>(
    sum: &mut Option<&mut Sum>,
    head: &'p [u8],
    pages: impl Iterator<Item = &'p [u8]>,
    foot: &'p [u8],
) {
    if let Some(sum) = sum {
        [head].into_iter().chain(pages).chain([foot]).for_each(|piece| sum.update(piece));
    }
}
