//! The sending transport.

use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard};
use std::thread;
use std::time::Duration;

use segchain::transport::{DatagramSend, Interest, MAX_BYTES, MAX_SLICES, SendFlags, VectoredSend, Wait};

use super::{MOST_CALLS, Script, WaitStep, is_transient, lock};

/// What a scripted transport makes of one send call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SendStep {
    /// Takes at most so many bytes, at least 1.
    Accept(usize),
    /// Takes everything.
    All,
    /// Takes the first slice only, as a writer without a vectored method does.
    FirstSlice,
    /// Takes everything after so long, during which nobody else may call.
    Slow(Duration),
    /// EAGAIN.
    Again,
    /// EINTR.
    Interrupted,
    /// Returns 0 although something was offered.
    Zero,
    /// An error by its number.
    Errno(i32),
    /// An error without a number, as transports that are not sockets have.
    Kind(io::ErrorKind),
    /// Takes nothing and claims so many bytes.
    Claim(usize),
}

/// The parts of one frame, in bytes: a test declares them, so that a bare header or trailer can be seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    header: u64,
    payload: u64,
    trailer: u64,
}

impl Shape {
    /// A frame of these parts.
    pub fn new(header: u64, payload: u64, trailer: u64) -> Self {
        Self { header, payload, trailer }
    }

    fn len(self) -> u64 {
        self.header + self.payload + self.trailer
    }
}

/// The record of one send call.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SendCall {
    /// Address and length of each slice.
    pub slices: Vec<(usize, usize)>,
    /// Bytes in them.
    pub offered: u64,
    /// The flags.
    pub flags: SendFlags,
    /// Bytes that were taken, or the error's number, or 0 for an error that has none.
    pub result: Result<usize, i32>,
}

impl SendCall {
    /// Whether `MSG_MORE` was set.
    pub fn more(&self) -> bool {
        self.flags.contains(SendFlags::MORE)
    }
}

/// A sending transport that follows a script.
///
/// It fails the test on more slices or bytes than a call may have, on an empty slice, on a call without `MSG_DONTWAIT`
/// and `MSG_NOSIGNAL`, on a call after a fatal error, and on a call during another one. With
/// [`expect_flush`](Self::expect_flush) it knows when `MSG_MORE` has to be set, with
/// [`expect_frames`](Self::expect_frames) it sees a bare header or trailer.
#[derive(Debug)]
pub struct ScriptedSend(Mutex<SendState>);

#[derive(Debug)]
struct SendState {
    steps: Vec<SendStep>,
    next: usize,
    then: SendStep,
    /// Bit p: no call takes bytes on both sides of position p.
    stops: u64,
    fault: Option<(usize, SendStep)>,
    waits: Script<WaitStep>,
    max_slices: usize,
    max_bytes: u64,
    keep_bytes: bool,
    wire: Vec<u8>,
    taken: u64,
    /// Bytes of the flush that were not taken yet.
    flush_left: Option<u64>,
    frames: Vec<Shape>,
    calls: Vec<Record>,
    slices: Vec<(usize, usize)>,
    addresses: Vec<Option<SocketAddr>>,
    datagrams: Vec<Vec<u8>>,
    fatal: Option<SendStep>,
}

#[derive(Clone, Copy, Debug)]
struct Record {
    first_slice: usize,
    offered: u64,
    flags: SendFlags,
    result: Result<usize, i32>,
    transient: bool,
}

impl ScriptedSend {
    /// A transport that follows these steps, then takes everything.
    pub fn new(steps: impl IntoIterator<Item = SendStep>) -> Self {
        Self(Mutex::new(SendState {
            steps: steps.into_iter().collect(),
            next: 0,
            then: SendStep::All,
            stops: 0,
            fault: None,
            waits: Script { steps: Vec::new(), next: 0, then: WaitStep::Ready, calls: Vec::new() },
            max_slices: MAX_SLICES,
            max_bytes: MAX_BYTES,
            keep_bytes: true,
            wire: Vec::new(),
            taken: 0,
            flush_left: None,
            frames: Vec::new(),
            calls: Vec::new(),
            slices: Vec::new(),
            addresses: Vec::new(),
            datagrams: Vec::new(),
            fatal: None,
        }))
    }

    /// What it does once the script is at its end.
    #[must_use]
    pub fn then(self, step: SendStep) -> Self {
        self.state().then = step;
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

    /// Fails the test on calls of more than this, which has to be under the general limits.
    #[must_use]
    pub fn caps(self, slices: usize, bytes: u64) -> Self {
        let mut state = self.state();
        state.max_slices = slices.min(MAX_SLICES);
        state.max_bytes = bytes.min(MAX_BYTES);
        drop(state);
        self
    }

    /// Counts the bytes and does not read them: for messages of gigabytes.
    #[must_use]
    pub fn counting_only(self) -> Self {
        self.state().keep_bytes = false;
        self
    }

    /// Forgets every call, byte and expectation, and follows other steps. Caps and waits stay.
    pub fn reset(&self, steps: &[SendStep]) {
        let mut state = self.state();
        state.steps.clear();
        state.steps.extend_from_slice(steps);
        state.next = 0;
        state.stops = 0;
        state.fault = None;
        state.waits.next = 0;
        state.waits.calls.clear();
        state.wire.clear();
        state.taken = 0;
        state.flush_left = None;
        state.frames.clear();
        state.calls.clear();
        state.slices.clear();
        state.addresses.clear();
        state.datagrams.clear();
        state.fatal = None;
    }

    /// Lets no call take bytes on both sides of a position whose bit is set: a way to cut the first 64 bytes into short
    /// writes that does not depend on what a call offers.
    pub fn stop_at(&self, positions: u64) {
        self.state().stops = positions;
    }

    /// Makes of call number `call`, from 0, this and not what the script says; the script goes on with the next call.
    pub fn fault_at(&self, call: usize, step: SendStep) {
        self.state().fault = Some((call, step));
    }

    /// Declares that the next `bytes` bytes are one flush: from now on `MSG_MORE` has to be set if and only if a call
    /// offers less than what is left of it.
    pub fn expect_flush(&self, bytes: u64) {
        self.state().flush_left = Some(bytes);
    }

    /// Declares the frames that are about to be sent, from position 0 on: no call may then be a bare header or a bare
    /// trailer, unless it goes on after a short write.
    pub fn expect_frames(&self, frames: &[Shape]) {
        let mut state = self.state();
        state.frames.clear();
        state.frames.extend_from_slice(frames);
    }

    /// The bytes that were taken.
    pub fn wire(&self) -> Vec<u8> {
        self.state().wire.clone()
    }

    /// Whether these are the bytes that were taken.
    pub fn wire_is(&self, bytes: &[u8]) -> bool {
        self.state().wire == bytes
    }

    /// How many bytes were taken.
    pub fn taken(&self) -> u64 {
        self.state().taken
    }

    /// How many calls there were.
    pub fn call_count(&self) -> usize {
        self.state().calls.len()
    }

    /// Every call.
    pub fn calls(&self) -> Vec<SendCall> {
        let state = self.state();
        let ends = state.calls.iter().skip(1).map(|call| call.first_slice).chain([state.slices.len()]);
        let calls = state.calls.iter().zip(ends);
        calls
            .map(|(call, end)| SendCall {
                slices: state.slices[call.first_slice..end].to_vec(),
                offered: call.offered,
                flags: call.flags,
                result: call.result,
            })
            .collect()
    }

    /// The timeout of every wait.
    pub fn wait_calls(&self) -> Vec<Option<Duration>> {
        self.state().waits.calls.clone()
    }

    /// Every datagram that was sent, and where to.
    pub fn datagrams(&self) -> Vec<(Vec<u8>, Option<SocketAddr>)> {
        let state = self.state();
        state.datagrams.iter().cloned().zip(state.addresses.iter().copied()).collect()
    }

    /// For the end of a flush, or of a queue.
    ///
    /// # Panics
    /// If the last call that took bytes had `MSG_MORE`: the kernel holds the end of the message back (uWebSockets 639). A
    /// call that found the transport blocked may have had it.
    pub fn assert_uncorked(&self) {
        let state = self.state();
        if let Some(last) = state.calls.last() {
            assert!(
                !last.flags.contains(SendFlags::MORE) || last.transient || state.fatal.is_some(),
                "the last call of the flush said that more would follow: {last:?}"
            );
        }
    }

    fn state(&self) -> MutexGuard<'_, SendState> {
        lock(&self.0)
    }
}

impl SendState {
    fn check(&mut self, bufs: &[IoSlice<'_>], flags: SendFlags) -> u64 {
        assert!(self.calls.len() < MOST_CALLS, "the sender spins");
        if let Some(step) = self.fatal {
            panic!("a call after a fatal {step:?}");
        }
        assert!(!bufs.is_empty(), "a call that offers nothing");
        assert!(bufs.len() <= self.max_slices, "{} slices, the cap is {}", bufs.len(), self.max_slices);
        let first_slice = self.slices.len();
        let mut offered = 0;
        for buf in bufs {
            assert!(!buf.is_empty(), "an empty slice");
            offered += buf.len() as u64;
            self.slices.push((buf.as_ptr() as usize, buf.len()));
        }
        assert!(offered <= self.max_bytes, "{offered} bytes, the cap is {}", self.max_bytes);
        assert!(flags.contains(SendFlags::DONT_WAIT), "a call that may block");
        assert!(flags.contains(SendFlags::NO_SIGNAL), "a call that may raise SIGPIPE");
        if let Some(left) = self.flush_left {
            let more = flags.contains(SendFlags::MORE);
            assert!(offered <= left, "{offered} bytes offered, the flush has only {left} left");
            assert_eq!(more, offered < left, "MSG_MORE with {offered} bytes offered of {left} left");
        }
        self.check_parts(offered);
        self.calls.push(Record { first_slice, offered, flags, result: Ok(0), transient: false });
        offered
    }

    fn check_parts(&self, offered: u64) {
        let resumed =
            self.calls.last().is_some_and(|call| call.result.is_ok_and(|n| (n as u64) < call.offered));
        if resumed {
            return;
        }
        let mut start = 0;
        for frame in &self.frames {
            let position = self.taken - start;
            if position < frame.len() {
                let Shape { header, payload, trailer } = *frame;
                let end = position + offered;
                assert!(payload == 0 || end > header, "a bare header: {position}..{end} of {frame:?}");
                assert!(
                    payload == 0 || trailer == 0 || position < header + payload || end > frame.len(),
                    "a bare trailer: {position}..{end} of {frame:?}"
                );
                return;
            }
            start += frame.len();
            if start > self.taken {
                return;
            }
        }
    }

    fn step(&mut self) -> SendStep {
        let call = self.calls.len() - 1;
        match self.fault {
            Some((at, step)) if at == call => step,
            _ => {
                let step = self.steps.get(self.next).copied().unwrap_or(self.then);
                self.next += 1;
                step
            }
        }
    }

    fn answer(&mut self, bufs: &[IoSlice<'_>], offered: u64, final_errors: bool) -> io::Result<usize> {
        let step = self.step();
        let result = match step {
            SendStep::All => Ok(offered),
            SendStep::Slow(time) => {
                thread::sleep(time);
                Ok(offered)
            }
            SendStep::Accept(n) => Ok(offered.min(n.max(1) as u64)),
            SendStep::FirstSlice => Ok(bufs[0].len() as u64),
            SendStep::Again => Err(io::Error::from_raw_os_error(libc::EAGAIN)),
            SendStep::Interrupted => Err(io::Error::from_raw_os_error(libc::EINTR)),
            SendStep::Errno(errno) => Err(io::Error::from_raw_os_error(errno)),
            SendStep::Kind(kind) => Err(io::Error::from(kind)),
            SendStep::Zero => Ok(0),
            SendStep::Claim(n) => Ok(n as u64),
        };
        let claims = matches!(step, SendStep::Zero | SendStep::Claim(_));
        let transient = result.as_ref().is_err_and(is_transient);
        if final_errors && (claims || result.is_err() && !transient) {
            self.fatal = Some(step);
        }
        let result = match result {
            Ok(n) if !claims => {
                let before_stop = match self.stops.checked_shr(self.taken as u32 + 1).unwrap_or(0) {
                    0 => u64::MAX,
                    stops => u64::from(stops.trailing_zeros()) + 1,
                };
                let n = n.min(before_stop);
                self.take(bufs, n);
                Ok(n)
            }
            result => result,
        };
        let Some(call) = self.calls.last_mut() else { unreachable!("check() has put it there") };
        call.transient = transient;
        call.result = match &result {
            Ok(n) => Ok(*n as usize),
            Err(error) => Err(error.raw_os_error().unwrap_or(0)),
        };
        result.map(|n| n as usize)
    }

    fn take(&mut self, bufs: &[IoSlice<'_>], n: u64) {
        self.taken += n;
        self.flush_left = self.flush_left.map(|left| left - n);
        if !self.keep_bytes {
            return;
        }
        let mut left = n as usize;
        for buf in bufs {
            let now = left.min(buf.len());
            self.wire.extend_from_slice(&buf[..now]);
            left -= now;
            if left == 0 {
                break;
            }
        }
    }
}

impl VectoredSend for ScriptedSend {
    fn send_vectored(&self, bufs: &[IoSlice<'_>], flags: SendFlags) -> io::Result<usize> {
        let mut state = self.state();
        let offered = state.check(bufs, flags);
        state.answer(bufs, offered, true)
    }
}

impl DatagramSend for ScriptedSend {
    fn send_datagram(
        &self,
        bufs: &[IoSlice<'_>],
        to: Option<SocketAddr>,
        flags: SendFlags,
    ) -> io::Result<usize> {
        let mut state = self.state();
        assert!(!flags.contains(SendFlags::MORE), "MSG_MORE would glue two datagrams together");
        let offered = state.check(bufs, flags);
        let before = state.wire.len();
        let sent = state.answer(bufs, offered, false)?;
        let datagram = state.wire[before..].to_vec();
        state.datagrams.push(datagram);
        state.addresses.push(to);
        Ok(sent)
    }
}

impl Wait for ScriptedSend {
    fn wait(&self, interest: Interest, timeout: Option<Duration>) -> io::Result<bool> {
        assert_eq!(interest, Interest::Writable, "a sender waits for room");
        let step = self.state().waits.wait(timeout);
        step.answer(timeout)
    }
}
