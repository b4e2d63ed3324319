//! iSCSI PDUs with header and data digests (RFC 7143) for [segchain], both directions.
//!
//! ```text
//!  BHS 48 │ AHS │ header digest │ data │ pad │ data digest      Pdu ──PduFramer──▶ chain    PduDeframer ──▶ Incoming
//!  └──── covers ────┘           └── covers ──┘
//! ```
//!
//! [`PduFramer`] and [`PduDeframer`] are the PDUs, [`Header`] the fields of each opcode. Nothing here knows a socket:
//! [`segchain::send`] and [`segchain::recv`] do. Integers are big-endian but for the digests, CRC-32C in the standard form,
//! which are little-endian. Checked against tgt 1.0.85.
#![forbid(unsafe_code)]

mod bhs;
mod deframe;
mod error;
mod extent;
mod frame;
mod header;
mod incoming;
pub mod login;
mod options;
pub mod scsi;
pub mod session;
pub mod text;
mod wire;

pub use self::bhs::Bhs;
pub use self::deframe::PduDeframer;
pub use self::error::{Error, Field};
pub use self::extent::{Extent, Pages};
pub use self::frame::{Pdu, PduFramer};
pub use self::header::{
    AsyncMessage, DataIn, DataOut, Header, LoginRequest, LoginResponse, LogoutRequest, LogoutResponse,
    NO_TAG, NopIn, NopOut, R2t, Reject, ScsiCommand, ScsiResponse, TaskRequest, TaskResponse, TextRequest,
    TextResponse,
};
pub use self::incoming::{Data, Incoming};
pub use self::options::Options;
