//! Who brings the queue on: waiting for the transport on behalf of all, and passing a flusher's turn from one to the next.

use std::fmt;
use std::thread;
use std::time::{Duration, Instant};

use super::core::{Core, Later, State};
use super::turn::{AtTheEnd, this_thread_flushes};
use super::{Queued, Shared};
use crate::framer::Framer;
use crate::send::{Blocked, SendError, SendErrorKind};
use crate::sync::{MutexGuard, planted, wait};
use crate::transport::{Interest, VectoredSend, Wait};

/// How long a thread waits for the transport before it looks whether the queue was shut down.
const LONGEST_WAIT: Duration = Duration::from_millis(100);

impl<M, F, T> Shared<M, F, T>
where
    M: Queued,
    F: Framer<M>,
    F::Error: fmt::Display,
    T: VectoredSend,
{
    /// Does what brings the queue on: flushes, or waits for the transport, or, if somebody else does that, for a change.
    pub(super) fn drive(&self, mut state: MutexGuard<'_, State<M>>, deadline: Option<Instant>)
    where
        T: Wait,
    {
        let left =
            |until: Option<Instant>| until.map(|until| until.saturating_duration_since(Instant::now()));
        let work = state.batch.is_some() && state.has_work();
        match state.blocked {
            None if work => {
                if let Some(batch) = state.take_batch() {
                    // An error is told by the tickets, and found by the next look.
                    let _ = self.turn(state, batch, AtTheEnd::Leave);
                }
            }
            Some(reason) if work && !state.polling => {
                state.polling = true;
                let stalled = self.stalled_until(&state);
                let pause = if reason == Blocked::Memory { Some(state.backoff.next()) } else { None };
                drop(state);
                let polling = Polling { core: &self.core, done: false };
                // It cannot be woken in there, and has to learn of a shut-down.
                let look = Some(Instant::now() + LONGEST_WAIT);
                let until = left([deadline, stalled, look].into_iter().flatten().min());
                let waited = match pause {
                    None => self.transport.wait(Interest::Writable, until),
                    // The socket may well be writable.
                    Some(pause) => {
                        thread::sleep(until.map_or(pause, |until| until.min(pause)));
                        Ok(true)
                    }
                };
                let mut state = polling.end();
                let mut later = Later::default();
                later.wake_threads();
                later.wake(state.work.take());
                match waited {
                    // Whoever looks next flushes, unless somebody has come before.
                    Ok(true) if state.batch.is_some() => {
                        (state.blocked, state.handed_over) = (None, true);
                    }
                    Ok(true) => {}
                    Ok(false) => self.end_if_stalled(&mut state, &mut later),
                    Err(error) => {
                        let errno = error.raw_os_error();
                        state.die(SendError::new(SendErrorKind::Io(error.kind()), errno, 0), &mut later);
                    }
                }
                self.core.unlock(state, &mut later);
            }
            _ => drop(self.changed(state, deadline)),
        }
    }

    /// Waits for a change, as one who would flush.
    fn changed<'q>(
        &'q self,
        mut state: MutexGuard<'q, State<M>>,
        deadline: Option<Instant>,
    ) -> MutexGuard<'q, State<M>> {
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        state.threads += 1;
        state.drivers += 1;
        state = wait(&self.core.changed, state, left);
        state.threads -= 1;
        state.drivers -= 1;
        state
    }

    /// Relieves a flusher that has had its turn. That lasts no longer than its current call, which does not wait. A flusher
    /// relieves nobody: it may be the one itself, or one that the other waits for.
    pub(super) fn take_over(&self) {
        if this_thread_flushes() && !planted("a flusher waits for itself") {
            return;
        }
        let state = self.core.lock();
        if state.over_budget {
            drop(self.changed(state, None));
        } else {
            drop(state);
        }
        self.go_on_if_handed_over();
    }

    /// For whoever has waited and leaves: it may be the one whom a flusher left the rest to, and nobody else may come.
    pub(super) fn go_on_if_handed_over(&self) {
        if planted("who was handed a turn leaves") {
            return;
        }
        let mut state = self.core.lock();
        // A flusher takes the flag as well as the batch. Who revokes has only that, and not for long.
        while state.handed_over && state.batch.is_none() {
            state = self.changed(state, None);
        }
        let left_here = state.handed_over && state.blocked.is_none() && state.has_work();
        let batch = if left_here && state.dead.is_none() { state.take_batch() } else { None };
        if let Some(batch) = batch {
            // An error is told by the tickets.
            let _ = self.turn(state, batch, AtTheEnd::StayUntilRelieved);
        }
    }
}

impl<M, F, T> Shared<M, F, T> {
    /// When the stream is given up, if nothing leaves before.
    pub(super) fn stalled_until(&self, state: &State<M>) -> Option<Instant> {
        state.stalled?.checked_add(self.options.stall?)
    }

    pub(super) fn end_if_stalled(&self, state: &mut State<M>, later: &mut Later<M>) {
        if self.stalled_until(state).is_some_and(|until| until <= Instant::now()) {
            state.die(SendError::new(SendErrorKind::Deadline, None, 0), later);
        }
    }
}

/// A thread that waits for the transport, on behalf of all, until it says so or panics.
struct Polling<'q, M> {
    core: &'q Core<M>,
    done: bool,
}

impl<'q, M> Polling<'q, M> {
    /// The lock under which it is over.
    fn end(mut self) -> MutexGuard<'q, State<M>> {
        self.done = true;
        let mut state = self.core.lock();
        state.polling = false;
        state
    }
}

impl<M> Drop for Polling<'_, M> {
    fn drop(&mut self) {
        if self.done || planted("who polls leaves quietly") {
            return;
        }
        let mut state = self.core.lock();
        state.polling = false;
        let mut later = Later::default();
        later.wake_threads();
        self.core.unlock(state, &mut later);
    }
}
