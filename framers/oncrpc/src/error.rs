//! What can be wrong with a record or a header, and where.

use std::{error, fmt, io};

use segchain::chain::ChainError;

/// A record that cannot be sent, or bytes that are not ONC RPC.
///
/// Offsets of what was received count from the start of the record, markers included; those of [`xdr`](crate::xdr) count
/// from the start of what is decoded. `expected` is a limit or a length, in bytes unless the variant says otherwise.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// A record marker announces more than the limit, together with the fragments before it.
    RecordTooLong {
        /// Where the marker is.
        offset: u64,
        /// The limit.
        expected: u64,
        /// What the fragments sum to.
        got: u64,
        /// Another protocol that begins with these four bytes.
        looks_like: Option<&'static str>,
    },
    /// A record of more fragments than the limit.
    TooManyFragments {
        /// Where the marker of the first one too many is.
        offset: u64,
        /// The limit, in fragments.
        expected: u32,
        /// Fragments.
        got: u32,
    },
    /// A record with more empty fragments than are tolerated.
    TooManyEmptyFragments {
        /// Where the marker of the first one too many is.
        offset: u64,
        /// The limit, in fragments.
        expected: u32,
        /// Empty fragments.
        got: u32,
    },
    /// A record that ends before a transaction id and a direction were in it; an empty one, for instance.
    RecordTooShort {
        /// Where its last marker is.
        offset: u64,
        /// The fewest bytes.
        expected: u64,
        /// Its length.
        got: u64,
    },
    /// A message that is neither a call (0) nor a reply (1).
    NoDirection {
        /// Where the word is.
        offset: u64,
        /// Its value.
        got: u32,
    },
    /// XDR that ends inside a field.
    Cut {
        /// The field.
        field: &'static str,
        /// Where it begins.
        offset: u64,
        /// Bytes that it needs.
        expected: u64,
        /// Bytes that are there.
        got: u64,
    },
    /// A field of variable length over its limit: received, or about to be sent.
    FieldTooLong {
        /// The field.
        field: &'static str,
        /// Where it begins.
        offset: u64,
        /// The limit.
        expected: u64,
        /// Its length.
        got: u64,
    },
    /// A value that the field cannot have.
    Value {
        /// The field.
        field: &'static str,
        /// Where it begins.
        offset: u64,
        /// What it can be.
        expected: &'static str,
        /// What it is.
        got: u32,
    },
    /// A record that one fragment cannot hold was to be sent, and fragments are not allowed.
    Oversize {
        /// The most bytes.
        expected: u64,
        /// Its length.
        got: u64,
    },
    /// A record without transaction id and direction was to be sent.
    Undersize {
        /// The fewest bytes.
        expected: u64,
        /// Its length.
        got: u64,
    },
    /// A call with the transaction id of another that waits for its reply.
    XidInUse {
        /// The transaction id.
        xid: u32,
    },
    /// A mistake in building the chain.
    Chain(ChainError),
}

impl Error {
    /// The field that it is about.
    pub fn field(&self) -> &'static str {
        match self {
            Self::RecordTooLong { .. }
            | Self::TooManyFragments { .. }
            | Self::TooManyEmptyFragments { .. }
            | Self::RecordTooShort { .. } => "record marker",
            Self::NoDirection { .. } => "message type",
            Self::Cut { field, .. } | Self::FieldTooLong { field, .. } | Self::Value { field, .. } => field,
            Self::Oversize { .. } | Self::Undersize { .. } | Self::Chain(_) => "record",
            Self::XidInUse { .. } => "xid",
        }
    }

    /// Whether it was found before anything was sent: a mistake of this side.
    pub fn is_local(&self) -> bool {
        matches!(
            self,
            Self::Oversize { .. } | Self::Undersize { .. } | Self::XidInUse { .. } | Self::Chain(_)
        )
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::RecordTooLong { offset, expected, got, looks_like } => {
                write!(
                    f,
                    "record marker at offset {offset}: {got} bytes announced, the limit is {expected}"
                )?;
                looks_like.map_or(Ok(()), |what| write!(f, " (these bytes look like {what})"))
            }
            Self::TooManyFragments { offset, expected, got } => {
                write!(f, "record marker at offset {offset}: fragment {got}, the limit is {expected}")
            }
            Self::TooManyEmptyFragments { offset, expected, got } => {
                write!(f, "record marker at offset {offset}: empty fragment {got}, the limit is {expected}")
            }
            Self::RecordTooShort { offset, expected, got } => {
                write!(
                    f,
                    "record marker at offset {offset}: a record of {got} bytes, expected at least {expected}"
                )
            }
            Self::NoDirection { offset, got } => {
                write!(f, "message type at offset {offset}: expected 0 (call) or 1 (reply), got {got:#010x}")
            }
            Self::Cut { field, offset, expected, got } => {
                write!(f, "{field} at offset {offset}: expected {expected} bytes, got {got}")
            }
            Self::FieldTooLong { field, offset, expected, got } => {
                write!(f, "{field} at offset {offset}: {got} bytes, the limit is {expected}")
            }
            Self::Value { field, offset, expected, got } => {
                write!(f, "{field} at offset {offset}: expected {expected}, got {got}")
            }
            Self::Oversize { expected, got } => {
                write!(f, "a record of {got} bytes, one fragment takes {expected}")
            }
            Self::Undersize { expected, got } => {
                write!(f, "a record of {got} bytes, expected at least {expected}")
            }
            Self::XidInUse { xid } => write!(f, "xid {xid:#010x} waits for a reply already"),
            Self::Chain(error) => write!(f, "{error}"),
        }
    }
}

impl error::Error for Error {
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        match self {
            Self::Chain(error) => Some(error),
            _ => None,
        }
    }
}

impl From<ChainError> for Error {
    fn from(error: ChainError) -> Self {
        Self::Chain(error)
    }
}

/// `InvalidInput` for a mistake of this side, `InvalidData` for one of the peer.
impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        let kind = if error.is_local() { io::ErrorKind::InvalidInput } else { io::ErrorKind::InvalidData };
        io::Error::new(kind, error)
    }
}
