//! One turn of the flusher: frame what waits, hand it to the kernel, tell the tickets, until nothing is left, the transport
//! takes no more, or the turn is over.

use std::cell::Cell;
use std::collections::VecDeque;
use std::fmt;
use std::time::Instant;

use super::core::{Batch, Entry, Later, Share, State, Waiting};
use super::ticket::{Fate, Outcome};
use super::{CONTROL_BURST, Flushed, Queued, Shared};
use crate::chain::{ChainBuilder, Outgoing};
use crate::framer::Framer;
use crate::send::{Backoff, Progress, SendError, SendErrorKind, StreamSender};
use crate::sync::{Arc, MutexGuard, lock, planted, thread_local};
use crate::transport::VectoredSend;

/// What only the flusher touches.
pub(super) struct Engine<M, F, T> {
    pub(super) framer: F,
    pub(super) sender: StreamSender<std::sync::Arc<T>>,
    pub(super) taken: VecDeque<Waiting<M>>,
    /// What the framer would not take, until its tickets are told.
    pub(super) refused: Vec<(Arc<Fate>, SendError, Share)>,
    /// Memory of the last turn.
    pub(super) later: Later<M>,
    /// Memory of chains that have left, without their payload.
    pub(super) spare: Vec<ChainBuilder<'static>>,
}

/// Chains whose memory is kept.
const SPARE: usize = 256;
/// Messages framed at a time.
const BATCH_MESSAGES: usize = 256;

thread_local! {
    /// Whether this thread flushes a queue: then it waits for no other flusher, which may wait for it.
    #[allow(clippy::missing_const_for_thread_local, reason = "loom's takes no const")]
    static FLUSHES: Cell<bool> = Cell::new(false);
}

/// Whether this thread flushes a queue, and so is in a transport, a framer, a waker or the drop of a message.
pub(super) fn this_thread_flushes() -> bool {
    FLUSHES.with(Cell::get)
}

/// This thread flushes, until this is dropped; it may have done so before, another queue.
struct Flushes(bool);

impl Flushes {
    fn begin() -> Self {
        Self(FLUSHES.with(|flushes| flushes.replace(true)))
    }
}

impl Drop for Flushes {
    fn drop(&mut self) {
        FLUSHES.with(|flushes| flushes.set(self.0));
    }
}

/// One turn of a flusher: it has the batch and the engine, and gives both back.
pub(super) struct Turn<'q, M: Queued, F, T> {
    pub(super) shared: &'q Shared<M, F, T>,
    pub(super) batch: Option<Batch>,
    pub(super) engine: Option<Box<Engine<M, F, T>>>,
    pub(super) end: AtTheEnd,
}

/// What a flusher does when its turn is over and nobody waits to relieve it.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum AtTheEnd {
    /// Its caller comes back.
    Leave,
    /// It goes on until somebody pushes, who takes over: nothing is left lying.
    StayUntilRelieved,
}

impl<'q, M, F, T> Turn<'q, M, F, T>
where
    M: Queued,
    F: Framer<M>,
    F::Error: fmt::Display,
    T: VectoredSend,
{
    /// `state` is the lock under which the batch was taken.
    pub(super) fn run(mut self, mut state: MutexGuard<'q, State<M>>) -> Result<Flushed, SendError> {
        let _flushes = Flushes::begin();
        let shared = self.shared;
        let (Some(batch), Some(engine)) = (&mut self.batch, &mut self.engine) else {
            return Ok(Flushed::Busy);
        };
        let mut turn = shared.options.turn_bytes;
        let mut later = std::mem::take(&mut engine.later);
        while state.dead.is_none() {
            refill(&mut state, batch, &mut engine.taken, shared.options.batch_bytes);
            let nothing = engine.taken.is_empty() && batch.outgoing.is_empty();
            // A revoke took what was to follow the last call: one without messages pushes that out.
            if nothing && !engine.sender.owes_more() {
                if planted("idle without a look") {
                    shared.core.unlock(state, &mut later);
                    state = shared.core.lock();
                }
                return Ok(self.park(state, later, Flushed::Idle));
            }
            state.ready = false;
            shared.core.unlock(state, &mut later);

            let gap = engine.frame(batch);
            let before = engine.sender.stats().bytes;
            let progress = match gap {
                Some(error) => Err(error),
                None => engine.sender.send_one_call(&mut batch.outgoing),
            };
            let sent = engine.sender.stats().bytes - before;
            let complete = engine.reclaim(batch);

            state = shared.core.lock();
            state.blocked = None;
            for (ticket, error, share) in engine.refused.drain(..) {
                state.resolve(ticket, Outcome::Failed(error), &mut later);
                state.give_back(share, &mut later);
            }
            state.settle(batch, complete, &mut later);
            while let Some(ticket) = state.revokes.pop() {
                shared.core.unlock(state, &mut later);
                let revoked = batch.revoke(&ticket, shared.core.accepts_gap);
                drop(ticket);
                state = shared.core.lock();
                if let Some(revoked) = revoked {
                    state.tell(revoked, batch, &mut later);
                }
            }
            state.stats = engine.sender.stats();
            turn = turn.saturating_sub(sent);
            if sent > 0 {
                (state.stalled, state.backoff) = (None, Backoff::new());
            }
            match progress {
                Err(error) => state.die(error, &mut later),
                Ok(Some(Progress::Blocked(_))) if state.ready => {}
                Ok(Some(Progress::Blocked(reason))) => {
                    state.stalled.get_or_insert_with(Instant::now);
                    shared.end_if_stalled(&mut state, &mut later);
                    if state.dead.is_none() {
                        state.blocked = Some(reason);
                        return Ok(self.park(state, later, Flushed::Blocked(reason)));
                    }
                }
                // What is framed when the stream has ended is not for others to fail.
                Ok(_) if state.dead.is_some() && !planted("a dead queue is handed over") => {}
                Ok(_) if turn == 0 && (state.drivers > 0 || state.work.is_some()) => {
                    later.wake(state.work.take());
                    return Ok(self.park(state, later, Flushed::HandedOver));
                }
                Ok(_) if turn == 0 && self.end == AtTheEnd::Leave => {
                    return Ok(self.park(state, later, Flushed::Budget));
                }
                Ok(_) => state.over_budget = turn == 0,
            }
        }
        shared.core.unlock(state, &mut later);
        // Dead: dropping the turn fails what is framed.
        drop(self);
        let death = shared.core.lock().dead.clone();
        Err(death.unwrap_or_else(|| SendError::new(SendErrorKind::ShutDown, None, 0)))
    }

    /// Gives engine and batch back, under the lock under which it was seen that nothing more can be done.
    fn park(mut self, mut state: MutexGuard<'_, State<M>>, mut later: Later<M>, flushed: Flushed) -> Flushed {
        state.owes_more = self.engine.as_ref().is_some_and(|engine| engine.sender.owes_more());
        *lock(&self.shared.engine) = self.engine.take();
        state.batch = self.batch.take();
        state.handed_over = matches!(flushed, Flushed::HandedOver | Flushed::Budget);
        state.over_budget = false;
        // What was offered may have been revoked since.
        state.forget_stall_if_idle();
        let drivers = state.drivers > 0 && !planted("idle tells nobody");
        if flushed != Flushed::Idle || drivers {
            // Somebody may wait who can wait for the transport, or for the queue to be empty.
            later.wake_threads();
        }
        if flushed != Flushed::Idle && !planted("a task is not told of a block") {
            later.wake(state.work.take());
        }
        self.shared.core.unlock(state, &mut later);
        if later.is_large()
            && let Some(engine) = &mut *lock(&self.shared.engine)
        {
            engine.later = later;
        }
        flushed
    }
}

/// A framer or a transport that panics, and a stream that has ended, end here.
impl<M: Queued, F, T> Drop for Turn<'_, M, F, T> {
    fn drop(&mut self) {
        let Some(mut batch) = self.batch.take() else { return };
        if planted("flusher leaves quietly") {
            return;
        }
        let mut later = Later::default();
        let mut state = self.shared.core.lock();
        state.die(SendError::new(SendErrorKind::ShutDown, None, 0), &mut later);
        state.fail(&mut batch, &mut later);
        if let Some(engine) = &mut self.engine {
            if planted("what was refused is forgotten") {
                engine.refused.clear();
            }
            for (ticket, error, share) in engine.refused.drain(..) {
                state.resolve(ticket, Outcome::Failed(error), &mut later);
                state.give_back(share, &mut later);
            }
            // Messages on their way into the framer.
            for waiting in engine.taken.drain(..) {
                state.refuse(waiting, SendError::new(SendErrorKind::ShutDown, None, 0), &mut later);
            }
        }
        state.revokes.clear();
        state.over_budget &= planted("the end keeps its relief waiting");
        state.batch = Some(Batch::default());
        self.shared.core.unlock(state, &mut later);
    }
}

/// Takes what is framed next: a few control messages, and bulk as far as the batch has room.
fn refill<M>(state: &mut State<M>, batch: &Batch, taken: &mut VecDeque<Waiting<M>>, batch_bytes: u64) {
    let mut bytes = batch.outgoing.iter().map(Outgoing::remaining).fold(0, u64::saturating_add);
    let mut room = BATCH_MESSAGES.saturating_sub(batch.outgoing.len());
    // Without control messages there is nothing to choose: bulk as far as the batch has room.
    if state.control.waiting.is_empty() && !planted("last come, first served") {
        if bytes < batch_bytes && room > 0 {
            state.burst = CONTROL_BURST;
        }
        let fits = |waiting: &&Waiting<M>| {
            let fits = bytes < batch_bytes;
            bytes = bytes.saturating_add(waiting.share.bytes.max(1));
            fits
        };
        let count = state.bulk.waiting.iter().take(room).take_while(fits).count();
        taken.extend(state.bulk.waiting.drain(..count));
        return;
    }
    while bytes < batch_bytes && room > 0 {
        let control = if state.burst > 0 { state.control.waiting.pop_front() } else { None };
        let next = if let Some(control) = control {
            state.burst -= 1;
            Some(control)
        } else {
            state.burst = CONTROL_BURST;
            let last = planted("last come, first served");
            let bulk = if last { state.bulk.waiting.pop_back() } else { state.bulk.waiting.pop_front() };
            bulk.or_else(|| state.control.waiting.pop_front())
        };
        let Some(next) = next else { break };
        bytes = bytes.saturating_add(next.share.bytes.max(1));
        room -= 1;
        taken.push_back(next);
    }
}

impl<M, F, T> Engine<M, F, T>
where
    M: 'static,
    F: Framer<M>,
    F::Error: fmt::Display,
{
    /// Frames what was taken. Returns why the stream cannot go on, if it cannot: a chain that cannot be finished was
    /// committed by its framer, and where numbers must not be missing that is the end.
    fn frame(&mut self, batch: &mut Batch) -> Option<SendError> {
        while let Some(Waiting { message, ticket, share }) = self.taken.pop_front() {
            let mut out = self.spare.pop().unwrap_or_default();
            // Its entry stands before it is framed: should the framer panic, its ticket is not lost.
            batch.entries.push(Entry { ticket: Some(ticket), share });
            let (error, gap) = match self.framer.frame(message, &mut out) {
                Err(error) => (SendError::not_framed(&error), false),
                Ok(()) => match out.finish() {
                    Ok(chain) => {
                        if planted("a message goes inside another") {
                            batch.outgoing.insert(0, Outgoing::new(chain));
                            continue;
                        }
                        batch.outgoing.push(Outgoing::new(chain));
                        continue;
                    }
                    Err(error) => (SendError::not_framed(&error), !self.framer.accepts_gap()),
                },
            };
            let gap = gap.then(|| error.clone());
            if let Some(Entry { ticket: Some(ticket), share }) = batch.entries.pop() {
                self.refused.push((ticket, error, share));
            }
            if gap.is_some() {
                return gap;
            }
        }
        None
    }

    /// Takes the messages out whose last byte has left, and lets go of their payload, before anybody is told and while no
    /// lock is held: the last owner of a page may do what it likes. Returns how many there were.
    fn reclaim(&mut self, batch: &mut Batch) -> usize {
        let complete = batch.outgoing.iter().take_while(|message| message.is_complete()).count();
        for message in batch.outgoing.drain(..complete) {
            if let Some(chain) = message.into_chain() {
                let memory = chain.recycle();
                if self.spare.len() < SPARE {
                    self.spare.push(memory);
                }
            }
        }
        complete
    }
}
