//! One message as a chain of segments: header slices, payload pages, trailer, and the checksums among them.
//!
//! ```text
//!  ChainBuilder ──finish──▶ SegmentChain ──────────────▶ Outgoing { chain, sent } ──▶ send::StreamSender
//!    put, push, slot          │ seal_through, gather        one position, u64
//!                             └──seal_all──▶ SealedChain ──▶ Outgoing::shared, Buf view, split, append
//! ```
//!
//! Small pieces are copied into one *scratch* arena that the chain owns; payload stays where it is. A *slot* says:
//! the bytes of this cover, digested so, end up there. Nothing here makes a system call: the next room is
//! [`send`](crate::send).

mod buf;
mod builder;
mod error;
mod inner;
mod outgoing;
mod payload;
mod revoke;
mod seal;
mod segment;

use std::fmt;
use std::io::IoSlice;

use bytes::Buf;

pub use self::buf::ChainBuf;
pub use self::builder::{Abort, ChainBuilder, Fragment, Mark};
pub use self::error::ChainError;
pub use self::outgoing::Outgoing;
pub use self::payload::Payload;
pub use self::revoke::{Revoked, Unsent};

use self::inner::{Inner, Notes};
use self::segment::Segments;
use crate::sys::slices_in_memory;

/// A finished message: segments in wire order, with checksum slots that may still be open.
///
/// Sending does not consume it: [`gather`](SegmentChain::gather) borrows. Only bytes that are *sealed*, that is, final,
/// are ever handed out; [`seal_through`](SegmentChain::seal_through) moves that border.
///
/// ```
/// use segchain::chain::ChainBuilder;
/// use segchain::checksum::Crc32c;
///
/// let page = [7u8; 4096];
/// let mut out = ChainBuilder::new();
/// out.put(b"head");
/// let body = out.push_borrowed(&page);
/// let trailer = out.put_u32_le(0);
/// out.slot(body..trailer, Crc32c::raw(0), trailer);
/// let mut chain = out.finish()?;
/// assert_eq!((chain.len(), chain.sealed()), (4104, 0));
///
/// chain.seal_through(chain.len());
/// let mut slices = Vec::new();
/// chain.gather(0, u64::MAX, 1024, &mut slices);
/// assert_eq!(slices[1].as_ptr(), page.as_ptr()); // the caller's own page
/// # Ok::<(), segchain::chain::ChainError>(())
/// ```
pub struct SegmentChain<'b>(Box<Inner<'b>>);

/// What one [`gather`](SegmentChain::gather) call appended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Gathered {
    /// Bytes in the appended slices.
    pub bytes: u64,
    /// Appended slices, neighbours in memory counted as one: this is what the kernel is given.
    pub slices: usize,
}

impl<'b> SegmentChain<'b> {
    /// Length in bytes, everything included.
    #[inline]
    pub fn len(&self) -> u64 {
        self.0.notes.len
    }

    /// Whether the chain holds no bytes at all. Sending it makes no call.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The position up to which every byte is final.
    #[inline]
    pub fn sealed(&self) -> u64 {
        self.0.notes.sealed
    }

    /// Payload bytes that were copied into the scratch arena because they were below the copy threshold, or by
    /// [`into_owned`](SegmentChain::into_owned).
    #[inline]
    pub fn copied(&self) -> u64 {
        self.0.notes.copied
    }

    /// Bytes read for checksums so far.
    #[inline]
    pub fn digested(&self) -> u64 {
        self.0.notes.slots.digested()
    }

    /// Makes every byte before `position` final: digests what the slots there need and writes their values. Idempotent
    /// and monotonic; positions past the end mean the end.
    ///
    /// A byte that several covers of built-in checksums share is read once. A slot that lies *before* its cover is digested
    /// by itself, whole, at the first call, and so are those that it depends on; a checksum of the caller's reads its cover
    /// itself.
    pub fn seal_through(&mut self, position: u64) {
        let to = position.min(self.len());
        if to > self.sealed() {
            let Inner { segments, notes } = &mut *self.0;
            notes.slots.seal_through(segments, &mut notes.arena, to);
            notes.sealed = if notes.slots.all_done() { notes.len } else { to };
        }
    }

    /// Seals the whole chain, which can then be shared and sent any number of times.
    #[must_use]
    pub fn seal_all(mut self) -> SealedChain<'b> {
        self.seal_through(self.len());
        SealedChain(self)
    }

    /// Appends slices of the sealed bytes from position `from` on: at most `max_bytes` bytes in at most `max_slices`
    /// slices. Touching scratch pieces come as one slice, and no slice is empty.
    ///
    /// If the limits would leave a bare trailer for the next call, the tail of the payload is left with it (where
    /// `max_slices` has room for header, trailer and one more).
    pub fn gather<'s>(
        &'s self,
        from: u64,
        max_bytes: u64,
        max_slices: usize,
        out: &mut Vec<IoSlice<'s>>,
    ) -> Gathered {
        let before = out.len();
        let bytes = self.gather_bytes(from, max_bytes, max_slices, out);
        Gathered { bytes, slices: slices_in_memory(&out[before..]) }
    }

    /// The same; returns the bytes only.
    #[inline]
    pub(super) fn gather_bytes<'s>(
        &'s self,
        from: u64,
        max_bytes: u64,
        max_slices: usize,
        out: &mut Vec<IoSlice<'s>>,
    ) -> u64 {
        let before = out.len();
        let to = self.sealed().min(from.saturating_add(max_bytes));
        let end = self.0.content().gather(from, to, max_slices, out);
        if end == self.len() {
            return end - from;
        }
        match self.cut_before_trailer(from, end) {
            Some(earlier) => {
                out.truncate(before);
                self.0.content().gather(from, earlier, max_slices, out) - from
            }
            None => end - from,
        }
    }

    /// Where to end a call instead of at `end`, if only trailer is left there: before the last payload slice, or in its
    /// middle if it is all that this call has besides the header.
    #[cold]
    fn cut_before_trailer(&self, from: u64, end: u64) -> Option<u64> {
        let payload = &self.0.notes.payload;
        if end == from || end < payload.end || payload.is_empty() {
            return None;
        }
        let first = from.max(payload.start);
        let last_slice = self.0.segments.slice_start(payload.end - 1);
        if last_slice > first {
            return Some(last_slice);
        }
        let middle = first + payload.end.saturating_sub(first) / 2;
        (middle > first).then_some(middle)
    }

    /// Gives the memory back for the next message, whatever its lifetime.
    #[must_use]
    #[inline]
    pub fn recycle<'n>(self) -> ChainBuilder<'n> {
        ChainBuilder::begin(self.0.map(Segments::recycle))
    }

    /// Copies what is borrowed, so that the chain may outlive its pages.
    #[must_use]
    pub fn into_owned(self) -> SegmentChain<'static> {
        let mut copied = 0;
        let mut owned = self.0.map(|segments| segments.into_owned(&mut copied));
        owned.notes.copied += copied;
        SegmentChain(owned)
    }
}

/// Shape only: lengths and counts, never payload.
impl fmt::Debug for SegmentChain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SegmentChain")
            .field("len", &self.len())
            .field("sealed", &self.sealed())
            .field("segments", &self.0.segments)
            .field("slots", &self.0.notes.slots)
            .field("abort", &self.0.notes.abort)
            .finish_non_exhaustive()
    }
}

/// A chain all of whose bytes are final: it can be shared behind an `Arc` and sent to many peers, or again.
///
/// ```
/// use std::sync::Arc;
/// use bytes::{Buf, Bytes};
/// use segchain::chain::{ChainBuilder, Outgoing};
///
/// let mut out = ChainBuilder::new();
/// out.put(b"to all: ");
/// out.push(Bytes::from_static(b"hello"));
/// let sealed = Arc::new(out.finish()?.seal_all());
/// let (a, b) = (Outgoing::shared(sealed.clone()), Outgoing::shared(sealed.clone()));
/// assert_eq!((a.remaining(), b.remaining()), (13, 13));
///
/// let mut rest = sealed.buf(8); // anything that takes a `bytes::Buf` can have it
/// assert_eq!(rest.copy_to_bytes(5), "hello");
/// # Ok::<(), segchain::chain::ChainError>(())
/// ```
pub struct SealedChain<'b>(SegmentChain<'b>);

impl<'b> SealedChain<'b> {
    /// Length in bytes.
    pub fn len(&self) -> u64 {
        self.0.len()
    }

    /// Whether the chain holds no bytes at all.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Appends slices from position `from` on, as [`SegmentChain::gather`] does.
    pub fn gather<'s>(
        &'s self,
        from: u64,
        max_bytes: u64,
        max_slices: usize,
        out: &mut Vec<IoSlice<'s>>,
    ) -> Gathered {
        self.0.gather(from, max_bytes, max_slices, out)
    }

    /// All bytes in one piece: a copy, for tests and for small chains.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut buf = self.buf(0);
        let mut bytes = vec![0; buf.remaining()];
        buf.copy_to_slice(&mut bytes);
        bytes
    }

    /// The bytes from position `from` on as a [`bytes::Buf`], vectored.
    pub fn buf(&self, from: u64) -> ChainBuf<'_> {
        ChainBuf::new(self.0.0.content(), from)
    }

    /// The bytes before `position` and the rest, as two chains; nothing is copied but the scratch bytes. Positions past
    /// the end mean the end. Neither half can be aborted on the wire any more.
    #[must_use]
    pub fn split(self, position: u64) -> (Self, Self) {
        let Inner { segments, notes } = *self.0.0;
        let (head, tail) = segments.split(position);
        (Self::of(head, notes.arena.clone(), notes.copied), Self::of(tail, notes.arena, 0))
    }

    /// Both chains as one. It cannot be aborted on the wire any more.
    ///
    /// # Errors
    /// [`ChainError::TooLong`] if the sum passes 2^63.
    pub fn append(self, other: Self) -> Result<Self, ChainError> {
        let (Inner { segments, notes }, other) = (*self.0.0, other.0.0);
        let mut arena = notes.arena;
        let segments = segments.append(other.segments, arena.len())?;
        arena.extend_from_slice(&other.notes.arena);
        Ok(Self::of(segments, arena, notes.copied + other.notes.copied))
    }

    /// Copies what is borrowed, so that the chain may outlive its pages.
    #[must_use]
    pub fn into_owned(self) -> SealedChain<'static> {
        SealedChain(self.0.into_owned())
    }

    fn of(segments: Segments<'b>, arena: Vec<u8>, copied: u64) -> Self {
        let (len, payload) = (segments.len(), segments.payload());
        let notes = Notes { len, sealed: len, copied, arena, payload, ..Notes::default() };
        Self(SegmentChain(Box::new(Inner { segments, notes })))
    }
}

/// Shape only: lengths and counts, never payload.
impl fmt::Debug for SealedChain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SealedChain").field(&self.0).finish()
    }
}
