//! The bytes of a handshake, between its two machines and the frames.

use bytes::Bytes;
use segchain::chain::ChainBuilder;
use segchain::framer::{self, Framer as _, Step, Targets};

use super::{
    BANNER, BANNER_FIELDS, Error, LOSSY, MAX_BANNER_FIELDS, NO_SIGNATURE, REVISION_1, Refusal, Session, Turn,
};
use crate::EntityAddr;
use crate::v2::{Codec, Control, Deframer, Frame, Framer, Ident, Options, TAG_MESSAGE};
use crate::wire::{u16_at, u64_at};

/// What both roles have in common: banners, frames, and what was learned on the way.
#[derive(Debug)]
pub(super) struct Wire {
    pub(super) supported: u64,
    pub(super) codec: Codec,
    pub(super) frames: Deframer,
    pub(super) peer_type: u8,
    pub(super) global_id: u64,
}

/// What comes next on the wire.
pub(super) enum Read {
    Control(Control, usize),
    /// A frame that the peer gave up.
    Dropped(usize),
    Need(usize),
}

impl Wire {
    pub(super) fn new(revision_1: bool) -> Self {
        let supported = if revision_1 { REVISION_1 } else { 0 };
        let frames = Deframer::new(&Options::new());
        Self { supported, codec: Codec::default(), frames, peer_type: 0, global_id: 0 }
    }

    pub(super) fn banner(&self) -> Step<Turn> {
        let mut send = BANNER.to_vec();
        send.extend((BANNER_FIELDS as u16).to_le_bytes());
        send.extend(self.supported.to_le_bytes());
        send.extend([0; 8]);
        Step::Frame { frame: Turn { send, ..Turn::default() }, head: 0 }
    }

    /// How many bytes the peer's banner has, if it is there.
    pub(super) fn read_banner(&mut self, head: &[u8]) -> Result<Option<usize>, Error> {
        match head.first_chunk() {
            Some(banner) if *banner != BANNER => return Err(Error::Banner { got: *banner }),
            _ => {}
        }
        let start = BANNER.len() + 2;
        let Some(wire) = head.get(..start) else { return Ok(None) };
        let len = usize::from(u16_at(wire, BANNER.len()));
        if !(BANNER_FIELDS..=MAX_BANNER_FIELDS).contains(&len) {
            return Err(Error::BannerLen { offset: BANNER.len() as u64, got: len });
        }
        let Some(fields) = head.get(start..start + len) else { return Ok(None) };
        let (supported, required) = (u64_at(fields, 0), u64_at(fields, 8));
        let missing = required & !self.supported;
        if missing != 0 {
            return Err(Error::Refused(Refusal::Banner { missing }));
        }
        let both = supported & self.supported & REVISION_1 != 0;
        self.codec = if both { Codec::CrcRev1 } else { Codec::CrcRev0 };
        self.frames = Deframer::new(&Options::new().codec(self.codec));
        Ok(Some(start + len))
    }

    pub(super) fn read(
        &mut self,
        head: &[u8],
        awaiting: &'static str,
        targets: &mut dyn Targets,
    ) -> Result<Read, Error> {
        use framer::Deframer as _;
        match self.frames.decode(head, targets).map_err(Error::Frame)? {
            Step::Need(len) => Ok(Read::Need(len)),
            Step::Frame { frame: Frame::Control(control), head } => Ok(Read::Control(control, head)),
            Step::Frame { frame: Frame::Aborted { .. }, head } => Ok(Read::Dropped(head)),
            _ => Err(Error::Unexpected { awaiting, tag: TAG_MESSAGE }),
        }
    }

    pub(super) fn say(&self, control: Control) -> Result<Turn, Error> {
        let mut out = ChainBuilder::new();
        Framer::new(&Options::new().codec(self.codec)).frame(control, &mut out).map_err(Error::Frame)?;
        let chain = out.finish().map_err(|error| Error::Frame(error.into()))?;
        Ok(Turn { send: chain.seal_all().to_vec(), ..Turn::default() })
    }

    pub(super) fn session(
        &self,
        peer: Ident,
        ours: u64,
        own: Vec<EntityAddr>,
        name: Bytes,
        lossy: Option<bool>,
    ) -> Session {
        Session {
            codec: self.codec,
            features: ours & peer.features,
            entity_type: self.peer_type,
            lossy: lossy.unwrap_or(peer.flags & LOSSY != 0),
            peer,
            own,
            global_id: self.global_id,
            name,
        }
    }
}

pub(super) fn need_banner(head: &[u8]) -> Step<Turn> {
    let start = BANNER.len() + 2;
    Step::Need(match head.get(..start) {
        None if head.len() < BANNER.len() => BANNER.len(),
        None => start,
        Some(wire) => start + usize::from(u16_at(wire, BANNER.len())),
    })
}

/// Without a key there is nothing to sign with.
pub(super) fn check_signature(got: [u8; 32]) -> Result<(), Error> {
    if got == NO_SIGNATURE { Ok(()) } else { Err(Error::Signature) }
}
