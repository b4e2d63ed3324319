//! What both versions of the messenger do with messages that arrive: where their data lands, and which have come before.

use bytes::Bytes;
use segchain::chain::{ChainBuilder, Mark};
use segchain::framer::{Filled, Landed, Place, Targets};

use crate::{Data, Incoming, osd};

/// What is taken of messages that arrive, and where it lands.
#[derive(Clone, Debug)]
pub(crate) struct Inbound {
    /// Of fronts, middles and data, in bytes.
    pub(crate) limits: [u32; 3],
    /// The message type whose tids are those of our requests.
    pub(crate) reply_kind: Option<u16>,
    /// Whether the data of a reply without a target is discarded.
    pub(crate) discard_unexpected: bool,
}

impl Default for Inbound {
    fn default() -> Self {
        let limits = [16 << 20, 16 << 20, 64 << 20];
        Self { limits, reply_kind: Some(osd::OP_REPLY), discard_unexpected: false }
    }
}

/// The options of both versions that are about what arrives: `$options` has a field `inbound`.
macro_rules! inbound_options {
    ($options:ident) => {
        impl $options {
            /// The longest front to receive, in bytes; 16 MiB unless set, as in Linux's client
            /// (`CEPH_MSG_MAX_FRONT_LEN`).
            ///
            /// A front lands in one piece of memory, so the receiver's own limit
            /// [`contiguous`](segchain::recv::RecvOptions::contiguous), 64 KiB unless set, comes first. A large
            /// cluster's osd map is longer than that.
            #[must_use]
            pub fn front_limit(mut self, bytes: u32) -> Self {
                self.inbound.limits[0] = bytes;
                self
            }

            /// The longest middle to receive, in bytes; 16 MiB unless set. As for [`front_limit`](Self::front_limit).
            #[must_use]
            pub fn middle_limit(mut self, bytes: u32) -> Self {
                self.inbound.limits[1] = bytes;
                self
            }

            /// The longest data to receive, in bytes; 64 MiB unless set, as in Linux's client
            /// (`CEPH_MSG_MAX_DATA_LEN`). An osd takes writes of up to 90 MiB (`osd_max_write_size`), so a server may
            /// want more.
            #[must_use]
            pub fn data_limit(mut self, bytes: u32) -> Self {
                self.inbound.limits[2] = bytes;
                self
            }

            /// The message type whose tids are looked up in the [`Targets`](segchain::framer::Targets); those of others
            /// are the peer's own numbering and say nothing. [`osd::OP_REPLY`](crate::osd::OP_REPLY) unless set.
            #[must_use]
            pub fn reply_kind(mut self, kind: Option<u16>) -> Self {
                self.inbound.reply_kind = kind;
                self
            }

            /// Discards the data of a reply for whose tid there is no target, such as a READ that was cancelled. Off
            /// unless set: it lands in slabs. (Where there is a target and it is too small, the data is always
            /// discarded.)
            #[must_use]
            pub fn discard_unexpected(mut self, yes: bool) -> Self {
                self.inbound.discard_unexpected = yes;
                self
            }
        }
    };
}
pub(crate) use inbound_options;

/// Which messages of one connection have come.
#[derive(Clone, Debug, Default)]
pub(crate) struct Arrived {
    pub(crate) last_seq: u64,
    pub(crate) duplicates: u64,
}

impl Arrived {
    /// None behind message number `last`.
    pub(crate) fn behind(last: u64) -> Self {
        Self { last_seq: last, duplicates: 0 }
    }

    /// Where the `len` bytes of a message's data land; in slabs at `offset` within a page if nobody has memory for them.
    pub(crate) fn place(
        &self,
        wanted: &Inbound,
        message: &Incoming,
        len: u64,
        offset: usize,
        targets: &mut dyn Targets,
    ) -> Place {
        let Incoming { seq, header, .. } = message;
        let slabs = Place::Slabs { offset };
        if self.has_come_before(*seq) {
            return Place::Discard;
        }
        if wanted.reply_kind != Some(header.kind) {
            return slabs;
        }
        match targets.expect(header.tid) {
            Some(room) if room >= len => Place::Target { key: header.tid, at: 0 },
            Some(_) => Place::Discard,
            None if wanted.discard_unexpected => Place::Discard,
            None => slabs,
        }
    }

    /// Counts a message that is whole; `false` if it has come before.
    pub(crate) fn take(&mut self, seq: u64) -> bool {
        let new = !self.has_come_before(seq);
        if new {
            self.last_seq = seq;
        } else {
            self.duplicates += 1;
        }
        new
    }

    fn has_come_before(&self, seq: u64) -> bool {
        seq <= self.last_seq
    }
}

impl Incoming {
    /// Takes a part that has landed: 0 is the front, 1 the middle, 2 the data.
    pub(crate) fn land(&mut self, part: usize, piece: Filled) {
        match (part, piece.landed) {
            (0, Landed::Contiguous(bytes)) => self.front = bytes,
            (_, Landed::Contiguous(bytes)) => self.middle = bytes,
            (_, Landed::Slabs(slabs)) => self.data = Data::Slabs(slabs),
            (_, Landed::Target { whole, .. }) => self.data = Data::Target { len: piece.len, whole },
            _ => self.data = Data::Discarded { len: piece.len },
        }
    }
}

/// A front or a middle counts as a header, not as payload: where it is short it is copied, whatever the copy threshold.
pub(crate) fn put_part(out: &mut ChainBuilder<'_>, part: Bytes) -> Mark {
    if part.len() < ChainBuilder::COPY_BELOW { out.put(&part) } else { out.push(part) }
}
