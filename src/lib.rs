//! Vectored, zero-copy socket I/O with pluggable framers.
#![deny(unsafe_code)]
pub mod checksum;
