//! As much of SCSI as a disk takes: commands, and what becomes of them.

use std::{error, fmt};

use bytes::Bytes;

use crate::Pages;

/// The LUN field of logical unit `number`: peripheral device addressing below 256, flat space addressing below 16384, extended
/// flat space addressing from there on (SAM-5 section 4.7).
///
/// ```
/// assert_eq!(segchain_iscsi::scsi::lun(1), 0x0001_0000_0000_0000);
/// assert_eq!(segchain_iscsi::scsi::lun(300), 0x412c_0000_0000_0000);
/// assert_eq!(segchain_iscsi::scsi::lun(16_384), 0xd200_4000_0000_0000);
/// ```
pub fn lun(number: u16) -> u64 {
    let field = u64::from(number);
    match number {
        0..256 => field << 48,
        256..16_384 => (0x4000 | field) << 48,
        _ => (0xd200_0000 | field) << 32,
    }
}

/// A command descriptor block, zeros behind it: made of an array of 6, 10, 12 or 16 bytes (SPC-4 section 4.2.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cdb([u8; 16]);

macro_rules! cdb_of {
    ($($len:literal)+) => {
        $(impl From<[u8; $len]> for Cdb {
            fn from(bytes: [u8; $len]) -> Self {
                let mut block = [0; 16];
                block[..$len].copy_from_slice(&bytes);
                Self(block)
            }
        })+
    };
}

cdb_of!(6 10 12 16);

/// A SCSI command and the data that goes with it.
///
/// ```
/// use bytes::Bytes;
/// use segchain_iscsi::scsi::{Command, Transfer, lun};
///
/// let write = Command::write10(lun(1), 7, 2, Bytes::from(vec![0; 1024]));
/// assert_eq!(write.cdb[..10], [0x2a, 0, 0, 0, 0, 7, 0, 0, 2, 0]);
/// let inquiry = Command::new(lun(1), [0x12, 0, 0, 0, 36, 0], Transfer::Read(36));
/// # assert_eq!(inquiry.attribute, 1);
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Command {
    /// The logical unit: see [`lun`].
    pub lun: u64,
    /// The command descriptor block, as [`Cdb`] has it.
    pub cdb: [u8; 16],
    /// Task attribute: 0 untagged, 1 simple, 2 ordered, 3 head of queue. 1 unless set.
    pub attribute: u8,
    /// What is moved.
    pub transfer: Transfer,
}

/// What a command moves.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Transfer {
    /// Nothing.
    None,
    /// So many bytes come in.
    Read(u32),
    /// These bytes go out.
    Write(Pages),
}

impl Command {
    /// A command, simple, of any kind.
    pub fn new(lun: u64, cdb: impl Into<Cdb>, transfer: Transfer) -> Self {
        Self { lun, cdb: cdb.into().0, attribute: 1, transfer }
    }

    /// TEST UNIT READY.
    pub fn test_unit_ready(lun: u64) -> Self {
        Self::new(lun, [0; 6], Transfer::None)
    }

    /// READ CAPACITY (10): [`Capacity::decode`] reads what comes in.
    pub fn read_capacity(lun: u64) -> Self {
        Self::new(lun, [0x25, 0, 0, 0, 0, 0, 0, 0, 0, 0], Transfer::Read(Capacity::LEN))
    }

    /// READ (10): `blocks` blocks of `block_len` bytes from block `lba` on.
    pub fn read10(lun: u64, lba: u32, blocks: u16, block_len: u32) -> Self {
        let len = u32::from(blocks).saturating_mul(block_len);
        Self::new(lun, cdb10(0x28, lba, blocks), Transfer::Read(len))
    }

    /// WRITE (10): `blocks` blocks from block `lba` on, which are `pages`.
    pub fn write10(lun: u64, lba: u32, blocks: u16, pages: impl Into<Pages>) -> Self {
        Self::new(lun, cdb10(0x2a, lba, blocks), Transfer::Write(pages.into()))
    }
}

/// The layout of READ (10) and WRITE (10) (SBC-3 sections 5.11 and 5.32).
fn cdb10(operation: u8, lba: u32, blocks: u16) -> [u8; 10] {
    let ([a, b, c, d], [high, low]) = (lba.to_be_bytes(), blocks.to_be_bytes());
    [operation, 0, a, b, c, d, 0, high, low, 0]
}

/// The size of a disk, as READ CAPACITY (10) tells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Capacity {
    /// The number of the last block; `u32::MAX` if it does not fit.
    pub last_lba: u32,
    /// Bytes of a block.
    pub block_len: u32,
}

impl Capacity {
    /// Bytes that READ CAPACITY (10) gives.
    pub const LEN: u32 = 8;

    /// Reads what came in.
    pub fn decode(wire: &[u8]) -> Option<Self> {
        let (last_lba, block_len) = (wire.first_chunk()?, wire.get(4..)?.first_chunk()?);
        Some(Self { last_lba: u32::from_be_bytes(*last_lba), block_len: u32::from_be_bytes(*block_len) })
    }
}

/// What a command that was carried out has moved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Moved {
    /// Bytes that came in.
    pub received: u64,
    /// Bytes that went out and that the target has made use of.
    pub sent: u64,
    /// By how much the command moved less than expected, or was to move more.
    pub residual: Residual,
}

/// The difference between what was expected and what the command moves, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(clippy::exhaustive_enums, reason = "less, equal, more")]
pub enum Residual {
    /// None.
    #[default]
    None,
    /// Less was moved than expected.
    Under(u32),
    /// More was to be moved than expected, and was not.
    Over(u32),
}

/// A command that was not carried out, or not well.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Failure {
    /// CHECK CONDITION, and why.
    CheckCondition(Sense),
    /// Another SCSI status than GOOD and CHECK CONDITION: 8 BUSY, 0x18 RESERVATION CONFLICT, 0x28 TASK SET FULL.
    Status(u8),
    /// The target failed before the command was carried out (RFC 7143 section 11.4.3).
    Response(u8),
}

/// Why a CHECK CONDITION.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Sense {
    /// 2 not ready, 3 medium error, 4 hardware error, 5 illegal request, 6 unit attention, 7 data protect, and others; 0 too if
    /// there was no sense data that could be read.
    pub key: u8,
    /// Additional sense code.
    pub asc: u8,
    /// Its qualifier.
    pub ascq: u8,
    /// The sense data as it came.
    pub bytes: Bytes,
}

impl Sense {
    /// Reads sense data, fixed or descriptor format (SPC-4 section 4.5).
    pub fn decode(bytes: Bytes) -> Self {
        let at = |index: usize| bytes.get(index).copied().unwrap_or(0);
        let (key, asc, ascq) = match at(0) & 0x7f {
            0x70 | 0x71 => (at(2) & 0x0f, at(12), at(13)),
            0x72 | 0x73 => (at(1) & 0x0f, at(2), at(3)),
            _ => (0, 0, 0),
        };
        Self { key, asc, ascq, bytes }
    }

    /// Something has happened to the unit, a reset mostly; the command may be sent again.
    pub fn is_unit_attention(&self) -> bool {
        self.key == 6
    }
}

impl fmt::Display for Sense {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let meaning = match (self.key, self.asc, self.ascq) {
            (5, 0x20, 0) => "illegal request: no such operation",
            (5, 0x21, 0) => "illegal request: block out of range",
            (5, 0x24, 0) => "illegal request: invalid field in the command",
            (5, 0x25, 0) => "illegal request: no such logical unit",
            (2, ..) => "not ready",
            (3, ..) => "medium error",
            (4, ..) => "hardware error",
            (5, ..) => "illegal request",
            (6, ..) => "unit attention",
            (7, ..) => "data protect",
            (0xb, ..) => "aborted command",
            _ => "check condition",
        };
        write!(f, "{meaning} (sense {:x}/{:02x}/{:02x})", self.key, self.asc, self.ascq)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::CheckCondition(sense) => write!(f, "{sense}"),
            Failure::Status(0x08) => f.write_str("the unit is busy"),
            Failure::Status(0x18) => f.write_str("reservation conflict"),
            Failure::Status(0x28) => f.write_str("the unit's task set is full"),
            Failure::Status(status) => write!(f, "SCSI status {status:#04x}"),
            Failure::Response(response) => write!(f, "the target failed (response {response:#04x})"),
        }
    }
}

impl error::Error for Failure {}
