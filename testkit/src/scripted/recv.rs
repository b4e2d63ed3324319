//! The receiving transport.

use std::io::{self, IoSliceMut};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use segchain::transport::{Interest, MAX_SLICES, VectoredRecv, Wait};

use super::{MOST_CALLS, Script, WaitStep, is_transient, lock};

/// What a scripted transport makes of one receive call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RecvStep {
    /// Gives at most so many bytes, at least 1.
    Give(usize),
    /// Gives as many as there is room for.
    All,
    /// EAGAIN.
    Again,
    /// EINTR.
    Interrupted,
    /// The end of the stream, though not all bytes were given.
    Eof,
    /// An error by its number.
    Errno(i32),
    /// An error without a number.
    Kind(io::ErrorKind),
    /// Gives nothing and claims so many bytes.
    Claim(usize),
}

/// The record of one receive call.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RecvCall {
    /// The length of each slice.
    pub slices: Vec<usize>,
    /// Bytes that were given, or the error's number, or 0 for an error that has none.
    pub result: Result<usize, i32>,
}

impl RecvCall {
    /// Room that the call offered.
    pub fn offered(&self) -> usize {
        self.slices.iter().sum()
    }
}

/// A receiving transport that follows a script.
///
/// When its bytes are given it is at its end, or says `WouldBlock` for ever: see [`end`](Self::end). It fails the test on
/// a call with too many slices, an empty one or no room at all, on a call after a fatal error, and on a call during
/// another one.
#[derive(Debug)]
pub struct ScriptedRecv(Mutex<RecvState>);

#[derive(Debug)]
struct RecvState {
    bytes: Vec<u8>,
    at: usize,
    steps: Vec<RecvStep>,
    next: usize,
    /// No call gives bytes on both sides of one of these.
    stops: Vec<usize>,
    next_stop: usize,
    /// Whether there is an EAGAIN at each of them.
    again: bool,
    end: RecvStep,
    waits: Script<WaitStep>,
    /// For how many bytes each wait was.
    awaited: Vec<usize>,
    calls: Vec<(usize, Result<usize, i32>)>,
    slices: Vec<usize>,
    fatal: Option<RecvStep>,
}

impl ScriptedRecv {
    /// A transport that gives these bytes as the steps say, then as there is room, then ends.
    pub fn new(bytes: &[u8], steps: impl IntoIterator<Item = RecvStep>) -> Self {
        Self(Mutex::new(RecvState {
            bytes: bytes.to_vec(),
            at: 0,
            steps: steps.into_iter().collect(),
            next: 0,
            stops: Vec::new(),
            next_stop: 0,
            again: false,
            end: RecvStep::Eof,
            waits: Script { steps: Vec::new(), next: 0, then: WaitStep::Ready, calls: Vec::new() },
            awaited: Vec::new(),
            calls: Vec::new(),
            slices: Vec::new(),
            fatal: None,
        }))
    }

    /// What it says when it has no more bytes: [`RecvStep::Eof`] unless set.
    #[must_use]
    pub fn end(self, step: RecvStep) -> Self {
        self.state().end = step;
        self
    }

    /// What its waits do, one after the other, and `then` after them.
    #[must_use]
    pub fn waits(self, steps: impl IntoIterator<Item = WaitStep>, then: WaitStep) -> Self {
        let mut state = self.state();
        state.waits.steps = steps.into_iter().collect();
        state.waits.then = then;
        drop(state);
        self
    }

    /// Forgets everything, and gives other bytes by other steps; `end` as in [`end`](Self::end).
    pub fn reset(&self, bytes: &[u8], steps: &[RecvStep], end: RecvStep) {
        let mut state = self.state();
        state.bytes.clear();
        state.bytes.extend_from_slice(bytes);
        state.at = 0;
        state.steps.clear();
        state.steps.extend_from_slice(steps);
        state.next = 0;
        state.stops.clear();
        state.next_stop = 0;
        state.again = false;
        state.end = end;
        state.waits.next = 0;
        state.waits.calls.clear();
        state.awaited.clear();
        state.calls.clear();
        state.slices.clear();
        state.fatal = None;
    }

    /// Lets no call give bytes on both sides of these positions, which are in order; with `again` there is an EAGAIN at
    /// each of them.
    pub fn stop_at(&self, positions: &[usize], again: bool) {
        let mut state = self.state();
        state.stops.clear();
        state.stops.extend_from_slice(positions);
        state.next_stop = 0;
        state.again = again;
    }

    /// Gives these bytes too, behind the others.
    pub fn feed(&self, bytes: &[u8]) {
        self.state().bytes.extend_from_slice(bytes);
    }

    /// How many bytes were given.
    pub fn given(&self) -> usize {
        self.state().at
    }

    /// How many calls there were.
    pub fn call_count(&self) -> usize {
        self.state().calls.len()
    }

    /// Every call.
    pub fn calls(&self) -> Vec<RecvCall> {
        let state = self.state();
        let ends = state.calls.iter().skip(1).map(|call| call.0).chain([state.slices.len()]);
        let calls = state.calls.iter().zip(ends);
        calls
            .map(|((first, result), end)| RecvCall {
                slices: state.slices[*first..end].to_vec(),
                result: *result,
            })
            .collect()
    }

    /// The timeout of every wait.
    pub fn wait_calls(&self) -> Vec<Option<Duration>> {
        self.state().waits.calls.clone()
    }

    /// For how many bytes each wait was: 1 if it was for any.
    pub fn awaited(&self) -> Vec<usize> {
        self.state().awaited.clone()
    }

    fn state(&self) -> MutexGuard<'_, RecvState> {
        lock(&self.0)
    }
}

impl RecvState {
    fn check(&mut self, bufs: &[IoSliceMut<'_>]) {
        assert!(self.calls.len() < MOST_CALLS, "the receiver spins");
        if let Some(step) = self.fatal {
            panic!("a call after a fatal {step:?}");
        }
        assert!(!bufs.is_empty(), "a call without room");
        assert!(bufs.len() <= MAX_SLICES, "{} slices, the cap is {MAX_SLICES}", bufs.len());
        self.calls.push((self.slices.len(), Ok(0)));
        for buf in bufs {
            assert!(!buf.is_empty(), "an empty slice");
            self.slices.push(buf.len());
        }
    }

    fn step(&mut self) -> RecvStep {
        if let Some(step) = self.steps.get(self.next) {
            self.next += 1;
            return *step;
        }
        while let Some(stop) = self.stops.get(self.next_stop).copied() {
            if stop > self.at {
                if self.at == self.bytes.len() {
                    break;
                }
                return RecvStep::Give(stop - self.at);
            }
            self.next_stop += 1;
            if self.again && stop == self.at {
                return RecvStep::Again;
            }
        }
        if self.at < self.bytes.len() { RecvStep::All } else { self.end }
    }

    fn answer(&mut self, bufs: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        let step = self.step();
        let result = match step {
            RecvStep::Give(n) => Ok(self.give(bufs, n.max(1))),
            RecvStep::All => Ok(self.give(bufs, usize::MAX)),
            RecvStep::Eof => Ok(0),
            RecvStep::Claim(n) => Ok(n),
            RecvStep::Again => Err(io::Error::from_raw_os_error(libc::EAGAIN)),
            RecvStep::Interrupted => Err(io::Error::from_raw_os_error(libc::EINTR)),
            RecvStep::Errno(errno) => Err(io::Error::from_raw_os_error(errno)),
            RecvStep::Kind(kind) => Err(io::Error::from(kind)),
        };
        if matches!(step, RecvStep::Claim(_)) || result.as_ref().is_err_and(|error| !is_transient(error)) {
            self.fatal = Some(step);
        }
        if let Some(call) = self.calls.last_mut() {
            call.1 = match &result {
                Ok(n) => Ok(*n),
                Err(error) => Err(error.raw_os_error().unwrap_or(0)),
            };
        }
        result
    }

    fn give(&mut self, bufs: &mut [IoSliceMut<'_>], most: usize) -> usize {
        let before = self.at;
        let end = self.bytes.len().min(self.at.saturating_add(most));
        for buf in bufs {
            let n = buf.len().min(end - self.at);
            buf[..n].copy_from_slice(&self.bytes[self.at..self.at + n]);
            self.at += n;
        }
        self.at - before
    }
}

impl VectoredRecv for ScriptedRecv {
    fn recv_vectored(&self, bufs: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        let mut state = self.state();
        state.check(bufs);
        state.answer(bufs)
    }
}

impl Wait for ScriptedRecv {
    fn wait(&self, interest: Interest, timeout: Option<Duration>) -> io::Result<bool> {
        assert_eq!(interest, Interest::Readable, "a receiver waits for bytes");
        self.wait_for_bytes(1, timeout)
    }

    fn wait_for_bytes(&self, bytes: usize, timeout: Option<Duration>) -> io::Result<bool> {
        let mut state = self.state();
        state.awaited.push(bytes);
        let step = state.waits.wait(timeout);
        drop(state);
        step.answer(timeout)
    }
}
