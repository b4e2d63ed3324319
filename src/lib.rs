//! Vectored, zero-copy socket I/O with pluggable framers.
//!
//! A message of header slices, payload pages and a trailer leaves in as few system calls as possible, no payload byte
//! copied, its checksums filled in on the way, and resumed at any byte after a short write. It arrives the same way:
//! scattered into slabs or into the caller's own pages, checked as it lands.
//!
//! ```text
//!  message ──Framer──▶ SegmentChain ──▶ StreamSender ──▶ sendmsg ──▶ wire ──▶ recvmsg ──▶ Receiver ──Deframer──▶ message
//! ```
//!
//! | to | see |
//! |---|---|
//! | build a message | [`chain::ChainBuilder`] |
//! | send it | [`send::StreamSender`], [`send::DatagramSender`] |
//! | let many threads send | [`queue::SendQueue`] |
//! | bound and await requests in flight | [`window::Window`], [`window::InFlight`] |
//! | receive | [`recv::Receiver`] |
//! | write a protocol | [`framer::Framer`], [`framer::Deframer`], or [`straight::Straight`] |
//! | use another transport than a socket | [`transport::VectoredSend`], [`transport::VectoredRecv`] |
//!
//! Nothing here blocks unless its name or its documentation says so, and nothing needs a runtime. Units are bytes;
//! positions and lengths are `u64`. Linux is tested, other Unix compiles by construction, Windows is not supported.
#![deny(unsafe_code)]

pub mod chain;
pub mod checksum;
pub mod framer;
pub mod queue;
pub mod recv;
pub mod send;
pub mod slab;
pub mod straight;
mod sync;
mod sys;
pub mod transport;
pub mod window;

/// The README's examples, as tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
