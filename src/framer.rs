//! What a protocol crate writes: how a message becomes a chain, and how bytes become a message again.
//!
//! ```text
//!  message ──Framer::frame──▶ ChainBuilder            (sending)
//!  bytes ──Deframer::decode──▶ Need, Used, Body, Frame, Dropped      (receiving)
//!                └─ a body lands ─▶ Deframer::body
//! ```
//!
//! Neither sees a socket. [`Receiver`](crate::recv::Receiver) drives a deframer; [`straight`](crate::straight) lets one
//! be written as straight-line code instead.

use std::convert::Infallible;
use std::fmt;
use std::io::IoSliceMut;

use bytes::Bytes;
use memchr::memmem;

use crate::chain::ChainBuilder;
use crate::checksum::{Checksum, Digest};
use crate::slab::SlabBuf;

/// Turns messages into chains.
///
/// Sequence numbers and the like are assigned here, when the message is at the head of whatever queue it was in. A
/// framer with such state calls [`ChainBuilder::check`] last, before it commits the state, so that a failed `frame` has
/// spent nothing.
///
/// ```
/// use segchain::chain::{ChainBuilder, ChainError};
/// use segchain::framer::Framer;
///
/// /// A length, big-endian, and that many bytes.
/// struct Lengths;
///
/// impl<'p> Framer<&'p [u8]> for Lengths {
///     type Error = ChainError;
///     fn overhead(&self, _: u64) -> u64 {
///         4
///     }
///     fn frame<'m>(&mut self, message: &'p [u8], out: &mut ChainBuilder<'m>) -> Result<(), ChainError>
///     where
///         &'p [u8]: 'm,
///     {
///         out.put_u32_be(message.len() as u32);
///         out.push_borrowed(message);
///         out.check()
///     }
/// }
///
/// let mut out = ChainBuilder::new();
/// Lengths.frame(b"hello", &mut out)?;
/// assert_eq!(out.finish()?.len(), 9);
/// # Ok::<(), ChainError>(())
/// ```
pub trait Framer<M> {
    /// Why a message cannot be framed.
    type Error;

    /// The most bytes that framing adds to a message of `len` bytes: for sizing buffers.
    fn overhead(&self, len: u64) -> u64;

    /// Whether a message may be dropped after it was framed: its sequence number may be missing on the wire, or it has
    /// none.
    fn accepts_gap(&self) -> bool {
        false
    }

    /// Builds the chain of one message.
    ///
    /// # Errors
    /// A message that the protocol cannot carry, or the builder's own mistake. Nothing is committed then.
    fn frame<'m>(&mut self, message: M, out: &mut ChainBuilder<'m>) -> Result<(), Self::Error>
    where
        M: 'm;
}

/// Turns the bytes of a stream into frames.
///
/// The driver calls [`decode`](Deframer::decode) with what it has, from the first byte that was not used yet. The answer
/// says what comes next. The one rule: **an answer of [`Step::Need`] has changed nothing**, for the same bytes come again
/// with more behind them.
///
/// ```
/// use segchain::framer::{BodyReq, Deframer, Filled, Landed, Place, Step, Targets};
/// use bytes::Bytes;
///
/// /// A length, big-endian, and that many bytes.
/// #[derive(Default)]
/// struct Lengths(Option<Bytes>);
///
/// impl Deframer for Lengths {
///     type Frame<'h> = Bytes;
///     type Error = std::convert::Infallible;
///     fn decode<'h>(&mut self, head: &'h [u8], _: &mut dyn Targets) -> Result<Step<Bytes>, Self::Error> {
///         if let Some(frame) = self.0.take() {
///             return Ok(Step::Frame { frame, head: 0 });
///         }
///         let Some(len) = head.first_chunk() else { return Ok(Step::Need(4)) };
///         let req = BodyReq::new(u32::from_be_bytes(*len).into(), Place::Contiguous);
///         Ok(Step::Body { head: 4, req })
///     }
///     fn body(&mut self, piece: Filled) -> Result<(), Self::Error> {
///         if let Landed::Contiguous(bytes) = piece.landed {
///             self.0 = Some(bytes);
///         }
///         Ok(())
///     }
/// }
/// ```
pub trait Deframer {
    /// What comes out. A small frame may borrow from the bytes it came in.
    type Frame<'h>;
    /// Why the bytes are not this protocol. The stream is of no use after that.
    type Error;

    /// Looks at the unused bytes; see [`Step`].
    ///
    /// # Errors
    /// Bytes that the protocol does not allow.
    fn decode<'h>(
        &mut self,
        head: &'h [u8],
        targets: &mut dyn Targets,
    ) -> Result<Step<Self::Frame<'h>>, Self::Error>;

    /// Takes the piece of a body that [`Step::Body`] asked for.
    ///
    /// # Errors
    /// A body that the protocol does not allow: a wrong checksum, for instance.
    fn body(&mut self, piece: Filled) -> Result<(), Self::Error>;

    /// The protocol's name of what comes next, for error messages.
    fn awaiting(&self) -> &'static str {
        "frame"
    }
}

/// What a deframer wants to happen next.
#[derive(Debug)]
#[non_exhaustive]
pub enum Step<F> {
    /// At least this many bytes are needed from the same place on; nothing was used.
    Need(usize),
    /// So many bytes were used, at least 1, and are not shown again; the frame goes on.
    Used(usize),
    /// After `head` bytes, which are used, comes a body, or a piece of one.
    Body {
        /// Used bytes before the body.
        head: usize,
        /// What body, and where it shall land.
        req: BodyReq,
    },
    /// A whole frame, which ends after `head` more bytes.
    Frame {
        /// For whoever receives.
        frame: F,
        /// Used bytes, those that `frame` borrows included.
        head: usize,
    },
    /// A whole frame ends after `head` more bytes, and there is nothing to hand out.
    Dropped {
        /// Used bytes.
        head: usize,
    },
}

impl<F> Step<F> {
    /// The same step with another frame: for a deframer around another one.
    ///
    /// ```
    /// use segchain::framer::Step;
    /// let step = Step::Frame { frame: 7u8, head: 1 }.map(u32::from);
    /// assert!(matches!(step, Step::Frame { frame: 7u32, head: 1 }));
    /// ```
    pub fn map<G>(self, frame: impl FnOnce(F) -> G) -> Step<G> {
        let Ok(step) = self.try_map(|inner| Ok::<_, Infallible>(frame(inner)));
        step
    }

    /// The same step, with what `f` makes of the frame if it has one: for one around another that may refuse it.
    ///
    /// # Errors
    /// Those of `f`.
    ///
    /// ```
    /// use segchain::framer::Step;
    ///
    /// let step = Step::Frame { frame: "42", head: 2 }.try_map(str::parse::<u32>)?;
    /// assert!(matches!(step, Step::Frame { frame: 42, head: 2 }));
    /// # Ok::<(), std::num::ParseIntError>(())
    /// ```
    pub fn try_map<G, E>(self, f: impl FnOnce(F) -> Result<G, E>) -> Result<Step<G>, E> {
        Ok(match self {
            Step::Need(bytes) => Step::Need(bytes),
            Step::Used(head) => Step::Used(head),
            Step::Body { head, req } => Step::Body { head, req },
            Step::Frame { frame, head } => Step::Frame { frame: f(frame)?, head },
            Step::Dropped { head } => Step::Dropped { head },
        })
    }
}

/// A piece of a body, all of it unless the protocol cuts bodies into fragments.
#[derive(Debug)]
#[non_exhaustive]
pub struct BodyReq {
    /// Bytes of this piece.
    pub len: u64,
    /// Bytes of the body as far as is known, earlier pieces included. Checked against limits before the first one lands.
    pub total: u64,
    /// Whether this is the last piece. What landed is handed over with it.
    pub last: bool,
    /// Where to.
    pub place: Place,
    /// A checksum to run over the piece as it lands; it comes back with [`Filled`].
    pub sum: Option<Digest>,
}

impl BodyReq {
    /// A body in one piece.
    pub fn new(len: u64, place: Place) -> Self {
        Self { len, total: len, last: true, place, sum: None }
    }

    /// Runs `checksum` over the piece as it lands.
    #[must_use]
    pub fn digest<C: Checksum>(mut self, checksum: C) -> Self {
        self.sum = Some(Digest::new(checksum));
        self
    }

    /// One of several pieces: the body has `total` bytes as far as is known.
    #[must_use]
    pub fn piece_of(mut self, total: u64, last: bool) -> Self {
        (self.total, self.last) = (total, last);
        self
    }
}

/// Where a body lands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Place {
    /// In one piece of memory. Its length is limited: see
    /// [`RecvOptions::contiguous`](crate::recv::RecvOptions::contiguous).
    Contiguous,
    /// In page-aligned slabs, the first byte `offset` bytes after a page's start (modulo the page).
    Slabs {
        /// Where in its page the body begins.
        offset: usize,
    },
    /// In the caller's memory.
    Target {
        /// Whose: see [`Targets`].
        key: u64,
        /// The position within the target.
        at: u64,
    },
    /// Nowhere.
    Discard,
    /// Right behind the piece before, wherever that went.
    Continue,
}

/// A piece that has landed.
#[derive(Debug)]
#[non_exhaustive]
pub struct Filled {
    /// Bytes of the piece.
    pub len: u64,
    /// The checksum that was asked for, run over the piece.
    pub sum: Option<Digest>,
    /// Where the body is.
    pub landed: Landed,
}

/// Where a body has landed.
#[derive(Debug)]
#[non_exhaustive]
pub enum Landed {
    /// In one piece of memory, all of the body.
    Contiguous(Bytes),
    /// In slabs, all of the body.
    Slabs(SlabBuf),
    /// In the caller's memory.
    Target {
        /// Whose.
        key: u64,
        /// Whether all of it: `false` if the target was taken back on the way.
        whole: bool,
    },
    /// Nowhere, as asked.
    Discarded,
    /// More pieces of the body are to come.
    Unfinished,
}

/// Memory of the caller that bodies land in: a table of targets by key.
///
/// Memory is lent to one receive call and not kept: a target that is taken out of the table between two calls is not
/// written to any more, and the rest of its body is discarded in sync. Who shares the table locks it around one
/// non-blocking receive, never around a wait. `()` is a table without targets.
///
/// ```
/// use std::collections::HashMap;
/// use segchain::framer::{LentSlices, Targets};
///
/// /// Pages that data of replies lands in, by request.
/// struct Reads(HashMap<u64, Vec<[u8; 4096]>>);
///
/// impl Targets for Reads {
///     fn expect(&mut self, key: u64) -> Option<u64> {
///         self.0.get(&key).map(|pages| 4096 * pages.len() as u64)
///     }
///
///     fn lend<'a>(&'a mut self, key: u64, at: u64, _: usize, out: &mut LentSlices<'a>) -> bool {
///         let Some(pages) = self.0.get_mut(&key) else { return false };
///         let mut skip = at as usize % 4096;
///         for page in &mut pages[at as usize / 4096..] {
///             out.push(&mut page[std::mem::take(&mut skip)..]); // cut off where no more is wanted
///         }
///         true
///     }
/// }
/// ```
pub trait Targets {
    /// How many bytes the target takes, if it is there. Deframers ask before they place a body; one that is longer they
    /// discard, or let end where the target ends.
    fn expect(&mut self, key: u64) -> Option<u64>;

    /// Adds to `out` the target's memory from position `at` on: `len` bytes are wanted, fewer will do, more are cut off.
    /// `false`, or nothing added, if the target is not there any more: the rest of the body is discarded then, and
    /// [`Landed::Target`] says that it is not whole.
    fn lend<'a>(&'a mut self, key: u64, at: u64, len: usize, out: &mut LentSlices<'a>) -> bool;
}

impl Targets for () {
    fn expect(&mut self, _: u64) -> Option<u64> {
        None
    }

    fn lend<'a>(&'a mut self, _: u64, _: u64, _: usize, _: &mut LentSlices<'a>) -> bool {
        false
    }
}

/// Slices lent to one receive call. It takes no more bytes and no more slices than the call wants; what is pushed beyond
/// that is cut off.
pub struct LentSlices<'a> {
    pub(crate) slices: Vec<IoSliceMut<'a>>,
    pub(crate) room: usize,
    pub(crate) max_slices: usize,
}

impl<'a> LentSlices<'a> {
    /// How many more bytes are wanted.
    pub fn wanted(&self) -> usize {
        if self.slices.len() < self.max_slices { self.room } else { 0 }
    }

    /// Lends one slice, or as much of its start as is wanted.
    pub fn push(&mut self, memory: &'a mut [u8]) {
        let n = memory.len().min(self.wanted());
        if n > 0 {
            self.slices.push(IoSliceMut::new(&mut memory[..n]));
            self.room -= n;
        }
    }
}

impl fmt::Debug for LentSlices<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LentSlices")
            .field("slices", &self.slices.len())
            .field("room", &self.room)
            .finish_non_exhaustive()
    }
}

/// Looks for the end of a line, or of whatever ends with `delimiter`: the position of the delimiter, `None` if it is not
/// there yet.
///
/// # Errors
/// [`LineTooLong`] if it is not within the first `limit` bytes and what follows them.
///
/// ```
/// use segchain::framer::find_delimiter;
/// assert_eq!(find_delimiter(b"GET /\r\nHost", b"\r\n", 80), Ok(Some(5)));
/// assert_eq!(find_delimiter(b"GET /\r", b"\r\n", 80), Ok(None));
/// assert!(find_delimiter(b"GET / HTTP/1.1", b"\r\n", 8).is_err());
/// ```
pub fn find_delimiter(head: &[u8], delimiter: &[u8], limit: usize) -> Result<Option<usize>, LineTooLong> {
    let longest = limit.saturating_add(delimiter.len());
    let found = memmem::find(&head[..head.len().min(longest)], delimiter);
    if found.is_none() && head.len() >= longest {
        return Err(LineTooLong { limit });
    }
    Ok(found)
}

/// No delimiter within the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LineTooLong {
    /// The most bytes before a delimiter.
    pub limit: usize,
}

impl fmt::Display for LineTooLong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no delimiter within {} bytes", self.limit)
    }
}

impl std::error::Error for LineTooLong {}
