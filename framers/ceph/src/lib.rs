//! Ceph messenger framing for [segchain]: messages with a front, a middle and pages of data that are not copied.
//!
//! ```text
//!  Message { header, front, middle, data } ──v1 or v2::Framer──▶ chain      v1 or v2::Deframer ──▶ Incoming { …, data }
//!                     └ osd::Request::message                                           osd::Reply::decode ◀┘ front
//! ```
//!
//! [`v1`] is version 1 of the messenger (banner `ceph v027`), [`v2`] is version 2 (banner `ceph v2`, revisions 0 and 1, crc
//! mode): frames both ways, and the handshake for both roles. [`osd`] holds the object operations and [`mon`] what is said
//! to a monitor, which are the same whatever messenger carries them. Nothing here knows a socket: [`segchain::send`] and
//! [`segchain::recv`] do. Facts of the protocol come from Ceph's `src/include/msgr.h` and `src/msg/async/`, and were
//! checked against ceph-mon and ceph-osd 16.2.15.
#![forbid(unsafe_code)]

mod addr;
mod auth;
pub mod features;
mod inbound;
mod message;
pub mod mon;
mod numbers;
pub mod osd;
pub mod v1;
pub mod v2;
mod wire;

pub use self::addr::{AddrKind, EntityAddr};
pub use self::message::{Data, EntityName, Header, Incoming, Message, Outbound, Stamp};
