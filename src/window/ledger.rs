//! What is in flight against its bounds, and who waits for a share of them, first come, first served.
//!
//! No lock of its own: [`Window`](super::Window) has one around it, and a send queue keeps its own under the queue's.

use std::collections::VecDeque;
use std::task::Waker;

use crate::sync::planted;

/// Bytes and requests in flight, their bounds, and the line of those who wait.
pub(crate) struct Ledger {
    capacity: u64,
    bytes: u64,
    max_requests: usize,
    requests: usize,
    /// In the order in which they came, which is that of their ids.
    waiters: VecDeque<Waiter>,
    /// How many of them, in front, were granted their share and have not seen it yet.
    granted: usize,
    next_id: u64,
}

/// Where somebody stands in the line. Who leaves before its turn says so to [`Ledger::leave`].
#[derive(Debug)]
pub(crate) struct Place(u64);

struct Waiter {
    id: u64,
    bytes: u64,
    waker: Option<Waker>,
}

impl Ledger {
    /// Nothing in flight, of so many bytes and requests at most; at least 1 of each.
    pub(crate) fn new(bytes: u64, requests: usize) -> Self {
        Self {
            capacity: bytes.max(1),
            bytes: 0,
            max_requests: requests.max(1),
            requests: 0,
            waiters: VecDeque::new(),
            granted: 0,
            next_id: 0,
        }
    }

    pub(crate) fn capacity(&self) -> u64 {
        self.capacity
    }

    pub(crate) fn max_requests(&self) -> usize {
        self.max_requests
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(crate) fn requests(&self) -> usize {
        self.requests
    }

    /// How many stand in the line.
    pub(crate) fn waiting(&self) -> usize {
        self.waiters.len()
    }

    /// A share for a request of `bytes` bytes if there is room now and nobody waits: its bytes, which are at most all. Who
    /// was granted one and has not seen that yet does not wait.
    #[inline]
    pub(crate) fn take(&mut self, bytes: u64) -> Option<u64> {
        if self.granted == self.waiters.len() { self.take_if_it_fits(bytes) } else { None }
    }

    /// Joins the line, or looks whether its turn has come. Takes the waker, and leaves what is to be dropped in its place.
    pub(crate) fn advance(
        &mut self,
        bytes: u64,
        place: &mut Option<Place>,
        waker: &mut Option<Waker>,
    ) -> Option<u64> {
        let Some(Place(id)) = *place else {
            let share = self.take(bytes);
            if share.is_none() {
                let id = self.next_id;
                self.next_id += 1;
                self.waiters.push_back(Waiter { id, bytes, waker: waker.take() });
                *place = Some(Place(id));
            }
            return share;
        };
        let index = self.find(id)?;
        if index < self.granted {
            *place = None;
            self.granted -= 1;
            return self.waiters.remove(index).map(|waiter| waiter.bytes);
        }
        // The latest waker counts: the task may have moved since.
        if !planted("the first waker is kept") {
            std::mem::swap(&mut self.waiters[index].waker, waker);
        }
        None
    }

    /// Leaves the line, with what was granted there. Whoever is first now may fit where this one did not:
    /// [`grant`](Self::grant) next. Returns the waker, which is not to be dropped under the lock.
    pub(crate) fn leave(&mut self, Place(id): Place) -> Option<Waker> {
        let index = self.find(id)?;
        let waiter = self.waiters.remove(index)?;
        if index < self.granted {
            self.granted -= 1;
            self.give_back(waiter.bytes);
        }
        waiter.waker
    }

    /// Gives a share back. [`grant`](Self::grant) next.
    #[inline]
    pub(crate) fn give_back(&mut self, share: u64) {
        self.requests -= 1;
        self.bytes -= share;
    }

    /// Grants what fits now; whom it concerns is to be woken when the lock is free. Whether there was anybody.
    #[inline]
    pub(crate) fn grant(&mut self, wakers: &mut impl Extend<Waker>) -> bool {
        let before = self.granted;
        while let Some(next) = self.waiters.get(self.granted) {
            let Some(share) = self.take_if_it_fits(next.bytes) else { break };
            let waiter = &mut self.waiters[self.granted];
            waiter.bytes = share;
            wakers.extend(waiter.waker.take());
            self.granted += 1;
        }
        self.granted > before
    }

    /// The wakers of all who wait, for them to look at something else than the ledger.
    pub(crate) fn take_wakers(&mut self) -> impl Iterator<Item = Waker> {
        self.waiters.iter_mut().filter_map(|waiter| waiter.waker.take())
    }

    fn find(&self, id: u64) -> Option<usize> {
        self.waiters.binary_search_by_key(&id, |waiter| waiter.id).ok()
    }

    fn take_if_it_fits(&mut self, bytes: u64) -> Option<u64> {
        let share = bytes.min(self.capacity);
        self.fits(share).then(|| self.put(share))
    }

    pub(super) fn fits(&self, share: u64) -> bool {
        self.requests < self.max_requests && share <= self.capacity - self.bytes
    }

    pub(super) fn put(&mut self, share: u64) -> u64 {
        self.requests += 1;
        self.bytes += share;
        share
    }
}
