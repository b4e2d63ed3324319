//! Vectored, zero-copy socket I/O with pluggable framers.
#![deny(unsafe_code)]
pub mod chain;
pub mod checksum;
pub mod framer;
pub mod recv;
pub mod send;
pub mod slab;
pub mod straight;
mod sync;
mod sys;
pub mod transport;
pub mod window;
