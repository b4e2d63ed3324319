//! Why a login failed, and what a target refuses.

use std::{error, fmt, io};

use crate::{Error as PduError, text};

/// A login that came to nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// A PDU that the protocol does not allow.
    Pdu(PduError),
    /// A text that is none.
    Text(text::Error),
    /// A PDU that does not belong to a login.
    Unexpected {
        /// Its name.
        pdu: &'static str,
        /// Its opcode.
        opcode: u8,
    },
    /// A field of a login PDU with another value than the login has it.
    Header {
        /// Which.
        field: &'static str,
        /// Where it is in the PDU.
        offset: u64,
        /// The value that it should have.
        expected: u64,
        /// The value that it has.
        got: u64,
    },
    /// More text than is taken, in one PDU or in many.
    TextTooLong {
        /// The limit in bytes.
        limit: usize,
    },
    /// No end of the negotiation.
    TooManyTurns {
        /// The limit.
        limit: u32,
    },
    /// A value that is out of its range, or no answer to what was offered.
    Value {
        /// Whose.
        key: String,
        /// Where it is in the text.
        offset: usize,
        /// What there may be.
        expected: String,
        /// What there is.
        got: String,
    },
    /// A key that was settled before.
    Repeated {
        /// Which.
        key: String,
        /// Where its value is in the text.
        offset: usize,
    },
    /// A key without which there is no login.
    Missing {
        /// Which.
        key: &'static str,
    },
    /// The target refuses.
    Refused(Status),
    /// The target sends us elsewhere.
    Redirected {
        /// Why, of class 1.
        status: Status,
        /// TargetAddress: `host:port,group`.
        address: String,
    },
}

/// The status of a login response (RFC 7143 section 11.13.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(clippy::exhaustive_structs, reason = "two bytes of the wire")]
pub struct Status {
    /// 0 success, 1 redirection, 2 the initiator's fault, 3 the target's.
    pub class: u8,
    /// What of its class.
    pub detail: u8,
}

impl Status {
    /// The login goes on, or is done.
    pub const SUCCESS: Self = Self { class: 0, detail: 0 };
    /// A fault of the initiator.
    pub const INITIATOR_ERROR: Self = Self { class: 2, detail: 0 };
    /// No authentication that both have.
    pub const AUTHENTICATION_FAILURE: Self = Self { class: 2, detail: 1 };
    /// No target of that name.
    pub const NOT_FOUND: Self = Self { class: 2, detail: 3 };
    /// No version that both have.
    pub const UNSUPPORTED_VERSION: Self = Self { class: 2, detail: 5 };
    /// A key is missing.
    pub const MISSING_PARAMETER: Self = Self { class: 2, detail: 7 };
    /// No session of that type.
    pub const SESSION_TYPE: Self = Self { class: 2, detail: 9 };
    /// No session of that number.
    pub const NO_SUCH_SESSION: Self = Self { class: 2, detail: 10 };
    /// A fault of the target.
    pub const TARGET_ERROR: Self = Self { class: 3, detail: 0 };
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let meaning = match (self.class, self.detail) {
            (0, 0) => "success",
            (1, 1) => "the target moved for a while",
            (1, 2) => "the target moved for good",
            (2, 0) => "a fault of the initiator",
            (2, 1) => "authentication failed",
            (2, 2) => "not allowed",
            (2, 3) => "there is no such target",
            (2, 4) => "the target was removed",
            (2, 5) => "unsupported version",
            (2, 6) => "too many connections",
            (2, 7) => "a parameter is missing",
            (2, 8) => "the session cannot take the connection",
            (2, 9) => "unsupported session type",
            (2, 10) => "there is no such session",
            (2, 11) => "an invalid request during login",
            (3, 0) => "a fault of the target",
            (3, 1) => "the service is unavailable",
            (3, 2) => "the target is out of resources",
            _ => "no meaning known here",
        };
        write!(f, "{meaning} (class {}, detail {})", self.class, self.detail)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Pdu(error) => write!(f, "{error}"),
            Error::Text(error) => write!(f, "{error}"),
            Error::Unexpected { pdu, opcode } => write!(f, "{pdu} ({opcode:#04x}) during the login"),
            Error::Header { field, offset, expected, got } => {
                write!(f, "{field} at {offset}: expected {expected:#x}, got {got:#x}")
            }
            Error::TextTooLong { limit } => write!(f, "more than {limit} bytes of login text"),
            Error::TooManyTurns { limit } => write!(f, "no end of the login after {limit} PDUs"),
            Error::Value { key, offset, expected, got } => {
                write!(f, "{key} (at {offset} of the text): expected {expected}, got {got:?}")
            }
            Error::Repeated { key, offset } => {
                write!(f, "{key} (at {offset} of the text) was settled before")
            }
            Error::Missing { key } => write!(f, "{key} is missing"),
            Error::Refused(status) => write!(f, "the target refuses the login: {status}"),
            Error::Redirected { status, address } => {
                write!(f, "the target sends us to {address}: {status}")
            }
        }
    }
}

impl error::Error for Error {}

impl From<PduError> for Error {
    fn from(error: PduError) -> Self {
        Error::Pdu(error)
    }
}

impl From<text::Error> for Error {
    fn from(error: text::Error) -> Self {
        Error::Text(error)
    }
}

impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        let kind = match error {
            Error::Refused(_) | Error::Redirected { .. } => io::ErrorKind::ConnectionRefused,
            _ => io::ErrorKind::InvalidData,
        };
        io::Error::new(kind, error)
    }
}
