//! What both sides say before the first message. Both begin with a banner; all the rest are frames.
//!
//! ```text
//!  both    banner: "ceph v2\n", length u16, supported u64, required u64
//!  both    HELLO: what I am, and what your address looks like from here
//!  client  AUTH_REQUEST                   server  AUTH_DONE, or AUTH_BAD_METHOD and the client may try again
//!  both    AUTH_SIGNATURE                 of what was said so far; zeros with auth none
//!  client  CLIENT_IDENT                   server  SERVER_IDENT, or IDENT_MISSING_FEATURES, or WAIT
//! ```
//!
//! [`Client`] and [`Server`] are [`Deframer`](segchain::framer::Deframer)s, so that a
//! [`Receiver`](segchain::recv::Receiver) drives them and keeps what it has read ahead when
//! [`v2::Deframer`](super::Deframer) takes over. Each frame is a [`Turn`]: bytes to send, and the
//! [`Session`] when all is said. There is no authentication but `auth none` and no connection mode but crc: what AUTH_DONE
//! settles is the [`Codec`] of what follows (Ceph `src/msg/async/ProtocolV2.cc`; checked against ceph-osd and ceph-mon
//! 16.2.15).

mod client;
mod error;
mod server;
mod wire;

use bytes::Bytes;

pub use self::client::{Client, ClientOptions};
pub use self::error::{Error, Refusal};
pub use self::server::{Server, ServerOptions};

use super::{Codec, Ident, Options};
use crate::EntityAddr;

/// What each side begins with.
pub const BANNER: [u8; 8] = *b"ceph v2\n";
/// Feature of a banner: frames of revision 1.
pub const REVISION_1: u64 = 1;
/// The method `auth none` (`CEPH_AUTH_NONE`).
pub const AUTH_NONE: u32 = 1;
/// The connection mode crc (`CEPH_CON_MODE_CRC`).
pub const MODE_CRC: u32 = 1;

/// The fields of a banner; a longer one is of a newer version, and the rest is passed over.
const BANNER_FIELDS: usize = 16;
const MAX_BANNER_FIELDS: usize = 1024;
const LOSSY: u64 = 1;
const NO_SIGNATURE: [u8; 32] = [0; 32];
/// `EOPNOTSUPP` and `EACCES` of Linux.
const NOT_SUPPORTED: i32 = -95;
const NOT_PERMITTED: i32 = -13;

/// One step of a handshake.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Turn {
    /// Bytes for the peer.
    pub send: Vec<u8>,
    /// Why the client was refused; a server goes on to listen, a client gets [`Error::Refused`] instead.
    pub refused: Option<Refusal>,
    /// The result, in the last step.
    pub done: Option<Session>,
}

/// What both sides know of each other after the handshake.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Session {
    /// What protects the frames that follow.
    pub codec: Codec,
    /// The features that both have.
    pub features: u64,
    /// What the peer is: 1 monitor, 4 OSD, 8 client.
    pub entity_type: u8,
    /// What the peer says of itself. Its `required` are met.
    pub peer: Ident,
    /// Our address; a client has it from the server.
    pub own: Vec<EntityAddr>,
    /// The client's number: what it claims, or what a monitor gives.
    pub global_id: u64,
    /// The name that the client claims, for a server.
    pub name: Bytes,
    /// Whether the session ends with the connection, with no acks and no replay. All of an osd's clients are lossy.
    pub lossy: bool,
}

impl Session {
    /// Options for the frames that follow.
    pub fn options(&self) -> Options {
        Options::new().codec(self.codec)
    }
}
