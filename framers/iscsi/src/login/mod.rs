//! The login: what both sides say before the first command (RFC 7143 section 6).
//!
//! ```text
//!  initiator  names, AuthMethod=None        security stage, ready for the next      ─┐ Login Request
//!  target     AuthMethod=None, group tag    the operational stage begins            ─┘ Login Response
//!  initiator  digests, lengths, bursts      operational stage, ready for the next
//!  target     its answers                   full feature phase: digests start with the next PDU
//! ```
//!
//! [`Initiator`] and [`Target`] are [`Deframer`](segchain::framer::Deframer)s, so that a
//! [`Receiver`](segchain::recv::Receiver) drives them and keeps what it has read ahead when a
//! [`PduDeframer`](crate::PduDeframer) with the [`Session`]'s options takes over. Each frame is a [`Turn`]: bytes to send,
//! and the session when all is said. There is no authentication.

mod error;
mod exchange;
mod initiator;
mod parameters;
mod target;

pub use self::error::{Error, Status};
pub use self::initiator::{Initiator, InitiatorOptions};
pub use self::parameters::{DigestOffer, Negotiated, Parameters};
pub use self::target::{Target, TargetOptions};

use crate::Options;

/// The most login text that is taken of one side, in bytes.
pub const MAX_TEXT: usize = 64 << 10;
/// The most login PDUs that are taken of one side.
pub const MAX_TURNS: u32 = 64;

/// One step of a login.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Turn {
    /// Bytes for the other side.
    pub send: Vec<u8>,
    /// Why the initiator was refused: a target closes when it has sent this. An initiator gets [`Error::Refused`] instead.
    pub refused: Option<Status>,
    /// What was wrong with the request, if there is more to say of it than the status.
    pub error: Option<Error>,
    /// The result, in the last step.
    pub done: Option<Session>,
}

/// What both sides know after the login.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Session {
    /// What was negotiated.
    pub negotiated: Negotiated,
    /// The initiator's name.
    pub initiator: String,
    /// The target's name.
    pub target: String,
    /// The initiator's part of the session's name.
    pub isid: [u8; 6],
    /// The target's part.
    pub tsih: u16,
    /// The connection's number.
    pub cid: u16,
    /// The number of the first command.
    pub cmd_sn: u32,
    /// The last command that the target takes for now.
    pub max_cmd_sn: u32,
    /// The number of the first status after the login.
    pub stat_sn: u32,
}

impl Session {
    /// Options for the PDUs that follow.
    pub fn options(&self) -> Options {
        let Negotiated { header_digest, data_digest, max_send, max_recv, .. } = self.negotiated;
        Options::new().digests(header_digest, data_digest).max_send(max_send).max_recv(max_recv)
    }
}

/// The stage of security negotiation.
const SECURITY: u8 = 0;
/// The stage of operational negotiation.
const OPERATIONAL: u8 = 1;
/// The next stage after the login.
const FULL_FEATURE: u8 = 3;
