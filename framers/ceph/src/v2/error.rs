//! What can be wrong with a frame, and where.

use std::{error, fmt, io};

use segchain::chain::ChainError;

use super::{HEADER, TAG_MESSAGE};

/// A frame that the protocol, or a limit of ours, does not allow. Offsets are bytes from the frame's tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// A tag that no frame has.
    Tag {
        /// The tag.
        got: u8,
    },
    /// A checksum that is not that of the bytes.
    Crc {
        /// What it covers.
        field: Field,
        /// Where the checksum is.
        offset: u64,
        /// The checksum that the frame carries.
        expected: u32,
        /// The checksum of the bytes.
        got: u32,
    },
    /// No segment, or more than a frame of this tag may have.
    Segments {
        /// The tag.
        tag: u8,
        /// How many segments it claims.
        got: u8,
        /// How many it may have.
        limit: u8,
    },
    /// The last of several segments is empty.
    LastEmpty {
        /// How many segments there are.
        count: usize,
    },
    /// A segment longer than its limit.
    TooLong {
        /// Which.
        field: Field,
        /// Where its length is.
        offset: u64,
        /// Its length.
        len: u64,
        /// The limit.
        limit: u64,
    },
    /// A message whose first segment is shorter than a header.
    HeaderTooShort {
        /// Where its length is.
        offset: u64,
        /// Its length.
        len: u32,
    },
    /// A compressed frame, though nobody has offered that.
    Compressed {
        /// Where the flags are.
        offset: u64,
        /// The flags.
        got: u8,
    },
    /// A late status that is neither complete nor aborted.
    LateStatus {
        /// Where it is.
        offset: u64,
        /// The status.
        got: u8,
    },
    /// A control frame that ends inside a field.
    Short {
        /// The frame's tag.
        tag: u8,
        /// The field.
        field: &'static str,
        /// Where it begins.
        offset: u64,
        /// How many bytes it has.
        expected: u64,
        /// How many are there.
        got: u64,
    },
    /// A control frame with a value that is not known here.
    Value {
        /// The frame's tag.
        tag: u8,
        /// The field.
        field: &'static str,
        /// Where it begins.
        offset: u64,
        /// The value.
        got: u64,
    },
    /// The peer acknowledges a message that was never sent.
    AckBeyond {
        /// The number of the last message that was.
        sent: u64,
        /// The number that the peer has.
        got: u64,
    },
    /// A frame that cannot be framed.
    Chain(ChainError),
}

/// A part of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Field {
    /// Tag and lengths.
    Preamble,
    /// The only segment of a control frame.
    Control,
    /// A message's header.
    Header,
    /// The encoded request.
    Front,
    /// What few requests have.
    Middle,
    /// The payload.
    Data,
}

impl Field {
    /// Segment `index` of a frame.
    pub(super) fn of(tag: u8, index: usize) -> Self {
        match index {
            0 if tag == TAG_MESSAGE => Field::Header,
            0 => Field::Control,
            1 => Field::Front,
            2 => Field::Middle,
            _ => Field::Data,
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Field::Preamble => "preamble",
            Field::Control => "control segment",
            Field::Header => "header",
            Field::Front => "front",
            Field::Middle => "middle",
            Field::Data => "data",
        }
    }
}

impl fmt::Display for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Error::Tag { got } => write!(f, "unknown tag {got}"),
            Error::Crc { field, offset, expected, got } => {
                write!(
                    f,
                    "wrong crc of the {field}: {expected:#010x} at {offset}, the bytes give {got:#010x}"
                )
            }
            Error::Segments { tag, got, limit } => {
                write!(f, "{got} segments in a frame with tag {tag}, it has 1 to {limit}")
            }
            Error::LastEmpty { count } => write!(f, "the last of {count} segments is empty"),
            Error::TooLong { field, offset, len, limit } => {
                write!(f, "{field} of {len} bytes (length at {offset}), the limit is {limit}")
            }
            Error::HeaderTooShort { offset, len } => {
                write!(f, "message header of {len} bytes (length at {offset}), it has {HEADER}")
            }
            Error::Compressed { offset, got } => {
                write!(f, "flags {got:#04x} at {offset}: the frame is compressed, which nobody has offered")
            }
            Error::LateStatus { offset, got } => {
                write!(f, "late status {got:#04x} at {offset} is neither complete nor aborted")
            }
            Error::Short { tag, field, offset, expected, got } => {
                write!(
                    f,
                    "a frame with tag {tag} ends inside {field} at {offset}: expected {expected} bytes, got {got}"
                )
            }
            Error::Value { tag, field, offset, got } => {
                write!(f, "unknown {field} {got} at {offset} of a frame with tag {tag}")
            }
            Error::AckBeyond { sent, got } => {
                write!(f, "the peer acknowledges message {got}, the last one sent is {sent}")
            }
            Error::Chain(error) => write!(f, "{error}"),
        }
    }
}

impl error::Error for Error {}

impl From<ChainError> for Error {
    fn from(error: ChainError) -> Self {
        Error::Chain(error)
    }
}

impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        io::Error::new(io::ErrorKind::InvalidData, error)
    }
}
