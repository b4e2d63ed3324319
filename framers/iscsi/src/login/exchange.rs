//! What both sides of a login have in common: PDUs without digests, and texts that are longer than one PDU.

use segchain::chain::ChainBuilder;
use segchain::framer::{Deframer, Filled, Framer, Step};

use super::{Error, MAX_TEXT, MAX_TURNS};
use crate::{Error as PduError, Header, Incoming, Options, Pdu, PduDeframer, PduFramer};

/// One side's texts, coming and going.
#[derive(Debug)]
pub(super) struct Exchange {
    deframer: PduDeframer,
    /// What has come of the other side's text.
    text: Vec<u8>,
    /// Bytes of all its texts.
    taken: u64,
    /// What has not left of ours.
    unsent: Vec<u8>,
    turns: u32,
}

impl Exchange {
    pub(super) fn new() -> Self {
        let deframer = PduDeframer::new(&Options::new().ahs_limit(0));
        Self { deframer, text: Vec::new(), taken: 0, unsent: Vec::new(), turns: 0 }
    }

    /// Login PDUs of the other side.
    pub(super) fn decode(&mut self, head: &[u8]) -> Result<Step<Incoming>, Error> {
        Ok(self.deframer.decode(head, &mut ())?)
    }

    pub(super) fn body(&mut self, piece: Filled) -> Result<(), PduError> {
        self.deframer.body(piece)
    }

    /// Counts a PDU and keeps its text; all of it, once there is no more to come.
    pub(super) fn take(&mut self, pdu: &Incoming, more: bool) -> Result<Option<Vec<u8>>, Error> {
        self.turns += 1;
        if self.turns > MAX_TURNS {
            return Err(Error::TooManyTurns { limit: MAX_TURNS });
        }
        self.taken += pdu.data.len();
        if self.taken > MAX_TEXT as u64 {
            return Err(Error::TextTooLong { limit: MAX_TEXT });
        }
        pdu.data.parts().for_each(|part| self.text.extend_from_slice(part));
        Ok((!more).then(|| std::mem::take(&mut self.text)))
    }

    /// Adds text to what has to be sent.
    pub(super) fn say(&mut self, text: &[u8]) {
        self.unsent.extend_from_slice(text);
    }

    /// Whether text of ours is left.
    pub(super) fn has_more(&self) -> bool {
        !self.unsent.is_empty()
    }

    /// The bytes of a PDU with as much of our text as it takes; `header` is told whether more is left.
    pub(super) fn pdu(&mut self, header: impl FnOnce(bool) -> Header) -> Result<Vec<u8>, Error> {
        let n = self.unsent.len().min(Options::DEFAULT_MAX_DATA as usize);
        let rest = self.unsent.split_off(n);
        let text = std::mem::replace(&mut self.unsent, rest);
        let mut out = ChainBuilder::new();
        PduFramer::new(&Options::new()).frame(Pdu::new(header(self.has_more()), &text[..]), &mut out)?;
        Ok(out.finish().map_err(PduError::Chain)?.seal_all().to_vec())
    }
}

/// A field that has to have this value.
pub(super) fn expect(
    field: &'static str,
    offset: u64,
    expected: impl Into<u64>,
    got: impl Into<u64>,
) -> Result<(), Error> {
    let (expected, got) = (expected.into(), got.into());
    if expected == got { Ok(()) } else { Err(Error::Header { field, offset, expected, got }) }
}
