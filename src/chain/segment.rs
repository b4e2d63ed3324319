//! The segments of one chain: lookup by position, walk, gather.
//!
//! A segment stores where it *ends*, so that a position is one `u64` and its segment a binary search away. The scratch arena
//! that some of them lie in belongs to the chain's notes, and is handed in. What a position means for sending is the
//! business of the rooms above.

use std::fmt;
use std::io::IoSlice;
use std::ops::Range;

use bytes::Bytes;

use super::ChainError;
use super::builder::{Fragment, checked_len};
use crate::sys;

/// Zero bytes on the wire are slices of this, however many there are.
static ZEROS: [u8; 64 * 1024] = [0; 64 * 1024];

/// Where the bytes of a segment are.
#[derive(Clone)]
pub(super) enum Source<'b> {
    /// In the arena, from this offset on.
    Scratch(usize),
    /// There too, but a fragment marker: no cover counts it.
    Marker(usize),
    /// Where they always were.
    Payload(Pages<'b>),
}

#[derive(Clone)]
pub(super) enum Pages<'b> {
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

    /// A fragment marker of `len` bytes from `offset` on in the arena.
    pub(super) fn put_marker(&mut self, offset: usize, len: u64) {
        self.push(len, Source::Marker(offset));
    }

    /// Adds `len` bytes of a chain that is cut or joined. As in building, no empty segment comes in: no later step meets one.
    fn push(&mut self, len: u64, source: Source<'b>) {
        if len > 0 {
            self.0.push(Segment { end: self.len() + len, source });
        }
    }

    /// Adds payload, of which there is some, up to position `end`.
    #[inline]
    pub(super) fn push_payload(&mut self, end: u64, payload: Pages<'b>) {
        self.0.push(Segment { end, source: Source::Payload(payload) });
    }

    #[inline]
    pub(super) fn ends_in_scratch(&self) -> bool {
        matches!(self.0.last(), Some(Segment { source: Source::Scratch(_), .. }))
    }

    /// Where in the arena `len` bytes at `position` lie, if they are scratch bytes side by side.
    pub(super) fn scratch_offset(&self, position: u64, len: u64) -> Option<usize> {
        // A trailer is just put.
        let last = self.0.len().saturating_sub(1);
        let index = if position >= self.start_of(last) { last } else { self.index_of(position) };
        match self.0.get(index)? {
            Segment { end, source: Source::Scratch(offset) } if position + len <= *end => {
                Some(offset + (position - self.start_of(index)) as usize)
            }
            _ => None,
        }
    }

    /// From the first payload byte to the end of the last one; empty, at the end, if there is none.
    pub(super) fn payload(&self) -> Range<u64> {
        let is_payload = |segment: &Segment<'_>| matches!(segment.source, Source::Payload(_));
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
            Some(Source::Payload(Pages::Zeros)) => position - (position - start) % ZEROS.len() as u64,
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
            self.put_marker(offset, (arena.len() - offset) as u64);
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

    /// Copies what is borrowed, and adds up how much that is.
    pub(super) fn into_owned(self, copied: &mut u64) -> Segments<'static> {
        let list = self.0.into_iter().map(|segment| {
            let source = match segment.source {
                Source::Scratch(offset) => Source::Scratch(offset),
                Source::Marker(offset) => Source::Marker(offset),
                Source::Payload(payload) => Source::Payload(payload.into_owned(copied)),
            };
            Segment { end: segment.end, source }
        });
        Segments(list.collect())
    }

    /// The same shape without a byte of payload: zeros where it was.
    pub(super) fn without_payload(&self) -> Segments<'static> {
        let list = self.0.iter().map(|segment| {
            let source = match segment.source {
                Source::Scratch(offset) => Source::Scratch(offset),
                Source::Marker(offset) => Source::Marker(offset),
                Source::Payload(_) => Source::Payload(Pages::Zeros),
            };
            Segment { end: segment.end, source }
        });
        Segments(list.collect())
    }

    /// The same shape with the payload from `position` on copied, and zeros where it was before that.
    pub(super) fn copied_from(&self, position: u64) -> (Segments<'static>, u64) {
        let mut copy = Segments::default();
        let (mut start, mut copied) = (0, 0);
        for Segment { end, source } in &self.0 {
            let cut = position.clamp(start, *end);
            match source {
                Source::Scratch(offset) => copy.push(end - start, Source::Scratch(*offset)),
                Source::Marker(offset) => copy.push(end - start, Source::Marker(*offset)),
                Source::Payload(Pages::Zeros) => copy.push(end - start, Source::Payload(Pages::Zeros)),
                Source::Payload(payload) => {
                    let unsent = payload.bytes((cut - start) as usize, end - cut);
                    copied += unsent.len() as u64;
                    copy.push(cut - start, Source::Payload(Pages::Zeros));
                    let unsent = Pages::Shared(Bytes::copy_from_slice(unsent));
                    copy.push(end - cut, Source::Payload(unsent));
                }
            }
            start = *end;
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

    /// The segment at a position, and how many of its bytes are before that.
    fn find(&self, position: u64) -> (usize, usize) {
        let index = self.index_of(position);
        (index, (position - self.start_of(index)) as usize)
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
        let (mut index, mut skip) = segments.find(from);
        let mut at = from;
        std::iter::from_fn(move || {
            let segment = segments.0.get(index).filter(|_| at < to)?;
            let end = segment.end.min(to);
            let len = end - at;
            let piece = match &segment.source {
                Source::Marker(_) => Piece::Marker,
                Source::Scratch(offset) => {
                    let start = offset + skip;
                    Piece::Scratch(&arena[start..start + len as usize], start)
                }
                Source::Payload(Pages::Zeros) => Piece::Zeros(len),
                Source::Payload(payload) => Piece::Payload(payload.bytes(skip, len)),
            };
            (at, index, skip) = (end, index + 1, 0);
            Some(piece)
        })
    }

    /// Appends slices of the bytes between two positions, as many as there is room for, and returns where they end; see
    /// [`SegmentChain::gather`](super::SegmentChain::gather).
    #[inline]
    pub(super) fn gather(self, from: u64, to: u64, room: usize, out: &mut Vec<IoSlice<'s>>) -> u64 {
        let Self { segments, arena } = self;
        // Most calls begin at the start. Only the first segment is entered in its middle.
        let (index, mut skip) = if from == 0 { (0, 0) } else { segments.find(from) };
        let full = out.len().saturating_add(room);
        let (mut at, mut rest) = (from, segments.0[index..].iter());
        while at < to && out.len() < full {
            let Some(Segment { end, source }) = rest.next() else { break };
            let stop = *end.min(&to);
            match source {
                Source::Payload(Pages::Zeros) => {
                    while at < stop && out.len() < full {
                        let zeros = Pages::Zeros.bytes(0, stop - at);
                        out.push(IoSlice::new(zeros));
                        at += zeros.len() as u64;
                    }
                }
                Source::Payload(payload) => {
                    out.push(IoSlice::new(payload.bytes(skip, stop - at)));
                    at = stop;
                }
                Source::Scratch(offset) | Source::Marker(offset) => {
                    let start = offset + skip;
                    let mut scratch_end = start + (stop - at) as usize;
                    at = stop;
                    // Others that follow there join it.
                    while at < to
                        && let Some(Segment { end, source }) = rest.as_slice().first()
                        && let Source::Scratch(offset) | Source::Marker(offset) = source
                        && *offset == scratch_end
                    {
                        rest.next();
                        let stop = *end.min(&to);
                        scratch_end += (stop - at) as usize;
                        at = stop;
                    }
                    out.push(IoSlice::new(&arena[start..scratch_end]));
                }
            }
            skip = 0;
        }
        at
    }

    /// The bytes of the segment at `position` from there on, as far as they are one piece of memory.
    pub(super) fn chunk(self, position: u64) -> &'s [u8] {
        let Self { segments, arena } = self;
        let (index, skip) = segments.find(position);
        let Some(segment) = segments.0.get(index) else { return &[] };
        let len = segment.end - position;
        match &segment.source {
            Source::Scratch(offset) | Source::Marker(offset) => {
                &arena[offset + skip..offset + skip + len as usize]
            }
            Source::Payload(payload) => payload.bytes(skip, len),
        }
    }
}

impl Source<'_> {
    fn slice(&self, skip: u64, len: u64) -> Self {
        match self {
            Source::Scratch(offset) => Source::Scratch(offset + skip as usize),
            Source::Marker(offset) => Source::Marker(offset + skip as usize),
            Source::Payload(payload) => Source::Payload(payload.slice(skip as usize..(skip + len) as usize)),
        }
    }

    fn moved_by(self, base: usize) -> Self {
        match self {
            Source::Scratch(offset) => Source::Scratch(offset + base),
            Source::Marker(offset) => Source::Marker(offset + base),
            payload @ Source::Payload(_) => payload,
        }
    }
}

impl Pages<'_> {
    /// `len` bytes after the first `skip`. Of zeros as many as are one slice.
    #[inline]
    fn bytes(&self, skip: usize, len: u64) -> &[u8] {
        match self {
            Pages::Borrowed(bytes) => &bytes[skip..skip + len as usize],
            Pages::Shared(bytes) => &bytes[skip..skip + len as usize],
            Pages::Zeros => &ZEROS[..len.min(ZEROS.len() as u64) as usize],
        }
    }

    fn slice(&self, range: Range<usize>) -> Self {
        match self {
            Pages::Shared(bytes) => Pages::Shared(bytes.slice(range)),
            Pages::Borrowed(bytes) => Pages::Borrowed(&bytes[range]),
            Pages::Zeros => Pages::Zeros,
        }
    }

    fn into_owned(self, copied: &mut u64) -> Pages<'static> {
        match self {
            Pages::Borrowed(bytes) => {
                *copied += bytes.len() as u64;
                Pages::Shared(Bytes::copy_from_slice(bytes))
            }
            Pages::Shared(bytes) => Pages::Shared(bytes),
            Pages::Zeros => Pages::Zeros,
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
                Source::Payload(Pages::Shared(_)) => "shared",
                Source::Payload(Pages::Borrowed(_)) => "borrowed",
                Source::Payload(Pages::Zeros) => "zeros",
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
