//! What the tests of the workspace share.
#![forbid(unsafe_code)]

pub mod conformance;
pub mod naive;
pub mod scripted;
