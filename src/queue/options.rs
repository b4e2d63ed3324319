//! How much a queue holds, and how much of it is done at a time.

use std::time::Duration;

use crate::send::SendOptions;

/// Bounds of a queue. The defaults are good; tests and measurements change them.
#[derive(Clone, Debug)]
pub struct QueueOptions {
    pub(super) send: SendOptions,
    pub(super) max_bytes: u64,
    pub(super) max_messages: usize,
    pub(super) control_messages: usize,
    pub(super) batch_bytes: u64,
    pub(super) turn_bytes: u64,
    pub(super) stall: Option<Duration>,
    pub(super) pushers_flush: bool,
}

impl Default for QueueOptions {
    fn default() -> Self {
        Self {
            send: SendOptions::default(),
            max_bytes: 64 << 20,
            max_messages: 4096,
            control_messages: 64,
            batch_bytes: 1 << 20,
            turn_bytes: 16 << 20,
            stall: None,
            pushers_flush: true,
        }
    }
}

impl QueueOptions {
    /// The defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// Limits of the calls. The queue has a budget of its own for a turn.
    #[must_use]
    pub fn send(mut self, options: SendOptions) -> Self {
        self.send = options;
        self
    }

    /// How many bytes and messages may be in the queue, framed ones included; 64 MiB and 4096 unless set. One message of
    /// more bytes than all counts as all.
    #[must_use]
    pub fn bounds(mut self, bytes: u64, messages: usize) -> Self {
        (self.max_bytes, self.max_messages) = (bytes, messages);
        self
    }

    /// How many control messages may be in the queue; 64 unless set.
    #[must_use]
    pub fn control_messages(mut self, messages: usize) -> Self {
        self.control_messages = messages;
        self
    }

    /// How many bytes are framed at a time; 1 MiB unless set. A control message waits for no more than these, and one
    /// message.
    #[must_use]
    pub fn batch_bytes(mut self, bytes: u64) -> Self {
        self.batch_bytes = bytes.max(1);
        self
    }

    /// After how many bytes a flusher hands over to the next who waits or pushes; 16 MiB unless set.
    #[must_use]
    pub fn turn_bytes(mut self, bytes: u64) -> Self {
        self.turn_bytes = bytes.max(1);
        self
    }

    /// How long the transport may take nothing before the queue gives it up; for ever unless set. Threads that wait in the
    /// queue see to it; an event loop asks for [`stall_deadline`](super::SendQueue::stall_deadline).
    #[must_use]
    pub fn stall(mut self, limit: Duration) -> Self {
        self.stall = Some(limit);
        self
    }

    /// Whether a push flushes if nobody else does, which it does unless set. `false` leaves it to
    /// [`run`](super::SendQueue::run), [`flush`](super::SendQueue::flush) and [`wait`](super::SendQueue::wait).
    #[must_use]
    pub fn pushers_flush(mut self, on: bool) -> Self {
        self.pushers_flush = on;
        self
    }
}
