//! The bytes of a handshake, between its two machines and the wire.

use segchain::framer::Step;

use super::{BANNER, Error, MAX_AUTHORIZER, Turn};
use crate::EntityAddr;
use crate::wire::{Reader, Short};

/// The banner and `len` bytes behind it, once they are there. A wrong banner is found as soon as it is.
pub(super) fn banner_and(head: &[u8], len: usize) -> Result<Option<&[u8]>, Error> {
    match head.first_chunk() {
        Some(banner) if *banner != BANNER => Err(Error::Banner { got: *banner }),
        _ => Ok(head.get(..BANNER.len() + len)),
    }
}

pub(super) fn need_banner_and(head: &[u8], len: usize) -> Step<Turn> {
    Step::Need(if head.len() < BANNER.len() { BANNER.len() } else { BANNER.len() + len })
}

pub(super) fn address(wire: &[u8], offset: usize) -> Result<EntityAddr, Error> {
    let bytes = wire[offset..].first_chunk().and_then(EntityAddr::from_legacy);
    bytes.ok_or(Error::Address { offset: offset as u64 })
}

pub(super) fn authorizer_len(len: u32, offset: u64) -> Result<usize, Error> {
    match len {
        0..=MAX_AUTHORIZER => Ok(len as usize),
        _ => Err(Error::AuthorizerTooLong { offset, len, limit: MAX_AUTHORIZER }),
    }
}

/// `ceph_msg_connect`.
pub(super) struct ConnectMessage {
    pub(super) features: u64,
    pub(super) host_type: u32,
    pub(super) global_seq: u32,
    pub(super) connect_seq: u32,
    pub(super) protocol_version: u32,
    pub(super) authorizer_protocol: u32,
    pub(super) authorizer_len: u32,
    pub(super) flags: u8,
}

impl ConnectMessage {
    pub(super) fn read(wire: &[u8]) -> Result<Self, Short> {
        let mut reader = Reader::new(wire);
        Ok(Self {
            features: reader.u64("features")?,
            host_type: reader.u32("host type")?,
            global_seq: reader.u32("global seq")?,
            connect_seq: reader.u32("connect seq")?,
            protocol_version: reader.u32("protocol version")?,
            authorizer_protocol: reader.u32("authorizer protocol")?,
            authorizer_len: reader.u32("authorizer length")?,
            flags: reader.u8("flags")?,
        })
    }
}

/// `ceph_msg_connect_reply`, and the tag that is its first byte.
pub(super) struct Reply {
    pub(super) tag: u8,
    pub(super) features: u64,
    pub(super) global_seq: u32,
    pub(super) connect_seq: u32,
    pub(super) protocol_version: u32,
    pub(super) authorizer_len: u32,
    pub(super) flags: u8,
}

impl Reply {
    pub(super) fn read(wire: &[u8]) -> Result<Self, Short> {
        let mut reader = Reader::new(wire);
        Ok(Self {
            tag: reader.u8("tag")?,
            features: reader.u64("features")?,
            global_seq: reader.u32("global seq")?,
            connect_seq: reader.u32("connect seq")?,
            protocol_version: reader.u32("protocol version")?,
            authorizer_len: reader.u32("authorizer length")?,
            flags: reader.u8("flags")?,
        })
    }

    pub(super) fn to_wire(&self) -> Vec<u8> {
        let mut wire = vec![self.tag];
        wire.extend(self.features.to_le_bytes());
        wire.extend(self.global_seq.to_le_bytes());
        wire.extend(self.connect_seq.to_le_bytes());
        wire.extend(self.protocol_version.to_le_bytes());
        wire.extend(self.authorizer_len.to_le_bytes());
        wire.push(self.flags);
        wire
    }
}
