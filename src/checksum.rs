//! Incremental checksums over scattered memory, and the arithmetic that joins them.

/// A checksum in progress.
pub trait Checksum: Clone + Send + Sync + 'static {
    /// Digests `bytes`.
    fn update(&mut self, bytes: &[u8]);

    /// Digests `len` zero bytes.
    fn zeros(&mut self, len: u64) {
        const PAGE: [u8; 4096] = [0; 4096];
        let mut left = len;
        while left > 0 {
            let n = left.min(4096);
            self.update(&PAGE[..n as usize]);
            left -= n;
        }
    }

    /// How many bytes the value takes on the wire.
    fn width(&self) -> usize;

    /// Writes the value in wire order; `out` is [`width`](Checksum::width) bytes long.
    fn write(&self, out: &mut [u8]);

    /// The same checksum in its zero state, if it is linear over GF(2); `None` for any other.
    fn zero_state(&self) -> Option<Self> {
        None
    }

    /// Adds (exclusive or) the state of `other`. Called on linear checksums only.
    fn add(&mut self, other: &Self) {
        let _ = other;
    }
}
/// d
#[derive(Clone, Debug)]
pub struct Digest(u32);
#[allow(missing_docs)]
impl Digest {
    pub fn new<C: Checksum>(_: C) -> Self {
        Digest(0)
    }
    pub fn update(&mut self, _: &[u8]) {}
    pub fn zeros(&mut self, _: u64) {}
    pub fn width(&self) -> usize {
        4
    }
    pub fn write(&self, _: &mut [u8]) {}
    pub fn zero_state(&self) -> Option<Digest> {
        Some(Digest(0))
    }
    pub fn same_kind(&self, _: &Digest) -> bool {
        true
    }
    pub fn concat(&mut self, _: &Digest, _: u64) -> bool {
        true
    }
}
