//! What the tests of the workspace share.
//!
//! [`golden`] holds bytes that real programs put on a wire; [`peers`] starts those programs on loopback and stops them
//! again; [`scripted`] are transports that do as they are told, [`naive`] is what results are compared with, [`oracle`]
//! holds second decoders, and [`conformance`] is what every deframer has to pass. Nothing here is published, and nothing
//! here is used by the libraries themselves.
#![forbid(unsafe_code)]

pub mod conformance;
pub mod golden;
pub mod naive;
pub mod oracle;
pub mod peers;
pub mod scripted;
