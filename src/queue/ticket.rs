//! Tickets: what becomes of a message that was pushed.

use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use super::core::{Batch, Core, Later, Revoked, Waiting};
use crate::send::{SendError, SendErrorKind};
use crate::sync::{Arc, Mutex, MutexGuard, lock, planted, wait};

/// What becomes of one pushed message. Dropping it changes nothing for the message. Holding or awaiting it does not bring the
/// queue on: see [`queue`](super).
///
/// As a future it is ready when the message's last byte is handed to the kernel, or with the error that keeps it from
/// leaving. Cancel safe: it can be polled again.
#[must_use = "the message's fate is told here; drop it if it is of no interest"]
pub struct Ticket<M> {
    core: Arc<Core<M>>,
    fate: Arc<Fate>,
    /// Whether a waker may be left in the fate.
    polled: bool,
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

/// Where a ticket's outcome will be, shared by its holder and the queue. Its lock is the last: whoever has it takes no other.
#[derive(Default)]
pub(super) struct Fate(Mutex<Told>);

#[derive(Default)]
struct Told {
    outcome: Option<Outcome>,
    waker: Option<Waker>,
}

/// The fates of one queue's tickets. They are used again: no message makes an allocation.
#[derive(Default)]
pub(super) struct Tickets {
    /// How many are not told yet.
    open: usize,
    /// Those that nobody holds any more. The last is used first: its memory is likely to be in the cache.
    free: Vec<Arc<Fate>>,
    /// Those that were told while somebody held them, first told first, but for those that were looked at and still held.
    told: VecDeque<Arc<Fate>>,
}

/// Of each list: the fates above so many are let go as soon as nobody holds them.
const KEPT: usize = 4096;

impl Tickets {
    pub(super) fn open(&mut self) -> Arc<Fate> {
        self.open += 1;
        self.trim();
        if let Some(fate) = self.free.pop() {
            return fate;
        }
        // One whose ticket is held for long does not keep those behind it from being used.
        for _ in 0..2 {
            let Some(mut fate) = self.told.pop_front() else { break };
            if let Some(free) = Arc::get_mut(&mut fate) {
                *free = Fate::default();
                return fate;
            }
            self.told.push_back(fate);
        }
        Arc::default()
    }

    /// Lets go of one that is free if there are more than are worth keeping, whichever are held.
    fn trim(&mut self) {
        if self.told.len() > KEPT
            && let Some(fate) = self.told.pop_front()
            && !is_free(&fate)
        {
            self.told.push_back(fate);
        }
    }

    /// Tells the holder, if there is one; returns whom to wake.
    pub(super) fn resolve(&mut self, fate: Arc<Fate>, outcome: Outcome) -> Option<Waker> {
        self.open -= 1;
        if is_free(&fate) {
            // Its ticket was dropped, and took its waker along.
            if self.free.len() < KEPT {
                self.free.push(fate);
            }
            return None;
        }
        let mut told = fate.lock();
        told.outcome = Some(outcome);
        let waker = told.waker.take();
        drop(told);
        self.told.push_back(fate);
        waker
    }

    /// Tickets that are held or not told.
    pub(super) fn live(&self) -> usize {
        self.open + self.told.iter().filter(|fate| !is_free(fate)).count()
    }
}

/// Whether only the queue has it. Nobody else can get it then.
fn is_free(fate: &Arc<Fate>) -> bool {
    Arc::strong_count(fate) == 1
}

impl Fate {
    pub(super) fn outcome(&self) -> Option<Outcome> {
        self.lock().outcome.clone()
    }

    fn lock(&self) -> MutexGuard<'_, Told> {
        lock(&self.0)
    }
}

impl<M> Ticket<M> {
    pub(super) fn new(core: Arc<Core<M>>, fate: Arc<Fate>) -> Self {
        Self { core, fate, polled: false }
    }

    pub(super) fn outcome(&self) -> Option<Outcome> {
        self.fate.outcome()
    }

    /// Whether it is a ticket of this queue.
    pub(super) fn is_of(&self, core: &Arc<Core<M>>) -> bool {
        Arc::ptr_eq(&self.core, core)
    }

    /// What became of the message, if that is known.
    pub fn result(&self) -> Option<Result<(), SendError>> {
        self.outcome().map(Outcome::into_result)
    }

    /// Waits until the message has left or has failed, at most until `deadline`; `None` if the deadline passed.
    ///
    /// Somebody has to flush the queue meanwhile. [`SendQueue::wait`](super::SendQueue::wait) does so itself.
    pub fn wait(&self, deadline: Option<Instant>) -> Option<Result<(), SendError>> {
        let mut state = self.core.lock();
        loop {
            if let Some(outcome) = self.outcome() {
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
    /// block, so that this is short. After it returns nothing reads the message's payload. Not to be called by what a flusher
    /// of the same queue runs, its framer, its transport, a waker or the last owner of a page: it would wait for itself.
    pub fn revoke(self) -> Revocation<M> {
        let mut state = self.core.lock();
        let mut asked = false;
        loop {
            if let Some(outcome) = self.outcome() {
                // It may have been for another who revokes, not for a flusher, that this one waited.
                if asked {
                    state.revokes.retain(|fate| !Arc::ptr_eq(fate, &self.fate));
                }
                return outcome.into_revocation();
            }
            let mut later = Later::default();
            if planted("a revoked message keeps its place")
                && state.bulk.waiting.iter().any(|waiting| Arc::ptr_eq(&waiting.ticket, &self.fate))
            {
                return Outcome::Revoked(RevokedAs::Dropped).into_revocation();
            }
            if let Some(Waiting { message, ticket, share }) = state.remove_waiting(&self.fate) {
                state.resolve(ticket, Outcome::Revoked(RevokedAs::Dropped), &mut later);
                state.give_back(share, &mut later);
                state.forget_stall_if_idle();
                self.core.unlock(state, &mut later);
                return Revocation::Waiting(message);
            }
            if let Some(batch) = state.batch.take() {
                state.ready = false;
                drop(state);
                Taken { core: &self.core, batch, half_done: false, revoked: None }.revoke(&self.fate);
                state = self.core.lock();
                continue;
            }
            if !asked && !planted("revoke is not passed on") {
                state.revokes.push(self.fate.clone());
                asked = true;
            }
            state.threads += 1;
            state = wait(&self.core.changed, state, None);
            state.threads -= 1;
        }
    }
}

/// The batch, out of the shared state for a revoke. It goes back when this is dropped.
struct Taken<'c, M> {
    core: &'c Core<M>,
    batch: Batch,
    /// Whether a message is being revoked. A checksum that panics there leaves it as nobody knows what.
    half_done: bool,
    revoked: Option<Revoked>,
}

impl<M> Taken<'_, M> {
    fn revoke(mut self, fate: &Arc<Fate>) {
        self.half_done = true;
        self.revoked = self.batch.revoke(fate, self.core.accepts_gap);
        self.half_done = false;
    }
}

impl<M> Drop for Taken<'_, M> {
    fn drop(&mut self) {
        let mut batch = std::mem::take(&mut self.batch);
        let mut later = Later::default();
        let mut state = self.core.lock();
        if let Some(revoked) = self.revoked.take() {
            state.tell(revoked, &mut batch, &mut later);
        }
        if self.half_done {
            state.die(SendError::new(SendErrorKind::ShutDown, None, 0), &mut later);
        }
        // It may have ended meanwhile.
        state.fail(&mut batch, &mut later);
        state.batch = Some(batch);
        state.forget_stall_if_idle();
        // Others may have come for it, to flush.
        if state.ready {
            state.blocked = None;
        }
        later.wake_threads();
        if !planted("who revokes tells no task") {
            later.wake(state.work.take());
        }
        self.core.unlock(state, &mut later);
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

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.polled = true;
        // Neither cloned nor dropped under the lock.
        let waker = context.waker().clone();
        let mut told = self.fate.lock();
        if let Some(outcome) = told.outcome.clone() {
            drop(told);
            return Poll::Ready(outcome.into_result());
        }
        let kept = told.waker.is_some() && planted("old waker is kept");
        let old = if kept { Some(waker) } else { told.waker.replace(waker) };
        drop(told);
        drop(old);
        Poll::Pending
    }
}

impl<M> Drop for Ticket<M> {
    fn drop(&mut self) {
        if self.polled {
            let waker = self.fate.lock().waker.take();
            drop(waker);
        }
    }
}

impl<M> fmt::Debug for Ticket<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ticket").field("outcome", &self.outcome()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fates_that_were_held_for_long_are_not_kept_for_ever() {
        let mut tickets = Tickets::default();
        let held: Vec<_> = (0..3 * KEPT).map(|_| tickets.open()).collect();
        for fate in &held {
            assert!(tickets.resolve(fate.clone(), Outcome::Sent).is_none());
        }
        assert_eq!((tickets.live(), tickets.told.len()), (3 * KEPT, 3 * KEPT));
        let longer = held[..10].to_vec();
        drop(held);
        // Let go at once, each of them.
        for _ in 0..3 * KEPT {
            let fate = tickets.open();
            assert!(fate.outcome().is_none());
            assert!(tickets.resolve(fate, Outcome::Sent).is_none());
        }
        assert_eq!(tickets.live(), longer.len());
        assert!(tickets.told.len() <= KEPT && tickets.free.len() <= KEPT);
    }
}
