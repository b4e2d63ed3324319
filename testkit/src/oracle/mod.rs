//! Second decoders, slow and obvious, to compare the real ones with.
//!
//! ```text
//!                    ┌─▶ the real deframer, byte by byte, cut anywhere ─▶ frames, how it ended ─┐
//!  a random stream ──┤                                                                        equal
//!                    └─▶ oracle: all bytes at once ──────────────────────▶ frames, how it ended ─┘
//! ```
//!
//! An oracle has the whole stream as one slice, copies as it likes, digests byte by byte, and returns plain data. It
//! knows nothing of the crate that it checks: it is written from the protocol alone, and the test puts what the real decoder
//! says into the oracle's words.

use std::collections::BTreeMap;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use crate::naive::{Random, crc};

pub mod iscsi;
pub mod msgr1;
pub mod msgr2;
pub mod rpc;

/// How a stream ended: [`EOF`], [`CUT`], or the name of an error and of the part that it is about.
pub type End = String;
/// Between two frames.
pub const EOF: &str = "eof";
/// Inside a frame.
pub const CUT: &str = "cut";

/// Memory that is waited for, by key.
pub type Targets = BTreeMap<u64, Vec<u8>>;

/// What was in a stream.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Decoded<F> {
    /// The frames, in order.
    pub frames: Vec<F>,
    /// How it ended.
    pub end: End,
    /// What lies in the targets in the end.
    pub targets: Targets,
}

/// Where the payload of a frame went.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Payload {
    /// To nobody in particular.
    Bytes(Vec<u8>),
    /// Into a target, so many bytes.
    Target(u64),
    /// Nowhere: the target was too small.
    Discarded(u64),
}

/// CRC-32C as a raw register, byte by byte, from what each byte gives bit by bit.
pub fn crc32c(seed: u32, bytes: &[u8]) -> u32 {
    static TABLE: LazyLock<[u32; 256]> =
        LazyLock::new(|| std::array::from_fn(|byte| crc(0x82f6_3b78, 0, &[byte as u8])));
    let table = &*TABLE;
    bytes.iter().fold(seed, |crc, byte| crc >> 8 ^ table[usize::from(crc as u8 ^ byte)])
}

/// An integer, its lowest byte first.
pub fn le(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte))
}

/// An integer, its highest byte first.
pub fn be(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte))
}

/// Bytes of a stream that were not used yet.
#[derive(Clone, Copy, Debug)]
struct Rest<'a>(&'a [u8]);

impl<'a> Rest<'a> {
    fn take(&mut self, len: usize) -> Result<&'a [u8], End> {
        let (taken, rest) = self.0.split_at_checked(len).ok_or(CUT)?;
        self.0 = rest;
        Ok(taken)
    }
}

/// Damages a stream as a bad line or a bad peer would: a few bits, or its end, or nothing.
pub fn damage(random: &mut Random, stream: &mut Vec<u8>) {
    if random.below(3) == 0 && !stream.is_empty() {
        for _ in 0..=random.below(3) {
            let at = random.below(stream.len());
            stream[at] ^= 1 << random.below(8);
        }
    }
    if random.below(3) == 0 {
        stream.truncate(random.below(stream.len() + 1));
    }
}

/// Places to cut a stream of `len` bytes at, in order.
pub fn cuts(random: &mut Random, len: usize) -> Vec<usize> {
    let mut cuts: Vec<usize> = (0..random.below(6)).map(|_| 1 + random.below(len.max(1))).collect();
    cuts.sort_unstable();
    cuts.dedup();
    cuts
}

/// The name of an error, with the part that it is about if it says so first: `Crc { field: Data, … }` is `Crc Data`.
pub fn name(error: &impl std::fmt::Debug) -> End {
    let text = format!("{error:?}");
    let (name, rest) = text.split_once(' ').unwrap_or((&text, ""));
    let field = rest.strip_prefix("{ field: ").and_then(|rest| rest.split([',', ' ']).next());
    field.map_or(name.into(), |field| format!("{name} {field}"))
}

/// How many streams a comparison sees: a million, or `SEGCHAIN_STREAMS`.
pub fn streams() -> u64 {
    let given = std::env::var("SEGCHAIN_STREAMS").ok().and_then(|count| count.parse().ok());
    given.unwrap_or(1_000_000)
}

/// Fails unless at least one in so many streams ended so: what does not come up is not compared.
///
/// # Panics
/// If there are fewer.
pub fn assert_seen(ends: &BTreeMap<End, u64>, one_in: &[(&str, u64)]) {
    let streams: u64 = ends.values().sum();
    println!("{streams} streams: {ends:?}");
    for (end, one_in) in one_in {
        let got = ends.get(*end).copied().unwrap_or(0);
        assert!(got >= streams / one_in, "{got} of {streams} streams ended with {end}");
    }
}

/// Runs `count` cases, numbered from `first`, on all cores; each has a `worker` of its own, which says how a case ended.
/// Returns how many ended how.
///
/// # Panics
/// If a case does.
pub fn run<W>(first: u64, count: u64, worker: impl Fn() -> W + Sync) -> BTreeMap<End, u64>
where
    W: FnMut(u64) -> End,
{
    /// Taken at a time.
    const CHUNK: u64 = 1000;
    let next = AtomicU64::new(0);
    let work = || {
        let mut case = worker();
        let mut ends: BTreeMap<End, u64> = BTreeMap::new();
        loop {
            let from = next.fetch_add(CHUNK, Ordering::Relaxed);
            if from >= count {
                return ends;
            }
            for number in from..count.min(from + CHUNK) {
                *ends.entry(case(first.wrapping_add(number))).or_default() += 1;
            }
        }
    };
    let threads = thread::available_parallelism().map_or(1, usize::from);
    let all: Vec<_> = thread::scope(|scope| {
        let running: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        running.into_iter().map(|thread| thread.join().expect("a case that failed")).collect()
    });
    let mut sum = BTreeMap::new();
    for (end, count) in all.into_iter().flatten() {
        *sum.entry(end).or_default() += count;
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    /// CRC-32C of "123456789" as a register from both seeds that Ceph uses, and in the standard form of 32 bytes of zero,
    /// which is in RFC 7143 (appendix A.4) as it is on the wire.
    #[test]
    fn the_slow_crc_is_crc_32c() {
        assert_eq!(crc32c(!0, b"123456789"), 0x1cf9_6d7c);
        assert_eq!(crc32c(0, b"123456789"), 0x58e3_fa20);
        assert_eq!((!crc32c(!0, &[0; 32])).to_le_bytes(), [0xaa, 0x36, 0x91, 0x8a]);
    }

    #[test]
    fn every_case_runs_once_whatever_the_count() {
        for count in [0, 1, 999, 1000, 1001, 12_345] {
            let ends = run(7, count, || |number| (number % 3).to_string());
            assert_eq!(ends.values().sum::<u64>(), count);
        }
    }
}
