//! What the tests of the workspace share.
#![forbid(unsafe_code)]
