//! Wakers that a model can wait for: a wake-up that is lost is a deadlock, which loom reports.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::{Arc, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use loom::sync::{Condvar, Mutex};

/// Whether a task was woken.
#[derive(Debug, Default)]
pub struct Flag {
    woken: Mutex<bool>,
    changed: Condvar,
}

impl Flag {
    /// Not woken yet.
    pub fn new() -> Arc<Self> {
        Arc::new(Self::default())
    }

    /// Waits until it is woken, and forgets that.
    pub fn wait(&self) {
        let mut woken = self.woken.lock().unwrap_or_else(PoisonError::into_inner);
        while !*woken {
            woken = self.changed.wait(woken).unwrap_or_else(PoisonError::into_inner);
        }
        *woken = false;
    }
}

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        *self.woken.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.changed.notify_all();
    }
}

/// Polls once, on behalf of a task.
pub fn poll_with<F: Future + Unpin>(future: &mut F, task: &Arc<Flag>) -> Poll<F::Output> {
    let waker = Waker::from(task.clone());
    Pin::new(future).poll(&mut Context::from_waker(&waker))
}

/// Polls whenever it is woken, until the future is ready.
pub fn block_on<F: Future>(future: F) -> F::Output {
    let task = Flag::new();
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(output) = poll_with(&mut future, &task) {
            return output;
        }
        task.wait();
    }
}
