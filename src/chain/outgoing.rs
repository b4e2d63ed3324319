//! A message on its way: a chain, a number, and how much of it has left.

use std::fmt;
use std::io::IoSlice;
use std::sync::Arc;

use super::inner::next_id;
use super::{SealedChain, SegmentChain};

/// A chain and its one position. [`StreamSender`](crate::send::StreamSender) moves the position, nobody else does.
///
/// ```
/// use segchain::chain::{ChainBuilder, Outgoing};
///
/// let mut out = ChainBuilder::new();
/// out.put(b"ping");
/// let message = Outgoing::new(out.finish()?);
/// assert_eq!((message.sent(), message.remaining()), (0, 4));
/// let builder = message.into_chain().unwrap().recycle(); // the memory, for the next message
/// # drop::<ChainBuilder>(builder);
/// # Ok::<(), segchain::chain::ChainError>(())
/// ```
pub struct Outgoing<'b> {
    id: u64,
    sent: u64,
    /// The chain's, as `copied` is: its memory is out of the cache once the kernel has copied the pages.
    len: u64,
    copied: u64,
    chain: Holder<'b>,
}

enum Holder<'b> {
    Own(SegmentChain<'b>),
    Shared(Arc<SealedChain<'b>>),
}

impl<'b> Outgoing<'b> {
    /// A message of its own; it is sealed piece by piece, just ahead of the send.
    #[inline]
    pub fn new(chain: SegmentChain<'b>) -> Self {
        Self::with_rest(next_id(), 0, chain)
    }

    /// A message whose chain others send too.
    pub fn shared(chain: Arc<SealedChain<'b>>) -> Self {
        let (len, copied) = (chain.len(), chain.0.copied());
        Self { id: next_id(), sent: 0, len, copied, chain: Holder::Shared(chain) }
    }

    /// The number of this message, unique in the process.
    #[inline]
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Length in bytes.
    #[inline]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether it has no bytes at all; it is complete from the start then.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes that have left.
    #[inline]
    pub fn sent(&self) -> u64 {
        self.sent
    }

    /// Bytes that have not.
    #[inline]
    pub fn remaining(&self) -> u64 {
        self.len() - self.sent
    }

    /// Whether every byte has left.
    #[inline]
    pub fn is_complete(&self) -> bool {
        self.remaining() == 0
    }

    /// The chain, for its memory, if this message owned it.
    #[inline]
    pub fn into_chain(self) -> Option<SegmentChain<'b>> {
        match self.chain {
            Holder::Own(chain) => Some(chain),
            Holder::Shared(_) => None,
        }
    }

    /// The same message with what has not left of its chain replaced.
    #[inline]
    pub(super) fn with_rest(id: u64, sent: u64, chain: SegmentChain<'b>) -> Self {
        Self { id, sent, len: chain.len(), copied: chain.copied(), chain: Holder::Own(chain) }
    }

    /// Payload bytes that were copied into the chain.
    #[inline]
    pub(crate) fn copied(&self) -> u64 {
        self.copied
    }

    #[inline]
    pub(super) fn chain(&self) -> &SegmentChain<'b> {
        match &self.chain {
            Holder::Own(chain) => chain,
            Holder::Shared(sealed) => &sealed.0,
        }
    }

    /// Seals at least half a window ahead of what has left, if there is that much; returns how many bytes that digested.
    ///
    /// A chain of up to two windows is sealed whole, and a tail under half a window with what is before it: a call of a
    /// few bytes at the end would cost more than the cache saves (measured on Linux 6.18).
    #[inline]
    pub(crate) fn seal_ahead(&mut self, window: u64) -> u64 {
        match &mut self.chain {
            Holder::Own(chain) if chain.sealed() < self.len && chain.sealed() - self.sent <= window / 2 => {
                let before = chain.digested();
                let to = chain.sealed().saturating_add(window);
                let whole = self.len <= window.saturating_mul(2) || self.len.saturating_sub(to) < window / 2;
                chain.seal_through(if whole { self.len } else { to });
                chain.digested() - before
            }
            _ => 0,
        }
    }

    /// Appends slices of what has not left and is final; returns how many bytes they are.
    #[inline]
    pub(crate) fn gather<'s>(&'s self, max_bytes: u64, max_slices: usize, out: &mut Vec<IoSlice<'s>>) -> u64 {
        self.chain().gather_bytes(self.sent, max_bytes, max_slices, out)
    }

    #[inline]
    pub(crate) fn advance(&mut self, bytes: u64) {
        self.sent += bytes;
        debug_assert!(self.sent <= self.len());
    }
}

/// Shape and progress, never payload.
impl fmt::Debug for Outgoing<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Outgoing")
            .field("id", &self.id)
            .field("sent", &self.sent)
            .field("chain", self.chain())
            .finish()
    }
}
