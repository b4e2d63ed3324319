//! Many requests at once, and what became of each.

use std::collections::VecDeque;
use std::fmt;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use super::{Permit, Window};
use crate::sync::{Arc, Condvar, Mutex, lock, planted, wait};

/// Requests in flight, each with a value `T` of the caller's that comes back untouched, and a reply `R` or an error `E`.
///
/// ```
/// use segchain::window::{InFlight, Window};
///
/// let requests: InFlight<&str, u32, &str> = InFlight::new(Window::new(1 << 20, 16));
/// let first = requests.start(4096, "first"); // waits for room in the window
/// let second = requests.start(4096, "second");
/// second.complete(Ok(2)); // by whoever receives the replies, in any order
/// first.complete(Ok(1));
/// assert_eq!(requests.wait_all().unwrap(), [("second", 2), ("first", 1)]);
/// ```
pub struct InFlight<T, R, E> {
    window: Window,
    shared: Arc<Shared<T, R, E>>,
}

/// A request that has ended: the caller's value, and the reply or why there is none.
pub type Ended<T, R, E> = (T, Result<R, Failure<E>>);

struct Shared<T, R, E> {
    state: Mutex<State<T, R, E>>,
    ended: Condvar,
}

struct State<T, R, E> {
    started: usize,
    ended: VecDeque<Ended<T, R, E>>,
    waker: Option<Waker>,
    threads: usize,
}

/// Why a request has no reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Failure<E> {
    /// It was completed with an error.
    Failed(E),
    /// Its [`Request`] was dropped: whoever would have received the reply is gone.
    Abandoned,
}

/// What was done of many requests, some of which failed.
#[derive(Debug)]
#[non_exhaustive]
pub struct Partial<T, R, E> {
    /// The requests that failed, in the order in which they did; at least one, unless starting failed.
    pub failed: Vec<(T, Failure<E>)>,
    /// Why no more were started, if that is what happened first.
    pub start_error: Option<E>,
    /// Those that did not, in the order in which they ended.
    pub done: Vec<(T, R)>,
}

/// One request in flight: its place in the window, and the caller's value.
#[must_use = "a request that is dropped counts as abandoned"]
pub struct Request<T, R, E> {
    shared: Arc<Shared<T, R, E>>,
    value: Option<T>,
    permit: Option<Permit>,
}

impl<T, R, E> InFlight<T, R, E> {
    /// No requests yet, under the bounds of `window`.
    pub fn new(window: Window) -> Self {
        let state = State { started: 0, ended: VecDeque::new(), waker: None, threads: 0 };
        Self { window, shared: Arc::new(Shared { state: Mutex::new(state), ended: Condvar::new() }) }
    }

    /// The window.
    pub fn window(&self) -> &Window {
        &self.window
    }

    /// Starts a request of `bytes` bytes: waits for room in the window.
    pub fn start(&self, bytes: u64, value: T) -> Request<T, R, E> {
        self.start_with(self.window.acquire(bytes), value)
    }

    /// Starts a request that has its permit already.
    pub fn start_with(&self, permit: Permit, value: T) -> Request<T, R, E> {
        lock(&self.shared.state).started += 1;
        Request { shared: self.shared.clone(), value: Some(value), permit: Some(permit) }
    }

    /// Requests that were started and have not ended.
    pub fn in_flight(&self) -> usize {
        lock(&self.shared.state).started
    }

    /// Waits until a request has ended, at most until `deadline`, and returns what became of it; `None` if there is none
    /// left, or the deadline passed.
    pub fn wait_one(&self, deadline: Option<Instant>) -> Option<Ended<T, R, E>> {
        let mut state = lock(&self.shared.state);
        loop {
            if let Some(ended) = state.ended.pop_front() {
                return Some(ended);
            }
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if state.started == 0 || left.is_some_and(|left| left.is_zero()) {
                return None;
            }
            state.threads += 1;
            state = wait(&self.shared.ended, state, left);
            state.threads -= 1;
        }
    }

    /// The same for a task: ready with `None` if no request is left. One task at a time.
    pub fn poll_one(&self, context: &mut Context<'_>) -> Poll<Option<Ended<T, R, E>>> {
        // Neither cloned nor dropped under the lock.
        let waker = context.waker().clone();
        let mut state = lock(&self.shared.state);
        match state.ended.pop_front() {
            None if state.started > 0 => {
                let old = state.waker.replace(waker);
                drop(state);
                drop(old);
                Poll::Pending
            }
            ended => {
                drop(state);
                Poll::Ready(ended)
            }
        }
    }

    /// Waits until every request has ended.
    ///
    /// # Errors
    /// [`Partial`], if any failed: what was done, and what failed, the first first.
    pub fn wait_all(&self) -> Result<Vec<(T, R)>, Partial<T, R, E>> {
        let mut all = Partial { failed: Vec::new(), start_error: None, done: Vec::new() };
        while let Some((value, result)) = self.wait_one(None) {
            match result {
                Ok(reply) => all.done.push((value, reply)),
                Err(failure) => all.failed.push((value, failure)),
            }
        }
        if all.failed.is_empty() { Ok(all.done) } else { Err(all) }
    }

    /// Starts a request for each of `items`, given as bytes and value, and waits for all of them. If `begin` fails, no
    /// more are started, and those that were are waited for.
    ///
    /// # Errors
    /// [`Partial`], if starting failed or any request did.
    pub fn run(
        &self,
        items: impl IntoIterator<Item = (u64, T)>,
        mut begin: impl FnMut(Request<T, R, E>) -> Result<(), E>,
    ) -> Result<Vec<(T, R)>, Partial<T, R, E>> {
        let start_error = items.into_iter().find_map(|(bytes, value)| begin(self.start(bytes, value)).err());
        match (self.wait_all(), start_error) {
            (Ok(done), Some(error)) => Err(Partial { failed: Vec::new(), start_error: Some(error), done }),
            (Err(partial), start_error) => Err(Partial { start_error, ..partial }),
            (Ok(done), None) => Ok(done),
        }
    }
}

impl<T, R, E> Request<T, R, E> {
    /// The caller's value.
    pub fn value(&self) -> Option<&T> {
        self.value.as_ref()
    }

    /// Ends the request. Its place in the window is free before anybody learns of it.
    pub fn complete(mut self, result: Result<R, E>) {
        self.end(result.map_err(Failure::Failed));
    }

    fn end(&mut self, result: Result<R, Failure<E>>) {
        let Some(value) = self.value.take() else { return };
        drop(self.permit.take());
        let mut state = lock(&self.shared.state);
        state.started -= 1;
        if planted("a request ends before its reply is there") {
            drop(state);
            state = lock(&self.shared.state);
        }
        state.ended.push_back((value, result));
        let (waker, threads) = (state.waker.take(), state.threads > 0);
        let waker = waker.filter(|_| !planted("the end of a request wakes no task"));
        drop(state);
        if threads {
            self.shared.ended.notify_all();
        }
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl<T, R, E> Drop for Request<T, R, E> {
    fn drop(&mut self) {
        self.end(Err(Failure::Abandoned));
    }
}

impl<T, R, E: fmt::Display> fmt::Display for Partial<T, R, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (failed, done) = (self.failed.len(), self.done.len());
        match (&self.start_error, self.failed.first()) {
            (Some(error), _) => {
                write!(f, "a request was not started, {failed} failed, {done} were done: {error}")
            }
            (None, Some((_, error))) => write!(f, "{failed} requests failed, {done} were done: {error}"),
            (None, None) => write!(f, "no request failed, {done} were done"),
        }
    }
}

impl<T, R, E> std::error::Error for Partial<T, R, E>
where
    T: fmt::Debug,
    R: fmt::Debug,
    E: std::error::Error,
{
}

impl<E: fmt::Display> fmt::Display for Failure<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Failed(error) => error.fmt(f),
            Self::Abandoned => f.write_str("the request was abandoned: nobody is left to receive its reply"),
        }
    }
}

impl<E: std::error::Error + 'static> std::error::Error for Failure<E> {}

impl<T, R, E> fmt::Debug for InFlight<T, R, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = lock(&self.shared.state);
        f.debug_struct("InFlight")
            .field("window", &self.window)
            .field("started", &state.started)
            .field("ended", &state.ended.len())
            .finish()
    }
}

impl<T, R, E> fmt::Debug for Request<T, R, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Request").field("permit", &self.permit).finish_non_exhaustive()
    }
}
