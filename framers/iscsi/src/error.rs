//! What can be wrong with a PDU, and where.

use std::{error, fmt, io};

use segchain::chain::ChainError;

/// A PDU that the protocol, or a limit, does not allow. Offsets are bytes from the PDU's start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// A digest that is not that of the bytes. At error recovery level 0 the connection closes.
    Digest {
        /// What it covers: a wrong header says nothing of what follows, a wrong segment of data is only itself.
        field: Field,
        /// Where the digest is.
        offset: u64,
        /// The digest that the PDU carries.
        expected: u32,
        /// The digest of the bytes.
        got: u32,
    },
    /// A part longer than its limit.
    TooLong {
        /// Which.
        field: Field,
        /// Where its length is.
        offset: u64,
        /// Its length in bytes.
        len: u64,
        /// The limit in bytes.
        limit: u64,
    },
    /// Additional header segments that are no whole number of words.
    AhsUnaligned {
        /// Where their length is.
        offset: u64,
        /// Their length in bytes.
        len: u64,
    },
    /// A PDU that cannot be framed.
    Chain(ChainError),
    /// A request after the logout (RFC 7143 section 11.14), or after a violation of the target's.
    Closing,
}

/// A part of a PDU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Field {
    /// Basic and additional header segments together.
    Header,
    /// Additional header segments.
    Ahs,
    /// The data segment; its digest covers the pad, too.
    Data,
}

impl Field {
    fn name(self) -> &'static str {
        match self {
            Field::Header => "header",
            Field::Ahs => "additional header segments",
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
            Error::Digest { field, offset, expected, got } => {
                write!(f, "wrong {field} digest: {expected:#010x} at {offset}, the bytes give {got:#010x}")
            }
            Error::TooLong { field, offset, len, limit } => {
                write!(f, "{field} of {len} bytes (length at {offset}), the limit is {limit}")
            }
            Error::AhsUnaligned { offset, len } => {
                let name = Field::Ahs;
                write!(f, "{name} of {len} bytes (length at {offset}): no whole number of words")
            }
            Error::Chain(error) => write!(f, "{error}"),
            Error::Closing => f.write_str("the session takes no more requests"),
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
