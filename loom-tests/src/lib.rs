//! Models of the shared state of `segchain`, run under loom. This library is what they share: a wire, a framer, a waker,
//! and the runner. The models are in `tests/models`, and `docs/loom.md` tells what they cover.
//!
//! Without `--cfg loom` there is nothing here.
#![cfg(loom)]
#![allow(clippy::exhaustive_structs, clippy::exhaustive_enums)] // not published

mod run;
mod wake;
mod wire;

pub use run::{Bound, Fault, Seen, explore, is_caught};
pub use wake::{Flag, block_on, poll_with};
pub use wire::{Message, Record, Records, Source, Wire};
