//! Messages and control frames become chains.

use std::sync::Arc;

use segchain::chain::{Abort, ChainBuilder, Mark, Payload};
use segchain::checksum::Crc32c;
use segchain::framer;
use segchain::queue::Queued;

use super::preamble::{Preamble, encode_header};
use super::{
    ABORTED, COMPLETE, CRC, Codec, Control, Error, FLAG_ABORTED, HEADER, Options, Outbound, PREAMBLE,
    SEGMENTS, TAG_MESSAGE,
};
use crate::Message;
use crate::inbound::put_part;
use crate::numbers::Numbers;

/// Frames messages, and numbers them from 1.
///
/// A message that is abandoned half-sent goes on as zeros with right checksums, and its late status tells the peer to drop
/// it: the connection lives (ceph-osd 16.2.15 does; Linux's client closes, as no server ever does that to it). A frame of one
/// segment has no late status in revision 1 and is sent to its end.
///
/// ```
/// use segchain::chain::{ChainBuilder, Outgoing};
/// use segchain::framer::Framer as _;
/// use segchain_ceph::{Header, Message, v2};
///
/// let mut framer = v2::Framer::new(&v2::Options::new());
/// let pages: [&[u8]; 2] = [&[1; 4096], &[2; 4096]];
/// let mut out = ChainBuilder::new();
/// framer.frame(Message::new(Header::new(42), b"front".as_slice().into(), &pages[..]), &mut out)?;
/// let message = Outgoing::new(out.finish()?);
/// assert_eq!((message.len(), framer.last_seq()), (32 + 41 + 4 + 5 + 8192 + 13, 1));
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct Framer {
    codec: Codec,
    pub(super) numbers: Arc<Numbers>,
}

impl Framer {
    /// A framer for a new connection.
    pub fn new(options: &Options) -> Self {
        Self::resume(options, 0)
    }

    /// A framer that goes on behind message number `last`.
    pub fn resume(options: &Options, last: u64) -> Self {
        Self { codec: options.codec, numbers: Arc::new(Numbers::behind(last)) }
    }

    /// The number of the last message framed; 0 if there was none.
    pub fn last_seq(&self) -> u64 {
        self.numbers.sent()
    }

    /// Says which message of the peer was the last to arrive: each message framed from now on acknowledges it. A
    /// [paired](super::Deframer::paired) deframer does so by itself.
    pub fn received(&mut self, seq: u64) {
        self.numbers.set_received(seq);
    }

    /// Checks the number that the peer acknowledges. A paired deframer does so by itself.
    ///
    /// # Errors
    /// [`Error::AckBeyond`] if no message had it yet (ceph PR 2886).
    pub fn check_ack(&self, seq: u64) -> Result<(), Error> {
        self.numbers.check_ack(seq).map_err(|sent| Error::AckBeyond { sent, got: seq })
    }
}

/// Puts a frame together: `first` is segment 0, `rest` adds the others and returns where each of them begins.
fn assemble<'m>(
    codec: Codec,
    tag: u8,
    first: &[u8],
    out: &mut ChainBuilder<'m>,
    rest: impl FnOnce(&mut ChainBuilder<'m>) -> [Mark; SEGMENTS - 1],
) -> Result<(), Error> {
    let seed = || Crc32c::raw(!0);
    let preamble = out.put(&[0; PREAMBLE]);
    let header = out.put(first);
    let header_end = out.here();
    let first_crc = out.put(&[0; CRC][..codec.first_crc_len(first.len())]);
    let [front, middle, data] = rest(out);
    let segments = [header..header_end, front..middle, middle..data, data..out.here()];

    let lens = segments.each_ref().map(|cover| cover.end.position() - cover.start.position());
    let (Preamble { count, .. }, wire) = Preamble::encode(tag, lens)?;
    let crc_at = preamble.at(wire.len() as u64, CRC as u64);
    out.patch(preamble.at(0, wire.len() as u64), &wire);
    out.slot(preamble..crc_at, Crc32c::raw(0), crc_at);

    let (complete, aborted) = match codec {
        Codec::CrcRev0 => (0, FLAG_ABORTED),
        Codec::CrcRev1 => (COMPLETE, ABORTED),
    };
    let epilogue = out.put(&[0; 1 + SEGMENTS * CRC][..codec.epilogue_len(count)]);
    let mut crc_in_epilogue = 1;
    for (index, cover) in segments.into_iter().enumerate().take(count) {
        if index >= codec.first_in_epilogue() {
            // An empty segment that is there has the seed for a checksum, one that is not there 0.
            out.slot(cover, seed(), epilogue.at(crc_in_epilogue, CRC as u64));
            crc_in_epilogue += CRC as u64;
        } else if !first.is_empty() {
            out.slot(cover, seed(), first_crc);
        }
    }
    if codec.epilogue_len(count) > 0 {
        let status = epilogue.at(0, 1);
        out.patch(status, &[complete]);
        out.on_abort(Abort::Patch { at: status, bytes: &[aborted] });
    } else {
        out.on_abort(Abort::Finish);
    }
    Ok(out.check()?)
}

impl<D: Payload> framer::Framer<Message<D>> for Framer {
    type Error = Error;

    fn overhead(&self, _: u64) -> u64 {
        (PREAMBLE + HEADER + CRC + 1 + SEGMENTS * CRC) as u64
    }

    /// An osd accepts a gap in the numbers (measured against ceph-osd 16.2.15).
    fn accepts_gap(&self) -> bool {
        true
    }

    fn frame<'m>(&mut self, message: Message<D>, out: &mut ChainBuilder<'m>) -> Result<(), Error>
    where
        Message<D>: 'm,
    {
        let Message { header, front, middle, data, .. } = message;
        let (seq, received) = (self.last_seq().wrapping_add(1), self.numbers.received());
        assemble(self.codec, TAG_MESSAGE, &encode_header(&header, seq, received), out, |out| {
            let starts = [put_part(out, front), put_part(out, middle), out.here()];
            data.push_to(out);
            starts
        })?;
        self.numbers.set_sent(seq);
        Ok(())
    }
}

impl framer::Framer<Control> for Framer {
    type Error = Error;

    fn overhead(&self, len: u64) -> u64 {
        framer::Framer::<Message<()>>::overhead(self, len)
    }

    /// A control frame has no number.
    fn accepts_gap(&self) -> bool {
        true
    }

    fn frame<'m>(&mut self, message: Control, out: &mut ChainBuilder<'m>) -> Result<(), Error>
    where
        Control: 'm,
    {
        assemble(self.codec, message.tag(), &message.encode(), out, |out| [out.here(); SEGMENTS - 1])
    }
}

impl Queued for Control {
    /// Most are far shorter.
    fn bytes(&self) -> u64 {
        256
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
