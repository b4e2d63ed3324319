//! Messages and control frames become chains.

use std::sync::Arc;

use segchain::chain::{Abort, ChainBuilder, Payload};
use segchain::checksum::Crc32c;
use segchain::framer;
use segchain::queue::Queued;

use super::{
    COMPLETE, Error, FOOTER, Field, HEADER, LENGTHS, NOCRC, Options, Outbound, SIGNED, TAG_ACK, TAG_CLOSE,
    TAG_KEEPALIVE, TAG_KEEPALIVE2, TAG_KEEPALIVE2_ACK, TAG_MSG,
};
use crate::inbound::put_part;
use crate::numbers::Numbers;
use crate::wire::fields;
use crate::{Header, Message, Stamp};

/// What travels between messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Control {
    /// Every message up to this number has arrived.
    Ack(u64),
    /// The sender is alive (before Ceph 0.80).
    Keepalive,
    /// The sender is alive, and asks for the stamp back.
    Keepalive2(Stamp),
    /// The answer, with the same stamp.
    Keepalive2Ack(Stamp),
    /// The sender closes.
    Close,
}

/// Frames messages, and numbers them from 1.
///
/// ```
/// use segchain::chain::{ChainBuilder, Outgoing};
/// use segchain::framer::Framer as _;
/// use segchain_ceph::{Header, Message, v1};
///
/// let mut framer = v1::Framer::new(&v1::Options::new());
/// let pages: [&[u8]; 2] = [&[1; 4096], &[2; 4096]];
/// let mut out = ChainBuilder::new();
/// framer.frame(Message::new(Header::new(42), b"front".as_slice().into(), &pages[..]), &mut out)?;
/// let message = Outgoing::new(out.finish()?);
/// assert_eq!((message.len(), framer.last_seq()), (75 + 5 + 8192, 1));
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct Framer {
    options: Options,
    pub(super) numbers: Arc<Numbers>,
}

impl Framer {
    /// A framer for a new connection.
    pub fn new(options: &Options) -> Self {
        Self::resume(options, 0)
    }

    /// A framer that goes on behind message number `last`.
    pub fn resume(options: &Options, last: u64) -> Self {
        Self { options: options.clone(), numbers: Arc::new(Numbers::behind(last)) }
    }

    /// The number of the last message framed; 0 if there was none.
    pub fn last_seq(&self) -> u64 {
        self.numbers.sent()
    }

    /// Checks the number that the peer acknowledges. A [paired](super::Deframer::paired) deframer does so by itself.
    ///
    /// # Errors
    /// [`Error::AckBeyond`] if no message had it yet (ceph PR 2886).
    pub fn check_ack(&self, seq: u64) -> Result<(), Error> {
        self.numbers.check_ack(seq).map_err(|sent| Error::AckBeyond { sent, got: seq })
    }
}

impl<D: Payload> framer::Framer<Message<D>> for Framer {
    type Error = Error;

    fn overhead(&self, _: u64) -> u64 {
        (1 + HEADER + FOOTER) as u64
    }

    /// An osd accepts a gap in the numbers (measured against ceph-osd 16.2.15).
    fn accepts_gap(&self) -> bool {
        true
    }

    fn frame<'m>(&mut self, message: Message<D>, out: &mut ChainBuilder<'m>) -> Result<(), Error>
    where
        Message<D>: 'm,
    {
        let Message { header, front, middle, data, signature } = message;
        let seq = self.last_seq().wrapping_add(1);
        out.put_u8(TAG_MSG);
        let head = out.put(&encode(&header, seq));
        let front = put_part(out, front);
        let middle = put_part(out, middle);
        let data_at = out.here();
        data.push_to(out);
        let end = out.here();

        let nocrc = if self.options.crc_data { 0 } else { NOCRC };
        let flags = COMPLETE | nocrc | signature.map_or(0, |_| SIGNED);
        let crcs = out.put(&[0; 12]);
        if self.options.long_footer {
            out.put_u64_le(signature.unwrap_or(0));
        }
        let flags_at = out.put_u8(flags);
        if self.options.peer_skips_incomplete {
            out.on_abort(Abort::Patch { at: flags_at, bytes: &[flags & !COMPLETE] });
        }

        let Options { crc_header, crc_data, .. } = self.options;
        if crc_header {
            out.slot(head..head.at(49, 4), Crc32c::raw(0), head.at(49, 4));
        }
        let parts = [
            (Field::Front, front..middle, crc_header),
            (Field::Middle, middle..data_at, crc_header),
            (Field::Data, data_at..end, crc_data),
        ];
        for (index, (field, cover, crc)) in (0..).zip(parts) {
            let len = cover.end.position() - cover.start.position();
            let limit = u32::MAX;
            let wire = u32::try_from(len).map_err(|_| Error::TooLong {
                field,
                offset: LENGTHS + 4 * index,
                len,
                limit: limit.into(),
            })?;
            out.patch(head.at(LENGTHS - 1 + 4 * index, 4), &wire.to_le_bytes());
            if crc && len > 0 {
                out.slot(cover, Crc32c::raw(0), crcs.at(4 * index, 4));
            }
        }
        out.check()?;
        self.numbers.set_sent(seq);
        Ok(())
    }
}

/// The header, with neither lengths nor checksum yet.
fn encode(header: &Header, seq: u64) -> [u8; HEADER] {
    fields(&[
        &seq.to_le_bytes(),
        &header.tid.to_le_bytes(),
        &header.kind.to_le_bytes(),
        &header.priority.to_le_bytes(),
        &header.version.to_le_bytes(),
        &[0; 12],
        &header.data_off.to_le_bytes(),
        &[header.src.kind],
        &header.src.num.to_le_bytes(),
        &header.compat_version.to_le_bytes(),
        &header.reserved.to_le_bytes(),
        &[0; 4],
    ])
}

impl Queued for Control {
    fn bytes(&self) -> u64 {
        9
    }
}

impl<D: Payload> framer::Framer<Outbound<D>> for Framer {
    type Error = Error;

    fn overhead(&self, len: u64) -> u64 {
        framer::Framer::<Message<D>>::overhead(self, len)
    }

    fn accepts_gap(&self) -> bool {
        framer::Framer::<Message<D>>::accepts_gap(self)
    }

    fn frame<'m>(&mut self, message: Outbound<D>, out: &mut ChainBuilder<'m>) -> Result<(), Error>
    where
        Outbound<D>: 'm,
    {
        match message {
            Outbound::Message(message) => self.frame(message, out),
            Outbound::Control(control) => self.frame(control, out),
        }
    }
}

impl framer::Framer<Control> for Framer {
    type Error = Error;

    fn overhead(&self, _: u64) -> u64 {
        9
    }

    /// A control frame has no number.
    fn accepts_gap(&self) -> bool {
        true
    }

    fn frame<'m>(&mut self, message: Control, out: &mut ChainBuilder<'m>) -> Result<(), Error>
    where
        Control: 'm,
    {
        let mut stamp = |tag, stamp: Stamp| {
            out.put_u8(tag);
            out.put_u32_le(stamp.sec);
            out.put_u32_le(stamp.nsec);
        };
        match message {
            Control::Keepalive2(at) => stamp(TAG_KEEPALIVE2, at),
            Control::Keepalive2Ack(at) => stamp(TAG_KEEPALIVE2_ACK, at),
            Control::Keepalive => drop(out.put_u8(TAG_KEEPALIVE)),
            Control::Close => drop(out.put_u8(TAG_CLOSE)),
            Control::Ack(seq) => {
                out.put_u8(TAG_ACK);
                out.put_u64_le(seq);
            }
        }
        Ok(out.check()?)
    }
}
