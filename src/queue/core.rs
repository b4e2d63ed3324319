//! What producers, flusher and ticket holders share, under one lock that is never held across a call or a callback.

use std::collections::VecDeque;
use std::task::Waker;
use std::time::Instant;

use smallvec::SmallVec;

use super::ticket::{Fate, Outcome, RevokedAs, Tickets};
use crate::chain::Outgoing;
use crate::send::{Backoff, Blocked, SendError, SendErrorKind, SendStats};
use crate::sync::{Arc, Condvar, Mutex, MutexGuard, lock, planted};
use crate::window::Ledger;

pub(super) struct Core<M> {
    state: Mutex<State<M>>,
    /// Whether the protocol lets a framed message disappear.
    pub(super) accepts_gap: bool,
    pub(super) changed: Condvar,
}

#[allow(clippy::struct_excessive_bools, reason = "independent facts, none of which follows from the others")]
pub(super) struct State<M> {
    pub(super) bulk: Line<M>,
    pub(super) control: Line<M>,
    /// Control messages that may still go before the next bulk message.
    pub(super) burst: usize,
    /// What is framed. Whoever has taken it out is the flusher, and there is no other.
    pub(super) batch: Option<Batch>,
    pub(super) tickets: Tickets,
    /// Why the last flusher stopped, until the transport is ready again.
    pub(super) blocked: Option<Blocked>,
    /// Whether somebody came to flush, as one does when the transport is ready, since the flusher's call began.
    pub(super) ready: bool,
    /// Since when the transport has taken nothing of what it was offered.
    pub(super) stalled: Option<Instant>,
    /// How long to wait next if the system is short of memory.
    pub(super) backoff: Backoff,
    /// Whether a thread waits for the transport on behalf of all.
    pub(super) polling: bool,
    /// Whether the flusher left although there was more to do, because somebody else was there to go on.
    pub(super) handed_over: bool,
    /// Whether the flusher has had its turn and goes on only for want of another: whoever pushes takes over.
    pub(super) over_budget: bool,
    /// Whether the stream was told that more follows, when the last flusher left.
    pub(super) owes_more: bool,
    pub(super) closed: bool,
    pub(super) dead: Option<SendError>,
    /// Tickets that are revoked while the flusher has their messages.
    pub(super) revokes: Vec<Arc<Fate>>,
    /// Threads that wait for a change, and those of them that would flush.
    pub(super) threads: usize,
    pub(super) drivers: usize,
    /// A task that flushes.
    pub(super) work: Option<Waker>,
    pub(super) stats: SendStats,
}

/// Messages that are not framed yet, and the room that they and their like take until they have left.
pub(super) struct Line<M> {
    pub(super) waiting: VecDeque<Waiting<M>>,
    pub(super) room: Ledger,
}

/// A message that is not framed yet.
pub(super) struct Waiting<M> {
    pub(super) message: M,
    pub(super) ticket: Arc<Fate>,
    pub(super) share: Share,
}

/// Which line a message stands in.
#[derive(Clone, Copy)]
pub(super) enum Lane {
    Bulk,
    Control,
}

/// A message's share of its lane's room; its end is [`State::give_back`].
#[must_use]
pub(super) struct Share {
    pub(super) lane: Lane,
    pub(super) bytes: u64,
}

/// Framed messages, the first of which may be half-sent.
#[derive(Default)]
pub(super) struct Batch {
    pub(super) outgoing: Vec<Outgoing<'static>>,
    pub(super) entries: Vec<Entry>,
}

pub(super) struct Entry {
    /// `None` once its holder knows what becomes of it.
    pub(super) ticket: Option<Arc<Fate>>,
    pub(super) share: Share,
}

/// A framed message that was taken back, before anybody is told.
pub(super) struct Revoked {
    ticket: Arc<Fate>,
    outcome: Outcome,
    /// Of a message that is out of the batch.
    share: Option<Share>,
}

impl Batch {
    /// Takes a framed message back, if its ticket is still open. Not under the lock: it digests, by a checksum of the
    /// caller's maybe, and lets go of the message, whose pages have owners.
    pub(super) fn revoke(&mut self, ticket: &Arc<Fate>, accepts_gap: bool) -> Option<Revoked> {
        let is_its = |entry: &Entry| entry.ticket.as_ref().is_some_and(|own| Arc::ptr_eq(own, ticket));
        let index = self.entries.iter().position(is_its)?;
        let message = &mut self.outgoing[index];
        let sent = message.sent();
        let (outcome, share) = if sent == 0 && accepts_gap && !planted("no gap is made") {
            drop(self.outgoing.remove(index));
            let Entry { ticket, share } = self.entries.remove(index);
            return Some(Revoked {
                ticket: ticket?,
                outcome: Outcome::Revoked(RevokedAs::Dropped),
                share: Some(share),
            });
        } else if let Some((rest, aborted)) = message.replacement() {
            if !planted("a revoked message goes on") {
                *message = rest;
            }
            (Outcome::Revoked(if aborted { RevokedAs::Aborted } else { RevokedAs::Finishing }), None)
        } else {
            (Outcome::Failed(SendError::new(SendErrorKind::Revoked, None, sent)), None)
        };
        Some(Revoked { ticket: self.entries[index].ticket.take()?, outcome, share })
    }
}

/// What is to be dropped or woken when the lock is free: both may run code of the caller's.
pub(super) struct Later<M> {
    wakers: SmallVec<[Waker; 1]>,
    messages: Vec<M>,
    outgoing: Vec<Outgoing<'static>>,
    threads: bool,
}

impl<M> Core<M> {
    pub(super) fn new(accepts_gap: bool, bulk: Ledger, control: Ledger) -> Self {
        let state = State {
            bulk: Line { waiting: VecDeque::new(), room: bulk },
            control: Line { waiting: VecDeque::new(), room: control },
            burst: super::CONTROL_BURST,
            batch: Some(Batch::default()),
            tickets: Tickets::default(),
            blocked: None,
            ready: false,
            stalled: None,
            backoff: Backoff::new(),
            polling: false,
            handed_over: false,
            over_budget: false,
            owes_more: false,
            closed: false,
            dead: None,
            revokes: Vec::new(),
            threads: 0,
            drivers: 0,
            work: None,
            stats: SendStats::default(),
        };
        Self { state: Mutex::new(state), accepts_gap, changed: Condvar::new() }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State<M>> {
        lock(&self.state)
    }

    /// Frees the lock, then does what had to wait for that. What had to is empty then, and keeps its memory.
    pub(super) fn unlock(&self, state: MutexGuard<'_, State<M>>, later: &mut Later<M>) {
        let threads = std::mem::take(&mut later.threads) && state.threads > 0;
        drop(state);
        if threads {
            self.changed.notify_all();
        }
        later.wakers.drain(..).for_each(Waker::wake);
        later.messages.clear();
        later.outgoing.clear();
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
        let parked = self.batch.as_ref().is_some_and(|batch| !batch.outgoing.is_empty() || self.owes_more);
        parked || !self.bulk.waiting.is_empty() || !self.control.waiting.is_empty()
    }

    pub(super) fn resolve(&mut self, ticket: Arc<Fate>, outcome: Outcome, later: &mut Later<M>) {
        if let Some(waker) = self.tickets.resolve(ticket, outcome) {
            later.wakers.push(waker);
        }
        later.threads = true;
    }

    /// A message has left, or never will: whoever waits for its room moves up.
    #[allow(clippy::needless_pass_by_value, reason = "a share is given back once")]
    pub(super) fn give_back(&mut self, share: Share, later: &mut Later<M>) {
        self.room(share.lane).give_back(share.bytes);
        if !planted("room is given back quietly") {
            self.grant(share.lane, later);
        }
    }

    /// Lets in who fits now.
    pub(super) fn grant(&mut self, lane: Lane, later: &mut Later<M>) {
        later.threads |= self.room(lane).grant(&mut later.wakers);
    }

    pub(super) fn room(&mut self, lane: Lane) -> &mut Ledger {
        match lane {
            Lane::Bulk => &mut self.bulk.room,
            Lane::Control => &mut self.control.room,
        }
    }

    /// The first `complete` messages are done, and out of the batch already.
    pub(super) fn settle(&mut self, batch: &mut Batch, complete: usize, later: &mut Later<M>) {
        for entry in batch.entries.drain(..complete) {
            if let Some(ticket) = entry.ticket {
                self.resolve(ticket, Outcome::Sent, later);
            }
            self.give_back(entry.share, later);
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
        while let Some(waiting) = self.control.waiting.pop_front().or_else(|| self.bulk.waiting.pop_front()) {
            self.refuse(waiting, error.for_message(0), later);
        }
        // Nobody gets in any more, room or not.
        later.wakers.extend(self.bulk.room.take_wakers());
        if let Some(batch) = &mut self.batch {
            let mut batch = std::mem::take(batch);
            self.fail(&mut batch, later);
        }
    }

    /// A message fails before it is framed.
    pub(super) fn refuse(&mut self, waiting: Waiting<M>, error: SendError, later: &mut Later<M>) {
        let Waiting { message, ticket, share } = waiting;
        self.resolve(ticket, Outcome::Failed(error), later);
        self.give_back(share, later);
        later.messages.push(message);
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
            self.give_back(entry.share, later);
        }
        later.outgoing.append(&mut batch.outgoing);
    }

    /// Tells the holder of a revoked ticket, and ends the stream if the message could not be taken out of it.
    pub(super) fn tell(&mut self, revoked: Revoked, batch: &mut Batch, later: &mut Later<M>) {
        let Revoked { ticket, outcome, share } = revoked;
        let death = match &outcome {
            Outcome::Failed(error) if !planted("what cannot be aborted goes on") => Some(error.clone()),
            _ => None,
        };
        self.resolve(ticket, outcome, later);
        if let Some(share) = share {
            self.give_back(share, later);
        }
        if let Some(error) = death {
            self.die(error, later);
            self.fail(batch, later);
        }
    }

    /// Takes a message back that is not framed yet.
    pub(super) fn remove_waiting(&mut self, ticket: &Arc<Fate>) -> Option<Waiting<M>> {
        [&mut self.bulk, &mut self.control].into_iter().find_map(|line| {
            let index = line.waiting.iter().position(|waiting| Arc::ptr_eq(&waiting.ticket, ticket))?;
            line.waiting.remove(index)
        })
    }
}

impl<M> Default for Later<M> {
    fn default() -> Self {
        Self { wakers: SmallVec::new(), messages: Vec::new(), outgoing: Vec::new(), threads: false }
    }
}

impl<M> Later<M> {
    /// Whether it has memory that is worth keeping.
    pub(super) fn is_large(&self) -> bool {
        self.wakers.spilled()
    }

    pub(super) fn wake_threads(&mut self) {
        self.threads = true;
    }

    pub(super) fn wake(&mut self, wakers: impl IntoIterator<Item = Waker>) {
        self.wakers.extend(wakers);
    }
}
