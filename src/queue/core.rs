//! What producers, flusher and ticket holders share, under one lock that is never held across a call or a callback.

use std::collections::VecDeque;
use std::task::Waker;
use std::time::Instant;

use smallvec::SmallVec;

use super::ticket::{Outcome, RevokedAs, TicketId, Tickets};
use crate::chain::Outgoing;
use crate::send::{Blocked, SendError, SendErrorKind, SendStats};
use crate::sync::{Condvar, Mutex, MutexGuard, lock, planted};
use crate::window::Permit;

pub(super) struct Core<M> {
    state: Mutex<State<M>>,
    pub(super) changed: Condvar,
}

#[allow(clippy::struct_excessive_bools)] // four independent facts
pub(super) struct State<M> {
    pub(super) bulk: VecDeque<Waiting<M>>,
    pub(super) control: VecDeque<Waiting<M>>,
    /// Control messages that may still go before the next bulk message.
    pub(super) burst: usize,
    /// What is framed. Whoever has taken it out is the flusher, and there is no other.
    pub(super) batch: Option<Batch>,
    pub(super) tickets: Tickets,
    /// Why the last flusher stopped, until the transport is ready again.
    pub(super) blocked: Option<Blocked>,
    /// Since when the transport has taken nothing of what it was offered.
    pub(super) stalled: Option<Instant>,
    /// Whether a thread waits for the transport on behalf of all.
    pub(super) polling: bool,
    /// Whether the flusher left although there was more to do, because somebody else was there to go on.
    pub(super) handed_over: bool,
    /// Whether the flusher has had its turn and goes on only for want of another: whoever pushes takes over.
    pub(super) over_budget: bool,
    pub(super) closed: bool,
    pub(super) dead: Option<SendError>,
    /// Tickets that are revoked while the flusher has their messages.
    pub(super) revokes: Vec<TicketId>,
    /// Whether the protocol lets a framed message disappear.
    accepts_gap: bool,
    /// Threads that wait for a change, and those of them that would flush.
    pub(super) threads: usize,
    pub(super) drivers: usize,
    /// A task that flushes.
    pub(super) work: Option<Waker>,
    pub(super) stats: SendStats,
}

/// A message that is not framed yet.
pub(super) struct Waiting<M> {
    pub(super) message: M,
    pub(super) ticket: TicketId,
    pub(super) permit: Permit,
}

/// Framed messages, the first of which may be half-sent.
#[derive(Default)]
pub(super) struct Batch {
    pub(super) outgoing: Vec<Outgoing<'static>>,
    pub(super) entries: Vec<Entry>,
}

pub(super) struct Entry {
    /// `None` once its holder knows what becomes of it.
    pub(super) ticket: Option<TicketId>,
    pub(super) permit: Permit,
}

/// What is to be dropped or woken when the lock is free: both may run code of the caller's.
pub(super) struct Later<M> {
    wakers: SmallVec<[Waker; 4]>,
    permits: SmallVec<[Permit; 4]>,
    messages: Vec<Waiting<M>>,
    outgoing: Vec<Outgoing<'static>>,
    threads: bool,
}

impl<M> Core<M> {
    pub(super) fn new(accepts_gap: bool) -> Self {
        let state = State {
            bulk: VecDeque::new(),
            control: VecDeque::new(),
            burst: super::CONTROL_BURST,
            batch: Some(Batch::default()),
            tickets: Tickets::default(),
            blocked: None,
            stalled: None,
            polling: false,
            handed_over: false,
            over_budget: false,
            closed: false,
            dead: None,
            revokes: Vec::new(),
            accepts_gap,
            threads: 0,
            drivers: 0,
            work: None,
            stats: SendStats::default(),
        };
        Self { state: Mutex::new(state), changed: Condvar::new() }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State<M>> {
        lock(&self.state)
    }

    /// Frees the lock, then does what had to wait for that. Returns the emptied memory.
    pub(super) fn unlock(&self, state: MutexGuard<'_, State<M>>, mut later: Later<M>) -> Later<M> {
        let threads = std::mem::take(&mut later.threads) && state.threads > 0;
        drop(state);
        if threads {
            self.changed.notify_all();
        }
        later.wakers.drain(..).for_each(Waker::wake);
        later.permits.clear();
        later.messages.clear();
        later.outgoing.clear();
        later
    }
}

impl<M> State<M> {
    /// Why nothing more can be pushed, if that is so.
    pub(super) fn refusal(&self) -> Option<SendError> {
        let dead = self.dead.as_ref().map(|death| death.for_message(0));
        dead.or_else(|| self.closed.then(|| SendError::new(SendErrorKind::ShutDown, None, 0)))
    }

    /// Makes the caller the flusher, unless there is one.
    pub(super) fn take_batch(&mut self) -> Option<Batch> {
        let batch = self.batch.take()?;
        (self.handed_over, self.over_budget) = (false, false);
        Some(batch)
    }

    /// A transport that is offered nothing does not stall.
    pub(super) fn forget_stall_if_idle(&mut self) {
        if self.batch.is_some() && !self.has_work() {
            self.stalled = None;
        }
    }

    /// Whether a flusher would find something to do.
    pub(super) fn has_work(&self) -> bool {
        let parked = self.batch.as_ref().is_some_and(|batch| !batch.outgoing.is_empty());
        parked || !self.bulk.is_empty() || !self.control.is_empty()
    }

    pub(super) fn resolve(&mut self, ticket: TicketId, outcome: Outcome, later: &mut Later<M>) {
        later.wakers.extend(self.tickets.resolve(ticket, outcome));
        later.threads = true;
    }

    /// The first `complete` messages are done, and out of the batch already.
    pub(super) fn settle(&mut self, batch: &mut Batch, complete: usize, later: &mut Later<M>) {
        for entry in batch.entries.drain(..complete) {
            if let Some(ticket) = entry.ticket {
                self.resolve(ticket, Outcome::Sent, later);
            }
            later.permits.push(entry.permit);
        }
    }

    /// Ends the queue: whatever waits fails, and so does what is framed, if it is here.
    pub(super) fn die(&mut self, error: SendError, later: &mut Later<M>) {
        let error = self.dead.get_or_insert(error).clone();
        later.threads = true;
        later.wakers.extend(self.work.take());
        if planted("poison leaves the waiting") {
            return;
        }
        let waiting = self.control.drain(..).chain(self.bulk.drain(..)).collect::<Vec<_>>();
        for message in &waiting {
            self.resolve(message.ticket, Outcome::Failed(error.for_message(0)), later);
        }
        later.messages.extend(waiting);
        if let Some(batch) = &mut self.batch {
            let mut batch = std::mem::take(batch);
            self.fail(&mut batch, later);
        }
    }

    /// What is framed fails with the queue's error.
    pub(super) fn fail(&mut self, batch: &mut Batch, later: &mut Later<M>) {
        let Some(error) = self.dead.clone() else { return };
        for (index, entry) in batch.entries.drain(..).enumerate() {
            if let Some(ticket) = entry.ticket {
                // The last one has no chain if its framer panicked.
                let sent = batch.outgoing.get(index).map_or(0, Outgoing::sent);
                self.resolve(ticket, Outcome::Failed(error.for_message(sent)), later);
            }
            later.permits.push(entry.permit);
        }
        later.outgoing.append(&mut batch.outgoing);
    }

    /// Takes back what was revoked while the flusher had it.
    pub(super) fn revoke_requested(&mut self, batch: &mut Batch, later: &mut Later<M>) {
        for ticket in std::mem::take(&mut self.revokes) {
            self.revoke_framed(batch, ticket, later);
        }
    }

    /// Takes back a framed message, if its ticket is still open.
    pub(super) fn revoke_framed(&mut self, batch: &mut Batch, ticket: TicketId, later: &mut Later<M>) {
        let Some(index) = batch.entries.iter().position(|entry| entry.ticket == Some(ticket)) else { return };
        let message = &mut batch.outgoing[index];
        let sent = message.sent();
        // The message itself is dropped when the lock is free: its pages have owners.
        let outcome = if sent == 0 && self.accepts_gap && !planted("no gap is made") {
            later.outgoing.push(batch.outgoing.remove(index));
            later.permits.push(batch.entries.remove(index).permit);
            Outcome::Revoked(RevokedAs::Dropped)
        } else if let Some((rest, aborted)) = message.replacement() {
            if !planted("a revoked message goes on") {
                later.outgoing.push(std::mem::replace(message, rest));
            }
            batch.entries[index].ticket = None;
            Outcome::Revoked(if aborted { RevokedAs::Aborted } else { RevokedAs::Finishing })
        } else {
            batch.entries[index].ticket = None;
            Outcome::Failed(SendError::new(SendErrorKind::Revoked, None, sent))
        };
        let death = match &outcome {
            Outcome::Failed(error) if !planted("what cannot be aborted goes on") => Some(error.clone()),
            _ => None,
        };
        self.resolve(ticket, outcome, later);
        if let Some(error) = death {
            self.die(error, later);
            self.fail(batch, later);
        }
    }

    /// Takes a message back that is not framed yet.
    pub(super) fn remove_waiting(&mut self, ticket: TicketId) -> Option<Waiting<M>> {
        [&mut self.bulk, &mut self.control].into_iter().find_map(|lane| {
            let index = lane.iter().position(|waiting| waiting.ticket == ticket)?;
            lane.remove(index)
        })
    }
}

impl<M> Default for Later<M> {
    fn default() -> Self {
        Self {
            wakers: SmallVec::new(),
            permits: SmallVec::new(),
            messages: Vec::new(),
            outgoing: Vec::new(),
            threads: false,
        }
    }
}

impl<M> Later<M> {
    /// Whether it has memory that is worth keeping.
    pub(super) fn is_large(&self) -> bool {
        self.permits.spilled() || self.wakers.spilled()
    }

    pub(super) fn wake_threads(&mut self) {
        self.threads = true;
    }

    pub(super) fn wake(&mut self, waker: Option<Waker>) {
        self.wakers.extend(waker);
    }

    pub(super) fn drop_message(&mut self, message: Waiting<M>) {
        self.messages.push(message);
    }

    pub(super) fn free(&mut self, permit: Permit) {
        self.permits.push(permit);
    }
}
