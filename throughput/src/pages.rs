//! What is sent: messages of 153 bytes of head, payload segments scattered over a pool, and 21 bytes of footer, the
//! shape of a Ceph v1 message (49 + 4 bytes of header, 100 of front, a footer whose data checksum is at 8).

use std::io::{self, IoSlice};

use bytes::Bytes;

/// Header and front.
pub const HEAD: usize = 53 + 100;
/// The footer.
pub const FOOT: usize = 21;
/// Where the checksum of the payload is in the footer, little-endian.
pub const CRC_AT: usize = 8;
const PAGE: usize = 4096;

/// Memory that payload comes from: segments in shuffled order, every byte touched.
#[derive(Debug)]
pub struct Pool {
    memory: Vec<u8>,
    start: usize,
    segment: usize,
    /// Segment numbers in the order in which messages take them; no two neighbours touch in memory.
    order: Vec<usize>,
}

impl Pool {
    /// A pool of `bytes`, in segments of `segment` bytes; at least one of them.
    pub fn new(bytes: u64, segment: u64) -> Self {
        let segment = segment as usize;
        let count = (bytes as usize / segment).max(1);
        let mut memory = vec![0; count * segment + PAGE];
        let start = memory.as_ptr().align_offset(PAGE).min(PAGE);
        let mut random = Random(0x9e37_79b9_7f4a_7c15);
        memory.chunks_exact_mut(8).for_each(|word| word.copy_from_slice(&random.next().to_le_bytes()));
        Self { memory, start, segment, order: scattered(count, &mut random) }
    }

    /// Bytes of payload in it.
    pub fn len(&self) -> u64 {
        (self.order.len() * self.segment) as u64
    }

    /// Never: there is at least one segment.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Memory to receive messages of `size` bytes into: the segments, in the same order, as many as whole messages take.
    /// At least one message, if the pool is large enough for one.
    pub fn segments_mut(&mut self, size: u64) -> Vec<&mut [u8]> {
        let each = (size as usize).div_ceil(self.segment);
        let take = self.order.len() / each * each;
        let memory = &mut self.memory[self.start..];
        let mut segments: Vec<_> = memory.chunks_exact_mut(self.segment).map(Some).collect();
        let last = size as usize - (each - 1) * self.segment;
        let order = self.order.iter().take(take).enumerate();
        order
            .filter_map(|(at, &segment)| {
                let segment = segments.get_mut(segment)?.take()?;
                Some(if (at + 1) % each == 0 { &mut segment[..last] } else { segment })
            })
            .collect()
    }

    /// The segments in the order in which messages take them, as slices of one shared memory.
    pub fn into_segments(self) -> Vec<Bytes> {
        let memory = Bytes::from(self.memory);
        let segment = |number: &usize| {
            let at = self.start + number * self.segment;
            memory.slice(at..at + self.segment)
        };
        self.order.iter().map(segment).collect()
    }

    /// Messages of `size` payload bytes that together walk the pool once, or one if it is larger than the pool.
    pub fn messages(&self, size: u64) -> Vec<Message<'_>> {
        let size = size as usize;
        let count = (self.len() as usize / size).max(1);
        let mut next = self.order.iter().cycle();
        (0..count)
            .map(|number| {
                let mut left = size;
                let mut segments = Vec::with_capacity(size.div_ceil(self.segment));
                while left > 0 {
                    let segment = next.next().copied().unwrap_or(0) * self.segment + self.start;
                    let len = left.min(self.segment);
                    segments.push(&self.memory[segment..segment + len]);
                    left -= len;
                }
                Message::new(number as u64, segments)
            })
            .collect()
    }
}

/// One message, ready in every form that a method may want.
#[derive(Debug)]
#[non_exhaustive]
pub struct Message<'p> {
    /// Header and front: different in every message, so that a lost or doubled one is found out.
    pub head: [u8; HEAD],
    /// The payload.
    pub segments: Vec<&'p [u8]>,
    /// The footer with no checksum.
    pub foot: [u8; FOOT],
    /// The footer with the payload's CRC-32C (raw, from 0) in it.
    pub sealed_foot: [u8; FOOT],
}

impl<'p> Message<'p> {
    fn new(number: u64, segments: Vec<&'p [u8]>) -> Self {
        let mut head = [b'h'; HEAD];
        head[..8].copy_from_slice(&number.to_le_bytes());
        let bytes: usize = segments.iter().map(|segment| segment.len()).sum();
        head[8..16].copy_from_slice(&(bytes as u64).to_le_bytes());
        let foot = [0; FOOT];
        let mut sealed_foot = foot;
        sealed_foot[CRC_AT..CRC_AT + 4].copy_from_slice(&crc_by_hand(&segments).to_le_bytes());
        Self { head, segments, foot, sealed_foot }
    }

    /// The payload's checksum without segchain.
    pub fn crc_by_hand(&self) -> u32 {
        crc_by_hand(&self.segments)
    }

    /// Computes the payload's checksum and compares it with that of the ready footer: the work of a checksum by hand, while
    /// what is sent stays ready.
    ///
    /// # Errors
    /// They differ.
    pub fn check_by_hand(&self) -> io::Result<()> {
        if self.sealed_foot[CRC_AT..CRC_AT + 4] == self.crc_by_hand().to_le_bytes() {
            return Ok(());
        }
        Err(io::Error::other("the checksum by hand differs"))
    }

    /// Bytes of payload.
    pub fn payload(&self) -> u64 {
        self.segments.iter().map(|segment| segment.len() as u64).sum()
    }

    /// The footer that belongs to it.
    pub fn foot(&self, sealed: bool) -> &[u8; FOOT] {
        if sealed { &self.sealed_foot } else { &self.foot }
    }

    /// All its bytes as slices: what one call is to be given, built ahead of the measurement.
    pub fn ready(&self, sealed: bool) -> Vec<IoSlice<'_>> {
        let head = std::iter::once(&self.head[..]);
        let segments = self.segments.iter().copied();
        head.chain(segments).chain([&self.foot(sealed)[..]]).map(IoSlice::new).collect()
    }
}

/// The digest of the first `count` messages, over and over: what the other side must have seen.
pub fn expected(messages: &[Message<'_>], count: u64, sealed: bool) -> u64 {
    let mut sum = Sum::new();
    for message in messages.iter().cycle().take(count as usize) {
        for slice in message.ready(sealed) {
            sum.update(&slice);
        }
    }
    sum.value()
}

pub(crate) fn crc_by_hand(segments: &[&[u8]]) -> u32 {
    let mut digest = crc_fast::Digest::new_with_init_state(crc_fast::CrcAlgorithm::Crc32Iscsi, 0);
    for segment in segments {
        digest.update(segment);
    }
    digest.get_state() as u32
}

/// A 64-bit digest to compare streams with: CRC-64/NVME, which no method uses.
#[derive(Clone, Debug)]
pub struct Sum(crc_fast::Digest);

impl Sum {
    /// Of nothing.
    pub fn new() -> Self {
        Self(crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc64Nvme))
    }

    /// Goes on with `bytes`.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The digest so far.
    pub fn value(&self) -> u64 {
        self.0.finalize()
    }
}

impl Default for Sum {
    fn default() -> Self {
        Self::new()
    }
}

/// 0..count shuffled, so that no number follows its predecessor where that can be had.
fn scattered(count: usize, random: &mut Random) -> Vec<usize> {
    let mut order = random.shuffled(count);
    for _ in 0..100 {
        let touching: Vec<usize> =
            (0..count).filter(|&at| order[(at + 1) % count] == order[at] + 1).collect();
        for &at in &touching {
            order.swap(at, random.below(count));
        }
        if touching.is_empty() {
            return order;
        }
    }
    (0..count).rev().collect()
}

/// xorshift64*: the same pages in every run.
#[derive(Debug)]
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub(crate) fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    /// 0..count in another order.
    pub(crate) fn shuffled(&mut self, count: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..count).collect();
        for end in (1..count).rev() {
            order.swap(end, self.below(end + 1));
        }
        order
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_walk_the_whole_pool_and_no_two_segments_touch() {
        for count in [1, 2, 3, 16, 4096] {
            let pool = Pool::new(count * 4096, 4096);
            let messages = pool.messages(4096 * count.min(4));
            let segments: Vec<&[u8]> = messages.iter().flat_map(|message| message.segments.clone()).collect();
            assert_eq!(segments.len() as u64, if count == 3 { 3 } else { count });
            assert!(segments.windows(2).all(|pair| pair[0].as_ptr_range().end != pair[1].as_ptr()));
            assert!(segments.iter().all(|segment| (segment.as_ptr() as usize).is_multiple_of(PAGE)));
            let mut starts: Vec<_> = segments.iter().map(|segment| segment.as_ptr()).collect();
            starts.sort_unstable();
            starts.dedup();
            assert_eq!(starts.len(), segments.len());
        }
    }

    #[test]
    fn a_wrong_a_missing_and_a_doubled_message_change_the_digest() {
        let pool = Pool::new(64 << 10, 4096);
        let messages = pool.messages(8192);
        let good = expected(&messages, 3, false);
        assert_ne!(good, expected(&messages, 2, false));
        assert_ne!(good, expected(&messages, 3, true));
        assert_ne!(good, expected(&messages[1..], 3, false));
    }
}
