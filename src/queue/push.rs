//! Pushing when there is no room: the refused message, and the future.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc as StdArc;
use std::task::{Context, Poll, Wake, Waker};

use super::core::Core;
use super::{Lane, Queued, SendQueue, Ticket};
use crate::framer::Framer;
use crate::send::{SendError, SendErrorKind};
use crate::sync::{Arc, planted};
use crate::transport::VectoredSend;
use crate::window::Acquire;

/// A message that was not pushed, and why.
pub struct PushError<M> {
    message: M,
    /// `None`: the queue is full.
    error: Option<SendError>,
}

impl<M> PushError<M> {
    pub(super) fn new(message: M, error: Option<SendError>) -> Self {
        Self { message, error }
    }

    /// Whether the queue is only full.
    pub fn is_full(&self) -> bool {
        self.error.is_none()
    }

    /// Why the queue takes no more messages; `None` if it is only full.
    pub fn error(&self) -> Option<&SendError> {
        self.error.as_ref()
    }

    /// The message back.
    pub fn into_message(self) -> M {
        self.message
    }
}

impl<M> From<PushError<M>> for std::io::Error {
    fn from(refused: PushError<M>) -> Self {
        match refused.error {
            Some(error) => error.into(),
            None => std::io::Error::new(std::io::ErrorKind::WouldBlock, "the queue is full"),
        }
    }
}

impl<M> fmt::Display for PushError<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.error {
            Some(error) if error.kind() == SendErrorKind::ShutDown => f.write_str("the queue is closed"),
            Some(error) => error.fmt(f),
            None => f.write_str("the queue is full"),
        }
    }
}

impl<M> fmt::Debug for PushError<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PushError").field("error", &self.error).finish_non_exhaustive()
    }
}

impl<M> std::error::Error for PushError<M> {}

/// A push that waits for room.
///
/// Cancel safe: dropped before it is ready, it has pushed nothing, and whoever waits behind it moves up.
#[must_use = "futures do nothing unless polled"]
pub struct Push<M: Queued, F, T> {
    queue: SendQueue<M, F, T>,
    acquire: Acquire,
    message: Option<M>,
}

impl<M: Queued, F, T> Push<M, F, T> {
    pub(super) fn new(queue: SendQueue<M, F, T>, acquire: Acquire, message: M) -> Self {
        Self { queue, acquire, message: Some(message) }
    }
}

impl<M, F, T> Push<M, F, T>
where
    M: Queued,
    F: Framer<M>,
    F::Error: fmt::Display,
    T: VectoredSend,
{
    /// Polls for room, and pushes; what the future does. Must not be polled again when it was ready: it stays pending.
    pub fn poll_push(&mut self, context: &mut Context<'_>) -> Poll<Result<Ticket<M>, PushError<M>>> {
        // First in the line, then a look whether the queue is closed: closing it wakes who is in the line.
        let pushed = match self.acquire.poll_acquire(context) {
            Poll::Ready(permit) => {
                self.message.take().map(|message| self.queue.enqueue(message, permit, Lane::Bulk))
            }
            Poll::Pending => self.queue.shared.core.lock().refusal().and_then(|error| {
                self.message.take().map(|message| Err(PushError::new(message, Some(error))))
            }),
        };
        pushed.map_or(Poll::Pending, Poll::Ready)
    }
}

impl<M, F, T> Future for Push<M, F, T>
where
    M: Queued + Unpin,
    F: Framer<M>,
    F::Error: fmt::Display,
    T: VectoredSend,
{
    type Output = Result<Ticket<M>, PushError<M>>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.poll_push(context)
    }
}

impl<M: Queued, F, T> fmt::Debug for Push<M, F, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Push").field("acquire", &self.acquire).finish_non_exhaustive()
    }
}

/// Wakes the threads that wait for a change of the queue.
struct Nudge<M>(Arc<Core<M>>);

impl<M: Send + 'static> Wake for Nudge<M> {
    fn wake(self: StdArc<Self>) {
        // Under the lock: who waits looks and waits under it.
        if !planted("a nudge does not lock") {
            drop(self.0.lock());
        }
        self.0.changed.notify_all();
    }
}

pub(super) fn nudge<M: Send + 'static>(core: &Arc<Core<M>>) -> Waker {
    StdArc::new(Nudge(core.clone())).into()
}
