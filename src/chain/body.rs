//! The memory of one message. The builder fills it, the chain sends it, and the next message has it again: one allocation
//! that holds the others, so that handing it on moves a pointer.

use std::ops::Range;

use super::ChainError;
use super::builder::{AbortRule, Fragments, next_id};
use super::seal::Slots;
use super::segment::{Content, Segments};
use crate::sys::Parts;

/// Segments, which may borrow from the caller, and notes, which do not.
pub(super) type Body<'b> = Parts<Segments<'b>, Notes>;

/// The scratch bytes that some segments lie in, and what is to be done with all of them.
#[derive(Default)]
pub(super) struct Notes {
    /// The builder's number, which its marks carry.
    pub(super) id: u64,
    /// Length in bytes.
    pub(super) len: u64,
    /// Every byte before this position is final.
    pub(super) sealed: u64,
    /// Payload bytes that were copied.
    pub(super) copied: u64,
    /// The builder's copy threshold.
    pub(super) copy_below: usize,
    /// The scratch bytes.
    pub(super) arena: Vec<u8>,
    /// From the first payload byte to the end of the last one: what lies outside is header and trailer. Empty if there is
    /// none.
    pub(super) payload: Range<u64>,
    pub(super) slots: Slots,
    /// How the message is to be cut up, until it is.
    pub(super) fragments: Option<Fragments>,
    pub(super) abort: AbortRule,
    /// The first mistake of whoever builds.
    pub(super) error: Option<ChainError>,
}

impl Notes {
    /// Those of a message that has not begun, with the memory of these.
    #[inline]
    pub(super) fn begin(&mut self, copy_below: usize) {
        self.id = next_id();
        (self.len, self.sealed, self.copied) = (0, 0, 0);
        self.copy_below = copy_below;
        self.arena.clear();
        self.payload = 0..0;
        self.slots.clear();
        self.fragments = None;
        self.abort = AbortRule::CloseStream;
        self.error = None;
    }
}

/// A body of other segments, all of which are final.
pub(super) fn sealed(segments: Segments<'_>, arena: Vec<u8>, copied: u64) -> Box<Body<'_>> {
    let (len, payload) = (segments.len(), segments.payload());
    let own = Notes { len, sealed: len, copied, arena, payload, ..Notes::default() };
    Box::new(Body { lent: segments, own })
}

impl Body<'_> {
    #[inline]
    pub(super) fn content(&self) -> Content<'_> {
        Content { segments: &self.lent, arena: &self.own.arena }
    }
}
