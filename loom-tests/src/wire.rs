//! A wire that takes bytes in two steps, so that a second flusher would tear what the first one writes; and the records
//! on it.

use std::fmt;
use std::io::{self, IoSlice, IoSliceMut};
use std::panic::resume_unwind;
use std::sync::PoisonError;
use std::time::Duration;

use bytes::Bytes;
use loom::sync::{Condvar, Mutex, MutexGuard};
use segchain::chain::{Abort, ChainBuilder, ChainError};
use segchain::framer::Framer;
use segchain::queue::Queued;
use segchain::transport::{Interest, SendFlags, VectoredRecv, VectoredSend, Wait};

/// A message: who sent it, and the how manieth of theirs it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message(pub u8, pub u8);

impl Message {
    /// Bytes of a message on the wire: producer, number, two of payload, and whether it is complete.
    pub const LEN: usize = 5;
    /// The number of a message that the framer refuses.
    pub const REFUSED: u8 = 98;
    /// The number of a message at which the framer panics.
    pub const PANIC: u8 = 99;
}

impl Queued for Message {
    fn bytes(&self) -> u64 {
        Self::LEN as u64
    }
}

const PAYLOAD: [u8; 2] = [b'p'; 2];
const COMPLETE: u8 = b'C';
const ABORTED: u8 = b'A';

/// Frames messages as records.
#[derive(Clone, Copy, Debug, Default)]
pub struct Records {
    /// Whether a framed record may disappear.
    pub accepts_gap: bool,
    /// Whether a record that has begun cannot be aborted.
    pub all_or_close: bool,
}

/// What the framer refuses, it refuses with this.
#[derive(Debug)]
pub struct Refused;

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("refused")
    }
}

impl From<ChainError> for Refused {
    fn from(_: ChainError) -> Self {
        Self
    }
}

impl Records {
    /// Records that may not disappear.
    pub fn new() -> Self {
        Self::default()
    }

    /// Records that may.
    pub fn with_gaps() -> Self {
        Self { accepts_gap: true, ..Self::default() }
    }

    /// Records that may not disappear, and cannot be aborted.
    pub fn all_or_close() -> Self {
        Self { all_or_close: true, ..Self::default() }
    }
}

impl Framer<Message> for Records {
    type Error = Refused;

    fn overhead(&self, _: u64) -> u64 {
        0
    }

    fn accepts_gap(&self) -> bool {
        self.accepts_gap
    }

    fn frame<'m>(&mut self, message: Message, out: &mut ChainBuilder<'m>) -> Result<(), Refused>
    where
        Message: 'm,
    {
        match message.1 {
            Message::REFUSED => return Err(Refused),
            // Not by panic: its message would be printed some thousand times.
            Message::PANIC => resume_unwind(Box::new("the framer panics")),
            _ => {}
        }
        out.copy_below(0);
        out.put(&[message.0, message.1]);
        out.push(Bytes::from_static(&PAYLOAD));
        let complete = out.put_u8(COMPLETE);
        if !self.all_or_close {
            out.on_abort(Abort::Patch { at: complete, bytes: &[ABORTED] });
        }
        Ok(out.check()?)
    }
}

/// A record on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Record {
    /// A whole message.
    Whole(Message),
    /// One that its sender took back.
    Aborted(Message),
}

/// The sending half of a stream. Each call takes its bytes in two steps, between which any other thread may run.
#[derive(Debug)]
pub struct Wire {
    state: Mutex<State>,
    writable: Condvar,
    most: usize,
    end: Option<(usize, End)>,
}

#[derive(Debug)]
struct State {
    bytes: Vec<u8>,
    /// Whether a call is between its two steps.
    inside: bool,
    /// How many bytes it takes until it is opened.
    room: usize,
    waits_to_panic: usize,
}

#[derive(Clone, Copy, Debug)]
enum End {
    Reset,
    Panic,
}

impl Wire {
    /// A wire that takes whatever it is offered.
    pub fn new() -> Self {
        let state = State { bytes: Vec::new(), inside: false, room: usize::MAX, waits_to_panic: 0 };
        Self { state: Mutex::new(state), writable: Condvar::new(), most: usize::MAX, end: None }
    }

    /// At most so many bytes a call.
    #[must_use]
    pub fn at_most(mut self, bytes: usize) -> Self {
        self.most = bytes;
        self
    }

    /// Takes so many bytes, and no more until it is opened.
    #[must_use]
    pub fn full_after(self, bytes: usize) -> Self {
        self.state().room = bytes;
        self
    }

    /// The connection is reset after so many bytes.
    #[must_use]
    pub fn reset_after(mut self, bytes: usize) -> Self {
        self.end = Some((bytes, End::Reset));
        self
    }

    /// A call panics after so many bytes.
    #[must_use]
    pub fn panic_after(mut self, bytes: usize) -> Self {
        self.end = Some((bytes, End::Panic));
        self
    }

    /// The first wait panics.
    #[must_use]
    pub fn first_wait_panics(self) -> Self {
        self.state().waits_to_panic = 1;
        self
    }

    /// Takes everything from now on.
    pub fn open(&self) {
        self.state().room = usize::MAX;
        self.writable.notify_all();
    }

    /// How many bytes it took.
    pub fn taken(&self) -> usize {
        self.state().bytes.len()
    }

    /// The records that it took.
    ///
    /// # Panics
    /// If one is torn, or is not whole.
    pub fn records(&self) -> Vec<Record> {
        let (records, rest) = self.records_and_rest();
        assert_eq!(rest, 0, "bytes of a record that is not whole");
        records
    }

    /// The records that it took, and how many bytes there are of one that is not whole.
    ///
    /// # Panics
    /// If one is torn.
    pub fn records_and_rest(&self) -> (Vec<Record>, usize) {
        let state = self.state();
        assert!(!state.inside, "a call has not ended");
        let mut records = state.bytes.chunks_exact(Message::LEN);
        let whole = records
            .by_ref()
            .map(|record| match record {
                [producer, number, payload @ .., COMPLETE] if *payload == PAYLOAD => {
                    Record::Whole(Message(*producer, *number))
                }
                [producer, number, payload @ .., ABORTED] => {
                    let zeros = payload.iter().skip_while(|byte| **byte == PAYLOAD[0]);
                    assert!(zeros.clone().all(|byte| *byte == 0), "a torn record: {record:?}");
                    Record::Aborted(Message(*producer, *number))
                }
                _ => panic!("a torn record: {record:?}"),
            })
            .collect();
        (whole, records.remainder().len())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for Wire {
    fn default() -> Self {
        Self::new()
    }
}

impl VectoredSend for Wire {
    fn send_vectored(&self, bufs: &[IoSlice<'_>], _: SendFlags) -> io::Result<usize> {
        let offered = bufs.iter().flat_map(|slice| slice.iter().copied()).collect::<Vec<u8>>();
        let mut state = self.state();
        assert!(!state.inside, "two threads in the stream");
        if state.room == 0 {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let mut n = offered.len().min(self.most).min(state.room);
        if let Some((after, end)) = self.end {
            match (after - state.bytes.len(), end) {
                (0, End::Reset) => return Err(io::ErrorKind::ConnectionReset.into()),
                (0, End::Panic) => {
                    drop(state);
                    resume_unwind(Box::new("the transport panics"));
                }
                (left, _) => n = n.min(left),
            }
        }
        let (first, second) = offered[..n].split_at(n / 2);
        state.bytes.extend_from_slice(first);
        state.inside = true;
        drop(state);
        let mut state = self.state();
        state.bytes.extend_from_slice(second);
        state.inside = false;
        if state.room != usize::MAX {
            state.room -= n;
        }
        Ok(n)
    }
}

impl Wait for Wire {
    fn wait(&self, _: Interest, _: Option<Duration>) -> io::Result<bool> {
        let mut state = self.state();
        if state.waits_to_panic > 0 {
            state.waits_to_panic -= 1;
            drop(state);
            resume_unwind(Box::new("the transport panics"));
        }
        while state.room == 0 {
            state = self.writable.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        Ok(true)
    }
}

/// The receiving half of a stream that brings the same byte for ever.
#[derive(Clone, Copy, Debug)]
pub struct Source(pub u8);

impl VectoredRecv for Source {
    fn recv_vectored(&self, bufs: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        let filled = bufs.iter_mut().map(|buf| {
            buf.fill(self.0);
            buf.len()
        });
        Ok(filled.sum())
    }
}
