//! What both versions of the messenger do with messages that arrive: where their data lands, and which have come before.

use bytes::Bytes;
use segchain::chain::{ChainBuilder, Mark};
use segchain::framer::{Filled, Landed, Place, Targets};

use crate::{Data, Incoming};

/// The messages of one connection.
#[derive(Clone, Debug)]
pub(crate) struct Inbound {
    /// The message type whose tids are those of our requests.
    pub(crate) reply_kind: Option<u16>,
    /// Whether the data of a reply without a target is discarded.
    pub(crate) discard_unexpected: bool,
    pub(crate) last_seq: u64,
    pub(crate) duplicates: u64,
}

impl Inbound {
    /// Where the `len` bytes of a message's data land; in slabs at `offset` within a page if nobody has memory for them.
    pub(crate) fn place(
        &self,
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
        if self.reply_kind != Some(header.kind) {
            return slabs;
        }
        match targets.expect(header.tid) {
            Some(room) if room >= len => Place::Target { key: header.tid, at: 0 },
            Some(_) => Place::Discard,
            None if self.discard_unexpected => Place::Discard,
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
