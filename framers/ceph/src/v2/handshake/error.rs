//! Why a handshake failed, and what a peer refuses.

use std::{error, fmt, io};

use super::{BANNER, BANNER_FIELDS, MODE_CRC};
use crate::EntityAddr;

/// A handshake that came to nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// The peer does not begin with [`BANNER`].
    Banner {
        /// What it begins with.
        got: [u8; 8],
    },
    /// A banner that is too short for its fields, or longer than 1 KiB.
    BannerLen {
        /// Where the length is, from the banner's start.
        offset: u64,
        /// The length.
        got: usize,
    },
    /// A frame that is not allowed.
    Frame(crate::v2::Error),
    /// A frame that does not come now.
    Unexpected {
        /// What does.
        awaiting: &'static str,
        /// The frame's tag.
        tag: u8,
    },
    /// The server has chosen a connection mode that is not spoken here.
    Mode {
        /// The mode; 2 is secure.
        got: u32,
    },
    /// A signature, though there is no key.
    Signature,
    /// The server is not the one that was meant, or a client means another one: a restarted daemon, mostly.
    WrongPeer {
        /// Who was meant; for a server, who we are.
        expected: EntityAddr,
        /// Who it is; for a server, who was meant.
        got: EntityAddr,
    },
    /// One side refuses.
    Refused(Refusal),
}

/// Why a connection is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Refusal {
    /// The peer's banner requires what ours does not offer.
    Banner {
        /// Its bits.
        missing: u64,
    },
    /// Another authentication method is wanted, or another mode, or the claim is not believed.
    BadMethod {
        /// The client's method.
        method: u32,
        /// A negative errno of Linux.
        result: i32,
        /// The server's methods.
        methods: Vec<u32>,
        /// The server's connection modes.
        modes: Vec<u32>,
    },
    /// Features that one side requires and the other lacks.
    Features {
        /// Their bits.
        missing: u64,
    },
    /// The server has forgotten the session: begin a new one.
    ResetSession,
    /// A later connection of ours was there before: connect with a larger number.
    RetryGlobal {
        /// The server's number.
        global_seq: u64,
    },
    /// The server is connecting to us at the same time, and that connection goes first.
    Wait,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Banner { got } => {
                write!(f, "expected banner \"{}\", got \"{}\"", BANNER.escape_ascii(), got.escape_ascii())?;
                if got.starts_with(b"ceph v0") {
                    f.write_str(" (that port speaks messenger version 1)")?;
                }
                Ok(())
            }
            Error::BannerLen { offset, got } => {
                write!(f, "banner fields of {got} bytes (length at {offset}), expected {BANNER_FIELDS}")
            }
            Error::Frame(error) => write!(f, "{error}"),
            Error::Unexpected { awaiting, tag } => {
                write!(f, "expected {awaiting}, got a frame with tag {tag}")
            }
            Error::Mode { got } => write!(f, "connection mode {got}, only crc ({MODE_CRC}) is spoken here"),
            Error::Signature => f.write_str("a signature that is not zero, and there is no key"),
            Error::WrongPeer { expected, got } => write!(f, "expected the peer {expected}, got {got}"),
            Error::Refused(refusal) => write!(f, "the connection is refused: {refusal}"),
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::Banner { missing } => write!(f, "banner features {missing:#x} are missing"),
            Refusal::BadMethod { method, result, methods, modes } => {
                write!(
                    f,
                    "authentication method {method} gives {result}, it takes methods {methods:?} in modes {modes:?} \
                     (AUTH_BAD_METHOD)"
                )
            }
            Refusal::Features { missing } => {
                write!(f, "features {missing:#x} are missing (IDENT_MISSING_FEATURES)")
            }
            Refusal::ResetSession => f.write_str("it has forgotten the session (SESSION_RESET)"),
            Refusal::RetryGlobal { global_seq } => {
                write!(f, "global_seq has to be above {global_seq} (SESSION_RETRY_GLOBAL)")
            }
            Refusal::Wait => f.write_str("it is connecting to us at the same time (WAIT)"),
        }
    }
}

impl error::Error for Error {}

impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        let kind = match error {
            Error::Refused(_) => io::ErrorKind::ConnectionRefused,
            _ => io::ErrorKind::InvalidData,
        };
        io::Error::new(kind, error)
    }
}
