//! iSCSI PDUs with header and data digests, from RFC 7143 section 11.
//!
//! ```text
//!  BHS 48 │ AHS, 4 bytes a word │ header digest │ data │ zeros to a word │ data digest
//! ```
//!
//! Integers are big-endian, digests little-endian: CRC-32C in the standard form, of BHS and AHS, and of data and padding. A
//! digest is there if it was negotiated, that of the data if there is data.

use super::{Decoded, EOF, End, Payload, Rest, Targets, be, crc32c, le};

/// A PDU.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Pdu {
    /// The lowest six bits of the first byte.
    pub opcode: u8,
    /// The bit beside them.
    pub immediate: bool,
    /// The header without its lengths, field by field as [`names`] has them; of an opcode that is not known, none.
    pub fields: Vec<u64>,
    /// The header as it came.
    pub bhs: [u8; 48],
    /// What is between the header and its digest.
    pub ahs: Vec<u8>,
    /// The data segment without its padding.
    pub data: Payload,
}

/// How a stream is to be read.
#[derive(Clone, Copy, Debug)]
#[allow(clippy::exhaustive_structs, reason = "the settings of a test")]
pub struct Settings {
    /// Headers have digests.
    pub header_digest: bool,
    /// Data has digests.
    pub data_digest: bool,
    /// The longest AHS, in bytes.
    pub ahs_limit: usize,
    /// The longest data segment (MaxRecvDataSegmentLength).
    pub data_limit: usize,
}

const DATA_OUT: u8 = 0x05;
const DATA_IN: u8 = 0x25;

/// Decodes a stream. The data of Data-In and Data-Out goes to the target of the initiator task tag, at the buffer offset.
///
/// Nothing in a header is believed before its digest is right, but for how long the header is; without one, lengths are
/// held against their limits at once.
pub fn decode(settings: &Settings, targets: Targets, bytes: &[u8]) -> Decoded<Pdu> {
    let mut decoder = Decoder { settings: *settings, rest: Rest(bytes), targets };
    let mut frames = Vec::new();
    let end = loop {
        if decoder.rest.0.is_empty() {
            break EOF.into();
        }
        match decoder.pdu() {
            Ok(pdu) => frames.push(pdu),
            Err(end) => break end,
        }
    };
    Decoded { frames, end, targets: decoder.targets }
}

struct Decoder<'a> {
    settings: Settings,
    rest: Rest<'a>,
    targets: Targets,
}

impl Decoder<'_> {
    fn pdu(&mut self) -> Result<Pdu, End> {
        let whole = self.rest.0;
        let bhs = *self.rest.take(48)?.first_chunk().expect("48 bytes");
        let ahs_len = 4 * usize::from(bhs[4]);
        if !self.settings.header_digest {
            self.check_lengths(&bhs)?;
        }
        let ahs = self.rest.take(ahs_len)?.to_vec();
        if self.settings.header_digest {
            let digest = self.rest.take(4)?;
            if le(digest) != u64::from(!crc32c(!0, &whole[..48 + ahs_len])) {
                return Err("Digest Header".into());
            }
            self.check_lengths(&bhs)?;
        }
        let len = be(&bhs[5..8]) as usize;
        let padded = self.rest.take(len.next_multiple_of(4))?;
        if self.settings.data_digest && len > 0 {
            let digest = self.rest.take(4)?;
            if le(digest) != u64::from(!crc32c(!0, padded)) {
                return Err("Digest Data".into());
            }
        }
        let opcode = bhs[0] & 0x3f;
        let data = self.place(&bhs, &padded[..len]);
        Ok(Pdu { opcode, immediate: bhs[0] & 0x40 != 0, fields: fields(&bhs), bhs, ahs, data })
    }

    fn check_lengths(&self, bhs: &[u8; 48]) -> Result<(), End> {
        if 4 * usize::from(bhs[4]) > self.settings.ahs_limit {
            return Err("TooLong Ahs".into());
        }
        if be(&bhs[5..8]) as usize > self.settings.data_limit {
            return Err("TooLong Data".into());
        }
        Ok(())
    }

    fn place(&mut self, bhs: &[u8; 48], data: &[u8]) -> Payload {
        let (task, at) = (be(&bhs[16..20]), be(&bhs[40..44]) as usize);
        match self.targets.get_mut(&task).filter(|_| [DATA_OUT, DATA_IN].contains(&(bhs[0] & 0x3f))) {
            _ if data.is_empty() => Payload::Bytes(vec![]),
            None => Payload::Bytes(data.to_vec()),
            Some(memory) => match memory.get_mut(at..at + data.len()) {
                Some(memory) => {
                    memory.copy_from_slice(data);
                    Payload::Target(data.len() as u64)
                }
                None => Payload::Discarded(data.len() as u64),
            },
        }
    }
}

/// A field of a header: its name, and its bytes, or its bits within one byte.
#[derive(Clone, Copy)]
enum Field {
    Bytes(&'static str, usize, usize),
    Bits(&'static str, usize, u8),
}
use Field::{Bits, Bytes};

const FINAL: Field = Bits("final", 1, 0x80);
const LUN: Field = Bytes("lun", 8, 8);
const ITT: Field = Bytes("itt", 16, 4);
const TTT: Field = Bytes("ttt", 20, 4);
const CMD_SN: Field = Bytes("cmd_sn", 24, 4);
const EXP_STAT_SN: Field = Bytes("exp_stat_sn", 28, 4);
const STAT_SN: Field = Bytes("stat_sn", 24, 4);
const EXP_CMD_SN: Field = Bytes("exp_cmd_sn", 28, 4);
const MAX_CMD_SN: Field = Bytes("max_cmd_sn", 32, 4);
const DATA_SN: Field = Bytes("data_sn", 36, 4);
const OFFSET: Field = Bytes("buffer_offset", 40, 4);

/// The fields of an opcode, in the order of RFC 7143, whose section stands beside it.
fn schema(opcode: u8) -> &'static [Field] {
    match opcode {
        // 11.18 NOP-Out
        0x00 => &[LUN, ITT, TTT, CMD_SN, EXP_STAT_SN],
        // 11.3 SCSI Command
        0x01 => &[
            FINAL,
            Bits("read", 1, 0x40),
            Bits("write", 1, 0x20),
            Bits("attributes", 1, 0x07),
            LUN,
            ITT,
            Bytes("expected_data_transfer_length", 20, 4),
            CMD_SN,
            EXP_STAT_SN,
            Bytes("cdb 0..8", 32, 8),
            Bytes("cdb 8..16", 40, 8),
        ],
        // 11.5 Task Management Function Request
        0x02 => &[
            Bits("function", 1, 0x7f),
            LUN,
            ITT,
            Bytes("referenced_task_tag", 20, 4),
            CMD_SN,
            EXP_STAT_SN,
            Bytes("ref_cmd_sn", 32, 4),
            Bytes("exp_data_sn", 36, 4),
        ],
        // 11.12 Login Request
        0x03 => &[
            Bits("transit", 1, 0x80),
            Bits("continue", 1, 0x40),
            Bits("csg", 1, 0x0c),
            Bits("nsg", 1, 0x03),
            Bytes("version_max", 2, 1),
            Bytes("version_min", 3, 1),
            Bytes("isid", 8, 6),
            Bytes("tsih", 14, 2),
            ITT,
            Bytes("cid", 20, 2),
            CMD_SN,
            EXP_STAT_SN,
        ],
        // 11.10 Text Request
        0x04 => &[FINAL, Bits("continue", 1, 0x40), LUN, ITT, TTT, CMD_SN, EXP_STAT_SN],
        // 11.7 SCSI Data-Out
        0x05 => &[FINAL, LUN, ITT, TTT, EXP_STAT_SN, DATA_SN, OFFSET],
        // 11.14 Logout Request
        0x06 => &[Bits("reason", 1, 0x7f), ITT, Bytes("cid", 20, 2), CMD_SN, EXP_STAT_SN],
        // 11.16 SNACK Request
        0x10 => &[
            Bits("type", 1, 0x0f),
            LUN,
            ITT,
            TTT,
            EXP_STAT_SN,
            Bytes("beg_run", 40, 4),
            Bytes("run_length", 44, 4),
        ],
        // 11.19 NOP-In
        0x20 => &[LUN, ITT, TTT, STAT_SN, EXP_CMD_SN, MAX_CMD_SN],
        // 11.4 SCSI Response
        0x21 => &[
            Bits("bidirectional_overflow", 1, 0x10),
            Bits("bidirectional_underflow", 1, 0x08),
            Bits("overflow", 1, 0x04),
            Bits("underflow", 1, 0x02),
            Bytes("response", 2, 1),
            Bytes("status", 3, 1),
            ITT,
            Bytes("snack_tag", 20, 4),
            STAT_SN,
            EXP_CMD_SN,
            MAX_CMD_SN,
            Bytes("exp_data_sn", 36, 4),
            Bytes("bidirectional_residual_count", 40, 4),
            Bytes("residual_count", 44, 4),
        ],
        // 11.6 Task Management Function Response
        0x22 => &[Bytes("response", 2, 1), ITT, STAT_SN, EXP_CMD_SN, MAX_CMD_SN],
        // 11.13 Login Response
        0x23 => &[
            Bits("transit", 1, 0x80),
            Bits("continue", 1, 0x40),
            Bits("csg", 1, 0x0c),
            Bits("nsg", 1, 0x03),
            Bytes("version_max", 2, 1),
            Bytes("version_active", 3, 1),
            Bytes("isid", 8, 6),
            Bytes("tsih", 14, 2),
            ITT,
            STAT_SN,
            EXP_CMD_SN,
            MAX_CMD_SN,
            Bytes("status_class", 36, 1),
            Bytes("status_detail", 37, 1),
        ],
        // 11.11 Text Response
        0x24 => &[FINAL, Bits("continue", 1, 0x40), LUN, ITT, TTT, STAT_SN, EXP_CMD_SN, MAX_CMD_SN],
        // 11.7 SCSI Data-In
        0x25 => &[
            FINAL,
            Bits("acknowledge", 1, 0x40),
            Bits("overflow", 1, 0x04),
            Bits("underflow", 1, 0x02),
            Bits("status is there", 1, 0x01),
            Bytes("status", 3, 1),
            LUN,
            ITT,
            TTT,
            STAT_SN,
            EXP_CMD_SN,
            MAX_CMD_SN,
            DATA_SN,
            OFFSET,
            Bytes("residual_count", 44, 4),
        ],
        // 11.15 Logout Response
        0x26 => &[
            Bytes("response", 2, 1),
            ITT,
            STAT_SN,
            EXP_CMD_SN,
            MAX_CMD_SN,
            Bytes("time2wait", 40, 2),
            Bytes("time2retain", 42, 2),
        ],
        // 11.8 Ready To Transfer
        0x31 => &[
            LUN,
            ITT,
            TTT,
            STAT_SN,
            EXP_CMD_SN,
            MAX_CMD_SN,
            Bytes("r2t_sn", 36, 4),
            OFFSET,
            Bytes("desired_data_transfer_length", 44, 4),
        ],
        // 11.9 Asynchronous Message
        0x32 => &[
            LUN,
            STAT_SN,
            EXP_CMD_SN,
            MAX_CMD_SN,
            Bytes("async_event", 36, 1),
            Bytes("async_v_code", 37, 1),
            Bytes("parameter 1", 38, 2),
            Bytes("parameter 2", 40, 2),
            Bytes("parameter 3", 42, 2),
        ],
        // 11.17 Reject
        0x3f => &[Bytes("reason", 2, 1), STAT_SN, EXP_CMD_SN, MAX_CMD_SN, DATA_SN],
        _ => &[],
    }
}

/// Every opcode of RFC 7143 but the vendors' own.
pub const OPCODES: [u8; 18] = [
    0x00, 0x01, 0x02, 0x03, 0x04, 0x05, 0x06, 0x10, 0x20, 0x21, 0x22, 0x23, 0x24, 0x25, 0x26, 0x31, 0x32,
    0x3f,
];

/// The names of an opcode's fields.
pub fn names(opcode: u8) -> Vec<&'static str> {
    let name = |field: &Field| match *field {
        Bytes(name, ..) | Bits(name, ..) => name,
    };
    schema(opcode).iter().map(name).collect()
}

fn fields(bhs: &[u8; 48]) -> Vec<u64> {
    let value = |field: &Field| match *field {
        Bytes(_, at, len) => be(&bhs[at..at + len]),
        Bits(_, at, mask) => u64::from((bhs[at] & mask) >> mask.trailing_zeros()),
    };
    schema(bhs[0] & 0x3f).iter().map(value).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::golden;

    fn settings(header_digest: bool, data_digest: bool) -> Settings {
        Settings { header_digest, data_digest, ahs_limit: 1020, data_limit: 8192 }
    }

    /// What a real initiator sent to tgt 1.0.85.
    #[test]
    fn a_recorded_nop_out_is_read_and_a_wrong_bit_of_it_is_not() {
        let bytes = golden::iscsi::NOP_OUT.bytes();
        let Decoded { frames, end, .. } = decode(&settings(true, true), Targets::new(), &bytes);
        assert_eq!((frames.len(), end.as_str()), (1, EOF));
        let Pdu { opcode, immediate, fields, ahs, data, .. } = &frames[0];
        assert_eq!((*opcode, *immediate, ahs.len()), (0, true, 0));
        let named: Vec<_> = names(0).into_iter().zip(fields.iter().copied()).collect();
        let expected = [("lun", 0), ("itt", 3), ("ttt", 0xffff_ffff), ("cmd_sn", 1), ("exp_stat_sn", 3)];
        assert_eq!(named, expected);
        assert_eq!(*data, Payload::Bytes(b"ABCDE".to_vec()));
        for bit in 0..8 * bytes.len() {
            let mut wrong = bytes.clone();
            wrong[bit / 8] ^= 1 << (bit % 8);
            let Decoded { frames, end, .. } = decode(&settings(true, true), Targets::new(), &wrong);
            // A longer AHS moves the digest behind what is there.
            let expected: &[&str] = match bit / 8 {
                4 => &["Digest Header", super::super::CUT],
                0..52 => &["Digest Header"],
                _ => &["Digest Data"],
            };
            assert!(frames.is_empty() && expected.contains(&end.as_str()), "bit {bit}: {end}");
        }
    }

    #[test]
    fn data_in_lands_at_its_offset_or_nowhere() {
        let mut bhs = [0; 48];
        (bhs[0], bhs[7], bhs[19], bhs[43]) = (0x25, 3, 9, 2);
        let stream = [&bhs[..], b"abc\0"].concat();
        for (room, payload) in [(5, Payload::Target(3)), (4, Payload::Discarded(3))] {
            let targets = Targets::from([(9, vec![0; room])]);
            let decoded = decode(&settings(false, false), targets, &stream);
            assert_eq!((&decoded.frames[0].data, decoded.end.as_str()), (&payload, EOF));
            assert_eq!(decoded.targets[&9][2..] == *b"abc", room == 5);
        }
        let nobody = decode(&settings(false, false), Targets::new(), &stream);
        assert_eq!(nobody.frames[0].data, Payload::Bytes(b"abc".to_vec()));
    }
}
