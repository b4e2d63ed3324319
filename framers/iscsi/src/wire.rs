//! How a value lies among the 48 bytes of a header.

use crate::Bhs;

/// A value and its place among the 48 bytes.
pub(crate) trait Wire {
    fn get(bhs: &[u8; Bhs::LEN], at: usize, mask: u8) -> Self;
    fn put(self, bhs: &mut [u8; Bhs::LEN], at: usize, mask: u8);
}

impl Wire for bool {
    fn get(bhs: &[u8; Bhs::LEN], at: usize, mask: u8) -> Self {
        bhs[at] & mask != 0
    }

    fn put(self, bhs: &mut [u8; Bhs::LEN], at: usize, mask: u8) {
        bhs[at] |= if self { mask } else { 0 };
    }
}

impl Wire for u8 {
    fn get(bhs: &[u8; Bhs::LEN], at: usize, mask: u8) -> Self {
        (bhs[at] & mask) >> mask.trailing_zeros()
    }

    fn put(self, bhs: &mut [u8; Bhs::LEN], at: usize, mask: u8) {
        bhs[at] |= self << mask.trailing_zeros() & mask;
    }
}

macro_rules! wire_bytes {
    ($($type:ty, $from:expr, $to:expr;)+) => {
        $(impl Wire for $type {
            fn get(bhs: &[u8; Bhs::LEN], at: usize, _: u8) -> Self {
                let mut bytes = [0; size_of::<$type>()];
                bytes.copy_from_slice(&bhs[at..at + size_of::<$type>()]);
                $from(bytes)
            }

            fn put(self, bhs: &mut [u8; Bhs::LEN], at: usize, _: u8) {
                bhs[at..at + size_of::<$type>()].copy_from_slice(&$to(self));
            }
        })+
    };
}

wire_bytes! {
    u16, u16::from_be_bytes, u16::to_be_bytes;
    u32, u32::from_be_bytes, u32::to_be_bytes;
    u64, u64::from_be_bytes, u64::to_be_bytes;
    [u8; 6], std::convert::identity, std::convert::identity;
    [u8; 16], std::convert::identity, std::convert::identity;
}
