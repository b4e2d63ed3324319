//! Receive memory: 64 KiB slabs, page-aligned, zeroed once when they are allocated and recycled after that.
//!
//! A body lands in as many slabs as it needs, [`SlabBuf`]; dropping it gives them back to their [`SlabPool`]. How much is
//! taken ahead of the bytes that arrive is decided in [`recv`](crate::recv).

use std::collections::VecDeque;
use std::fmt;
use std::io::IoSliceMut;

use bytes::{Buf, Bytes};

use crate::chain::{ChainBuilder, Payload};
use crate::sync::{Arc, Mutex, lock, planted};

/// Bytes in a slab.
pub const SLAB: usize = 64 * 1024;
/// Slabs begin at multiples of this.
pub const ALIGN: usize = 4096;

/// Where slabs come from and go back to. Clones share the same slabs.
///
/// ```
/// use segchain::slab::SlabPool;
/// let pool = SlabPool::new(16); // keeps at most 1 MiB for later
/// assert_eq!((pool.free(), pool.live()), (0, 0));
/// ```
#[derive(Clone)]
pub struct SlabPool(Arc<Mutex<Free>>);

struct Free {
    slabs: Vec<Memory>,
    keep: usize,
    live: usize,
}

impl SlabPool {
    /// A pool that keeps at most `keep` free slabs.
    pub fn new(keep: usize) -> Self {
        Self(Arc::new(Mutex::new(Free { slabs: Vec::new(), keep, live: 0 })))
    }

    /// Slabs that wait to be used again.
    pub fn free(&self) -> usize {
        lock(&self.0).slabs.len()
    }

    /// Slabs in use, shorter ones of short bodies included.
    pub fn live(&self) -> usize {
        lock(&self.0).live
    }

    /// A slab with room for `want` bytes, or a whole one if that is less. A body that needs only part of a slab gets
    /// memory of its own size: it may be kept for long.
    fn take(&self, want: usize) -> Slab {
        let len = want.next_multiple_of(ALIGN).clamp(ALIGN, SLAB);
        let mut free = lock(&self.0);
        free.live += 1;
        let recycled = if len == SLAB { free.slabs.pop() } else { None };
        drop(free);
        let memory = recycled.unwrap_or_else(|| Memory::new(len));
        Slab { memory, pool: self.clone() }
    }
}

impl Default for SlabPool {
    /// A pool that keeps two receive windows of 1 MiB.
    fn default() -> Self {
        Self::new(32)
    }
}

impl fmt::Debug for SlabPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let free = lock(&self.0);
        f.debug_struct("SlabPool").field("free", &free.slabs.len()).field("live", &free.live).finish()
    }
}

/// Memory whose `start..` is aligned.
struct Memory {
    bytes: Vec<u8>,
    start: usize,
    len: usize,
}

impl Memory {
    fn new(len: usize) -> Self {
        // A fresh zeroed allocation costs no pass over the bytes (calloc); the odd page makes room for the alignment.
        let bytes = vec![0; len + ALIGN - 1];
        // May be usize::MAX by its contract, and is under Miri's symbolic alignment: then the start is not aligned.
        let start = Some(bytes.as_ptr().align_offset(ALIGN)).filter(|start| *start < ALIGN).unwrap_or(0);
        Self { bytes, start, len }
    }
}

struct Slab {
    memory: Memory,
    pool: SlabPool,
}

impl Slab {
    fn len(&self) -> usize {
        self.memory.len
    }

    fn bytes(&self) -> &[u8] {
        &self.memory.bytes[self.memory.start..self.memory.start + self.memory.len]
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.memory.bytes[self.memory.start..self.memory.start + self.memory.len]
    }
}

impl Drop for Slab {
    fn drop(&mut self) {
        let empty = Memory { bytes: Vec::new(), start: 0, len: 0 };
        let memory = std::mem::replace(&mut self.memory, empty);
        let mut free = lock(&self.pool.0);
        free.live -= 1;
        if memory.len == SLAB && free.slabs.len() < free.keep {
            if planted("a pool looks, then keeps") {
                drop(free);
                free = lock(&self.pool.0);
            }
            free.slabs.push(memory);
        }
    }
}

/// A received body: one run of bytes in one or more slabs.
///
/// As a [`bytes::Buf`] it is consumed from the front, slab by slab. [`parts`](SlabBuf::parts) looks at what is left.
pub struct SlabBuf {
    pool: SlabPool,
    slabs: VecDeque<Slab>,
    /// Where the bytes begin in the first slab.
    start: usize,
    len: u64,
    /// Whether its length is not known from the start: see [`grow_in_steps`](Self::grow_in_steps).
    in_steps: bool,
}

impl SlabBuf {
    /// An empty body whose first byte will lie `offset` bytes after a multiple of [`ALIGN`].
    pub(crate) fn new(pool: &SlabPool, offset: usize) -> Self {
        Self { pool: pool.clone(), slabs: VecDeque::new(), start: offset % ALIGN, len: 0, in_steps: false }
    }

    /// Length in bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The bytes, one slice a slab.
    pub fn parts(&self) -> impl Iterator<Item = &[u8]> {
        let mut skip = self.start;
        let mut left = self.len;
        self.slabs.iter().map_while(move |slab| {
            let bytes = &slab.bytes()[std::mem::take(&mut skip)..];
            let bytes = &bytes[..left.min(bytes.len() as u64) as usize];
            left -= bytes.len() as u64;
            (!bytes.is_empty()).then_some(bytes)
        })
    }

    /// The bytes as shared buffers, one a slab, nothing copied. A slab goes back to its pool when its buffer and all
    /// that was sliced from it are dropped.
    pub fn into_parts(self) -> Vec<Bytes> {
        let mut skip = self.start;
        let mut left = self.len;
        let mut parts = Vec::with_capacity(self.slabs.len());
        for slab in self.slabs {
            let start = std::mem::take(&mut skip);
            let len = left.min((slab.len() - start) as u64);
            left -= len;
            if len > 0 {
                parts.push(Bytes::from_owner(Part(slab)).slice(start..start + len as usize));
            }
        }
        parts
    }

    /// The body comes in pieces of unknown number: from now on a slab is as long as what was there before, up to a whole
    /// one, or a body of many short pieces would be as many short slabs.
    pub(crate) fn grow_in_steps(&mut self) {
        self.in_steps = true;
    }

    /// Room for the next `want` bytes, in order. `want` is at most a receive window.
    pub(crate) fn room(&mut self, want: usize) -> impl Iterator<Item = IoSliceMut<'_>> {
        let mut held: usize = self.slabs.iter().map(Slab::len).sum::<usize>() - self.used();
        while held < want {
            let offset = if self.slabs.is_empty() { self.start } else { 0 };
            let least = if self.in_steps { self.len.min(SLAB as u64) as usize } else { 0 };
            let slab = self.pool.take((want - held + offset).max(least));
            held += slab.len() - offset;
            self.slabs.push_back(slab);
        }
        let mut skip = self.start + self.len as usize;
        let mut left = want;
        self.slabs.iter_mut().filter_map(move |slab| {
            let start = skip.min(slab.len());
            skip -= start;
            let len = left.min(slab.len() - start);
            left -= len;
            (len > 0).then(|| IoSliceMut::new(&mut slab.bytes_mut()[start..start + len]))
        })
    }

    /// `n` bytes of the room now belong to the body.
    pub(crate) fn grow(&mut self, n: usize) {
        self.len += n as u64;
    }

    /// Bytes of the held slabs that are in use or were passed over.
    fn used(&self) -> usize {
        if self.slabs.is_empty() { 0 } else { self.start + self.len as usize }
    }
}

struct Part(Slab);

impl AsRef<[u8]> for Part {
    fn as_ref(&self) -> &[u8] {
        self.0.bytes()
    }
}

impl Buf for SlabBuf {
    fn remaining(&self) -> usize {
        self.len as usize
    }

    fn chunk(&self) -> &[u8] {
        self.parts().next().unwrap_or_default()
    }

    /// As `Buf` asks, panics if `count` is more than what is left.
    fn advance(&mut self, count: usize) {
        assert!(count as u64 <= self.len, "advance past the end: {count} > {}", self.len);
        self.len -= count as u64;
        self.start += count;
        while let Some(first) = self.slabs.front().filter(|first| self.start >= first.len()) {
            self.start -= first.len();
            self.slabs.pop_front();
        }
    }
}

impl Payload for SlabBuf {
    fn len(&self) -> u64 {
        self.len
    }

    fn push_to<'m>(self, out: &mut ChainBuilder<'m>)
    where
        Self: 'm,
    {
        for part in self.into_parts() {
            out.push(part);
        }
    }
}

/// Shape only, never the bytes.
impl fmt::Debug for SlabBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SlabBuf")
            .field("len", &self.len)
            .field("slabs", &self.slabs.len())
            .finish_non_exhaustive()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn fill(buf: &mut SlabBuf, mut bytes: &[u8], window: usize) {
        while !bytes.is_empty() {
            let mut landed = 0;
            for mut room in buf.room(window.min(bytes.len())) {
                let n = room.len();
                room.copy_from_slice(&bytes[landed..landed + n]);
                landed += n;
            }
            buf.grow(landed);
            bytes = &bytes[landed..];
        }
    }

    #[test]
    fn a_body_lands_at_its_offset_within_a_page_and_reads_back() {
        let bytes: Vec<u8> = (0..300_000u32).map(|i| (i * 7) as u8).collect();
        for offset in [0, 1, 7, 4095, 4096, 65535] {
            for len in [1, 4096, SLAB - 7, SLAB, SLAB + 1, bytes.len()] {
                for window in [1000, SLAB, 1 << 20] {
                    let mut buf = SlabBuf::new(&SlabPool::default(), offset);
                    fill(&mut buf, &bytes[..len], window);
                    assert_eq!(buf.chunk().as_ptr() as usize % ALIGN, offset % ALIGN);
                    assert_eq!(buf.parts().collect::<Vec<_>>().concat(), &bytes[..len]);
                    assert_eq!(buf.copy_to_bytes(len / 2), &bytes[..len / 2]);
                    assert_eq!(buf.into_parts().concat(), &bytes[len / 2..len]);
                }
            }
        }
    }

    #[test]
    fn slabs_go_back_to_the_pool_when_the_last_part_is_dropped() {
        let pool = SlabPool::new(2);
        let mut buf = SlabBuf::new(&pool, 0);
        fill(&mut buf, &vec![1; 3 * SLAB], SLAB);
        assert_eq!((pool.free(), pool.live()), (0, 3));
        let mut parts = buf.into_parts();
        let kept = parts.pop().map(|part| part.slice(..10));
        drop(parts);
        assert_eq!((pool.free(), pool.live()), (2, 1));
        drop(kept);
        assert_eq!((pool.free(), pool.live()), (2, 0)); // two are kept, no more
    }

    #[test]
    fn a_short_body_holds_no_whole_slab() {
        let pool = SlabPool::default();
        let mut buf = SlabBuf::new(&pool, 0);
        fill(&mut buf, &[1; 100], SLAB);
        assert_eq!(buf.slabs[0].len(), ALIGN);
    }
}
