//! Bytes become PDUs.

use bytes::Bytes;
use segchain::checksum::{Checksum as _, Crc32c, Digest};
use segchain::framer::{BodyReq, Deframer, Filled, Landed, Place, Step, Targets};

use crate::{Bhs, Data, DataIn, DataOut, Error, Field, Incoming, NopIn, NopOut, Options};

/// Takes a connection's PDUs apart.
///
/// The data of Data-In and Data-Out goes into the caller's memory if the [`Targets`] have some for the initiator task
/// tag, at the PDU's buffer offset, that of pings and of tasks without a target into slabs, all else into one piece.
/// Digests run as the bytes land. A header's digest is checked before anything in it is believed but the length of
/// the header itself, which is at most 1068 bytes; the receiver's read-ahead has to be longer than that, as it is unless
/// set.
///
/// ```
/// use std::io::Write;
/// use segchain::recv::Receiver;
/// use segchain::transport::SocketRef;
/// use segchain_iscsi::{Header, Options, PduDeframer};
///
/// # let (mut peer, socket) = std::os::unix::net::UnixStream::pair()?;
/// let mut logout = [0; 48];
/// logout[..2].copy_from_slice(&[0x26, 0x80]);
/// peer.write_all(&logout)?;
/// let mut receiver = Receiver::new(SocketRef::new(socket), PduDeframer::new(&Options::new()));
/// let header = receiver.next(&mut (), None, |pdu| pdu.header())?;
/// assert!(matches!(header, Some(Header::LogoutResponse(response)) if response.response == 0));
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct PduDeframer {
    options: Options,
    open: Option<Open>,
}

/// A PDU whose data is arriving.
#[derive(Debug)]
struct Open {
    pdu: Incoming,
    digest: Option<Digest>,
}

impl PduDeframer {
    /// A deframer at the start of a PDU.
    pub fn new(options: &Options) -> Self {
        Self { options: options.clone(), open: None }
    }

    fn header(&mut self, head: &[u8], targets: &mut dyn Targets) -> Result<Step<Incoming>, Error> {
        let Some(bhs) = head.first_chunk().copied().map(Bhs) else { return Ok(Step::Need(Bhs::LEN)) };
        if !self.options.header_digest {
            self.check_lengths(&bhs)?;
        }
        let end = Bhs::LEN + bhs.ahs_len();
        let start = end + if self.options.header_digest { 4 } else { 0 };
        let (Some(header), Some(digest)) = (head.get(..end), head.get(end..start)) else {
            return Ok(Step::Need(start));
        };
        if let Some(digest) = digest.first_chunk() {
            let mut crc = Crc32c::new();
            crc.update(header);
            check(Field::Header, end as u64, *digest, crc.value())?;
            self.check_lengths(&bhs)?;
        }
        let (ahs, len) = (&header[Bhs::LEN..], u64::from(bhs.data_len()));
        let pdu =
            Incoming { bhs, ahs: Bytes::copy_from_slice(ahs), data_offset: start as u64, data: Data::None };
        if len == 0 {
            return Ok(Step::Frame { frame: pdu, head: start });
        }
        let req = BodyReq::new(len, place(&bhs, targets));
        let req = if self.options.data_digest { req.digest(Crc32c::new()) } else { req };
        self.open = Some(Open { pdu, digest: None });
        Ok(Step::Body { head: start, req })
    }

    fn check_lengths(&self, bhs: &Bhs) -> Result<(), Error> {
        fits(Field::Ahs, Bhs::AHS_LEN_AT, bhs.ahs_len() as u64, self.options.ahs_limit)?;
        fits(Field::Data, Bhs::DATA_LEN_AT, bhs.data_len().into(), self.options.max_recv)
    }
}

/// Where a PDU's data lands.
fn place(bhs: &Bhs, targets: &mut dyn Targets) -> Place {
    let len = u64::from(bhs.data_len());
    match bhs.opcode() {
        DataIn::OPCODE | DataOut::OPCODE => {
            let (key, at) = (bhs.itt().into(), bhs.u32_at(40).into());
            match targets.expect(key) {
                Some(room) if at + len <= room => Place::Target { key, at },
                Some(_) => Place::Discard,
                None => Place::Slabs { offset: 0 },
            }
        }
        NopIn::OPCODE | NopOut::OPCODE | crate::ScsiCommand::OPCODE => Place::Slabs { offset: 0 },
        _ => Place::Contiguous,
    }
}

impl Deframer for PduDeframer {
    type Frame<'h> = Incoming;
    type Error = Error;

    fn decode(&mut self, head: &[u8], targets: &mut dyn Targets) -> Result<Step<Incoming>, Error> {
        let Some(open) = &self.open else { return self.header(head, targets) };
        let len = open.pdu.bhs.data_len() as usize;
        let pad = len.next_multiple_of(4) - len;
        let used = pad + if self.options.data_digest { 4 } else { 0 };
        let (Some(trailer), Some(open)) = (head.get(..used), self.open.take_if(|_| head.len() >= used))
        else {
            return Ok(Step::Need(used));
        };
        if let (Some(mut crc), Some(digest)) = (open.digest, trailer[pad..].first_chunk()) {
            crc.update(&trailer[..pad]);
            let end = open.pdu.data_offset + (len + pad) as u64;
            check(Field::Data, end, *digest, crc.value().unwrap_or(0))?;
        }
        Ok(Step::Frame { frame: open.pdu, head: used })
    }

    fn body(&mut self, piece: Filled) -> Result<(), Error> {
        let Some(Open { pdu, digest, .. }) = &mut self.open else { return Ok(()) };
        *digest = piece.sum;
        pdu.data = match piece.landed {
            Landed::Contiguous(bytes) => Data::Bytes(bytes),
            Landed::Slabs(slabs) => Data::Slabs(slabs),
            Landed::Target { whole, .. } => Data::Target { len: piece.len, whole },
            _ => Data::Discarded { len: piece.len },
        };
        Ok(())
    }

    fn awaiting(&self) -> &'static str {
        match &self.open {
            None => "header",
            Some(Open { pdu, .. }) if pdu.data.is_empty() => "data",
            Some(_) => "pad and data digest",
        }
    }
}

fn check(field: Field, offset: u64, digest: [u8; 4], got: u32) -> Result<(), Error> {
    let expected = u32::from_le_bytes(digest);
    if expected == got { Ok(()) } else { Err(Error::Digest { field, offset, expected, got }) }
}

fn fits(field: Field, offset: usize, len: u64, limit: u32) -> Result<(), Error> {
    let (offset, limit) = (offset as u64, limit.into());
    if len <= limit { Ok(()) } else { Err(Error::TooLong { field, offset, len, limit }) }
}
