//! The segments of one chain and the scratch arena that some of them lie in: lookup by position, walk, gather.
//!
//! A segment stores where it *ends*, so that a position is one `u64` and its segment a binary search away. What a
//! position means for sending is the business of the rooms above.

use std::fmt;
use std::io::IoSlice;
use std::ops::Range;

use bytes::Bytes;

use super::builder::{Fragment, checked_len};
use super::{ChainError, Gathered};

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
pub(super) struct Segments<'b> {
    pub(super) arena: Vec<u8>,
    list: Vec<Segment<'b>>,
}

impl<'b> Segments<'b> {
    /// Room for most small messages: the headers and the footer of a Ceph v1 message are 75 bytes.
    pub(super) fn with_room() -> Self {
        Self { arena: Vec::with_capacity(192), list: Vec::with_capacity(16) }
    }

    #[inline]
    pub(super) fn len(&self) -> u64 {
        self.list.last().map_or(0, |segment| segment.end)
    }

    /// Copies `bytes` behind the last scratch byte; a neighbouring scratch segment grows.
    pub(super) fn put(&mut self, bytes: &[u8], len_after: u64) {
        let offset = self.arena.len();
        self.arena.extend_from_slice(bytes);
        match self.list.last_mut() {
            Some(Segment { end, source: Source::Scratch(_) }) => *end = len_after,
            _ => self.list.push(Segment { end: len_after, source: Source::Scratch(offset) }),
        }
    }

    pub(super) fn put_marker(&mut self, bytes: &[u8]) {
        let offset = self.arena.len();
        self.arena.extend_from_slice(bytes);
        self.push(bytes.len() as u64, Source::Marker(offset));
    }

    /// Adds `len` bytes; an empty segment is dropped here, so that no later step meets one.
    #[inline]
    pub(super) fn push(&mut self, len: u64, source: Source<'b>) {
        if len > 0 {
            self.list.push(Segment { end: self.len() + len, source });
        }
    }

    /// The same for bytes that are known to be some, and to end at `end`.
    #[inline]
    pub(super) fn push_ending(&mut self, end: u64, source: Source<'b>) {
        self.list.push(Segment { end, source });
    }

    #[inline]
    pub(super) fn ends_in_scratch(&self) -> bool {
        matches!(self.list.last(), Some(Segment { source: Source::Scratch(_), .. }))
    }

    /// Where in the arena `len` bytes at `position` lie, if they are scratch bytes side by side.
    pub(super) fn scratch_offset(&self, position: u64, len: u64) -> Option<usize> {
        let index = self.index_of(position);
        match self.list.get(index)? {
            Segment { end, source: Source::Scratch(offset) } if position + len <= *end => {
                Some(offset + (position - self.start_of(index)) as usize)
            }
            _ => None,
        }
    }

    /// From the first payload byte to the end of the last one; empty, at the end, if there is none.
    pub(super) fn payload(&self) -> Range<u64> {
        let is_payload = |s: &Segment<'_>| !matches!(s.source, Source::Scratch(_) | Source::Marker(_));
        match self.list.iter().position(is_payload) {
            Some(first) => {
                let last = self.list.iter().rposition(is_payload).unwrap_or(first);
                self.start_of(first)..self.list[last].end
            }
            None => self.len()..self.len(),
        }
    }

    /// The pieces between two positions, in order.
    pub(super) fn walk(&self, from: u64, to: u64) -> impl Iterator<Item = Piece<'_>> {
        let mut index = self.index_of(from);
        let mut at = from;
        std::iter::from_fn(move || {
            let segment = self.list.get(index).filter(|_| at < to)?;
            let end = segment.end.min(to);
            let skip = at - self.start_of(index);
            let len = end - at;
            (at, index) = (end, index + 1);
            Some(match &segment.source {
                Source::Marker(_) => Piece::Marker,
                Source::Zeros => Piece::Zeros(len),
                Source::Scratch(offset) => {
                    Piece::Scratch(self.memory(&segment.source, skip, len), offset + skip as usize)
                }
                source => Piece::Payload(self.memory(source, skip, len)),
            })
        })
    }

    /// Appends slices of the bytes between two positions; see [`SegmentChain::gather`](super::SegmentChain::gather).
    pub(super) fn gather<'s>(
        &'s self,
        from: u64,
        to: u64,
        max_slices: usize,
        out: &mut Vec<IoSlice<'s>>,
    ) -> Gathered {
        let mut run = Run { gathered: Gathered::default(), touching: 0, room: max_slices, scratch: 0..0 };
        if from >= to {
            return run.gathered;
        }
        let index = self.index_of(from);
        let mut at = from;
        // Only the first segment is entered in its middle.
        let mut skip = (from - self.start_of(index)) as usize;
        for Segment { end, source } in &self.list[index..] {
            if at >= to {
                break;
            }
            let len = (*end.min(&to) - at) as usize;
            let whole = match source {
                Source::Borrowed(bytes) => run.append(&self.arena, &bytes[skip..skip + len], out),
                Source::Shared(bytes) => run.append(&self.arena, &bytes[skip..skip + len], out),
                Source::Scratch(offset) | Source::Marker(offset) => {
                    run.append_scratch(&self.arena, offset + skip..offset + skip + len, out)
                }
                Source::Zeros => run.append_zeros(&self.arena, *end.min(&to) - at, out),
            };
            if !whole {
                break;
            }
            skip = 0;
            at = *end;
        }
        run.flush_scratch(&self.arena, out);
        run.gathered
    }

    /// The bytes of the segment at `position` from there on, as far as they are one piece of memory.
    pub(super) fn chunk(&self, position: u64) -> &[u8] {
        let index = self.index_of(position);
        let Some(segment) = self.list.get(index) else { return &[] };
        match &segment.source {
            Source::Zeros => &ZEROS[..(segment.end - position).min(ZEROS.len() as u64) as usize],
            source => self.memory(source, position - self.start_of(index), segment.end - position),
        }
    }

    /// Where the slice that holds `position` begins.
    pub(super) fn slice_start(&self, position: u64) -> u64 {
        let index = self.index_of(position);
        let start = self.start_of(index);
        match self.list.get(index).map(|segment| &segment.source) {
            Some(Source::Zeros) => position - (position - start) % ZEROS.len() as u64,
            _ => start,
        }
    }

    /// Cuts the bytes after the first `skip` into stretches of `max`, and puts before each what `marker` makes of it.
    pub(super) fn fragment(&mut self, skip: u64, max: u64, mut marker: impl FnMut(Fragment, &mut Vec<u8>)) {
        let total = self.len() - skip;
        let old = std::mem::take(&mut self.list);
        let mut bytes = Vec::new();
        let (mut index, mut start) = (old.partition_point(|segment| segment.end <= skip), skip);
        let mut at = skip;
        let mut number = 0;
        loop {
            let len = max.min(total - (at - skip));
            let end = at + len;
            let last = end - skip == total;
            bytes.clear();
            marker(Fragment { index: number, len, last }, &mut bytes);
            self.put_marker(&bytes);
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

    /// Gives the memory back, with room for segments of any lifetime.
    pub(super) fn recycle<'n>(mut self) -> Segments<'n> {
        self.arena.clear();
        self.list.clear();
        // Collecting a `Vec` from its own emptied iterator keeps the allocation and changes the lifetime.
        let list = self.list.into_iter().map(|_| unreachable!()).collect();
        Segments { arena: self.arena, list }
    }

    pub(super) fn into_owned(self) -> (Segments<'static>, u64) {
        let mut copied = 0;
        let list = self.list.into_iter().map(|segment| {
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
        (Segments { arena: self.arena, list }, copied)
    }

    /// The same shape without a byte of payload: zeros where it was.
    pub(super) fn without_payload(&self) -> Segments<'static> {
        let list = self.list.iter().map(|segment| {
            let source = match segment.source {
                Source::Scratch(offset) => Source::Scratch(offset),
                Source::Marker(offset) => Source::Marker(offset),
                Source::Shared(_) | Source::Borrowed(_) | Source::Zeros => Source::Zeros,
            };
            Segment { end: segment.end, source }
        });
        Segments { arena: self.arena.clone(), list: list.collect() }
    }

    /// The same shape with the payload from `position` on copied, and zeros where it was before that.
    pub(super) fn copied_from(&self, position: u64) -> (Segments<'static>, u64) {
        let mut copy = Segments { arena: self.arena.clone(), list: Vec::new() };
        let (mut start, mut copied) = (0, 0);
        for segment in &self.list {
            let cut = position.clamp(start, segment.end);
            match segment.source {
                Source::Scratch(offset) => copy.push(segment.end - start, Source::Scratch(offset)),
                Source::Marker(offset) => copy.push(segment.end - start, Source::Marker(offset)),
                Source::Zeros => copy.push(segment.end - start, Source::Zeros),
                Source::Shared(_) | Source::Borrowed(_) => {
                    let unsent = self.memory(&segment.source, cut - start, segment.end - cut);
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
        head.arena.clone_from(&self.arena);
        tail.arena.clone_from(&self.arena);
        let mut start = 0;
        for Segment { end, source } in self.list {
            let cut = position.clamp(start, end);
            head.push(cut - start, source.slice(0, cut - start));
            tail.push(end - cut, source.slice(cut - start, end - cut));
            start = end;
        }
        (head, tail)
    }

    pub(super) fn append(mut self, other: Self) -> Result<Self, ChainError> {
        checked_len(self.len(), other.len())?;
        let base = self.arena.len();
        self.arena.extend_from_slice(&other.arena);
        let mut start = 0;
        for Segment { end, source } in other.list {
            self.push(end - start, source.moved_by(base));
            start = end;
        }
        Ok(self)
    }

    fn start_of(&self, index: usize) -> u64 {
        index.checked_sub(1).map_or(0, |before| self.list[before].end)
    }

    fn index_of(&self, position: u64) -> usize {
        self.list.partition_point(|segment| segment.end <= position)
    }

    fn memory<'s>(&'s self, source: &'s Source<'b>, skip: u64, len: u64) -> &'s [u8] {
        let range = skip as usize..(skip + len) as usize;
        match source {
            Source::Scratch(offset) | Source::Marker(offset) => {
                &self.arena[offset + range.start..offset + range.end]
            }
            Source::Shared(bytes) => &bytes[range],
            Source::Borrowed(bytes) => &bytes[range],
            Source::Zeros => &[],
        }
    }
}

/// Slices appended so far, and scratch bytes that are not appended yet: touching ones become one slice.
struct Run {
    gathered: Gathered,
    /// Where the memory of the last slice ends.
    touching: usize,
    /// How many more slices there may be; one is set aside for the scratch bytes.
    room: usize,
    scratch: Range<usize>,
}

impl Run {
    /// Appends a slice; `false` if there is no room for it.
    #[inline]
    fn append<'s>(&mut self, arena: &'s [u8], slice: &'s [u8], out: &mut Vec<IoSlice<'s>>) -> bool {
        self.flush_scratch(arena, out);
        if self.room == 0 {
            return false;
        }
        self.room -= 1;
        self.push(slice, out);
        true
    }

    fn append_scratch<'s>(
        &mut self,
        arena: &'s [u8],
        range: Range<usize>,
        out: &mut Vec<IoSlice<'s>>,
    ) -> bool {
        if range.start == self.scratch.end && !self.scratch.is_empty() {
            self.scratch.end = range.end;
            return true;
        }
        self.flush_scratch(arena, out);
        if self.room == 0 {
            return false;
        }
        self.room -= 1;
        self.scratch = range;
        true
    }

    fn append_zeros<'s>(&mut self, arena: &'s [u8], mut len: u64, out: &mut Vec<IoSlice<'s>>) -> bool {
        while len > 0 {
            let n = len.min(ZEROS.len() as u64);
            if !self.append(arena, &ZEROS[..n as usize], out) {
                return false;
            }
            len -= n;
        }
        true
    }

    #[inline]
    fn flush_scratch<'s>(&mut self, arena: &'s [u8], out: &mut Vec<IoSlice<'s>>) {
        if !self.scratch.is_empty() {
            let scratch = std::mem::take(&mut self.scratch);
            self.push(&arena[scratch], out);
        }
    }

    #[inline]
    fn push<'s>(&mut self, slice: &'s [u8], out: &mut Vec<IoSlice<'s>>) {
        let address = slice.as_ptr() as usize;
        self.gathered.slices += usize::from(address != self.touching);
        self.touching = address + slice.len();
        self.gathered.bytes += slice.len() as u64;
        out.push(IoSlice::new(slice));
    }
}

impl Source<'_> {
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
        for segment in self.list.iter().take(8) {
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
        if self.list.len() > 8 {
            map.entry(&format_args!("and {} more", self.list.len() - 8));
        }
        map.finish()
    }
}
