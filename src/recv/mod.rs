//! Receiving: bytes land where they are wanted, and are checked as they land.
//!
//! ```text
//!  recvmsg ─▶ [ rest of the body: slabs, or memory the caller lends … │ read-ahead ]
//!                     checksum runs over each piece            └─▶ Deframer::decode ─▶ frames
//! ```
//!
//! One call brings the end of a body, its trailer and the headers that follow. [`Receiver`] owns the stream's position
//! and never waits unless asked to; what bytes mean is the [`Deframer`]'s business.

mod error;
mod fill;
mod low_water;
mod options;

use std::fmt;
use std::io::{self, IoSliceMut};
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

pub use self::error::{RecvError, RecvErrorKind};
pub use self::options::RecvOptions;

use self::fill::{Filling, Memory};
use self::low_water::LowWater;
use crate::framer::{BodyReq, Deframer, LentSlices, Step, Targets};
use crate::slab::SlabPool;
use crate::sys::reuse;
use crate::transport::{MAX_SLICES, VectoredRecv, Wait};

/// What was done so far. Counts only ever grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RecvStats {
    /// Calls that the transport answered, with bytes or with an error.
    pub calls: u64,
    /// Slices offered in them.
    pub slices: u64,
    /// Bytes that arrived.
    pub bytes: u64,
    /// Frames handed out.
    pub frames: u64,
    /// Calls that brought nothing.
    pub blocked: u64,
    /// Bytes of bodies that were copied out of the read-ahead.
    pub copied: u64,
    /// Bytes of bodies read for checksums.
    pub digested: u64,
    /// Bytes of bodies that were discarded.
    pub discarded: u64,
}

/// How far a receive came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
#[non_exhaustive]
pub enum Received {
    /// Nothing more is there now. Receive again when the transport is readable.
    Blocked,
    /// The callback said so.
    Stopped,
    /// The turn's bytes are used up. Receive again after the others.
    Budget,
    /// The peer closed, between two frames.
    Eof,
}

/// What a receiver is made of: see [`Receiver::into_parts`].
#[derive(Debug)]
#[non_exhaustive]
pub struct Parts<T, D> {
    /// The transport.
    pub transport: T,
    /// The deframer.
    pub deframer: D,
    /// Bytes that have arrived and were not used.
    pub unread: Vec<u8>,
}

/// Receives frames from one byte stream.
///
/// It can stop at any byte and go on there: nothing is lost if [`receive`](Receiver::receive) returns in the middle of a
/// frame, or is not called for a while.
///
/// ```
/// use std::io::Write;
/// use std::ops::ControlFlow;
/// use std::os::unix::net::UnixStream;
/// use segchain::framer::{Deframer, Filled, Step, Targets};
/// use segchain::recv::Receiver;
/// use segchain::transport::SocketRef;
///
/// /// Frames of four bytes, borrowed from the read-ahead.
/// struct Fours;
/// impl Deframer for Fours {
///     type Frame<'h> = &'h [u8];
///     type Error = std::convert::Infallible;
///     fn decode<'h>(&mut self, head: &'h [u8], _: &mut dyn Targets) -> Result<Step<&'h [u8]>, Self::Error> {
///         Ok(match head.get(..4) {
///             Some(frame) => Step::Frame { frame, head: 4 },
///             None => Step::Need(4),
///         })
///     }
///     fn body(&mut self, _: Filled) -> Result<(), Self::Error> {
///         Ok(())
///     }
/// }
///
/// let (mut peer, socket) = UnixStream::pair()?;
/// peer.write_all(b"spamtoast")?;
/// let mut receiver = Receiver::new(SocketRef::new(socket), Fours);
/// let mut frames = Vec::new();
/// let _ = receiver.receive(&mut (), |frame| {
///     frames.push(frame.to_vec());
///     ControlFlow::Continue(())
/// })?;
/// assert_eq!(frames, [b"spam", b"toas"]);
/// assert_eq!(receiver.into_parts().unread, b"t");
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct Receiver<T, D> {
    transport: T,
    deframer: D,
    stream: Stream,
}

/// All of a receiver but what differs from protocol to protocol.
#[allow(clippy::struct_excessive_bools)] // four independent facts
struct Stream {
    options: RecvOptions,
    stats: RecvStats,
    pool: SlabPool,
    ahead: ReadAhead,
    filling: Option<Filling>,
    /// What is kept of a body between two of its pieces.
    unfinished: Option<Memory>,
    /// Whether bytes of the current frame were used already.
    inside_frame: bool,
    /// Whether the last call brought bytes of a large body.
    after_large: bool,
    /// How much of a body the next call is offered memory for, if that is in pages.
    reach: usize,
    low_water: LowWater,
    /// Bytes that were put in front.
    unread: u64,
    eof: bool,
    dead: bool,
    slices: Vec<IoSliceMut<'static>>,
}

/// Bodies from here on are large: see [`RecvOptions::read_ahead`].
const LARGE: u64 = 64 << 10;
/// What is read ahead after a large body.
const AFTER_LARGE: usize = 8 << 10;
/// What a call is offered at least, if there is so much to come and the window allows it.
const LEAST_REACH: usize = 64 << 10;
/// How often in a row a deframer may use no bytes at all. An honest one has a frame and some empty bodies.
const IDLE: u32 = 64;
/// How many bytes a blocking form takes before it looks at the clock.
const BETWEEN_LOOKS: u64 = 256 << 10;

impl<T, D> Receiver<T, D> {
    /// A receiver at the start of a frame.
    pub fn new(transport: T, deframer: D) -> Self {
        Self::with_options(transport, deframer, RecvOptions::default(), SlabPool::default())
    }

    /// The same, with other limits, and with slabs from a pool that may be shared.
    pub fn with_options(transport: T, deframer: D, options: RecvOptions, pool: SlabPool) -> Self {
        let ahead = ReadAhead { bytes: vec![0; options.read_ahead], start: 0, end: 0 };
        let stream = Stream {
            reach: options.window,
            low_water: LowWater::new(options.low_water),
            options,
            stats: RecvStats::default(),
            pool,
            ahead,
            filling: None,
            unfinished: None,
            inside_frame: false,
            after_large: false,
            unread: 0,
            eof: false,
            dead: false,
            slices: Vec::new(),
        };
        Self { transport, deframer, stream }
    }

    /// Puts bytes in front that arrived before this receiver was made: what another one left
    /// [`unread`](Parts::unread). For use before the first receive.
    #[must_use]
    pub fn with_unread(mut self, unread: &[u8]) -> Self {
        self.stream.unread += unread.len() as u64;
        let ahead = &mut self.stream.ahead;
        let mut bytes = ahead.bytes[ahead.start..ahead.end].to_vec();
        bytes.extend_from_slice(unread);
        (ahead.start, ahead.end) = (0, bytes.len());
        bytes.resize(bytes.len().max(self.stream.options.read_ahead), 0);
        ahead.bytes = bytes;
        self
    }

    /// The transport.
    pub fn transport(&self) -> &T {
        &self.transport
    }

    /// The deframer.
    pub fn deframer(&self) -> &D {
        &self.deframer
    }

    /// The deframer, for what it lets be changed between receives.
    pub fn deframer_mut(&mut self) -> &mut D {
        &mut self.deframer
    }

    /// What was done so far.
    pub fn stats(&self) -> RecvStats {
        self.stream.stats
    }

    /// Whether the stream is at the border of two frames, so that the deframer may be changed.
    pub fn is_between_frames(&self) -> bool {
        !self.stream.inside_frame && self.stream.filling.is_none()
    }

    /// Goes on with another deframer: after a handshake, for instance. Bytes that were read ahead are for the new one.
    ///
    /// # Errors
    /// In the middle of a frame the receiver comes back as it was.
    pub fn replace<E>(self, deframer: E) -> Result<Receiver<T, E>, Box<Self>> {
        if self.is_between_frames() {
            Ok(Receiver { transport: self.transport, deframer, stream: self.stream })
        } else {
            Err(Box::new(self))
        }
    }

    /// Takes it apart. What a body has of its bytes is lost in the middle of one.
    pub fn into_parts(self) -> Parts<T, D> {
        let unread = self.stream.ahead.unused().to_vec();
        Parts { transport: self.transport, deframer: self.deframer, unread }
    }
}

impl<T: VectoredRecv, D: Deframer> Receiver<T, D> {
    /// Receives until nothing more is there, and hands each frame to `on_frame`, which may stop it. Never waits.
    ///
    /// # Errors
    /// The protocol's own, a stream that ends inside a frame, a limit passed, or what the transport reports. None of
    /// them can be got over; the receiver refuses to go on. So it does after a panic of `on_frame`.
    pub fn receive(
        &mut self,
        targets: &mut dyn Targets,
        mut on_frame: impl FnMut(D::Frame<'_>) -> ControlFlow<()>,
    ) -> Result<Received, RecvError<D::Error>> {
        if self.stream.dead {
            return Err(self.stream.error(RecvErrorKind::Dead));
        }
        self.guarded_turn(targets, self.stream.options.turn_bytes, false, &mut on_frame)
    }

    /// A turn after which the stream is as dead as if it had failed, should a callback panic: its frame would come twice.
    fn guarded_turn(
        &mut self,
        targets: &mut dyn Targets,
        turn_bytes: u64,
        waits: bool,
        on_frame: &mut impl FnMut(D::Frame<'_>) -> ControlFlow<()>,
    ) -> Result<Received, RecvError<D::Error>> {
        self.stream.dead = true;
        let result = self.turn(targets, turn_bytes, waits, on_frame);
        self.stream.dead = result.is_err();
        result
    }

    /// Who waits, by poll(2), which looks at what is there and not at what comes, need not be told by a call of its own that
    /// nothing is left: a call that was not filled up says so. An event loop may only be told of changes (epoll(7), edge
    /// triggered), and the end of the stream could have come before that call: it has to see EAGAIN.
    fn turn(
        &mut self,
        targets: &mut dyn Targets,
        turn_bytes: u64,
        waits: bool,
        on_frame: &mut impl FnMut(D::Frame<'_>) -> ControlFlow<()>,
    ) -> Result<Received, RecvError<D::Error>> {
        let Self { transport, deframer, stream } = self;
        let limit = stream.stats.bytes.saturating_add(turn_bytes);
        let mut idle = 0;
        let mut drained = false;
        loop {
            // Everything that can be done with the bytes at hand.
            let wanted = loop {
                if stream.filling.is_some() {
                    let Some(piece) = stream.fill_from_ahead(targets) else { break 1 };
                    if piece.len > 0 {
                        idle = 0;
                    }
                    deframer.body(piece).map_err(|error| stream.error(RecvErrorKind::Frame(error)))?;
                    continue;
                }
                let head = stream.ahead.unused();
                let step = deframer.decode(head, targets);
                let unused = head.len();
                let (used, after) = match step.map_err(|error| stream.error(RecvErrorKind::Frame(error)))? {
                    Step::Need(wanted) => break stream.wanted(wanted).map_err(|kind| stream.error(kind))?,
                    Step::Used(used) => (used, After::Inside),
                    Step::Body { head, req } => (head, After::Body(req)),
                    Step::Frame { head, .. } if head > unused => {
                        return Err(stream.error(RecvErrorKind::Stuck));
                    }
                    Step::Frame { frame, head } => (head, After::Frame(on_frame(frame))),
                    Step::Dropped { head } => (head, After::Between),
                };
                idle = if used > 0 { 0 } else { idle + 1 };
                if idle > IDLE || used > unused {
                    return Err(stream.error(RecvErrorKind::Stuck));
                }
                stream.ahead.start += used;
                stream.inside_frame = matches!(after, After::Inside | After::Body(_));
                match after {
                    After::Inside | After::Between => {}
                    After::Body(req) => stream.begin(req).map_err(|kind| stream.error(kind))?,
                    After::Frame(flow) => {
                        stream.stats.frames += 1;
                        if flow.is_break() {
                            return Ok(Received::Stopped);
                        }
                    }
                }
            };
            if stream.eof {
                return stream.at_eof(wanted as u64, deframer.awaiting());
            }
            if drained && waits {
                return Ok(Received::Blocked);
            }
            if stream.stats.bytes >= limit {
                return Ok(Received::Budget);
            }
            match stream.recv(transport, targets, wanted) {
                Ok((0, _)) => stream.eof = true,
                Ok((received, offered)) => drained = received < offered,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    stream.stats.blocked += 1;
                    return Ok(Received::Blocked);
                }
                Err(error) => return Err(stream.error(RecvErrorKind::Io(error))),
            }
        }
    }
}

/// What a step leaves to be done once its bytes are used.
enum After {
    Inside,
    Between,
    Body(BodyReq),
    Frame(ControlFlow<()>),
}

impl<T: VectoredRecv + Wait, D: Deframer> Receiver<T, D> {
    /// Receives until `on_frame` stops it or the peer closes, waiting for the transport, at most until `deadline`. While it
    /// waits the socket may have a low-water mark: see [`RecvOptions::low_water`].
    ///
    /// # Errors
    /// As [`receive`](Self::receive), and [`RecvErrorKind::Deadline`], after which receiving can go on: nothing is lost.
    pub fn receive_blocking(
        &mut self,
        targets: &mut dyn Targets,
        deadline: Option<Instant>,
        mut on_frame: impl FnMut(D::Frame<'_>) -> ControlFlow<()>,
    ) -> Result<Received, RecvError<D::Error>> {
        loop {
            if self.stream.dead {
                return Err(self.stream.error(RecvErrorKind::Dead));
            }
            let turn = self.stream.options.turn_bytes.min(BETWEEN_LOOKS);
            let received = match self.guarded_turn(targets, turn, true, &mut on_frame)? {
                received @ (Received::Blocked | Received::Budget) => received,
                received => return Ok(received),
            };
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                return Err(self.stream.error(RecvErrorKind::Deadline));
            }
            // A peer that has always more to say does not get around the deadline.
            if received == Received::Budget {
                continue;
            }
            if let Err(error) = self.stream.wait(&self.transport, left) {
                self.stream.dead = true;
                return Err(self.stream.error(RecvErrorKind::Io(error)));
            }
        }
    }

    /// Receives one frame, waiting for it, at most until `deadline`, and returns what `f` makes of it; `None` if the peer
    /// closed instead.
    ///
    /// # Errors
    /// As [`receive_blocking`](Self::receive_blocking).
    pub fn next<R>(
        &mut self,
        targets: &mut dyn Targets,
        deadline: Option<Instant>,
        mut f: impl FnMut(D::Frame<'_>) -> R,
    ) -> Result<Option<R>, RecvError<D::Error>> {
        let mut result = None;
        let _ = self.receive_blocking(targets, deadline, |frame| {
            result = Some(f(frame));
            ControlFlow::Break(())
        })?;
        Ok(result)
    }
}

impl Stream {
    /// One call: the rest of the body as far as is offered, and the read-ahead behind it. Returns how many bytes came, and
    /// for how many there was room.
    fn recv(
        &mut self,
        transport: &impl VectoredRecv,
        targets: &mut dyn Targets,
        wanted: usize,
    ) -> io::Result<(usize, usize)> {
        let Self { options, stats, ahead, filling, after_large, reach, slices, .. } = self;
        let slices = reuse(std::mem::take(slices));
        let mut lent = LentSlices { slices, room: 0, max_slices: MAX_SLICES - 1 };
        let (mut body, mut whole, mut sum) = (0, true, None);
        if let Some(filling) = filling {
            let reach = if filling.memory.is_contiguous() { options.window } else { *reach };
            let want = filling.left.min(reach as u64) as usize;
            let large = filling.is_large();
            body = filling.memory.lend(want, targets, &mut lent);
            whole = body as u64 == filling.left;
            *after_large = large && body > 0;
            sum = filling.sum.as_mut();
        }
        let mut slices = lent.slices;
        if whole || body == 0 {
            let most = if *after_large { AFTER_LARGE.max(wanted) } else { usize::MAX };
            slices.push(IoSliceMut::new(ahead.free(most)));
        }
        let offered: usize = slices.iter().map(|slice| slice.len()).sum();
        stats.calls += 1;
        stats.slices += slices.len() as u64;
        let received = match transport.recv_vectored(&mut slices) {
            Ok(n) if n > offered => {
                Err(io::Error::other("the transport claims more bytes than there was room for"))
            }
            result => result,
        };
        let landed = body.min(*received.as_ref().unwrap_or(&0));
        if let Some(sum) = sum {
            let mut left = landed;
            for slice in &slices {
                let n = left.min(slice.len());
                sum.update(&slice[..n]);
                left -= n;
            }
            stats.digested += landed as u64;
        }
        self.slices = reuse(slices);
        self.low_water.received(*received.as_ref().unwrap_or(&0), offered);
        let received = received?;
        self.stats.bytes += received as u64;
        // Pages that the bytes do not reach cost as much to offer as others: to us, and to the kernel, which copies the array.
        // So it is twice what came; and not less than before if no page was in vain.
        if body > 0 {
            let twice = landed.saturating_mul(2);
            let reach = if landed < body { twice } else { self.reach.max(twice) };
            self.reach = reach.clamp(LEAST_REACH.min(self.options.window), self.options.window);
        }
        match &mut self.filling {
            Some(filling) => {
                filling.memory.landed(landed);
                filling.left -= landed as u64;
            }
            // What followed was not another large body, or its header has come.
            None => self.after_large = false,
        }
        self.ahead.end += received - landed;
        Ok((received, offered))
    }

    fn wait(&mut self, transport: &impl Wait, timeout: Option<Duration>) -> io::Result<bool> {
        let missing = self.filling.as_ref().map_or(0, |filling| filling.left);
        self.low_water.wait(transport, missing, timeout)
    }

    /// How many more bytes a header of `len` bytes takes.
    fn wanted<E>(&self, len: usize) -> Result<usize, RecvErrorKind<E>> {
        let limit = self.ahead.bytes.len();
        match len.checked_sub(self.ahead.unused().len()) {
            None | Some(0) => Err(RecvErrorKind::Stuck),
            Some(_) if len > limit => {
                Err(RecvErrorKind::HeadTooLong { len: len as u64, limit: limit as u64 })
            }
            Some(more) => Ok(more),
        }
    }

    /// What is said at the end of the stream, when `wanted` more bytes would have been needed.
    fn at_eof<E>(&self, wanted: u64, field: &'static str) -> Result<Received, RecvError<E>> {
        let unused = self.ahead.unused().len() as u64;
        let (expected, got) = match &self.filling {
            Some(filling) => filling.progress(),
            None if unused == 0 && !self.inside_frame => return Ok(Received::Eof),
            None => (unused + wanted, unused),
        };
        Err(self.error(RecvErrorKind::UnexpectedEof { field, expected, got }))
    }

    fn error<E>(&self, kind: RecvErrorKind<E>) -> RecvError<E> {
        RecvError::new(kind, self.unread + self.stats.bytes - self.ahead.unused().len() as u64)
    }
}

/// Bytes that arrived beyond what was asked for: headers, trailers, small frames.
struct ReadAhead {
    bytes: Vec<u8>,
    start: usize,
    end: usize,
}

impl ReadAhead {
    fn unused(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    /// Room for at most `most` bytes behind those that are there.
    fn free(&mut self, most: usize) -> &mut [u8] {
        // What is left is less than one header.
        self.bytes.copy_within(self.start..self.end, 0);
        (self.start, self.end) = (0, self.end - self.start);
        let len = self.bytes.len().min(self.end.saturating_add(most));
        &mut self.bytes[self.end..len]
    }
}

/// State and counts, never the bytes.
impl<T: fmt::Debug, D> fmt::Debug for Receiver<T, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Receiver")
            .field("transport", &self.transport)
            .field("unused", &self.stream.ahead.unused().len())
            .field("inside_frame", &self.stream.inside_frame)
            .field("stats", &self.stream.stats)
            .finish_non_exhaustive()
    }
}
