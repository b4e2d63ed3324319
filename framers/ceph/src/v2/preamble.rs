//! The structures that frames are made of: preamble, epilogue, and the header of a message.

use bytes::Bytes;
use segchain::checksum::{Checksum as _, Crc32c};

use super::{
    ABORTED, COMPLETE, CRC, Codec, Error, FLAG_ABORTED, Field, HEADER, Options, PREAMBLE, SEGMENTS,
    STATUS_MASK, TAG_MESSAGE,
};
use crate::wire::{fields, u16_at, u32_at, u64_at};
use crate::{Data, EntityName, Header, Incoming};

/// What a frame begins with.
#[derive(Clone, Copy, Debug)]
pub(super) struct Preamble {
    pub(super) tag: u8,
    /// How many segments there are, 1 to 4.
    pub(super) count: usize,
    pub(super) lens: [u32; SEGMENTS],
}

impl Preamble {
    /// The preamble of segments of these lengths, but for its checksum. Trailing empty segments are dropped, the first one
    /// never (`calc_num_segments` of `frames_v2.cc`).
    pub(super) fn encode(tag: u8, lens: [u64; SEGMENTS]) -> Result<(Self, [u8; PREAMBLE - CRC]), Error> {
        let count = lens.iter().rposition(|len| *len > 0).unwrap_or(0) + 1;
        let mut preamble = Self { tag, count, lens: [0; SEGMENTS] };
        let mut wire = [0; PREAMBLE - CRC];
        (wire[0], wire[1]) = (tag, count as u8);
        for (index, len) in lens.into_iter().enumerate().take(count) {
            let (field, at, limit) = (Field::of(tag, index), 2 + 6 * index, u32::MAX);
            let too_long = |_| Error::TooLong { field, offset: at as u64, len, limit: limit.into() };
            preamble.lens[index] = u32::try_from(len).map_err(too_long)?;
            wire[at..at + 4].copy_from_slice(&preamble.lens[index].to_le_bytes());
            wire[at + 4..at + 6].copy_from_slice(&ALIGNMENTS[index].to_le_bytes());
        }
        Ok((preamble, wire))
    }

    /// Checks a preamble: its checksum first, then the counts, then each length against its limit.
    ///
    /// The rules are those of Ceph (`disassemble_preamble` of `frames_v2.cc`): 1 to 4 segments, and the last one not empty
    /// unless it is the only one. Lengths are unsigned and have limits, and the header of a message is there, as Linux had to
    /// learn (a282a2f10539, 69fb5d91bba4). Reserved bytes, descriptors of segments that are not there, and flags are passed
    /// over, but for the flag of compression, which was not agreed on.
    pub(super) fn decode(wire: &[u8; PREAMBLE], options: &Options) -> Result<Self, Error> {
        let mut crc = Crc32c::raw(0);
        crc.update(&wire[..PREAMBLE - CRC]);
        let at = PREAMBLE - CRC;
        check(Field::Preamble, at as u64, u32_at(wire, at), crc.value())?;
        let [tag, count, ..] = *wire;
        if !(1..=20).contains(&tag) {
            return Err(Error::Tag { got: tag });
        }
        if wire[26] & COMPRESSED != 0 {
            return Err(Error::Compressed { offset: 26, got: wire[26] });
        }
        let limit = if tag == TAG_MESSAGE { SEGMENTS as u8 } else { 1 };
        if count == 0 || count > limit {
            return Err(Error::Segments { tag, got: count, limit });
        }
        let count = usize::from(count);
        let mut lens = [0, 1, 2, 3].map(|index| u32_at(wire, 2 + 6 * index));
        lens[count..].fill(0);
        let [front, middle, data] = options.inbound.limits;
        let limits = [options.first_limit, front, middle, data];
        for (index, (len, limit)) in lens.into_iter().zip(limits).enumerate() {
            if len > limit {
                let (field, offset) = (Field::of(tag, index), 2 + 6 * index as u64);
                return Err(Error::TooLong { field, offset, len: len.into(), limit: limit.into() });
            }
        }
        if count > 1 && lens[count - 1] == 0 {
            return Err(Error::LastEmpty { count });
        }
        if tag == TAG_MESSAGE && lens[0] < HEADER as u32 {
            return Err(Error::HeaderTooShort { offset: 2, len: lens[0] });
        }
        Ok(Self { tag, count, lens })
    }

    /// Checks an epilogue, checksums first: `false` if the sender gave the frame up.
    ///
    /// In revision 1 the low nibble of the status is 0xe or 0x1, anything else is an error, and the upper one means nothing; in
    /// revision 0 only the lowest bit means something (`check_epilogue_late_status` and `disasm_all_crc_rev0` of
    /// `frames_v2.cc`). Checksums of segments that are not there are not looked at: Ceph 16 writes 0, Nautilus 0xffffffff.
    pub(super) fn is_complete(
        &self,
        codec: Codec,
        crcs: &[u32; SEGMENTS],
        epilogue: &[u8],
    ) -> Result<bool, Error> {
        let [status, carried @ ..] = epilogue else { return Ok(true) };
        let before: u64 = self.lens.iter().map(|len| u64::from(*len)).sum();
        let offset = (PREAMBLE + codec.first_crc_len(self.lens[0] as usize)) as u64 + before;
        let first = codec.first_in_epilogue();
        for (index, got) in crcs.iter().enumerate().take(self.count).skip(first) {
            let at = CRC * (index - first);
            check(Field::of(self.tag, index), offset + 1 + at as u64, u32_at(carried, at), *got)?;
        }
        match (codec, status & STATUS_MASK) {
            (Codec::CrcRev0, _) => Ok(status & FLAG_ABORTED == 0),
            (Codec::CrcRev1, COMPLETE) => Ok(true),
            (Codec::CrcRev1, ABORTED) => Ok(false),
            (Codec::CrcRev1, _) => Err(Error::LateStatus { offset, got: *status }),
        }
    }
}

/// Where segments want to lie at the receiver: data at a page's start.
const ALIGNMENTS: [u16; SEGMENTS] = [8, 8, 8, 4096];

/// Segment 0 is compressed (`FRAME_EARLY_DATA_COMPRESSED`, from Ceph 17 on, if both banners offer it).
const COMPRESSED: u8 = 1;

/// `ceph_msg_header2`. The flags are those of a footer of version 1: complete, and no checksum in it, as an osd sends them.
pub(super) fn encode_header(header: &Header, seq: u64, received: u64) -> [u8; HEADER] {
    fields(&[
        &seq.to_le_bytes(),
        &header.tid.to_le_bytes(),
        &header.kind.to_le_bytes(),
        &header.priority.to_le_bytes(),
        &header.version.to_le_bytes(),
        &[0; 4], // data_pre_padding_len
        &header.data_off.to_le_bytes(),
        &received.to_le_bytes(),
        &[3],
        &header.compat_version.to_le_bytes(),
        &header.reserved.to_le_bytes(),
    ])
}

/// `ceph_msg_header2`, of which there are enough bytes. Its data_pre_padding_len and flags say nothing here.
pub(super) fn decode_header(wire: &[u8]) -> Incoming {
    let header = Header {
        tid: u64_at(wire, 8),
        kind: u16_at(wire, 16),
        priority: u16_at(wire, 18),
        version: u16_at(wire, 20),
        data_off: u16_at(wire, 26),
        src: EntityName::default(),
        compat_version: u16_at(wire, 37),
        reserved: u16_at(wire, 39),
    };
    let (front, middle, data) = (Bytes::new(), Bytes::new(), Data::None);
    Incoming { seq: u64_at(wire, 0), header, front, middle, data, signature: None, acked: u64_at(wire, 28) }
}

pub(super) fn check(field: Field, offset: u64, expected: u32, got: u32) -> Result<(), Error> {
    if expected == got { Ok(()) } else { Err(Error::Crc { field, offset, expected, got }) }
}
