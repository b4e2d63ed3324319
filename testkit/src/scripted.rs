//! Transports that follow a script and know the rules: what a call may offer, and when it may come at all.
//!
//! [`ScriptedSend`] takes bytes as it is told, [`ScriptedRecv`] gives them. Both keep a record of every call, panic where
//! the crate breaks a promise, and keep their memory from one case to the next: an exhaustive test makes millions.

use std::io;
use std::sync::{Mutex, MutexGuard, TryLockError};
use std::thread;
use std::time::Duration;

mod recv;
mod send;

pub use self::recv::{RecvCall, RecvStep, ScriptedRecv};
pub use self::send::{ScriptedSend, SendCall, SendStep, Shape};

/// A test that makes so many calls in one case spins.
const MOST_CALLS: usize = 2_000_000;

/// What a scripted transport makes of one wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum WaitStep {
    /// Ready at once.
    Ready,
    /// Comes back at once and is not ready, as after a signal.
    Early,
    /// Sleeps for the whole timeout and is not ready. Without a timeout that would be for ever: the test fails.
    Late,
    /// An error by its number.
    Errno(i32),
}

/// Steps of one kind, and what comes after the last of them.
#[derive(Debug)]
struct Script<S> {
    steps: Vec<S>,
    next: usize,
    then: S,
    calls: Vec<Option<Duration>>,
}

impl Script<WaitStep> {
    fn wait(&mut self, timeout: Option<Duration>) -> WaitStep {
        assert!(self.calls.len() < MOST_CALLS, "it waits again and again");
        self.calls.push(timeout);
        let step = self.steps.get(self.next).copied().unwrap_or(self.then);
        self.next += 1;
        step
    }
}

impl WaitStep {
    fn answer(self, timeout: Option<Duration>) -> io::Result<bool> {
        match self {
            Self::Ready => Ok(true),
            Self::Early => Ok(false),
            Self::Late => {
                thread::sleep(timeout.expect("a wait without end for what never comes"));
                Ok(false)
            }
            Self::Errno(errno) => Err(io::Error::from_raw_os_error(errno)),
        }
    }
}

/// What leaves a stream alive.
fn is_transient(error: &io::Error) -> bool {
    use io::ErrorKind::{Interrupted, OutOfMemory, WouldBlock};
    matches!(error.kind(), Interrupted | OutOfMemory | WouldBlock)
        || matches!(error.raw_os_error(), Some(libc::ENOBUFS | libc::ENOMEM))
}

fn lock<S>(state: &Mutex<S>) -> MutexGuard<'_, S> {
    match state.try_lock() {
        Ok(state) => state,
        Err(TryLockError::WouldBlock) => panic!("two calls at once"),
        Err(TryLockError::Poisoned(_)) => panic!("a call after a broken rule"),
    }
}
