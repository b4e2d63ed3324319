//! Version 1 of the messenger: banner `ceph v027`, one tag byte before everything.
//!
//! ```text
//!  07 │ header 53 │ front │ middle │ data │ footer 21 (13 without feature MSG_AUTH)      a message
//!        └ crc of itself                       └ crcs of front, middle and data, signature, flags
//!  08 │ seq 8      0e │ stamp 8      0f │ stamp 8      09      06                        the others
//! ```
//!
//! [`Framer`] and [`Deframer`] are the frames of an open connection, [`handshake`] is what comes before. All integers are
//! little-endian, all checksums CRC-32C as a raw register with seed 0 (Ceph `src/include/msgr.h`; checked against
//! ceph-osd 16.2.15).

mod deframe;
mod error;
mod frame;
pub mod handshake;

pub use self::deframe::{Deframer, Frame};
pub use self::error::{Error, Field};
pub use self::frame::{Control, Framer};
pub use crate::message::Stamp;

use crate::features;
use crate::inbound::{Inbound, inbound_options};

/// How an open connection is framed, in both directions. The defaults are those of Ceph and of Linux's client.
// Each of them is a setting by itself; there are no states among them.
#[allow(clippy::struct_excessive_bools)]
#[derive(Clone, Debug)]
pub struct Options {
    long_footer: bool,
    crc_header: bool,
    crc_data: bool,
    peer_skips_incomplete: bool,
    skip_incomplete: bool,
    inbound: Inbound,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            long_footer: true,
            crc_header: true,
            crc_data: true,
            peer_skips_incomplete: false,
            skip_incomplete: false,
            inbound: Inbound::default(),
        }
    }
}

impl Options {
    /// The defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// The features that both sides have: see [`handshake::Session::features`]. Without
    /// [`MSG_AUTH`](features::MSG_AUTH) footers have 13 bytes, without a signature.
    #[must_use]
    pub fn features(mut self, features: u64) -> Self {
        self.long_footer = features & features::MSG_AUTH != 0;
        self
    }

    /// Checksums of header, front and middle, as Ceph's `ms_crc_header`; on unless set. Off, they are sent as 0 and not
    /// checked. A peer that has them on refuses such messages.
    #[must_use]
    pub fn crc_header(mut self, on: bool) -> Self {
        self.crc_header = on;
        self
    }

    /// Checksums of data, as Ceph's `ms_crc_data`; on unless set. Off, they are sent as 0 with the flag NOCRC, which a
    /// peer that has them on accepts, and not checked. On, 0 is a checksum like any other (ceph PR 28913).
    #[must_use]
    pub fn crc_data(mut self, on: bool) -> Self {
        self.crc_data = on;
        self
    }

    /// Says that the peer skips a message whose footer lacks the flag COMPLETE, so that a half-sent one may be abandoned
    /// without closing the connection. Ceph's old SimpleMessenger does (`src/msg/simple/Pipe.cc`, until 13.2), and so does a
    /// [`Deframer`] told to [skip them](Self::skip_incomplete). ceph-osd 16.2.15 closes (measured), so this is off unless
    /// set.
    #[must_use]
    pub fn peer_skips_incomplete(mut self, yes: bool) -> Self {
        self.peer_skips_incomplete = yes;
        self
    }

    /// Skips incoming messages without the flag COMPLETE, unchecked. Off unless set: they are [`Error::Incomplete`].
    #[must_use]
    pub fn skip_incomplete(mut self, yes: bool) -> Self {
        self.skip_incomplete = yes;
        self
    }

    fn footer_len(&self) -> usize {
        if self.long_footer { FOOTER } else { FOOTER_OLD }
    }
}

inbound_options!(Options);

/// Either of what a connection sends: for a queue, which has messages of one type.
pub type Outbound<D> = crate::Outbound<D, Control>;

/// Tags of an open connection (`CEPH_MSGR_TAG_*`).
const TAG_CLOSE: u8 = 6;
const TAG_MSG: u8 = 7;
const TAG_ACK: u8 = 8;
const TAG_KEEPALIVE: u8 = 9;
const TAG_KEEPALIVE2: u8 = 14;
const TAG_KEEPALIVE2_ACK: u8 = 15;

/// Bytes of a message header, its checksum (the last four) included.
const HEADER: usize = 53;
/// Where the three lengths begin, counted from the tag.
const LENGTHS: u64 = 23;
const FOOTER: usize = 21;
const FOOTER_OLD: usize = 13;

const COMPLETE: u8 = 1;
const NOCRC: u8 = 2;
const SIGNED: u8 = 4;
