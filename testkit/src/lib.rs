//! What the tests of the workspace share.
//!
//! [`golden`] holds bytes that real programs put on a wire. Nothing here is published, and nothing here is used by the
//! libraries themselves.
#![forbid(unsafe_code)]

pub mod golden;
