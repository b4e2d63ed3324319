//! Tickets: what becomes of a message that was pushed.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use super::core::{Core, Later};
use crate::send::SendError;
use crate::sync::{Arc, planted, wait};

/// What becomes of one pushed message. Dropping it changes nothing for the message. Holding or awaiting it does not bring the
/// queue on: see [`queue`](super).
///
/// As a future it is ready when the message's last byte is handed to the kernel, or with the error that keeps it from
/// leaving. Cancel safe: it can be polled again.
#[must_use = "the message's fate is told here; drop it if it is of no interest"]
pub struct Ticket<M> {
    core: Arc<Core<M>>,
    id: TicketId,
}

/// What became of a revoked message. Nothing reads its payload any more, whatever it is.
#[derive(Debug)]
#[non_exhaustive]
pub enum Revocation<M> {
    /// It was still waiting, and is back as it was.
    Waiting(M),
    /// It was framed, nothing of it had left, and nothing of it ever will.
    Dropped,
    /// It had left in part, or its number was spent: the peer is told to drop it.
    Aborted,
    /// It was too late to abort it: the peer will take it for whole.
    Finishing,
    /// It had left.
    Sent,
    /// It could not be taken back on the wire, or the stream had ended before. Either way the stream is dead.
    Failed(SendError),
}

/// A ticket's place in the table. A place is used again, its generation is not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TicketId {
    index: u32,
    generation: u32,
}

#[derive(Clone, Debug)]
pub(super) enum Outcome {
    Sent,
    Failed(SendError),
    Revoked(RevokedAs),
}

#[derive(Clone, Copy, Debug)]
pub(super) enum RevokedAs {
    Dropped,
    Aborted,
    Finishing,
}

/// The tickets of one queue. Their places are recycled: no message makes an allocation for its ticket.
#[derive(Default)]
pub(super) struct Tickets {
    places: Vec<Place>,
    free: Vec<u32>,
}

struct Place {
    generation: u32,
    /// Whether a [`Ticket`] is out for it.
    held: bool,
    outcome: Option<Outcome>,
    waker: Option<Waker>,
}

impl Tickets {
    pub(super) fn open(&mut self) -> TicketId {
        if let Some(index) = self.free.pop() {
            let place = &mut self.places[index as usize];
            (place.held, place.outcome) = (true, None);
            return TicketId { index, generation: place.generation };
        }
        let index = self.places.len() as u32;
        self.places.push(Place { generation: 0, held: true, outcome: None, waker: None });
        TicketId { index, generation: 0 }
    }

    /// Tells the holder, if there is one; returns whom to wake.
    pub(super) fn resolve(&mut self, id: TicketId, outcome: Outcome) -> Option<Waker> {
        let place = self.place(id)?;
        if place.outcome.is_some() {
            return None;
        }
        place.outcome = Some(outcome);
        let waker = place.waker.take();
        if !place.held {
            self.release(id);
        }
        waker
    }

    pub(super) fn outcome(&mut self, id: TicketId) -> Option<Outcome> {
        self.place(id)?.outcome.clone()
    }

    /// Returns the old waker, which is not dropped under the lock.
    fn set_waker(&mut self, id: TicketId, waker: Waker) -> Option<Waker> {
        let place = self.place(id)?;
        if place.waker.is_some() && planted("old waker is kept") {
            return Some(waker);
        }
        place.waker.replace(waker)
    }

    /// The holder is gone; returns the waker, which is not dropped under the lock.
    fn let_go(&mut self, id: TicketId) -> Option<Waker> {
        let place = self.place(id)?;
        place.held = false;
        let waker = place.waker.take();
        if place.outcome.is_some() {
            self.release(id);
        }
        waker
    }

    /// Makes the place free for another ticket.
    fn release(&mut self, id: TicketId) {
        if let Some(place) = self.place(id) {
            place.generation = place.generation.wrapping_add(1);
            self.free.push(id.index);
        }
    }

    fn place(&mut self, id: TicketId) -> Option<&mut Place> {
        self.places.get_mut(id.index as usize).filter(|place| place.generation == id.generation)
    }

    /// Tickets that are held or not resolved.
    pub(super) fn live(&self) -> usize {
        self.places.len() - self.free.len()
    }
}

impl<M> Ticket<M> {
    pub(super) fn new(core: Arc<Core<M>>, id: TicketId) -> Self {
        Self { core, id }
    }

    pub(super) fn id(&self) -> TicketId {
        self.id
    }

    /// Whether it is a ticket of this queue.
    pub(super) fn is_of(&self, core: &Arc<Core<M>>) -> bool {
        Arc::ptr_eq(&self.core, core)
    }

    /// What became of the message, if that is known.
    pub fn result(&self) -> Option<Result<(), SendError>> {
        self.core.lock().tickets.outcome(self.id).map(Outcome::into_result)
    }

    /// Waits until the message has left or has failed, at most until `deadline`; `None` if the deadline passed.
    ///
    /// Somebody has to flush the queue meanwhile. [`SendQueue::wait`](super::SendQueue::wait) does so itself.
    pub fn wait(&self, deadline: Option<Instant>) -> Option<Result<(), SendError>> {
        let mut state = self.core.lock();
        loop {
            if let Some(outcome) = state.tickets.outcome(self.id) {
                return Some(outcome.into_result());
            }
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                return None;
            }
            state.threads += 1;
            state = wait(&self.core.changed, state, left);
            state.threads -= 1;
        }
    }

    /// Takes the message back. Waits until the flusher's current call returns, if the message is in it; calls do not
    /// block, so that this is short. After it returns nothing reads the message's payload. Not to be called by a framer or
    /// a transport of the same queue: it would wait for itself.
    pub fn revoke(self) -> Revocation<M> {
        let mut state = self.core.lock();
        let mut asked = false;
        loop {
            if let Some(outcome) = state.tickets.outcome(self.id) {
                return outcome.into_revocation();
            }
            let mut later = Later::default();
            if planted("a revoked message keeps its place")
                && state.bulk.iter().any(|waiting| waiting.ticket == self.id)
            {
                return Outcome::Revoked(RevokedAs::Dropped).into_revocation();
            }
            if let Some(waiting) = state.remove_waiting(self.id) {
                later.free(waiting.permit);
                later.wake(state.tickets.resolve(self.id, Outcome::Revoked(RevokedAs::Dropped)));
                later.wake_threads();
                state.forget_stall_if_idle();
                self.core.unlock(state, later);
                return Revocation::Waiting(waiting.message);
            }
            if let Some(mut batch) = state.batch.take() {
                state.revoke_framed(&mut batch, self.id, &mut later);
                state.batch = Some(batch);
                state.forget_stall_if_idle();
                self.core.unlock(state, later);
                state = self.core.lock();
                continue;
            }
            if !asked && !planted("revoke is not passed on") {
                state.revokes.push(self.id);
                asked = true;
            }
            state.threads += 1;
            state = wait(&self.core.changed, state, None);
            state.threads -= 1;
        }
    }
}

impl Outcome {
    fn into_result(self) -> Result<(), SendError> {
        match self {
            Outcome::Sent | Outcome::Revoked(_) => Ok(()),
            Outcome::Failed(error) => Err(error),
        }
    }

    fn into_revocation<M>(self) -> Revocation<M> {
        match self {
            Outcome::Sent => Revocation::Sent,
            Outcome::Failed(error) => Revocation::Failed(error),
            Outcome::Revoked(RevokedAs::Dropped) => Revocation::Dropped,
            Outcome::Revoked(RevokedAs::Aborted) => Revocation::Aborted,
            Outcome::Revoked(RevokedAs::Finishing) => Revocation::Finishing,
        }
    }
}

impl<M> Future for Ticket<M> {
    type Output = Result<(), SendError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        // Neither cloned nor dropped under the lock.
        let waker = context.waker().clone();
        let mut state = self.core.lock();
        if let Some(outcome) = state.tickets.outcome(self.id) {
            drop(state);
            return Poll::Ready(outcome.into_result());
        }
        let old = state.tickets.set_waker(self.id, waker);
        drop(state);
        drop(old);
        Poll::Pending
    }
}

impl<M> Drop for Ticket<M> {
    fn drop(&mut self) {
        let mut state = self.core.lock();
        let waker = state.tickets.let_go(self.id);
        drop(state);
        drop(waker);
    }
}

impl<M> fmt::Debug for Ticket<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ticket").field("id", &self.id).finish_non_exhaustive()
    }
}
