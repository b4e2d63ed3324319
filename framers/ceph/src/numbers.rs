//! What the two halves of a connection have to know of each other: how far the other one's sequence numbers have come.
//!
//! The framer is wherever messages are sent, in a queue perhaps, and the deframer wherever they are received. Neither waits
//! for the other: an acknowledgement can only come after what it acknowledges was framed.

use std::sync::atomic::{AtomicU64, Ordering};

/// The numbers of one connection. Counted from 1; 0 is none yet.
#[derive(Debug, Default)]
pub(crate) struct Numbers {
    sent: AtomicU64,
    received: AtomicU64,
}

impl Numbers {
    /// The session goes on behind our message number `sent`.
    pub(crate) fn behind(sent: u64) -> Self {
        Self { sent: sent.into(), received: 0.into() }
    }

    /// The last message that was framed.
    pub(crate) fn sent(&self) -> u64 {
        self.sent.load(Ordering::SeqCst)
    }

    pub(crate) fn set_sent(&self, seq: u64) {
        self.sent.store(seq, Ordering::SeqCst);
    }

    /// The last message that has arrived.
    pub(crate) fn received(&self) -> u64 {
        self.received.load(Ordering::SeqCst)
    }

    pub(crate) fn set_received(&self, seq: u64) {
        self.received.store(seq, Ordering::SeqCst);
    }

    /// The number that the peer acknowledges, or the last one that was sent if it is beyond that.
    pub(crate) fn check_ack(&self, seq: u64) -> Result<(), u64> {
        let sent = self.sent();
        if seq <= sent { Ok(()) } else { Err(sent) }
    }
}
