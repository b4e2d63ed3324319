//! What a client and a monitor say to each other, as the fronts of messages: who the client is, and whether the monitor is
//! there.
//!
//! Over version 1 of the messenger a client has to name itself to a monitor before anything else, with [`auth_none`], and is
//! told its global id in an [`AuthReply`]; in version 2 that is part of the handshake. [`PING`] needs neither. Layouts are
//! those of Ceph `src/messages/MAuth.h`, `MAuthReply.h` and `MPing.h`; checked against ceph-mon 16.2.15.

use bytes::Bytes;

use crate::auth::{self, CLIENT};
use crate::osd::Error;
use crate::wire::Reader;
use crate::{EntityName, Header, Message};

/// Message type of a ping and of its answer, the pong.
pub const PING: u16 = 2;
/// Message type of a client's claim.
pub const AUTH: u16 = 17;
/// Message type of its answer.
pub const AUTH_REPLY: u16 = 18;

/// What most messages have.
const PRIORITY: u16 = 127;
/// `CEPH_AUTH_NONE`.
const AUTH_NONE: u32 = 1;

/// The claim of `auth none`: a name such as `admin`. The answer has the same tid, 0.
///
/// ```
/// let message = segchain_ceph::mon::auth_none("admin");
/// assert_eq!((message.header.kind, message.front.len()), (17, 60));
/// ```
pub fn auth_none(name: &str) -> Message<()> {
    let mut claim = vec![1];
    claim.extend(1u32.to_le_bytes()); // how many methods
    claim.extend(AUTH_NONE.to_le_bytes());
    claim.extend(auth::name(CLIENT, name));
    claim.extend(0u64.to_le_bytes()); // no global id yet

    let mut front = vec![0; 8]; // no version
    front.extend((-1i16).to_le_bytes()); // no monitor that it came through
    front.extend([0; 8]);
    front.extend(0u32.to_le_bytes()); // the protocol is to be chosen
    front.extend((claim.len() as u32).to_le_bytes());
    front.extend(claim);
    front.extend(0u32.to_le_bytes()); // no monitor map yet
    let mut header = Header::new(AUTH);
    (header.version, header.compat_version, header.priority) = (1, 1, PRIORITY);
    header.src = EntityName::new(CLIENT as u8, -1);
    Message::new(header, front.into(), ())
}

/// A monitor's answer to a client's claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct AuthReply {
    /// The method that the monitor has chosen: 1 is `auth none`, 2 cephx.
    pub method: u32,
    /// 0, or a negative errno of Linux.
    pub result: i32,
    /// The client's number.
    pub global_id: u64,
}

impl AuthReply {
    /// Decodes a front. What the method says itself, and a text, are passed over.
    ///
    /// # Errors
    /// A front that is too short.
    pub fn decode(front: &[u8]) -> Result<Self, Error> {
        let mut reader = Reader::new(front);
        let reply = Self {
            method: reader.u32("method")?,
            result: reader.i32("result")?,
            global_id: reader.u64("global id")?,
        };
        reader.string("the method's answer")?;
        reader.string("text")?;
        Ok(reply)
    }
}

/// The answer of a daemon to a ping: a text, JSON from Ceph's own daemons.
///
/// ```
/// let pong = segchain_ceph::mon::pong(segchain_ceph::EntityName::new(1, 0), "{}");
/// assert_eq!(pong.front[..], *b"\x02\0\0\0{}");
/// ```
pub fn pong(src: EntityName, text: &str) -> Message<()> {
    let mut front = (text.len() as u32).to_le_bytes().to_vec();
    front.extend(text.as_bytes());
    let mut header = Header::new(PING);
    (header.version, header.compat_version, header.priority) = (1, 1, PRIORITY);
    header.src = src;
    Message::new(header, Bytes::from(front), ())
}
