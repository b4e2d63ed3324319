//! The naive reference: concatenate, then slice. Slow, and too simple to be wrong.

use std::ops::Range;

/// What a message has to look like on the wire, computed the plain way.
///
/// Positions count the bytes as if there were no fragments, as the marks of a chain do.
#[derive(Debug, Default)]
pub struct NaiveChain {
    bytes: Vec<u8>,
    slots: Vec<(Range<usize>, Value, usize)>,
}

/// A checksum's value over bytes, as it goes on the wire.
pub type Value = fn(&[u8]) -> Vec<u8>;

impl NaiveChain {
    /// Nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Bytes so far.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Adds bytes, and says where.
    pub fn add(&mut self, bytes: &[u8]) -> Range<usize> {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(bytes);
        start..self.bytes.len()
    }

    /// Adds zero bytes until the length since `since` is a multiple of `multiple`.
    pub fn pad_to(&mut self, multiple: usize, since: usize) {
        while !(self.bytes.len() - since).is_multiple_of(multiple) {
            self.bytes.push(0);
        }
    }

    /// Overwrites bytes.
    pub fn patch(&mut self, at: usize, bytes: &[u8]) {
        self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
    }

    /// The value of the bytes in `cover` goes to `at`.
    pub fn slot(&mut self, cover: Range<usize>, value: Value, at: usize) {
        self.slots.push((cover, value, at));
    }

    /// The message as one piece.
    pub fn finish(mut self) -> Vec<u8> {
        // Whatever depends on whatever: after as many rounds as there are slots all values are right.
        for _ in 0..self.slots.len() {
            for (cover, value, at) in &self.slots {
                let value = value(&self.bytes[cover.clone()]);
                self.bytes[*at..*at + value.len()].copy_from_slice(&value);
            }
        }
        self.bytes
    }

    /// The message in fragments of at most `max` bytes, each behind what `marker` makes of number, length and whether it is
    /// the last.
    pub fn finish_fragmented(self, max: usize, marker: impl Fn(usize, usize, bool) -> Vec<u8>) -> Vec<u8> {
        let bytes = self.finish();
        let pieces: Vec<&[u8]> = if bytes.is_empty() { vec![&[]] } else { bytes.chunks(max).collect() };
        let mut wire = Vec::new();
        for (number, piece) in pieces.iter().enumerate() {
            wire.extend(marker(number, piece.len(), number + 1 == pieces.len()));
            wire.extend_from_slice(piece);
        }
        wire
    }
}

/// A bit-by-bit CRC of 32 bits, least significant bit first, without any inversion: `polynomial` is reflected, 0x82f63b78
/// for CRC-32C, 0xedb88320 for CRC-32.
pub fn crc(polynomial: u32, seed: u32, bytes: &[u8]) -> u32 {
    let mut crc = seed;
    for byte in bytes {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = (crc >> 1) ^ (polynomial * (crc & 1));
        }
    }
    crc
}

/// Numbers that look random and come again: the same seed gives the same ones.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The numbers of this seed, which a failing test has to print.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number (splitmix64).
    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `limit`.
    pub fn below(&mut self, limit: usize) -> usize {
        (self.number() % limit.max(1) as u64) as usize
    }

    /// So many bytes.
    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.number() as u8).collect()
    }
}

/// The seed of a test that draws random numbers: `SEGCHAIN_SEED` if it is set, else the same at every run. Printed, so that
/// a failure can be repeated.
pub fn seed(name: &str) -> u64 {
    let given = std::env::var("SEGCHAIN_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = given.unwrap_or(0x5e9c_4a1f);
    println!("{name}: SEGCHAIN_SEED={seed}");
    seed
}
