//! Pushing when there is no room: the refused message, and the future.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use super::core::{Lane, Later, Share, State};
use super::{Queued, SendQueue, Ticket};
use crate::framer::Framer;
use crate::send::{SendError, SendErrorKind};
use crate::sync::{MutexGuard, planted};
use crate::transport::VectoredSend;
use crate::window::Place;

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
    candidate: Candidate<M>,
}

/// What became of a message that was to be pushed.
type Pushed<M> = Result<Ticket<M>, PushError<M>>;

/// A message that wants to get in, until it is pushed or refused.
struct Candidate<M> {
    message: Option<M>,
    bytes: u64,
    place: Option<Place>,
}

impl<M: Queued, F, T> Push<M, F, T> {
    pub(super) fn new(queue: SendQueue<M, F, T>, message: M) -> Self {
        let bytes = message.bytes();
        Self { queue, candidate: Candidate { message: Some(message), bytes, place: None } }
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
        // Neither cloned nor dropped under the lock.
        let mut waker = Some(context.waker().clone());
        match self.advance(&mut waker) {
            Ok(pushed) => Poll::Ready(pushed),
            Err(state) => {
                drop(state);
                Poll::Pending
            }
        }
    }

    /// Pushes, or is refused; or stands in the line: then the lock comes back, under which that was seen.
    pub(super) fn advance(
        &mut self,
        waker: &mut Option<Waker>,
    ) -> Result<Pushed<M>, MutexGuard<'_, State<M>>> {
        let mut state = self.queue.shared.core.lock();
        match self.candidate.advance(&mut state, waker) {
            Some(Ok((message, share))) => Ok(Ok(self.queue.enqueue(state, message, share))),
            Some(Err(refused)) => Ok(Err(refused)),
            None => Err(state),
        }
    }
}

impl<M> Candidate<M> {
    /// What became of the message, if it is not in the line: it gets in, or never will.
    fn advance(
        &mut self,
        state: &mut State<M>,
        waker: &mut Option<Waker>,
    ) -> Option<Result<(M, Share), PushError<M>>> {
        if let Some(error) = state.refusal() {
            return Some(Err(PushError::new(self.message.take()?, Some(error))));
        }
        let bytes = match &self.message {
            Some(_) => state.bulk.room.advance(self.bytes, &mut self.place, waker)?,
            None => return None,
        };
        Some(Ok((self.message.take()?, Share { lane: Lane::Bulk, bytes })))
    }
}

/// Whoever stands behind moves up.
impl<M: Queued, F, T> Drop for Push<M, F, T> {
    fn drop(&mut self) {
        let Some(place) = self.candidate.place.take() else { return };
        let core = &self.queue.shared.core;
        let mut state = core.lock();
        // Dropped when the lock is free.
        let waker = state.bulk.room.leave(place);
        let mut later = Later::default();
        if !planted("who cancels wakes nobody") {
            state.grant(Lane::Bulk, &mut later);
        }
        core.unlock(state, &mut later);
        drop(waker);
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
        f.debug_struct("Push").field("waiting", &self.candidate.place.is_some()).finish_non_exhaustive()
    }
}
