//! PDUs become chains.

use bytes::Bytes;
use segchain::chain::{ChainBuilder, Payload};
use segchain::checksum::Crc32c;
use segchain::framer::Framer;
use segchain::queue::Queued;

use crate::{Bhs, Error, Field, Header, Options};

/// A PDU to send. Its data is any [`Payload`], and leaves from where it is.
///
/// ```
/// use segchain_iscsi::{NopOut, Pdu};
/// let pages: [&[u8]; 2] = [&[1; 4096], &[2; 4096]];
/// let ping = Pdu::new(NopOut { itt: 3, ..NopOut::default() }, &pages[..]);
/// # assert!(ping.ahs.is_empty());
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Pdu<D> {
    /// The header. Its lengths are found when it is framed.
    pub header: Header,
    /// Additional header segments (RFC 7143 section 11.2.2), each padded to a word; mostly none.
    pub ahs: Bytes,
    /// The data, without the pad.
    pub data: D,
}

impl<D> Pdu<D> {
    /// A PDU without additional header segments.
    pub fn new(header: impl Into<Header>, data: D) -> Self {
        Self { header: header.into(), ahs: Bytes::new(), data }
    }
}

impl<D: Payload + Send + 'static> Queued for Pdu<D> {
    /// Its parts, and about what the rest takes.
    fn bytes(&self) -> u64 {
        self.data.len().saturating_add(self.ahs.len() as u64 + 64)
    }
}

/// Frames PDUs: header, header digest, data, pad and data digest, as [`Options`] say.
///
/// It numbers nothing: [`session`](crate::session) does. There is no mark on the wire for a PDU that is given up, so one
/// whose data has half left can only be finished, or the connection closed: revoking it gives
/// [`Revoked::MustClose`](segchain::chain::Revoked::MustClose), or
/// [`Finishing`](segchain::chain::Revoked::Finishing) once the data has left.
///
/// ```
/// use segchain::chain::ChainBuilder;
/// use segchain::framer::Framer;
/// use segchain_iscsi::{NopOut, Options, Pdu, PduFramer};
///
/// let mut framer = PduFramer::new(&Options::new().digests(true, true));
/// let mut out = ChainBuilder::new();
/// framer.frame(Pdu::new(NopOut::default(), &b"ABCDE"[..]), &mut out)?;
/// assert_eq!(out.finish()?.len(), 48 + 4 + 8 + 4);
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct PduFramer {
    options: Options,
}

impl PduFramer {
    /// A framer for a connection, or for the part of it before or after the login.
    pub fn new(options: &Options) -> Self {
        Self { options: options.clone() }
    }
}

impl<D: Payload> Framer<Pdu<D>> for PduFramer {
    type Error = Error;

    /// The pad and both digests, too.
    fn overhead(&self, _: u64) -> u64 {
        (Bhs::LEN + Bhs::MAX_AHS + 4 + 3 + 4) as u64
    }

    fn frame<'m>(&mut self, pdu: Pdu<D>, out: &mut ChainBuilder<'m>) -> Result<(), Error>
    where
        Pdu<D>: 'm,
    {
        let Pdu { header, ahs, data } = pdu;
        let (ahs_len, limit) = (ahs.len() as u64, Bhs::MAX_AHS as u64);
        let offset = Bhs::AHS_LEN_AT as u64;
        if ahs_len > limit {
            return Err(Error::TooLong { field: Field::Ahs, offset, len: ahs_len, limit });
        }
        if !ahs_len.is_multiple_of(4) {
            return Err(Error::AhsUnaligned { offset, len: ahs_len });
        }
        let bhs = out.put(&Bhs::from(header).0);
        out.put(&ahs);
        let end = out.here();
        if self.options.header_digest {
            let digest = out.put(&[0; 4]);
            out.slot(bhs..end, Crc32c::new(), digest);
        }
        let start = out.here();
        data.push_to(out);
        // What was pushed counts, not what the payload says.
        let (len, limit) = (out.len() - start.position(), self.options.max_send.into());
        if len > limit {
            return Err(Error::TooLong { field: Field::Data, offset: 5, len, limit });
        }
        let lengths = (ahs_len as u32 / 4) << 24 | len as u32;
        out.patch(bhs.at(Bhs::AHS_LEN_AT as u64, 4), &lengths.to_be_bytes());
        out.pad_to(4, start);
        if self.options.data_digest && len > 0 {
            let end = out.here();
            let digest = out.put(&[0; 4]);
            out.slot(start..end, Crc32c::new(), digest);
        }
        Ok(out.check()?)
    }
}
