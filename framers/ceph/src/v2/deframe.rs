//! Bytes become messages and control frames.

use std::sync::Arc;

use segchain::checksum::{Checksum as _, Crc32c, Digest};
use segchain::framer::{self, BodyReq, Filled, Place, Step, Targets};

use super::preamble::{Preamble, check, decode_header};
use super::{Control, Error, Field, Framer, Options, PREAMBLE, SEGMENTS, TAG_MESSAGE};
use crate::Incoming;
use crate::inbound::Arrived;
use crate::numbers::Numbers;
use crate::wire::u32_at;

/// What comes in on a connection.
#[derive(Debug)]
#[non_exhaustive]
pub enum Frame {
    /// A message, whole and checked.
    Message(Incoming),
    /// Any other frame.
    Control(Control),
    /// A frame that its sender gave up half-way, whole and checked, and of no meaning.
    Aborted {
        /// Its tag; 17 is a message.
        tag: u8,
        /// The tid of a message: a target of this tid may hold zeros, or part of what was meant for it.
        tid: Option<u64>,
    },
}

/// Takes the frames of a connection apart.
///
/// The data of a reply ([`Options::reply_kind`]) goes into the caller's memory if the [`Targets`] have some for its tid,
/// that of other messages into slabs, from a page's start on. That honours every alignment that a segment may ask for and
/// that is a power of two up to 4096; others do no harm (ceph PRs 18475 and 41143). Checksums run as the bytes land.
///
/// A message whose number is not above the last one's has come before and is dropped, as Ceph does; a gap is no error. In
/// revision 0 the header's checksum comes last: should it be wrong, data may have gone into another tid's target, but there
/// is no stream any more from which that one could be filled.
///
/// ```
/// use std::io::Write;
/// use segchain::recv::Receiver;
/// use segchain::transport::SocketRef;
/// use segchain_ceph::v2::{Control, Deframer, Frame, Options};
///
/// # let (mut peer, socket) = std::os::unix::net::UnixStream::pair()?;
/// peer.write_all(&[20, 1, 8, 0, 0, 0, 8, 0])?; // tag, one segment, its length, its alignment
/// peer.write_all(&[0; 20])?; // three segments that are not there, and two reserved bytes
/// peer.write_all(&[0x73, 0x74, 0xbc, 0x5b])?; // the preamble's checksum
/// peer.write_all(&[3, 0, 0, 0, 0, 0, 0, 0, 0x1c, 0xca, 0x93, 0xa8])?; // the segment, and its checksum
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
    aborted: u64,
    open: Option<Open>,
}

/// A message that is arriving.
#[derive(Debug)]
struct Open {
    message: Incoming,
    preamble: Preamble,
    /// What the segments' bytes give.
    crcs: [u32; SEGMENTS],
    /// The segment that comes next, which is not empty; the count of them if it is the epilogue.
    segment: usize,
}

impl Deframer {
    /// A deframer for a new connection.
    pub fn new(options: &Options) -> Self {
        Self::resume(options, 0)
    }

    /// A deframer that goes on behind message number `last`.
    pub fn resume(options: &Options, last: u64) -> Self {
        let arrived = Arrived::behind(last);
        Self { options: options.clone(), arrived, numbers: None, aborted: 0, open: None }
    }

    /// Goes together with `framer`, the other half of this connection, wherever that is: in a queue, or in another thread.
    /// What the peer acknowledges is checked against what was framed, and every message framed from now on acknowledges what
    /// has arrived.
    ///
    /// ```
    /// use segchain_ceph::v2::{Deframer, Framer, Options};
    /// let framer = Framer::new(&Options::new());
    /// let deframer = Deframer::new(&Options::new()).paired(&framer);
    /// # let _ = deframer;
    /// ```
    #[must_use]
    pub fn paired(mut self, framer: &Framer) -> Self {
        self.numbers = Some(framer.numbers.clone());
        self
    }

    /// The number of the last message received: what [`Control::Ack`] and every message of ours tell the peer.
    pub fn last_seq(&self) -> u64 {
        self.arrived.last_seq
    }

    /// How many messages were dropped because they had come before.
    pub fn duplicates(&self) -> u64 {
        self.arrived.duplicates
    }

    /// How many frames their senders gave up.
    pub fn aborted(&self) -> u64 {
        self.aborted
    }

    /// The preamble and segment 0, and all of a frame that has no more.
    fn begin(&mut self, head: &[u8]) -> Result<Step<Frame>, Error> {
        let Some(wire) = head.first_chunk() else { return Ok(Step::Need(PREAMBLE)) };
        let preamble = Preamble::decode(wire, &self.options)?;
        let Preamble { tag, count, lens } = preamble;
        let codec = self.options.codec;
        let end = PREAMBLE + lens[0] as usize;
        let more = codec.first_crc_len(lens[0] as usize);
        let epilogue = if count == 1 { codec.epilogue_len(1) } else { 0 };
        let len = end + more + epilogue;
        let Some(frame) = head.get(..len) else { return Ok(Step::Need(len)) };

        let segment = &frame[PREAMBLE..end];
        let mut crc = Crc32c::raw(!0);
        crc.update(segment);
        let mut crcs = [!0; SEGMENTS];
        crcs[0] = crc.value();
        if more > 0 {
            check(Field::of(tag, 0), end as u64, u32_at(frame, end), crcs[0])?;
        }
        if tag == TAG_MESSAGE {
            let open = Open { message: decode_header(segment), preamble, crcs, segment: 0 }.at_segment(1);
            if count == 1 {
                return self.finish(open, &frame[end + more..], len);
            }
            self.open = Some(open);
            return Ok(Step::Used(len));
        }
        if preamble.is_complete(codec, &crcs, &frame[end + more..])? {
            let control = Control::decode(tag, segment)?;
            if let Control::Ack(seq) = control {
                self.check_ack(seq)?;
            }
            return Ok(Step::Frame { frame: Frame::Control(control), head: len });
        }
        self.aborted += 1;
        Ok(Step::Frame { frame: Frame::Aborted { tag, tid: None }, head: len })
    }

    /// A message that is whole once its epilogue is right.
    fn finish(&mut self, open: Open, epilogue: &[u8], head: usize) -> Result<Step<Frame>, Error> {
        let Open { message, preamble, crcs, .. } = open;
        if !preamble.is_complete(self.options.codec, &crcs, epilogue)? {
            self.aborted += 1;
            let (tag, tid) = (preamble.tag, Some(message.header.tid));
            return Ok(Step::Frame { frame: Frame::Aborted { tag, tid }, head });
        }
        self.check_ack(message.acked)?;
        if !self.arrived.take(message.seq) {
            return Ok(Step::Dropped { head });
        }
        if let Some(numbers) = &self.numbers {
            numbers.set_received(message.seq);
        }
        Ok(Step::Frame { frame: Frame::Message(message), head })
    }

    fn check_ack(&self, got: u64) -> Result<(), Error> {
        let Some(numbers) = &self.numbers else { return Ok(()) };
        numbers.check_ack(got).map_err(|sent| Error::AckBeyond { sent, got })
    }
}

impl framer::Deframer for Deframer {
    type Frame<'h> = Frame;
    type Error = Error;

    fn decode(&mut self, head: &[u8], targets: &mut dyn Targets) -> Result<Step<Frame>, Error> {
        let Some(open) = &self.open else { return self.begin(head) };
        let Preamble { count, lens, .. } = open.preamble;
        if open.segment < count {
            let len = lens[open.segment].into();
            let place = match open.segment {
                3 => self.arrived.place(&self.options.inbound, &open.message, len, 0, targets),
                _ => Place::Contiguous,
            };
            return Ok(Step::Body { head: 0, req: BodyReq::new(len, place).digest(Crc32c::raw(!0)) });
        }
        let len = self.options.codec.epilogue_len(count);
        match (head.get(..len), self.open.take_if(|_| head.len() >= len)) {
            (Some(epilogue), Some(open)) => self.finish(open, epilogue, len),
            _ => Ok(Step::Need(len)),
        }
    }

    fn body(&mut self, piece: Filled) -> Result<(), Error> {
        let Some(mut open) = self.open.take() else { return Ok(()) };
        let Some(crc) = open.crcs.get_mut(open.segment) else { return Ok(()) };
        *crc = piece.sum.as_ref().and_then(Digest::value).unwrap_or(0);
        open.message.land(open.segment - 1, piece);
        let next = open.segment + 1;
        self.open = Some(open.at_segment(next));
        Ok(())
    }

    fn awaiting(&self) -> &'static str {
        match &self.open {
            None => "preamble and first segment",
            Some(open) if open.segment < open.preamble.count => Field::of(TAG_MESSAGE, open.segment).name(),
            Some(_) => "epilogue",
        }
    }
}

impl Open {
    /// Goes to `segment`, or to the next one that is not empty.
    fn at_segment(mut self, segment: usize) -> Self {
        let Preamble { count, lens, .. } = self.preamble;
        self.segment = (segment..count).find(|segment| lens[*segment] > 0).unwrap_or(count);
        self
    }
}
