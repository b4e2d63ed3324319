//! The segments of one chain: lookup by position, walk, gather.
//!
//! A segment stores where it *ends*, so that a position is one `u64` and its segment a binary search away. The scratch arena
//! that some of them lie in belongs to the chain's notes, and is handed in. What a position means for sending is the
//! business of the rooms above.

use std::fmt;
use std::io::IoSlice;
use std::ops::Range;

use bytes::Bytes;

use super::builder::{Fragment, checked_len};
use super::{ChainError, Gathered};
use crate::sys;

/// Zero bytes on the wire are slices of this, however many there are.
static ZEROS: [u8; 64 * 1024] = [0; 64 * 1024];

/// Where the bytes of a segment are.
#[derive(Clone)]
pub(super) enum Source<'b> {
    /// In the arena, from this offset on.
    Scratch(usize),
    /// In the arena as well, but a fragment marker: no cover counts it.
    Marker(usize),
    Shared(Bytes),
    Borrowed(&'b [u8]),
    Zeros,
}

#[derive(Clone)]
pub(super) struct Segment<'b> {
    end: u64,
    source: Source<'b>,
}

/// A stretch of one segment.
pub(super) enum Piece<'s> {
    /// Scratch bytes, and where in the arena they begin.
    Scratch(&'s [u8], usize),
    Payload(&'s [u8]),
    Zeros(u64),
    /// Not part of any cover.
    Marker,
}

#[derive(Default)]
pub(super) struct Segments<'b>(Vec<Segment<'b>>);

impl<'b> Segments<'b> {
    pub(super) fn with_room() -> Self {
        Self(Vec::with_capacity(16))
    }

    #[inline]
    pub(super) fn len(&self) -> u64 {
        self.0.last().map_or(0, |segment| segment.end)
    }

    /// Scratch bytes from `offset` on in the arena, just put there, up to position `end`; a scratch segment before them grows.
    #[inline]
    pub(super) fn put(&mut self, offset: usize, end: u64) {
        match self.0.last_mut() {
            Some(Segment { end: last, source: Source::Scratch(_) }) => *last = end,
            _ => self.0.push(Segment { end, source: Source::Scratch(offset) }),
        }
    }

    /// Adds `len` bytes; an empty segment is dropped here, so that no later step meets one.
    #[inline]
    pub(super) fn push(&mut self, len: u64, source: Source<'b>) {
        if len > 0 {
            self.0.push(Segment { end: self.len() + len, source });
        }
    }

    /// The same for bytes that are known to be some, and to end at `end`.
    #[inline]
    pub(super) fn push_ending(&mut self, end: u64, source: Source<'b>) {
        self.0.push(Segment { end, source });
    }

    #[inline]
    pub(super) fn ends_in_scratch(&self) -> bool {
        matches!(self.0.last(), Some(Segment { source: Source::Scratch(_), .. }))
    }

    /// Where in the arena `len` bytes at `position` lie, if they are scratch bytes side by side.
    pub(super) fn scratch_offset(&self, position: u64, len: u64) -> Option<usize> {
        let index = self.index_of(position);
        match self.0.get(index)? {
            Segment { end, source: Source::Scratch(offset) } if position + len <= *end => {
                Some(offset + (position - self.start_of(index)) as usize)
            }
            _ => None,
        }
    }

    /// From the first payload byte to the end of the last one; empty, at the end, if there is none.
    pub(super) fn payload(&self) -> Range<u64> {
        let is_payload = |s: &Segment<'_>| !matches!(s.source, Source::Scratch(_) | Source::Marker(_));
        match self.0.iter().position(is_payload) {
            Some(first) => {
                let last = self.0.iter().rposition(is_payload).unwrap_or(first);
                self.start_of(first)..self.0[last].end
            }
            None => self.len()..self.len(),
        }
    }

    /// Where the slice that holds `position` begins.
    pub(super) fn slice_start(&self, position: u64) -> u64 {
        let index = self.index_of(position);
        let start = self.start_of(index);
        match self.0.get(index).map(|segment| &segment.source) {
            Some(Source::Zeros) => position - (position - start) % ZEROS.len() as u64,
            _ => start,
        }
    }

    /// Cuts the bytes after the first `skip` into stretches of `max`, and puts before each what `marker` puts into the arena.
    pub(super) fn fragment(
        &mut self,
        arena: &mut Vec<u8>,
        skip: u64,
        max: u64,
        mut marker: impl FnMut(Fragment, &mut Vec<u8>),
    ) {
        let total = self.len() - skip;
        let old = std::mem::take(&mut self.0);
        let (mut index, mut start) = (old.partition_point(|segment| segment.end <= skip), skip);
        let mut at = skip;
        let mut number = 0;
        loop {
            let len = max.min(total - (at - skip));
            let end = at + len;
            let last = end - skip == total;
            let offset = arena.len();
            marker(Fragment { index: number, len, last }, arena);
            self.push((arena.len() - offset) as u64, Source::Marker(offset));
            while at < end {
                let segment: &Segment<'b> = &old[index];
                let stop = segment.end.min(end);
                self.push(stop - at, segment.source.slice(at - start, stop - at));
                at = stop;
                if stop == segment.end {
                    (start, index) = (segment.end, index + 1);
                }
            }
            if last {
                return;
            }
            number += 1;
        }
    }

    /// Lets go of the payload and gives the memory back, for segments of any lifetime.
    #[inline]
    pub(super) fn recycle<'n>(self) -> Segments<'n> {
        Segments(sys::reuse(self.0))
    }

    pub(super) fn into_owned(self) -> (Segments<'static>, u64) {
        let mut copied = 0;
        let list = self.0.into_iter().map(|segment| {
            let source = match segment.source {
                Source::Borrowed(bytes) => {
                    copied += bytes.len() as u64;
                    Source::Shared(Bytes::copy_from_slice(bytes))
                }
                Source::Scratch(offset) => Source::Scratch(offset),
                Source::Marker(offset) => Source::Marker(offset),
                Source::Shared(bytes) => Source::Shared(bytes),
                Source::Zeros => Source::Zeros,
            };
            Segment { end: segment.end, source }
        });
        let list = list.collect();
        (Segments(list), copied)
    }

    /// The same shape without a byte of payload: zeros where it was.
    pub(super) fn without_payload(&self) -> Segments<'static> {
        let list = self.0.iter().map(|segment| {
            let source = match segment.source {
                Source::Scratch(offset) => Source::Scratch(offset),
                Source::Marker(offset) => Source::Marker(offset),
                Source::Shared(_) | Source::Borrowed(_) | Source::Zeros => Source::Zeros,
            };
            Segment { end: segment.end, source }
        });
        Segments(list.collect())
    }

    /// The same shape with the payload from `position` on copied, and zeros where it was before that.
    pub(super) fn copied_from(&self, position: u64) -> (Segments<'static>, u64) {
        let mut copy = Segments::default();
        let (mut start, mut copied) = (0, 0);
        for segment in &self.0 {
            let cut = position.clamp(start, segment.end);
            match &segment.source {
                Source::Scratch(offset) => copy.push(segment.end - start, Source::Scratch(*offset)),
                Source::Marker(offset) => copy.push(segment.end - start, Source::Marker(*offset)),
                Source::Zeros => copy.push(segment.end - start, Source::Zeros),
                payload @ (Source::Shared(_) | Source::Borrowed(_)) => {
                    // Payload: it is not in an arena.
                    let unsent = payload.memory(&[], cut - start, segment.end - cut);
                    copied += unsent.len() as u64;
                    copy.push(cut - start, Source::Zeros);
                    copy.push(segment.end - cut, Source::Shared(Bytes::copy_from_slice(unsent)));
                }
            }
            start = segment.end;
        }
        (copy, copied)
    }

    pub(super) fn split(self, position: u64) -> (Self, Self) {
        let (mut head, mut tail) = (Self::default(), Self::default());
        let mut start = 0;
        for Segment { end, source } in self.0 {
            let cut = position.clamp(start, end);
            head.push(cut - start, source.slice(0, cut - start));
            tail.push(end - cut, source.slice(cut - start, end - cut));
            start = end;
        }
        (head, tail)
    }

    /// Adds another chain's, whose arena was put behind the first `base` bytes of this one's.
    pub(super) fn append(mut self, other: Self, base: usize) -> Result<Self, ChainError> {
        checked_len(self.len(), other.len())?;
        let mut start = 0;
        for Segment { end, source } in other.0 {
            self.push(end - start, source.moved_by(base));
            start = end;
        }
        Ok(self)
    }

    fn start_of(&self, index: usize) -> u64 {
        index.checked_sub(1).map_or(0, |before| self.0[before].end)
    }

    fn index_of(&self, position: u64) -> usize {
        self.0.partition_point(|segment| segment.end <= position)
    }
}

/// A chain's bytes: its segments, and the arena that the scratch ones lie in.
#[derive(Clone, Copy)]
pub(super) struct Content<'s> {
    pub(super) segments: &'s Segments<'s>,
    pub(super) arena: &'s [u8],
}

impl<'s> Content<'s> {
    /// The pieces between two positions, in order.
    pub(super) fn walk(self, from: u64, to: u64) -> impl Iterator<Item = Piece<'s>> {
        let Self { segments, arena } = self;
        let mut index = segments.index_of(from);
        let mut at = from;
        std::iter::from_fn(move || {
            let segment = segments.0.get(index).filter(|_| at < to)?;
            let end = segment.end.min(to);
            let skip = at - segments.start_of(index);
            let len = end - at;
            (at, index) = (end, index + 1);
            Some(match &segment.source {
                Source::Marker(_) => Piece::Marker,
                Source::Zeros => Piece::Zeros(len),
                Source::Scratch(offset) => {
                    Piece::Scratch(segment.source.memory(arena, skip, len), offset + skip as usize)
                }
                source => Piece::Payload(source.memory(arena, skip, len)),
            })
        })
    }

    /// Appends slices of the bytes between two positions; see [`SegmentChain::gather`](super::SegmentChain::gather).
    pub(super) fn gather(
        self,
        from: u64,
        to: u64,
        max_slices: usize,
        out: &mut Vec<IoSlice<'s>>,
    ) -> Gathered {
        let Self { segments, arena } = self;
        // Most calls begin at the start.
        let index = if from == 0 { 0 } else { segments.index_of(from) };
        let gathered = Gathered::default();
        let mut run = Run { arena, out, gathered, touching: 0, room: max_slices, scratch: 0..0 };
        let mut at = from;
        // Only the first segment is entered in its middle.
        let mut skip = (from - segments.start_of(index)) as usize;
        for Segment { end, source } in &segments.0[index..] {
            if at >= to {
                break;
            }
            let len = *end.min(&to) - at;
            let piece = skip..skip + len as usize;
            let whole = match source {
                Source::Borrowed(bytes) => run.payload(&bytes[piece]),
                Source::Shared(bytes) => run.payload(&bytes[piece]),
                Source::Scratch(offset) | Source::Marker(offset) => {
                    run.scratch(offset + piece.start..offset + piece.end)
                }
                Source::Zeros => run.zeros(len),
            };
            if !whole {
                break;
            }
            skip = 0;
            at = *end;
        }
        run.gathered
    }

    /// The bytes of the segment at `position` from there on, as far as they are one piece of memory.
    pub(super) fn chunk(self, position: u64) -> &'s [u8] {
        let Self { segments, arena } = self;
        let index = segments.index_of(position);
        let Some(segment) = segments.0.get(index) else { return &[] };
        match &segment.source {
            Source::Zeros => &ZEROS[..(segment.end - position).min(ZEROS.len() as u64) as usize],
            source => source.memory(arena, position - segments.start_of(index), segment.end - position),
        }
    }
}

/// Slices that are appended one after the other; scratch bytes that touch become one.
struct Run<'s, 'o> {
    arena: &'s [u8],
    out: &'o mut Vec<IoSlice<'s>>,
    gathered: Gathered,
    /// Where the memory of the last slice ends.
    touching: usize,
    /// How many more slices there may be.
    room: usize,
    /// The last slice, if it is of scratch bytes.
    scratch: Range<usize>,
}

/// Every call but `push` appends one slice or several; `false`: there was no room for all.
impl<'s> Run<'s, '_> {
    #[inline]
    fn payload(&mut self, slice: &'s [u8]) -> bool {
        self.scratch = 0..0;
        self.push(slice)
    }

    #[inline]
    fn scratch(&mut self, range: Range<usize>) -> bool {
        let joined = self.scratch.start..range.end;
        let len = range.len();
        if self.scratch.end == range.start
            && !self.scratch.is_empty()
            && let Some(last) = self.out.last_mut()
        {
            *last = IoSlice::new(&self.arena[joined.clone()]);
            self.gathered.bytes += len as u64;
            self.touching += len;
            self.scratch = joined;
            return true;
        }
        self.scratch = range.clone();
        self.push(&self.arena[range])
    }

    fn zeros(&mut self, mut len: u64) -> bool {
        while len > 0 {
            let n = len.min(ZEROS.len() as u64);
            if !self.payload(&ZEROS[..n as usize]) {
                return false;
            }
            len -= n;
        }
        true
    }

    #[inline]
    fn push(&mut self, slice: &'s [u8]) -> bool {
        if self.room == 0 {
            return false;
        }
        self.room -= 1;
        let address = slice.as_ptr() as usize;
        self.gathered.slices += usize::from(address != self.touching);
        self.touching = address + slice.len();
        self.gathered.bytes += slice.len() as u64;
        self.out.push(IoSlice::new(slice));
        true
    }
}

impl Source<'_> {
    fn memory<'s>(&'s self, arena: &'s [u8], skip: u64, len: u64) -> &'s [u8] {
        let range = skip as usize..(skip + len) as usize;
        match self {
            Source::Scratch(offset) | Source::Marker(offset) => {
                &arena[offset + range.start..offset + range.end]
            }
            Source::Shared(bytes) => &bytes[range],
            Source::Borrowed(bytes) => &bytes[range],
            Source::Zeros => &[],
        }
    }

    fn slice(&self, skip: u64, len: u64) -> Self {
        let range = skip as usize..(skip + len) as usize;
        match self {
            Source::Scratch(offset) => Source::Scratch(offset + range.start),
            Source::Marker(offset) => Source::Marker(offset + range.start),
            Source::Shared(bytes) => Source::Shared(bytes.slice(range)),
            Source::Borrowed(bytes) => Source::Borrowed(&bytes[range]),
            Source::Zeros => Source::Zeros,
        }
    }

    fn moved_by(self, base: usize) -> Self {
        match self {
            Source::Scratch(offset) => Source::Scratch(offset + base),
            Source::Marker(offset) => Source::Marker(offset + base),
            other => other,
        }
    }
}

/// How many of each kind, and how many bytes of it.
impl fmt::Debug for Segments<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut map = f.debug_list();
        let mut start = 0;
        for segment in self.0.iter().take(8) {
            let kind = match segment.source {
                Source::Scratch(_) => "scratch",
                Source::Marker(_) => "marker",
                Source::Shared(_) => "shared",
                Source::Borrowed(_) => "borrowed",
                Source::Zeros => "zeros",
            };
            map.entry(&format_args!("{kind} {}", segment.end - start));
            start = segment.end;
        }
        if self.0.len() > 8 {
            map.entry(&format_args!("and {} more", self.0.len() - 8));
        }
        map.finish()
    }
}
