//! What both sides say before the first message. The server speaks first.
//!
//! ```text
//!  server  banner 9, own address 136, client's address as seen 136
//!  client  banner 9, own address 136, connect 33, authorizer
//!  server  tag READY or SEQ, reply 25, authorizer; after SEQ: 8, the number of the last message received
//!  client                                          after SEQ: 8, the same
//! ```
//!
//! [`Client`] and [`Server`] are [`Deframer`](segchain::framer::Deframer)s, so that a
//! [`Receiver`](segchain::recv::Receiver) drives them and keeps what it has read ahead when
//! [`v1::Deframer`](super::Deframer) takes over. Each frame is a [`Turn`]: bytes to send, and the
//! [`Session`] when all is said. There is no authentication but `auth none` (Ceph `src/msg/async/ProtocolV1.cc`).

mod client;
mod error;
mod server;
mod wire;

use bytes::Bytes;

pub use self::client::{Client, ClientOptions};
pub use self::error::{Error, Refusal};
pub use self::server::{Server, ServerOptions};

use super::Options;
use crate::{EntityAddr, auth};

/// What each side begins with.
pub const BANNER: [u8; 9] = *b"ceph v027";
/// The protocol version of a client towards a monitor (Ceph `src/include/msgr.h`).
pub const MON_PROTOCOL: u32 = 15;
/// The protocol version of a client towards an osd.
pub const OSD_PROTOCOL: u32 = 24;
/// The longest authorizer that is received, in bytes: it has to fit into the read-ahead. A cephx ticket has a few hundred.
pub const MAX_AUTHORIZER: u32 = 16 << 10;

const ADDR: usize = EntityAddr::LEGACY_LEN;
const CONNECT: usize = 33;
const REPLY: usize = 26;
const LOSSY: u8 = 1;

const TAG_READY: u8 = 1;
const TAG_RESETSESSION: u8 = 2;
const TAG_WAIT: u8 = 3;
const TAG_RETRY_SESSION: u8 = 4;
const TAG_RETRY_GLOBAL: u8 = 5;
const TAG_BADPROTOVER: u8 = 10;
const TAG_BADAUTHORIZER: u8 = 11;
const TAG_FEATURES: u8 = 12;
const TAG_SEQ: u8 = 13;
const TAG_CHALLENGE_AUTHORIZER: u8 = 16;

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
    /// The features that both have.
    pub features: u64,
    /// The peer's address, as it says.
    pub peer: EntityAddr,
    /// Our address: for a client, as the server sees it.
    pub own: EntityAddr,
    /// The peer's kind of entity, for a server: 8 is a client.
    pub host_type: u32,
    /// How many connections the other side has made.
    pub global_seq: u32,
    /// How often the session was connected.
    pub connect_seq: u32,
    /// Whether the session ends with the connection, with no acks and no replay. All of an osd's clients are lossy.
    pub lossy: bool,
    /// The last message that the peer has received of ours; 0 on a lossy session.
    pub received: u64,
    /// What the other side proves itself with.
    pub authorizer: Authorizer,
}

impl Session {
    /// Options for the frames that follow.
    pub fn options(&self) -> Options {
        Options::new().features(self.features)
    }
}

/// Who a client claims to be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Authorizer {
    /// 0 nothing, 1 `auth none`, 2 cephx.
    pub protocol: u32,
    /// The claim.
    pub bytes: Bytes,
}

impl Authorizer {
    /// No claim: for a monitor, which asks later.
    pub fn absent() -> Self {
        Self::default()
    }

    /// The claim of `auth none`: a name such as `admin`, and the global id that the monitor has given.
    ///
    /// An osd knows an operation by global id and tid. One that it has seen before is answered with success and not done
    /// (measured against ceph-osd 16.2.15), so a client that makes up its global id begins its tids with the time.
    pub fn none(name: &str, global_id: u64) -> Self {
        Self { protocol: 1, bytes: auth::claim(auth::TO_SERVICE, name, global_id) }
    }

    /// The global id in a claim of `auth none`; `None` if it is no such claim.
    pub fn global_id(&self) -> Option<u64> {
        let claim = auth::read_claim(&self.bytes).filter(|_| self.protocol == 1)?;
        (claim.mode == auth::TO_SERVICE).then_some(claim.global_id)
    }
}
