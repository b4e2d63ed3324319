//! What can be wrong with a front, and where.

use std::{error, fmt, io};

use crate::wire::Short;

/// A front that is not understood, or cannot be written. Offsets are bytes from its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// It ends inside a field.
    Truncated {
        /// Which.
        field: &'static str,
        /// Where it begins.
        offset: usize,
        /// Bytes that it needs.
        expected: u64,
        /// Bytes that are there.
        got: u64,
    },
    /// A field has another value than the only one that is understood.
    Value {
        /// Which.
        field: &'static str,
        /// Where it begins.
        offset: usize,
        /// The one that is.
        expected: u64,
        /// The one that it has.
        got: u64,
    },
    /// Something is longer than the wire can say.
    TooLong {
        /// What.
        field: &'static str,
        /// Its length, or count.
        len: u64,
        /// The most.
        limit: u64,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Truncated { field, offset, expected, got } => {
                write!(f, "the front ends inside {field} at {offset}: expected {expected} bytes, got {got}")
            }
            Error::Value { field, offset, expected, got } => {
                write!(f, "{field} at {offset}: expected {expected:#x}, got {got:#x}")
            }
            Error::TooLong { field, len, limit } => write!(f, "{field}: {len}, the limit is {limit}"),
        }
    }
}

impl error::Error for Error {}

impl From<Short> for Error {
    fn from(Short { field, offset, expected, got }: Short) -> Self {
        Error::Truncated { field, offset, expected, got }
    }
}

impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        io::Error::new(io::ErrorKind::InvalidData, error)
    }
}
