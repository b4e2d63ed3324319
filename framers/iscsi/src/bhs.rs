//! The basic header segment: 48 bytes at the start of every PDU, as they are on the wire.

use std::fmt;

/// A basic header segment (RFC 7143 section 11.2.1), whatever its opcode. All integers are big-endian.
///
/// ```text
///   0 opcode, bit 0x40: immediate     4 AHS length in words      16 initiator task tag
///   1 flags, bit 0x80: final          5 data length, 3 bytes     20 .. 47 differ with the opcode
///   2 differs with the opcode         8 LUN, or differs
/// ```
///
/// ```
/// use segchain_iscsi::{Bhs, Header, NopOut};
///
/// let bhs = Bhs::from(Header::from(NopOut { itt: 3, immediate: true, ..NopOut::default() }));
/// assert_eq!((bhs.opcode(), bhs.is_immediate(), bhs.itt()), (0, true, 3));
/// assert_eq!(bhs.as_bytes()[20..24], [0xff; 4]); // no target transfer tag
/// ```
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Bhs(pub(crate) [u8; Bhs::LEN]);

impl Bhs {
    /// Bytes of a basic header segment.
    pub const LEN: usize = 48;
    /// The most bytes of additional header segments: their length is one byte, in words.
    pub const MAX_AHS: usize = 255 * 4;
    /// The most bytes of data: their length has 24 bits.
    pub const MAX_DATA: u32 = (1 << 24) - 1;
    /// Where the length of the additional header segments is, in words, one byte.
    pub const AHS_LEN_AT: usize = 4;
    /// Where the length of the data is, in bytes, without the pad; three bytes.
    pub const DATA_LEN_AT: usize = 5;

    /// The wire's bytes.
    pub fn as_bytes(&self) -> &[u8; Self::LEN] {
        &self.0
    }

    /// The opcode: 0x00 to 0x1f comes from initiators, 0x20 to 0x3f from targets.
    pub fn opcode(&self) -> u8 {
        self.0[0] & 0x3f
    }

    /// Whether it is for immediate delivery: a request that takes no command number.
    pub fn is_immediate(&self) -> bool {
        self.0[0] & 0x40 != 0
    }

    /// The initiator task tag; in a few PDUs the field is reserved and [`NO_TAG`](crate::NO_TAG).
    pub fn itt(&self) -> u32 {
        self.u32_at(16)
    }

    /// Length of the additional header segments, in bytes.
    pub fn ahs_len(&self) -> usize {
        usize::from(self.0[Self::AHS_LEN_AT]) * 4
    }

    /// Length of the data in bytes, without the pad.
    pub fn data_len(&self) -> u32 {
        self.u32_at(Self::DATA_LEN_AT - 1) & Self::MAX_DATA
    }

    pub(crate) fn u32_at(&self, at: usize) -> u32 {
        u32::from_be_bytes([self.0[at], self.0[at + 1], self.0[at + 2], self.0[at + 3]])
    }
}

impl From<[u8; Bhs::LEN]> for Bhs {
    fn from(wire: [u8; Bhs::LEN]) -> Self {
        Self(wire)
    }
}

/// In hexadecimal, word by word.
impl fmt::Debug for Bhs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Bhs(")?;
        for (index, word) in self.0.chunks_exact(4).enumerate() {
            let word = u32::from_be_bytes([word[0], word[1], word[2], word[3]]);
            write!(f, "{}{word:08x}", if index == 0 { "" } else { " " })?;
        }
        f.write_str(")")
    }
}
