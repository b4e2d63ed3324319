//! Why a handshake failed, and what a peer refuses.

use std::{error, fmt, io};

use super::BANNER;
use crate::EntityAddr;
use crate::wire::Short;

/// A handshake that came to nothing. Offsets are bytes from the start of the structure at fault.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// The peer does not begin with [`BANNER`].
    Banner {
        /// What it begins with.
        got: [u8; 9],
    },
    /// An address that is not of the legacy form, or not of IP.
    Address {
        /// Where it begins.
        offset: u64,
    },
    /// The server is not the one that was meant: a restarted daemon, mostly.
    WrongPeer {
        /// The one that was meant.
        expected: EntityAddr,
        /// The one that answers.
        got: EntityAddr,
    },
    /// An authorizer longer than [`MAX_AUTHORIZER`](super::MAX_AUTHORIZER).
    AuthorizerTooLong {
        /// Where its length is.
        offset: u64,
        /// Its length.
        len: u32,
        /// The limit.
        limit: u32,
    },
    /// A reply with a tag that no reply has.
    Tag {
        /// The tag.
        got: u8,
    },
    /// The server refuses.
    Refused(Refusal),
    /// A structure that ends too soon: a fault of this crate.
    Short {
        /// What is missing.
        field: &'static str,
    },
}

/// Why a connection is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Refusal {
    /// The claim is missing, or is not believed.
    BadAuthorizer,
    /// The server asks for a proof with cephx, which is not spoken here.
    Challenge,
    /// Features that one side requires and the other lacks.
    Features {
        /// Their bits.
        missing: u64,
    },
    /// The protocol versions differ.
    BadProtocolVersion {
        /// Ours.
        ours: u32,
        /// The peer's.
        theirs: u32,
    },
    /// The server has forgotten the session: begin a new one, with connect_seq 0.
    ResetSession,
    /// The session was connected more often than we know: connect with a larger number.
    RetrySession {
        /// The server's number.
        connect_seq: u32,
    },
    /// A later connection of ours was there before: connect with a larger number.
    RetryGlobal {
        /// The server's number.
        global_seq: u32,
    },
    /// The server is connecting to us at the same time, and that connection goes first.
    Wait,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Banner { got } => {
                write!(f, "expected banner \"{}\", got \"{}\"", BANNER.escape_ascii(), got.escape_ascii())?;
                if got.starts_with(b"ceph v2") {
                    f.write_str(" (that port speaks messenger version 2)")?;
                }
                Ok(())
            }
            Error::Address { offset } => write!(f, "the address at {offset} is not a legacy IP address"),
            Error::WrongPeer { expected, got } => write!(f, "expected the peer {expected}, got {got}"),
            Error::AuthorizerTooLong { offset, len, limit } => {
                write!(f, "authorizer of {len} bytes (length at {offset}), the limit is {limit}")
            }
            Error::Tag { got } => write!(f, "unknown reply tag {got:#04x}"),
            Error::Refused(refusal) => write!(f, "the server refuses the connection: {refusal}"),
            Error::Short { field } => write!(f, "{field} is missing"),
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::BadAuthorizer => f.write_str("it does not accept our authorizer (BADAUTHORIZER)"),
            Refusal::Challenge => f.write_str("it wants cephx, only auth none is spoken here"),
            Refusal::Features { missing } => write!(f, "features {missing:#x} are missing (FEATURES)"),
            Refusal::BadProtocolVersion { ours, theirs } => {
                write!(f, "protocol version {theirs}, ours is {ours} (BADPROTOVER)")
            }
            Refusal::ResetSession => f.write_str("it has forgotten the session (RESETSESSION)"),
            Refusal::RetrySession { connect_seq } => {
                write!(f, "connect_seq has to be above {connect_seq} (RETRY_SESSION)")
            }
            Refusal::RetryGlobal { global_seq } => {
                write!(f, "global_seq has to be above {global_seq} (RETRY_GLOBAL)")
            }
            Refusal::Wait => f.write_str("it is connecting to us at the same time (WAIT)"),
        }
    }
}

impl error::Error for Error {}

impl From<Short> for Error {
    fn from(short: Short) -> Self {
        Error::Short { field: short.field }
    }
}

impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        let kind = match error {
            Error::Refused(_) => io::ErrorKind::ConnectionRefused,
            _ => io::ErrorKind::InvalidData,
        };
        io::Error::new(kind, error)
    }
}
