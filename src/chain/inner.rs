//! The memory of one message. The builder fills it, the chain sends it, and the next message has it again: one allocation
//! that holds the others, so that handing it on moves a pointer.

use std::cell::Cell;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use super::ChainError;
use super::builder::{AbortRule, Fragments};
use super::seal::Slots;
use super::segment::{Content, Segments};
use crate::sys::Recyclable;

/// All that a chain is, and a builder.
pub(super) type Inner<'b> = Recyclable<Segments<'b>, Notes>;

/// All of a message but its segments. It borrows nothing.
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
        self.abort = AbortRule::CloseStream;
        // A finished message has neither.
        debug_assert!(self.fragments.is_none() && self.error.is_none());
    }
}

/// Chains and outgoing messages are told apart by number. A thread takes a thousand at a time: one shared counter would
/// cost every message a contended cache line.
pub(super) fn next_id() -> u64 {
    const BLOCK: u64 = 1024;
    static NEXT: AtomicU64 = AtomicU64::new(1);
    thread_local! {
        static MINE: Cell<(u64, u64)> = const { Cell::new((0, 0)) };
    }
    let (mut next, mut end) = MINE.get();
    if next == end {
        next = NEXT.fetch_add(BLOCK, Ordering::Relaxed);
        end = next + BLOCK;
    }
    MINE.set((next + 1, end));
    next
}

impl Inner<'_> {
    #[inline]
    pub(super) fn content(&self) -> Content<'_> {
        Content { segments: &self.segments, arena: &self.notes.arena }
    }
}
