//! What a target may not do.

use std::{error, fmt, io};

/// A PDU that is right by itself and does not fit the session. At error recovery level 0 the connection closes. Offsets are
/// bytes from the PDU's start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Violation {
    /// A PDU that a target does not send in the full feature phase, or nobody asked for.
    Unexpected {
        /// Its name.
        pdu: &'static str,
        /// Its opcode.
        opcode: u8,
    },
    /// A PDU for a task that there is not, or that is of another kind.
    UnknownTask {
        /// The PDU's name.
        pdu: &'static str,
        /// The initiator task tag.
        itt: u32,
        /// Where that is.
        offset: u64,
    },
    /// A field that is not as it has to be.
    Field {
        /// The PDU's name.
        pdu: &'static str,
        /// Which.
        field: &'static str,
        /// Where it is.
        offset: u64,
        /// The least that it may be.
        least: u64,
        /// The most.
        most: u64,
        /// What it is.
        got: u64,
    },
    /// More at a time than is taken.
    TooMany {
        /// Of what.
        what: &'static str,
        /// The most that there may be.
        limit: u32,
    },
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Violation::Unexpected { pdu, opcode } => write!(f, "unexpected {pdu} (opcode {opcode:#04x})"),
            Violation::UnknownTask { pdu, itt, offset } => {
                write!(f, "{pdu} for task {itt:#x} (at {offset}), which there is not")
            }
            Violation::Field { pdu, field, offset, least, most, got } => {
                write!(f, "{pdu}: {field} at {offset}: expected {least}")?;
                if most != least {
                    write!(f, " to {most}")?;
                }
                write!(f, ", got {got}")
            }
            Violation::TooMany { what, limit } => write!(f, "more than {limit} {what} at a time"),
        }
    }
}

impl error::Error for Violation {}

impl From<Violation> for io::Error {
    fn from(error: Violation) -> Self {
        io::Error::new(io::ErrorKind::InvalidData, error)
    }
}
