//! Version 2 of the messenger: banner `ceph v2`, and frames of one to four segments with checksums.
//!
//! ```text
//!  revision 1   preamble 32 │ segment 0 │ crc │ segments 1 to 3 │ epilogue 13     one segment: no epilogue
//!  revision 0   preamble 32 │ segment 0 │ segments 1 to 3 │ epilogue 17
//!                └ tag, lengths, crc of itself                └ late status, crcs
//! ```
//!
//! A message is tag 17 with the segments header, front, middle and data; every other frame has one segment. [`Framer`] and
//! [`Deframer`] are the frames, [`handshake`] is who says which before the first message. All integers are little-endian;
//! checksums are CRC-32C as a raw register, with seed 0 for the preamble and 0xffffffff for segments (Ceph
//! `src/msg/async/frames_v2.h` and `frames_v2.cc`; checked against ceph-osd 16.2.15).

mod control;
mod deframe;
mod error;
mod frame;
pub mod handshake;
mod preamble;

pub use self::control::{Control, Ident};
pub use self::deframe::{Deframer, Frame};
pub use self::error::{Error, Field};
pub use self::frame::Framer;
pub use crate::message::Stamp;

use crate::inbound::{Inbound, inbound_options};

/// What protects the frames of a connection: settled by both banners, and once more by AUTH_DONE.
///
/// Secure mode (AES-GCM) is not spoken here; it would be one more of these.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Codec {
    /// Checksums, revision 0: Nautilus and Octopus, and whoever does not offer revision 1.
    CrcRev0,
    /// Checksums, revision 1: from Ceph 15.2.5 on, and Linux.
    #[default]
    CrcRev1,
}

impl Codec {
    /// Bytes of the checksum directly behind segment 0. An empty segment has none (`asm_crc_rev1` of `frames_v2.cc`).
    fn first_crc_len(self, segment: usize) -> usize {
        if self == Codec::CrcRev1 && segment > 0 { CRC } else { 0 }
    }

    fn epilogue_len(self, segments: usize) -> usize {
        match self {
            Codec::CrcRev0 => 1 + SEGMENTS * CRC,
            Codec::CrcRev1 if segments == 1 => 0,
            Codec::CrcRev1 => 1 + (SEGMENTS - 1) * CRC,
        }
    }

    /// The first segment whose checksum is in the epilogue.
    fn first_in_epilogue(self) -> usize {
        usize::from(self == Codec::CrcRev1)
    }
}

/// How an open connection is framed, in both directions.
#[derive(Clone, Debug)]
pub struct Options {
    codec: Codec,
    first_limit: u32,
    inbound: Inbound,
}

impl Default for Options {
    fn default() -> Self {
        Self { codec: Codec::default(), first_limit: 32 << 10, inbound: Inbound::default() }
    }
}

impl Options {
    /// The defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// What both sides have agreed on; revision 1 unless set.
    #[must_use]
    pub fn codec(mut self, codec: Codec) -> Self {
        self.codec = codec;
        self
    }

    /// The longest first segment to receive, in bytes; 32 KiB unless set. It is read whole, so it has to fit into the
    /// [`read_ahead`](segchain::recv::RecvOptions::read_ahead).
    #[must_use]
    pub fn control_limit(mut self, bytes: u32) -> Self {
        self.first_limit = bytes;
        self
    }
}

inbound_options!(Options);

/// Either of what a connection sends: for a queue, which has messages of one type.
pub type Outbound<D> = crate::Outbound<D, Control>;

/// The tag of a message; [`Control`] has the others.
const TAG_MESSAGE: u8 = 17;

const PREAMBLE: usize = 32;
const SEGMENTS: usize = 4;
const CRC: usize = 4;
/// Bytes of a message's header (`ceph_msg_header2` of Ceph `src/include/msgr.h`), its first segment.
const HEADER: usize = 41;

/// Late status of revision 1, in its low nibble; the upper one is reserved.
const COMPLETE: u8 = 0x0e;
const ABORTED: u8 = 0x01;
const STATUS_MASK: u8 = 0x0f;
/// Late flags of revision 0: one bit, and the others mean nothing.
const FLAG_ABORTED: u8 = 0x01;
