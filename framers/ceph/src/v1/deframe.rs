//! Bytes become messages and control frames.

use std::sync::Arc;

use bytes::Bytes;
use segchain::checksum::{Checksum as _, Crc32c, Digest};
use segchain::framer::{self, BodyReq, Filled, Place, Step, Targets};

use super::{
    COMPLETE, Control, Error, Field, Framer, HEADER, LENGTHS, NOCRC, Options, SIGNED, TAG_ACK, TAG_CLOSE,
    TAG_KEEPALIVE, TAG_KEEPALIVE2, TAG_KEEPALIVE2_ACK, TAG_MSG,
};
use crate::inbound::Arrived;
use crate::numbers::Numbers;
use crate::wire::{u16_at, u32_at, u64_at};
use crate::{Data, EntityName, Header, Incoming, Stamp};

/// What comes in on an open connection.
#[derive(Debug)]
#[non_exhaustive]
pub enum Frame {
    /// A message, whole and checked.
    Message(Incoming),
    /// What travels between messages.
    Control(Control),
}

/// Takes the frames of an open connection apart.
///
/// The data of a reply ([`Options::reply_kind`]) goes into the caller's memory if the [`Targets`] have some for its tid,
/// that of other messages into slabs, at the sender's `data_off` within a page. Checksums run as the bytes land. A
/// message whose number is not above the last one's has come before and is dropped, as Ceph does; a gap is no error.
///
/// ```
/// use std::io::Write;
/// use segchain::recv::Receiver;
/// use segchain::transport::SocketRef;
/// use segchain_ceph::v1::{Control, Deframer, Frame, Options};
///
/// # let (mut peer, socket) = std::os::unix::net::UnixStream::pair()?;
/// peer.write_all(&[8, 3, 0, 0, 0, 0, 0, 0, 0])?;
/// let mut receiver = Receiver::new(SocketRef::new(socket), Deframer::new(&Options::new()));
/// let frame = receiver.next(&mut (), None, |frame| frame)?;
/// assert!(matches!(frame, Some(Frame::Control(Control::Ack(3)))));
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct Deframer {
    options: Options,
    arrived: Arrived,
    /// Those of the other half, if it is known.
    numbers: Option<Arc<Numbers>>,
    open: Option<Open>,
}

/// A message that is arriving.
#[derive(Debug)]
struct Open {
    message: Incoming,
    /// Of front, middle and data.
    lens: [u32; 3],
    /// What the bytes of these give.
    crcs: [u32; 3],
    /// What comes next: 0 to 2 is a part that is not empty, 3 the footer.
    part: usize,
}

const PARTS: [Field; 3] = [Field::Front, Field::Middle, Field::Data];

impl Deframer {
    /// A deframer for a new connection.
    pub fn new(options: &Options) -> Self {
        Self::resume(options, 0)
    }

    /// A deframer that goes on behind message number `last`.
    pub fn resume(options: &Options, last: u64) -> Self {
        let arrived = Arrived::behind(last);
        Self { options: options.clone(), arrived, numbers: None, open: None }
    }

    /// Goes together with `framer`, the other half of this connection, wherever that is: in a queue, or in another thread.
    /// What the peer acknowledges is checked against what was framed.
    ///
    /// ```
    /// use segchain_ceph::v1::{Deframer, Framer, Options};
    /// let framer = Framer::new(&Options::new());
    /// let deframer = Deframer::new(&Options::new()).paired(&framer);
    /// # let _ = deframer;
    /// ```
    #[must_use]
    pub fn paired(mut self, framer: &Framer) -> Self {
        self.numbers = Some(framer.numbers.clone());
        self
    }

    /// The number of the last message received: what [`Control::Ack`] and a reconnect tell the peer.
    pub fn last_seq(&self) -> u64 {
        self.arrived.last_seq
    }

    /// How many messages were dropped because they had come before.
    pub fn duplicates(&self) -> u64 {
        self.arrived.duplicates
    }

    fn control(&self, head: &[u8], tag: u8) -> Result<Step<Frame>, Error> {
        let (frame, used) = match (tag, head.get(1..9)) {
            (TAG_KEEPALIVE, _) => (Control::Keepalive, 1),
            (TAG_CLOSE, _) => (Control::Close, 1),
            (TAG_ACK | TAG_KEEPALIVE2 | TAG_KEEPALIVE2_ACK, None) => return Ok(Step::Need(9)),
            (TAG_ACK, Some(seq)) => (Control::Ack(u64_at(seq, 0)), 9),
            (TAG_KEEPALIVE2, Some(at)) => (Control::Keepalive2(Stamp::new(u32_at(at, 0), u32_at(at, 4))), 9),
            (TAG_KEEPALIVE2_ACK, Some(at)) => {
                (Control::Keepalive2Ack(Stamp::new(u32_at(at, 0), u32_at(at, 4))), 9)
            }
            _ => return Err(Error::Tag { got: tag }),
        };
        if let (Control::Ack(got), Some(numbers)) = (frame, &self.numbers) {
            numbers.check_ack(got).map_err(|sent| Error::AckBeyond { sent, got })?;
        }
        Ok(Step::Frame { frame: Frame::Control(frame), head: used })
    }

    /// Checks a header: its checksum first, then each length against its limit.
    fn header(&self, head: &[u8]) -> Result<Open, Error> {
        let (wire, offset) = (&head[1..], HEADER - 4);
        if self.options.crc_header {
            let mut crc = Crc32c::raw(0);
            crc.update(&wire[..offset]);
            check(Field::Header, 1 + offset as u64, u32_at(wire, offset), crc.value())?;
        }
        let lens = [22, 26, 30].map(|at| u32_at(wire, at));
        for (index, (len, limit)) in lens.into_iter().zip(self.options.inbound.limits).enumerate() {
            if len > limit {
                let (field, offset) = (PARTS[index], LENGTHS + 4 * index as u64);
                return Err(Error::TooLong { field, offset, len: len.into(), limit: limit.into() });
            }
        }
        let header = Header {
            tid: u64_at(wire, 8),
            kind: u16_at(wire, 16),
            priority: u16_at(wire, 18),
            version: u16_at(wire, 20),
            data_off: u16_at(wire, 34),
            src: EntityName::new(wire[36], u64_at(wire, 37).cast_signed()),
            compat_version: u16_at(wire, 45),
            reserved: u16_at(wire, 47),
        };
        let (front, middle, data) = (Bytes::new(), Bytes::new(), Data::None);
        let message =
            Incoming { seq: u64_at(wire, 0), header, front, middle, data, signature: None, acked: 0 };
        Ok(Open { message, lens, crcs: [0; 3], part: 0 }.at_part(0))
    }

    fn footer(&mut self, open: Open, wire: &[u8]) -> Result<Step<Frame>, Error> {
        let Open { mut message, lens, crcs, .. } = open;
        let start = 1 + HEADER as u64 + lens.map(u64::from).iter().sum::<u64>();
        let head = wire.len();
        let flags = wire[head - 1];
        if flags & COMPLETE == 0 {
            let offset = start + head as u64 - 1;
            let skip = self.options.skip_incomplete;
            return if skip {
                Ok(Step::Dropped { head })
            } else {
                Err(Error::Incomplete { offset, got: flags })
            };
        }
        let Options { crc_header, crc_data, .. } = self.options;
        for (index, on) in [crc_header, crc_header, crc_data && flags & NOCRC == 0].into_iter().enumerate() {
            if on {
                let at = 4 * index;
                check(PARTS[index], start + at as u64, u32_at(wire, at), crcs[index])?;
            }
        }
        if !self.arrived.take(message.seq) {
            return Ok(Step::Dropped { head });
        }
        message.signature = (self.options.long_footer && flags & SIGNED != 0).then(|| u64_at(wire, 12));
        Ok(Step::Frame { frame: Frame::Message(message), head })
    }
}

impl Open {
    /// Goes to `part`, or to the next one that is not empty.
    fn at_part(mut self, part: usize) -> Self {
        self.part = (part..3).find(|part| self.lens[*part] > 0).unwrap_or(3);
        self
    }
}

impl framer::Deframer for Deframer {
    type Frame<'h> = Frame;
    type Error = Error;

    fn decode(&mut self, head: &[u8], targets: &mut dyn Targets) -> Result<Step<Frame>, Error> {
        let Some(open) = &self.open else {
            return match head {
                [] => Ok(Step::Need(1)),
                [TAG_MSG, wire @ ..] if wire.len() < HEADER => Ok(Step::Need(1 + HEADER)),
                [TAG_MSG, ..] => {
                    self.open = Some(self.header(head)?);
                    Ok(Step::Used(1 + HEADER))
                }
                [tag, ..] => self.control(head, *tag),
            };
        };
        if open.part < 3 {
            let len = open.lens[open.part].into();
            let place = match PARTS[open.part] {
                Field::Data => {
                    let offset = open.message.header.data_off.into();
                    self.arrived.place(&self.options.inbound, &open.message, len, offset, targets)
                }
                _ => Place::Contiguous,
            };
            let on = if open.part == 2 { self.options.crc_data } else { self.options.crc_header };
            let req = BodyReq::new(len, place);
            let req = if on { req.digest(Crc32c::raw(0)) } else { req };
            return Ok(Step::Body { head: 0, req });
        }
        let len = self.options.footer_len();
        match (head.get(..len), self.open.take_if(|_| head.len() >= len)) {
            (Some(footer), Some(open)) => self.footer(open, footer),
            _ => Ok(Step::Need(len)),
        }
    }

    fn body(&mut self, piece: Filled) -> Result<(), Error> {
        let Some(mut open) = self.open.take() else { return Ok(()) };
        let Some(crc) = open.crcs.get_mut(open.part) else { return Ok(()) };
        *crc = piece.sum.as_ref().and_then(Digest::value).unwrap_or(0);
        open.message.land(open.part, piece);
        let next = open.part + 1;
        self.open = Some(open.at_part(next));
        Ok(())
    }

    fn awaiting(&self) -> &'static str {
        let part = self.open.as_ref().map(|open| PARTS.get(open.part).map_or("footer", |part| part.name()));
        part.unwrap_or("header")
    }
}

fn check(field: Field, offset: u64, expected: u32, got: u32) -> Result<(), Error> {
    if expected == got { Ok(()) } else { Err(Error::Crc { field, offset, expected, got }) }
}
