//! Requests in flight: how many at once, and what became of them.
//!
//! ```text
//!  Window ──acquire──▶ Permit ┐
//!  InFlight::start ───────────┴▶ Request ──complete──▶ InFlight::wait_one, wait_all
//! ```
//!
//! Nothing here knows how a request is sent: its life may span a queue, a peer and a receiving thread.

mod in_flight;
mod ledger;

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

pub use self::in_flight::{Ended, Failure, InFlight, Partial, Request};

pub(crate) use self::ledger::{Ledger, Place};

use crate::sync::{Arc, Condvar, Mutex, MutexGuard, lock, planted, wait};

/// Bounds what is in flight, in bytes and in requests. Clones share the same bounds.
///
/// First come, first served: a large request that waits is not overtaken by small ones. A request larger than the
/// whole window counts as the whole window, and so is never stuck.
///
/// ```
/// use segchain::window::Window;
///
/// let window = Window::new(1 << 20, 2);
/// let first = window.acquire(4096);
/// assert!(window.try_acquire(1 << 30).is_none()); // the whole window: not while another is in flight
/// drop(first);
/// let second = window.acquire(1 << 30);
/// assert_eq!((second.bytes(), window.bytes_in_flight()), (1 << 20, 1 << 20));
/// ```
#[derive(Clone)]
pub struct Window(Arc<Shared>);

struct Shared {
    state: Mutex<State>,
    granted: Condvar,
}

struct State {
    ledger: Ledger,
    /// Threads that wait for the condition.
    threads: usize,
}

/// One request's share of a [`Window`], given back when it is dropped.
#[must_use = "the share is given back when the permit is dropped"]
pub struct Permit {
    window: Window,
    bytes: u64,
}

/// Waits for a [`Permit`].
///
/// Cancel safe: when it is dropped nothing is lost, and those behind it move up.
#[must_use = "futures do nothing unless polled"]
pub struct Acquire {
    window: Window,
    bytes: u64,
    place: Option<Place>,
}

impl Window {
    /// What a window holds unless told otherwise: 64 MiB.
    pub const BYTES: u64 = 64 << 20;
    /// The most requests that [`for_object_size`](Self::for_object_size) admits.
    pub const MAX_REQUESTS: u64 = 256;

    /// A window of so many bytes and requests; at least 1 of each.
    pub fn new(bytes: u64, requests: usize) -> Self {
        let state = State { ledger: Ledger::new(bytes, requests), threads: 0 };
        Self(Arc::new(Shared { state: Mutex::new(state), granted: Condvar::new() }))
    }

    /// The window for requests of `bytes` bytes each: as many as fill 64 MiB, at least 1 and at most 256. There is no
    /// other knob: one by one wastes the round trips, without a bound the servers are flooded.
    ///
    /// ```
    /// use segchain::window::Window;
    /// assert_eq!(Window::for_object_size(4 << 20).max_requests(), 16);
    /// assert_eq!(Window::for_object_size(4096).max_requests(), 256);
    /// assert_eq!(Window::for_object_size(1 << 30).max_requests(), 1);
    /// ```
    pub fn for_object_size(bytes: u64) -> Self {
        Self::for_object_size_times(bytes, 1)
    }

    /// The same with `times` (1 to 4) as many requests, for peers that are far away.
    pub fn for_object_size_times(bytes: u64, times: u64) -> Self {
        let times = times.clamp(1, 4);
        let requests = (Self::BYTES * times / bytes.max(1)).clamp(1, Self::MAX_REQUESTS);
        Self::new(Self::BYTES * times, requests as usize)
    }

    /// The most bytes in flight.
    pub fn capacity(&self) -> u64 {
        self.lock().ledger.capacity()
    }

    /// The most requests in flight.
    pub fn max_requests(&self) -> usize {
        self.lock().ledger.max_requests()
    }

    /// Bytes in flight now.
    pub fn bytes_in_flight(&self) -> u64 {
        self.lock().ledger.bytes()
    }

    /// Requests in flight now.
    pub fn requests_in_flight(&self) -> usize {
        self.lock().ledger.requests()
    }

    /// Waits for room for a request of `bytes` bytes.
    pub fn acquire(&self, bytes: u64) -> Permit {
        // Without a deadline it only ends with a permit.
        loop {
            if let Some(permit) = self.acquire_until(bytes, None) {
                return permit;
            }
        }
    }

    /// Waits for room for a request of `bytes` bytes, at most until `deadline`; `None` if there was none.
    pub fn acquire_until(&self, bytes: u64, deadline: Option<Instant>) -> Option<Permit> {
        let mut acquire = self.acquire_async(bytes);
        let mut state = self.lock();
        loop {
            if let Some(permit) = acquire.advance(&mut state, &mut None) {
                return Some(permit);
            }
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                // Dropping the acquire locks again.
                drop(state);
                return None;
            }
            state.threads += 1;
            state = wait(&self.0.granted, state, left);
            state.threads -= 1;
        }
    }

    /// A permit if there is room now and nobody waits.
    pub fn try_acquire(&self, bytes: u64) -> Option<Permit> {
        let mut state = self.lock();
        if planted("a window looks, then takes") && state.ledger.fits(bytes.min(state.ledger.capacity())) {
            drop(state);
            state = self.lock();
            let bytes = bytes.min(state.ledger.capacity());
            return Some(Permit { window: self.clone(), bytes: state.ledger.put(bytes) });
        }
        let share = state.ledger.take(bytes);
        drop(state);
        share.map(|bytes| Permit { window: self.clone(), bytes })
    }

    /// Waits for room for a request of `bytes` bytes, as a future. Its place in the line is that of its first poll.
    pub fn acquire_async(&self, bytes: u64) -> Acquire {
        Acquire { window: self.clone(), bytes, place: None }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.0.state)
    }

    /// Grants what fits now and wakes whom it concerns, once the lock is free.
    fn grant(&self, mut state: MutexGuard<'_, State>) {
        let mut wakers = Vec::new();
        let threads = state.ledger.grant(&mut wakers) && state.threads > 0;
        drop(state);
        if threads {
            self.0.granted.notify_all();
        }
        wakers.into_iter().for_each(Waker::wake);
    }
}

impl Acquire {
    /// Polls for the permit; what the future does.
    pub fn poll_acquire(&mut self, context: &mut Context<'_>) -> Poll<Permit> {
        // Neither cloned nor dropped under the lock.
        let mut waker = Some(context.waker().clone());
        let window = self.window.clone();
        let mut state = window.lock();
        let permit = self.advance(&mut state, &mut waker);
        drop(state);
        permit.map_or(Poll::Pending, Poll::Ready)
    }

    fn advance(&mut self, state: &mut State, waker: &mut Option<Waker>) -> Option<Permit> {
        let bytes = state.ledger.advance(self.bytes, &mut self.place, waker)?;
        Some(Permit { window: self.window.clone(), bytes })
    }
}

impl Future for Acquire {
    type Output = Permit;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Permit> {
        self.poll_acquire(context)
    }
}

impl Drop for Acquire {
    fn drop(&mut self) {
        let Some(place) = self.place.take() else { return };
        let mut state = self.window.lock();
        // Dropped when the lock is free.
        let waker = state.ledger.leave(place);
        if planted("who cancels wakes nobody") {
            return;
        }
        self.window.grant(state);
        drop(waker);
    }
}

impl Permit {
    /// The share, in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut state = self.window.lock();
        state.ledger.give_back(self.bytes);
        self.window.grant(state);
    }
}

impl fmt::Debug for Window {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.lock();
        f.debug_struct("Window")
            .field("bytes", &format_args!("{} of {}", state.ledger.bytes(), state.ledger.capacity()))
            .field(
                "requests",
                &format_args!("{} of {}", state.ledger.requests(), state.ledger.max_requests()),
            )
            .field("waiting", &state.ledger.waiting())
            .finish()
    }
}

impl fmt::Debug for Permit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Permit").field("bytes", &self.bytes).finish_non_exhaustive()
    }
}

impl fmt::Debug for Acquire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Acquire")
            .field("bytes", &self.bytes)
            .field("waiting", &self.place.is_some())
            .finish_non_exhaustive()
    }
}
