//! What can be wrong with a chain, found before any system call.

use std::{error, fmt, io};

/// A mistake made while building a chain. Positions are bytes from the chain's start.
///
/// The builder keeps the first one and returns it from [`finish`](super::ChainBuilder::finish).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ChainError {
    /// The lengths sum past 2^63 - 1.
    TooLong {
        /// Length so far.
        len: u64,
        /// What was to be added.
        added: u64,
    },
    /// A mark of another chain.
    ForeignMark {
        /// The position that it has there.
        position: u64,
    },
    /// A mark outside of the one it was taken from: see [`Mark::at`](super::Mark::at).
    MarkOutOfRange {
        /// Where it would have been.
        position: u64,
        /// Its length.
        len: u64,
    },
    /// A patch, slot or abort mark whose bytes are not scratch bytes, side by side.
    NotScratch {
        /// Where they are.
        position: u64,
        /// How many.
        len: u64,
    },
    /// Bytes of another length than the mark that they are for.
    Length {
        /// The mark's position.
        position: u64,
        /// The mark's length.
        expected: u64,
        /// How many bytes came.
        got: u64,
    },
    /// A cover that ends before it starts.
    CoverReversed {
        /// Its start.
        start: u64,
        /// Its end.
        end: u64,
    },
    /// A slot inside its own cover.
    SlotInsideCover {
        /// The slot's position.
        position: u64,
        /// Start of its cover.
        start: u64,
        /// End of its cover.
        end: u64,
    },
    /// Slots each of which lies in the other's cover, by whatever detour.
    SlotCycle {
        /// The position of one of them.
        position: u64,
    },
    /// More slots than [`MAX_SLOTS`](super::ChainBuilder::MAX_SLOTS).
    TooManySlots,
    /// More fragments than [`MAX_FRAGMENTS`](super::ChainBuilder::MAX_FRAGMENTS).
    TooManyFragments {
        /// How many there would be.
        fragments: u64,
    },
    /// [`fragment`](super::ChainBuilder::fragment) after something was put or pushed.
    FragmentNotFirst {
        /// Length at that moment.
        len: u64,
    },
    /// A fragment size of 0, or padding to a multiple of 0.
    Zero,
    /// A `Buf` that has bytes left and shows none of them.
    EmptyChunk {
        /// Where they would have gone.
        position: u64,
        /// How many it says are left.
        remaining: u64,
    },
}

impl fmt::Display for ChainError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::TooLong { len, added } => write!(f, "chain of {len} bytes and {added} more pass 2^63 - 1"),
            Self::ForeignMark { position } => write!(f, "mark at {position} belongs to another chain"),
            Self::MarkOutOfRange { position, len } => {
                write!(f, "mark of {len} bytes at {position} lies outside of the mark it was taken from")
            }
            Self::NotScratch { position, len } => {
                write!(f, "the {len} bytes at {position} were not put together by put()")
            }
            Self::Length { position, expected, got } => {
                write!(f, "mark at {position}: expected {expected} bytes, got {got}")
            }
            Self::CoverReversed { start, end } => {
                write!(f, "cover starts at {start} and ends before, at {end}")
            }
            Self::SlotInsideCover { position, start, end } => {
                write!(f, "slot at {position} lies inside its own cover {start}..{end}")
            }
            Self::SlotCycle { position } => write!(f, "slot at {position} depends on its own value"),
            Self::TooManySlots => write!(f, "more than {} slots", super::ChainBuilder::MAX_SLOTS),
            Self::TooManyFragments { fragments } => {
                write!(f, "{fragments} fragments, the limit is {}", super::ChainBuilder::MAX_FRAGMENTS)
            }
            Self::FragmentNotFirst { len } => write!(f, "fragment() after {len} bytes, it must come first"),
            Self::EmptyChunk { position, remaining } => {
                write!(f, "at {position}: a Buf with {remaining} bytes left shows none of them")
            }
            Self::Zero => f.write_str("fragments or padding of size 0"),
        }
    }
}

impl error::Error for ChainError {}

impl From<ChainError> for io::Error {
    fn from(error: ChainError) -> Self {
        io::Error::new(io::ErrorKind::InvalidInput, error)
    }
}
