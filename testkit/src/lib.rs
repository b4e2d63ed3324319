//! What the tests of the workspace share.
//!
//! [`golden`] holds bytes that real programs put on a wire; [`peers`] starts those programs on loopback and stops them
//! again. Nothing here is published, and nothing here is used by the libraries themselves.
#![forbid(unsafe_code)]

pub mod golden;
pub mod peers;
