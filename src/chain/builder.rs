//! Building a chain: put, push, patch, slot, fragment. A mistake is kept and comes back from `finish`.

use std::fmt;
use std::ops::Range;

use bytes::{Buf, Bytes};
use smallvec::SmallVec;

use super::inner::{Inner, Notes};
use super::seal::Place;
use super::segment::{Pages, Segments};
use super::{ChainError, SegmentChain};
use crate::checksum::Checksum;

/// Collects one message. Small pieces are *put*, that is, copied into the chain's scratch arena; payload is *pushed* and
/// stays where it is.
///
/// The calls return no errors: the first mistake is kept, later calls do nothing, and [`finish`](Self::finish) tells it.
///
/// ```
/// use segchain::chain::ChainBuilder;
///
/// let mut out = ChainBuilder::new();
/// let len_at = out.put_u32_be(0);
/// let body = out.push_borrowed(b"hello");
/// out.pad_to(4, body); // RFC 4506: opaque data is padded to a multiple of four
/// out.patch(len_at, &5u32.to_be_bytes());
/// assert_eq!(out.finish()?.seal_all().len(), 12);
/// # Ok::<(), segchain::chain::ChainError>(())
/// ```
pub struct ChainBuilder<'b> {
    inner: Box<Inner<'b>>,
}

/// A place in a chain that is being built: where something was put or pushed, and how long it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    chain: u64,
    position: u64,
    len: u64,
}

/// One fragment of a message that [`ChainBuilder::fragment`] cuts up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Fragment {
    /// Its number, from 0.
    pub index: u64,
    /// Its length in bytes, without the marker.
    pub len: u64,
    /// Whether it is the last one of the message.
    pub last: bool,
}

/// What becomes of a message that is abandoned when half of it is on the wire.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Abort<'a> {
    /// The protocol has no word for it: the stream closes. This is the default.
    CloseStream,
    /// The rest goes out as it is, copied: for frames that are short, and for those that are ciphertext already.
    Finish,
    /// The rest goes out as zeros with right checksums, and these bytes tell the peer to drop the message.
    Patch {
        /// Where the abort mark goes: scratch bytes, `bytes` long.
        at: Mark,
        /// The abort mark.
        bytes: &'a [u8],
    },
}

/// [`Abort`] in the finished chain.
#[derive(Clone, Debug, Default)]
pub(super) enum AbortRule {
    #[default]
    CloseStream,
    Finish,
    Patch(AbortPatch),
}

/// An abort mark and its place.
#[derive(Clone, Debug)]
pub(super) struct AbortPatch {
    pub(super) position: u64,
    pub(super) scratch: usize,
    pub(super) bytes: SmallVec<[u8; 8]>,
}

type MarkerFn = Box<dyn FnMut(Fragment, &mut Vec<u8>) + Send + Sync>;

/// How a message is to be cut up.
pub(super) struct Fragments {
    max: u64,
    width: u64,
    marker: MarkerFn,
}

/// The sum of two lengths, which stays below 2^63.
pub(super) fn checked_len(len: u64, added: u64) -> Result<u64, ChainError> {
    len.checked_add(added).filter(|sum| *sum < 1 << 63).ok_or(ChainError::TooLong { len, added })
}

impl<'b> ChainBuilder<'b> {
    /// The copy threshold unless [`copy_below`](Self::copy_below) says otherwise: below it copying a piece into the
    /// scratch bytes before it costs less than a slice of its own does, for us and for the kernel.
    pub const COPY_BELOW: usize = 1024;
    /// The most slots a chain may have.
    pub const MAX_SLOTS: usize = 1024;
    /// The most fragments a chain may be cut into.
    pub const MAX_FRAGMENTS: u64 = 1 << 20;

    /// An empty builder, with room for 16 segments and 192 scratch bytes. [`SegmentChain::recycle`] gives one that has the
    /// memory of an earlier message, and makes no allocation at all.
    pub fn new() -> Self {
        // Most small messages have less: the headers and the footer of a Ceph v1 message are 75 bytes.
        let notes = Notes { arena: Vec::with_capacity(192), ..Notes::default() };
        Self::begin(Box::new(Inner { segments: Segments::with_room(), notes }))
    }

    #[inline]
    pub(super) fn begin(mut inner: Box<Inner<'b>>) -> Self {
        inner.notes.begin(Self::COPY_BELOW);
        Self { inner }
    }

    /// Bytes so far, a fragment marker at the start included.
    pub fn len(&self) -> u64 {
        self.inner.notes.len
    }

    /// Whether nothing was put or pushed yet.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Sets the copy threshold: a pushed piece shorter than `n` bytes that directly follows scratch bytes is copied
    /// behind them, and counts as scratch from then on, in a revoke too. A short last page after other pages is not. 0 never
    /// copies.
    pub fn copy_below(&mut self, n: usize) {
        self.inner.notes.copy_below = n;
    }

    /// An empty mark at the current end.
    #[inline]
    pub fn here(&self) -> Mark {
        self.mark(self.len(), 0)
    }

    /// Copies `bytes` into the scratch arena. What is put side by side leaves as one slice.
    #[inline]
    pub fn put(&mut self, bytes: &[u8]) -> Mark {
        let start = self.len();
        if !bytes.is_empty() && self.grow(bytes.len() as u64) {
            let offset = self.inner.notes.arena.len();
            self.inner.notes.arena.extend_from_slice(bytes);
            self.inner.segments.put(offset, self.len());
        }
        self.mark(start, bytes.len() as u64)
    }

    /// Puts one byte.
    pub fn put_u8(&mut self, value: u8) -> Mark {
        self.put(&[value])
    }

    /// Puts two bytes, least significant first.
    pub fn put_u16_le(&mut self, value: u16) -> Mark {
        self.put(&value.to_le_bytes())
    }

    /// Puts two bytes, most significant first.
    pub fn put_u16_be(&mut self, value: u16) -> Mark {
        self.put(&value.to_be_bytes())
    }

    /// Puts four bytes, least significant first.
    pub fn put_u32_le(&mut self, value: u32) -> Mark {
        self.put(&value.to_le_bytes())
    }

    /// Puts four bytes, most significant first.
    pub fn put_u32_be(&mut self, value: u32) -> Mark {
        self.put(&value.to_be_bytes())
    }

    /// Puts eight bytes, least significant first.
    pub fn put_u64_le(&mut self, value: u64) -> Mark {
        self.put(&value.to_le_bytes())
    }

    /// Puts eight bytes, most significant first.
    pub fn put_u64_be(&mut self, value: u64) -> Mark {
        self.put(&value.to_be_bytes())
    }

    /// Pushes shared bytes; nothing is copied unless they are below the copy threshold.
    #[inline]
    pub fn push(&mut self, bytes: Bytes) -> Mark {
        if self.is_to_be_copied(&bytes) {
            return self.copy(&bytes);
        }
        self.add(bytes.len() as u64, Pages::Shared(bytes))
    }

    /// Pushes bytes that the caller keeps; nothing is copied unless they are below the copy threshold.
    #[inline]
    pub fn push_borrowed(&mut self, bytes: &'b [u8]) -> Mark {
        if self.is_to_be_copied(bytes) {
            return self.copy(bytes);
        }
        self.add(bytes.len() as u64, Pages::Borrowed(bytes))
    }

    /// Pushes all that is left in `buf`. `Bytes` inside are shared, not copied; other buffers copy as they see fit.
    pub fn push_buf(&mut self, mut buf: impl Buf) -> Mark {
        let start = self.len();
        while buf.has_remaining() && self.inner.notes.error.is_none() {
            // Chunk by chunk: a buffer's own vectored view may be wrong about order or length (bytes 701, opendal 8063).
            let len = buf.chunk().len();
            if len == 0 {
                self.fail(ChainError::EmptyChunk { position: self.len(), remaining: buf.remaining() as u64 });
                break;
            }
            self.push(buf.copy_to_bytes(len));
        }
        self.mark(start, self.len() - start)
    }

    /// Pushes `len` zero bytes, all of them slices of one shared zero page.
    pub fn push_zeros(&mut self, len: u64) -> Mark {
        self.add(len, Pages::Zeros)
    }

    /// Adds zero bytes until the length since `since` began is a multiple of `multiple`.
    pub fn pad_to(&mut self, multiple: u64, since: Mark) -> Mark {
        const SHORT: [u8; 64] = [0; 64];
        if self.owns(since) && multiple == 0 {
            self.fail(ChainError::Zero);
        }
        if self.inner.notes.error.is_some() {
            return self.here();
        }
        let pad = (self.len() - since.position).next_multiple_of(multiple) - (self.len() - since.position);
        match SHORT.get(..pad as usize) {
            Some(zeros) => self.put(zeros),
            None => self.push_zeros(pad),
        }
    }

    /// Overwrites the scratch bytes at a mark, all of them.
    pub fn patch(&mut self, at: Mark, bytes: &[u8]) {
        if at.len != bytes.len() as u64 && self.owns(at) {
            self.fail(ChainError::Length {
                position: at.position,
                expected: at.len,
                got: bytes.len() as u64,
            });
        }
        if let Some(offset) = self.scratch(at) {
            self.inner.notes.arena[offset..offset + bytes.len()].copy_from_slice(bytes);
        }
    }

    /// Declares a slot: the bytes from the start of `cover.start` up to the start of `cover.end`, digested with
    /// `checksum`, give the value at `at`.
    ///
    /// Covers may overlap and may hold earlier slots; only a slot inside its own cover, directly or through others, is
    /// a mistake. Fragment markers are not part of any cover. The value is written when the cover is digested, just
    /// ahead of the send.
    #[inline]
    pub fn slot<C: Checksum>(&mut self, cover: Range<Mark>, checksum: C, at: Mark) {
        if let Some(place) = self.place(cover, checksum.width() as u64, at) {
            self.inner.notes.slots.push(place, checksum);
        }
    }

    /// Says what becomes of the message if it is abandoned half-sent. The last rule counts.
    pub fn on_abort(&mut self, rule: Abort<'_>) {
        self.inner.notes.abort = match rule {
            Abort::CloseStream => AbortRule::CloseStream,
            Abort::Finish => AbortRule::Finish,
            Abort::Patch { at, bytes } => {
                let got = bytes.len() as u64;
                if at.len != got && self.owns(at) {
                    self.fail(ChainError::Length { position: at.position, expected: at.len, got });
                }
                let Some(scratch) = self.scratch(at) else { return };
                AbortRule::Patch(AbortPatch { position: at.position, scratch, bytes: bytes.into() })
            }
        };
    }

    /// Cuts the message into fragments of at most `max` bytes, each behind a marker of `N` bytes. Has to be called before
    /// anything is put or pushed; applied by [`finish`](Self::finish), which calls `marker` once for each. Marks, slots and
    /// patches of the caller count the bytes as if there was one fragment.
    ///
    /// `marker` borrows nothing: it lies in the memory that [`SegmentChain::recycle`] gives to messages of any lifetime.
    ///
    /// ```
    /// use segchain::chain::ChainBuilder;
    ///
    /// let mut out = ChainBuilder::new();
    /// out.fragment(4, |f| (f.len as u32 | u32::from(f.last) << 31).to_be_bytes());
    /// out.put(b"hello");
    /// assert_eq!(out.finish()?.seal_all().to_vec(), b"\0\0\0\x04hell\x80\0\0\x01o");
    /// # Ok::<(), segchain::chain::ChainError>(())
    /// ```
    pub fn fragment<const N: usize>(
        &mut self,
        max: u64,
        mut marker: impl FnMut(Fragment) -> [u8; N] + Send + Sync + 'static,
    ) {
        if !self.is_empty() || self.inner.notes.fragments.is_some() {
            self.fail(ChainError::FragmentNotFirst { len: self.len() });
        } else if max == 0 {
            self.fail(ChainError::Zero);
        } else {
            // The first marker's place, so that one fragment needs no change of the segments.
            self.inner.notes.arena.extend_from_slice(&[0; N]);
            self.inner.notes.len = N as u64;
            self.inner.segments.put_marker(0, N as u64);
            let marker = Box::new(move |f, out: &mut Vec<u8>| out.extend_from_slice(&marker(f)));
            self.inner.notes.fragments = Some(Fragments { max, width: N as u64, marker });
        }
    }

    /// The first mistake so far. A framer with state of its own asks before it commits that state.
    ///
    /// # Errors
    /// What [`finish`](Self::finish) would return, but for what only it can see: a cycle of slots, too many fragments, and
    /// markers that carry the length past 2^63. Whether a framer can cause these does not depend on its messages, but on
    /// its slots and its fragment size.
    #[inline]
    pub fn check(&self) -> Result<(), ChainError> {
        // Not `map_or`: that would copy the error before it is known whether there is one.
        match &self.inner.notes.error {
            None => Ok(()),
            Some(error) => Err(*error),
        }
    }

    /// Ends the message.
    ///
    /// # Errors
    /// The first mistake of any call before, or [`ChainError::SlotCycle`], [`ChainError::TooManyFragments`] or
    /// [`ChainError::TooLong`].
    #[inline]
    pub fn finish(mut self) -> Result<SegmentChain<'b>, ChainError> {
        self.check()?;
        if self.inner.notes.fragments.is_some() {
            self.cut()?;
        }
        let Inner { segments, notes } = &mut *self.inner;
        debug_assert!(notes.payload.is_empty() || notes.payload == segments.payload());
        notes.sealed = if notes.slots.order()? { 0 } else { notes.len };
        Ok(SegmentChain(self.inner))
    }

    /// Puts the markers in. Out of the way of messages without any.
    #[inline(never)]
    fn cut(&mut self) -> Result<(), ChainError> {
        let Some(Fragments { max, width, mut marker }) = self.inner.notes.fragments.take() else {
            return Ok(());
        };
        let body = self.len() - width;
        if body <= max {
            // Behind the scratch bytes, and then into the place that was reserved: no allocation for most messages.
            let arena = &mut self.inner.notes.arena;
            let end = arena.len();
            marker(Fragment { index: 0, len: body, last: true }, arena);
            arena.copy_within(end.., 0);
            arena.truncate(end);
            return Ok(());
        }
        if body.div_ceil(max) > Self::MAX_FRAGMENTS {
            return Err(ChainError::TooManyFragments { fragments: body.div_ceil(max) });
        }
        let markers = body.div_ceil(max).saturating_mul(width);
        checked_len(body, markers)?;
        self.inner.segments.fragment(&mut self.inner.notes.arena, width, max, marker);
        self.inner.notes.len = self.inner.segments.len();
        // A position moves behind the marker of its own fragment, the end of a cover only behind those before it.
        let start = |position: u64| position + (position.max(width) - width) / max * width;
        let end = |position: u64| if position <= width { position } else { start(position - 1) + 1 };
        self.inner.notes.slots.translate(start, end);
        let payload = self.inner.notes.payload.clone();
        if !payload.is_empty() {
            self.inner.notes.payload = start(payload.start)..end(payload.end);
        }
        if let AbortRule::Patch(abort) = &mut self.inner.notes.abort {
            abort.position = start(abort.position);
        }
        Ok(())
    }

    #[inline]
    fn mark(&self, position: u64, len: u64) -> Mark {
        Mark { chain: self.inner.notes.id, position, len }
    }

    #[cold]
    fn fail(&mut self, error: ChainError) {
        self.inner.notes.error.get_or_insert(error);
    }

    /// Adds to the length; `false` if that is a mistake, or one was made before.
    #[inline]
    fn grow(&mut self, added: u64) -> bool {
        match self.len().checked_add(added) {
            Some(len) if len < 1 << 63 && self.inner.notes.error.is_none() => {
                self.inner.notes.len = len;
                true
            }
            _ => self.refuse(added),
        }
    }

    #[cold]
    fn refuse(&mut self, added: u64) -> bool {
        if let Err(error) = checked_len(self.len(), added) {
            self.fail(error);
        }
        false
    }

    /// Adds a segment; an empty one is left out, so that no later step meets one.
    #[allow(clippy::inline_always, reason = "for every page of every message")]
    #[inline(always)]
    fn add(&mut self, len: u64, pages: Pages<'b>) -> Mark {
        let start = self.len();
        if len > 0 && self.grow(len) {
            self.inner.segments.push_payload(self.len(), pages);
            let payload = &mut self.inner.notes.payload;
            if payload.end == 0 {
                payload.start = start;
            }
            payload.end = self.inner.notes.len;
        }
        self.mark(start, len)
    }

    /// Whether a pushed piece is below the threshold and follows scratch bytes.
    #[inline]
    fn is_to_be_copied(&self, bytes: &[u8]) -> bool {
        bytes.len() < self.inner.notes.copy_below && self.inner.segments.ends_in_scratch()
    }

    fn copy(&mut self, bytes: &[u8]) -> Mark {
        self.inner.notes.copied += bytes.len() as u64;
        self.put(bytes)
    }

    /// Whether a mark is good here; keeps the mistake if not.
    #[inline]
    fn owns(&mut self, mark: Mark) -> bool {
        if mark.chain != self.inner.notes.id {
            self.fail(if mark.chain == OUT_OF_RANGE {
                ChainError::MarkOutOfRange { position: mark.position, len: mark.len }
            } else {
                ChainError::ForeignMark { position: mark.position }
            });
        }
        self.inner.notes.error.is_none()
    }

    /// Where a slot is to be; keeps the mistake if it cannot be there.
    fn place(&mut self, cover: Range<Mark>, width: u64, at: Mark) -> Option<Place> {
        if !self.owns(cover.start) || !self.owns(cover.end) {
            return None;
        }
        if at.len != width && self.owns(at) {
            self.fail(ChainError::Length { position: at.position, expected: at.len, got: width });
            return None;
        }
        let scratch = self.scratch(at)?;
        let cover = cover.start.position..cover.end.position;
        let value = at.position..at.position + width;
        let Range { start, end } = cover;
        if end < start {
            self.fail(ChainError::CoverReversed { start, end });
        } else if value.start < end && value.end > start {
            self.fail(ChainError::SlotInsideCover { position: value.start, start, end });
        } else if self.inner.notes.slots.count() >= Self::MAX_SLOTS {
            self.fail(ChainError::TooManySlots);
        } else {
            return Some(Place { cover, value, scratch });
        }
        None
    }

    /// Where in the arena the bytes of a mark are; keeps the mistake if they are not there.
    fn scratch(&mut self, mark: Mark) -> Option<usize> {
        if !self.owns(mark) {
            return None;
        }
        if mark.is_empty() {
            return Some(0); // no bytes are in the arena wherever they are
        }
        let offset = self.inner.segments.scratch_offset(mark.position, mark.len);
        if offset.is_none() {
            self.fail(ChainError::NotScratch { position: mark.position, len: mark.len });
        }
        offset
    }
}

/// The chain number of marks that [`Mark::at`] could not make.
const OUT_OF_RANGE: u64 = 0;

impl Mark {
    /// Bytes from the chain's start.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Length in bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether it marks a place between bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// A part of it: `len` bytes from `offset` on. One that does not lie inside makes the use of the new mark
    /// [`ChainError::MarkOutOfRange`].
    #[must_use]
    pub fn at(self, offset: u64, len: u64) -> Self {
        let inside = offset.checked_add(len).is_some_and(|end| end <= self.len);
        let chain = if inside { self.chain } else { OUT_OF_RANGE };
        Self { chain, position: self.position.saturating_add(offset), len }
    }
}

impl Default for ChainBuilder<'_> {
    fn default() -> Self {
        Self::new()
    }
}

/// Shape only: lengths and counts, never payload.
impl fmt::Debug for ChainBuilder<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChainBuilder")
            .field("len", &self.len())
            .field("segments", &self.inner.segments)
            .field("slots", &self.inner.notes.slots)
            .field("error", &self.inner.notes.error)
            .finish_non_exhaustive()
    }
}
