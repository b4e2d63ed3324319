//! What can be wrong with a frame, and where.

use std::{error, fmt, io};

use segchain::chain::ChainError;

/// A frame that the protocol, or a limit of ours, does not allow. Offsets are bytes from the frame's tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// A tag that no open connection has.
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
    /// A part longer than its limit.
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
    /// A footer without the flag COMPLETE: the sender gave the message up.
    Incomplete {
        /// Where the flags are.
        offset: u64,
        /// The flags.
        got: u8,
    },
    /// The peer acknowledges a message that was never sent.
    AckBeyond {
        /// The number of the last message that was.
        sent: u64,
        /// The number that the peer has.
        got: u64,
    },
    /// A message that cannot be framed.
    Chain(ChainError),
}

/// A part of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Field {
    /// The header.
    Header,
    /// The encoded request.
    Front,
    /// What few requests have.
    Middle,
    /// The payload.
    Data,
    /// Checksums and flags.
    Footer,
}

impl Field {
    pub(super) fn name(self) -> &'static str {
        match self {
            Field::Header => "header",
            Field::Front => "front",
            Field::Middle => "middle",
            Field::Data => "data",
            Field::Footer => "footer",
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
            Error::Tag { got } => write!(f, "unknown tag {got:#04x}"),
            Error::Crc { field, offset, expected, got } => {
                write!(
                    f,
                    "wrong crc of the {field}: {expected:#010x} at {offset}, the bytes give {got:#010x}"
                )
            }
            Error::TooLong { field, offset, len, limit } => {
                write!(f, "{field} of {len} bytes (length at {offset}), the limit is {limit}")
            }
            Error::Incomplete { offset, got } => {
                write!(f, "footer flags {got:#04x} at {offset}: the sender gave the message up")
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
