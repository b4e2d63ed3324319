//! Records on their way in: fragments joined, the call found before the data is placed.
//!
//! ```text
//!  marker ─▶ limits ─▶ xid, direction ─▶ Pending ─┬─▶ unknown, or too large for its target: discarded, Dropped
//!     ▲                                          ├─▶ head │ data ─▶ the caller's pages │ tail
//!     └── the next fragment, whatever it cuts ───┴─▶ whole: borrowed from the read-ahead, or head │ slabs
//! ```
//!
//! A marker may stand anywhere, inside of a header too, so headers are assembled in a small buffer while data goes by it.
//! What was announced is only ever compared with limits; memory is taken for what has arrived.

use std::fmt;

use segchain::framer::{BodyReq, Deframer, Filled, Landed, Place, Step, Targets};
use segchain::slab::SlabBuf;

use crate::framer::LAST;
use crate::pending::{DataAt, FindData, Layout, Pending};
use crate::record::{Direction, DropReason, Dropped, Placed, Record, identity};
use crate::{CONTIGUOUS, Error, MAX_FRAGMENT, MIN_RECORD, rpc, xdr};

/// 64 MiB of data, which is the most that nfs-ganesha 4.3 offers to read or write at once, and 64 KiB around it.
const MAX_RECORD: u64 = (64 << 20) + (64 << 10);
/// 64 MiB come in 7460 fragments from libtirpc 1.3.3 on AF_LOCAL (8996 bytes each).
const MAX_FRAGMENTS: u32 = 16 << 10;
/// RFC 5531 does not forbid empty fragments; nobody needs many. (rpcbind 1.2.6 and nfs-ganesha 4.3 close on the first.)
const MAX_EMPTY: u32 = 16;
/// Room for the head of most replies: that of an NFSv3 READ has 128 bytes.
const HEAD: usize = 128;

/// Reads records from a stream, and places the data of replies.
///
/// * A record may come in any fragments, up to limits on their sum and their number that are checked at each marker,
///   a lone last fragment's included. Up to 16 empty ones are tolerated in a record besides an empty last one; a record of
///   fewer than [`MIN_RECORD`] bytes is an error.
/// * A reply is looked up by transaction id in [`Pending`]. If its call has a [`Layout::Data`], its data lands in the
///   target whose key is the transaction id. An unknown one, or one too large for its target, is discarded; what was
///   dropped and why, [`on_dropped`](Self::on_dropped) hears.
/// * A call of the peer, whatever its transaction id, is handed out whole, unless [`refuse_calls`](Self::refuse_calls).
///
/// ```
/// use segchain::framer::{Deframer, Step};
/// use segchain_oncrpc::{Layout, Pending, RecordDeframer};
///
/// let pending = Pending::new();
/// pending.expect(0x1122_3344, Layout::Whole)?;
/// let mut deframer = RecordDeframer::new(pending);
/// let reply = b"\x80\0\0\x18\x11\x22\x33\x44\0\0\0\x01\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0";
/// let Step::Frame { frame, head } = deframer.decode(reply, &mut ())? else { unreachable!() };
/// assert_eq!((frame.xid(), head), (0x1122_3344, 28));
/// # Ok::<(), segchain_oncrpc::Error>(())
/// ```
pub struct RecordDeframer {
    pending: Pending,
    max_record: u64,
    max_fragments: u32,
    calls: bool,
    on_dropped: Option<OnDropped>,
    dropped: u64,
    arriving: Arriving,
}

type OnDropped = Box<dyn FnMut(Dropped) + Send>;

/// The record that is arriving.
#[derive(Default)]
struct Arriving {
    fragments: u32,
    empty: u32,
    /// Bytes of it that were used or asked for, markers included.
    wire: u64,
    /// The sum of its fragments so far.
    announced: u64,
    /// Bytes of the current fragment that were neither used nor asked for.
    left: u64,
    /// Whether the current fragment is the last.
    last: bool,
    phase: Phase,
    /// What is landing now, for error messages.
    landing: Option<&'static str>,
    identity: Option<(u32, Direction)>,
    find: Option<FindData>,
    head: Vec<u8>,
    placed: Option<Placed>,
    tail: Vec<u8>,
    rest: Option<SlabBuf>,
}

#[derive(Clone, Copy)]
enum Phase {
    /// Assembling so many bytes of the head, to decide what becomes of the rest.
    Head {
        need: usize,
    },
    /// Data for the target: so many bytes are still to be asked for.
    Data {
        left: u64,
        begun: bool,
    },
    /// Head or tail, as far as they are contiguous.
    Contiguous,
    /// What is longer than that.
    Slabs {
        begun: bool,
    },
    Discard(DropReason),
}

impl Default for Phase {
    fn default() -> Self {
        Self::Head { need: MIN_RECORD as usize }
    }
}

impl RecordDeframer {
    /// A deframer at the start of a record.
    pub fn new(pending: Pending) -> Self {
        Self {
            pending,
            max_record: MAX_RECORD,
            max_fragments: MAX_FRAGMENTS,
            calls: true,
            on_dropped: None,
            dropped: 0,
            arriving: Arriving::default(),
        }
    }

    /// The most bytes of a record, all its fragments together; 64 MiB + 64 KiB unless set.
    #[must_use]
    pub fn max_record(mut self, bytes: u64) -> Self {
        self.max_record = bytes;
        self
    }

    /// The most fragments of a record; 16384 unless set.
    #[must_use]
    pub fn max_fragments(mut self, fragments: u32) -> Self {
        self.max_fragments = fragments;
        self
    }

    /// Drops calls of the peer: for a client without a back-channel.
    #[must_use]
    pub fn refuse_calls(mut self) -> Self {
        self.calls = false;
        self
    }

    /// Calls `f` for each record that was dropped, when its last byte is gone: whoever waits for the reply of
    /// [`Dropped::xid`] learns of it only here.
    #[must_use]
    pub fn on_dropped(mut self, f: impl FnMut(Dropped) + Send + 'static) -> Self {
        self.on_dropped = Some(Box::new(f));
        self
    }

    /// Records dropped so far.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// The calls that wait for a reply.
    pub fn pending(&self) -> &Pending {
        &self.pending
    }

    fn marker<'h>(&mut self, head: &'h [u8], targets: &mut dyn Targets) -> Result<Step<Record<'h>>, Error> {
        let Some(bytes) = head.first_chunk() else { return Ok(Step::Need(4)) };
        let word = u32::from_be_bytes(*bytes);
        let (len, last) = (u64::from(word & MAX_FRAGMENT), word & LAST != 0);
        self.check(*bytes, len, last)?;
        let whole = if last && self.arriving.fragments == 0 { head.get(4..4 + len as usize) } else { None };
        if let Some(message) = whole
            && let Some(step) = self.resident(message)?
        {
            return Ok(step);
        }
        let arriving = &mut self.arriving;
        arriving.fragments += 1;
        arriving.empty += u32::from(len == 0 && !last);
        arriving.wire += 4;
        arriving.announced += len;
        (arriving.left, arriving.last) = (len, last);
        self.settle(targets)?;
        Ok(Step::Used(4))
    }

    /// What a marker announces, against the limits: before anything is done about it.
    fn check(&self, bytes: [u8; 4], len: u64, last: bool) -> Result<(), Error> {
        let Arriving { fragments, empty, wire: offset, announced, .. } = self.arriving;
        let sum = announced.saturating_add(len);
        if sum > self.max_record {
            let looks_like = if fragments == 0 { looks_like(bytes) } else { None };
            return Err(Error::RecordTooLong { offset, expected: self.max_record, got: sum, looks_like });
        }
        if fragments >= self.max_fragments {
            let got = fragments.saturating_add(1);
            return Err(Error::TooManyFragments { offset, expected: self.max_fragments, got });
        }
        if last && sum < MIN_RECORD {
            return Err(Error::RecordTooShort { offset, expected: MIN_RECORD, got: sum });
        }
        if len == 0 && !last && empty >= MAX_EMPTY {
            return Err(Error::TooManyEmptyFragments { offset, expected: MAX_EMPTY, got: empty + 1 });
        }
        Ok(())
    }

    /// A record that is there as a whole, in one fragment; `None` if its data has a place of its own.
    fn resident<'h>(&mut self, message: &'h [u8]) -> Result<Option<Step<Record<'h>>>, Error> {
        let Some(identity) = identity(message, 4) else { return Ok(None) };
        let (xid, direction) = identity?;
        let head = 4 + message.len();
        let reason = match direction {
            Direction::Call if self.calls => None,
            Direction::Call => Some(DropReason::UnwantedCall),
            Direction::Reply => match self.pending.take_whole(xid) {
                Some(Layout::Data(_)) => return Ok(None),
                Some(Layout::Whole) => None,
                None => Some(DropReason::UnknownXid),
            },
        };
        Ok(Some(match reason {
            None => Step::Frame { frame: Record::of_head(xid, direction, message), head },
            Some(reason) => self.drop_record(Dropped { xid, direction, reason }, head),
        }))
    }

    fn drop_record<'h>(&mut self, dropped: Dropped, head: usize) -> Step<Record<'h>> {
        self.dropped += 1;
        if let Some(f) = &mut self.on_dropped {
            f(dropped);
        }
        Step::Dropped { head }
    }

    /// Goes on from a head that is long enough, or as long as it will ever be.
    fn settle(&mut self, targets: &mut dyn Targets) -> Result<(), Error> {
        while let Phase::Head { need } = self.arriving.phase {
            if self.arriving.head.len() < need && !self.arriving.ended() {
                break;
            }
            self.arriving.phase = self.next_phase(targets)?;
        }
        Ok(())
    }

    fn next_phase(&mut self, targets: &mut dyn Targets) -> Result<Phase, Error> {
        let Self { arriving, pending, calls, .. } = self;
        if arriving.identity.is_none() {
            // A record that ends before is refused at its last marker.
            let Some(identity) = identity(&arriving.head, arriving.wire.saturating_sub(MIN_RECORD)) else {
                return Ok(Phase::Contiguous);
            };
            let (xid, direction) = identity?;
            arriving.identity = Some((xid, direction));
            match direction {
                Direction::Call if *calls => return Ok(Phase::Contiguous),
                Direction::Call => return Ok(Phase::Discard(DropReason::UnwantedCall)),
                Direction::Reply => match pending.take(xid) {
                    Some(Layout::Data(find)) => arriving.find = Some(find),
                    Some(Layout::Whole) => return Ok(Phase::Contiguous),
                    None => return Ok(Phase::Discard(DropReason::UnknownXid)),
                },
            }
        }
        let (Some((xid, _)), Some(find)) = (arriving.identity, arriving.find) else {
            return Ok(Phase::Contiguous);
        };
        let got = arriving.head.len();
        let len = match locate(&arriving.head, find) {
            DataAt::At { offset, len } if offset == got => len,
            DataAt::Need(need) | DataAt::At { offset: need, .. }
                if need > got && need <= CONTIGUOUS && !arriving.ended() =>
            {
                return Ok(Phase::Head { need });
            }
            // No data, or a finder that has asked for too much.
            _ => return Ok(Phase::Contiguous),
        };
        let available = arriving.announced - got as u64;
        if arriving.last && available < len {
            return Ok(Phase::Discard(DropReason::DataCutShort { expected: len, got: available }));
        }
        Ok(match targets.expect(xid.into()) {
            None => Phase::Discard(DropReason::NoTarget),
            Some(target) if target < len => Phase::Discard(DropReason::TargetTooSmall { len, target }),
            Some(_) => {
                arriving.placed = Some(Placed { len, whole: true });
                if len == 0 { Phase::Contiguous } else { Phase::Data { left: len, begun: false } }
            }
        })
    }
}

impl Deframer for RecordDeframer {
    type Frame<'h> = Record<'h>;
    type Error = Error;

    fn decode<'h>(&mut self, head: &'h [u8], targets: &mut dyn Targets) -> Result<Step<Record<'h>>, Error> {
        if self.arriving.at_marker() {
            return self.marker(head, targets);
        }
        match self.arriving.next() {
            Next::Frame => Ok(Step::Frame { frame: self.arriving.take(), head: 0 }),
            Next::Bytes(_) if head.is_empty() => Ok(Step::Need(1)),
            Next::Bytes(most) => {
                let used = most.min(head.len());
                self.arriving.assemble(&head[..used]);
                self.settle(targets)?;
                Ok(Step::Used(used))
            }
            Next::Body(what, req) => {
                self.arriving.landing = Some(what);
                Ok(Step::Body { head: 0, req })
            }
            Next::Dropped(reason) => {
                let Record { xid, direction, .. } = self.arriving.take();
                Ok(self.drop_record(Dropped { xid, direction, reason }, 0))
            }
        }
    }

    fn body(&mut self, piece: Filled) -> Result<(), Error> {
        self.arriving.landing = None;
        match piece.landed {
            Landed::Slabs(rest) => self.arriving.rest = Some(rest),
            Landed::Target { whole, .. } => {
                if let Some(placed) = &mut self.arriving.placed {
                    placed.whole = whole;
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn awaiting(&self) -> &'static str {
        match (self.arriving.landing, self.arriving.phase) {
            (Some(what), _) => what,
            (None, _) if self.arriving.at_marker() => "record marker",
            (None, Phase::Head { .. }) => "RPC header",
            (None, _) => "record",
        }
    }
}

/// What the arriving record wants next, if that is not a marker.
enum Next {
    /// At most so many bytes for its head or tail.
    Bytes(usize),
    Body(&'static str, BodyReq),
    Frame,
    Dropped(DropReason),
}

impl Arriving {
    fn at_marker(&self) -> bool {
        self.left == 0 && !self.last
    }

    /// Whether every byte of it was used or asked for.
    fn ended(&self) -> bool {
        self.left == 0 && self.last
    }

    fn next(&mut self) -> Next {
        match self.phase {
            Phase::Head { need } => Next::Bytes(self.most(need - self.head.len())),
            Phase::Contiguous if self.ended() => Next::Frame,
            Phase::Contiguous => match CONTIGUOUS.saturating_sub(self.buffer().len()) {
                0 => self.slabs(false),
                room => Next::Bytes(self.most(room)),
            },
            Phase::Slabs { .. } if self.rest.is_some() => Next::Frame,
            Phase::Slabs { begun } => self.slabs(begun),
            Phase::Data { left, begun } => self.data(left, begun),
            Phase::Discard(reason) if self.ended() => Next::Dropped(reason),
            Phase::Discard(_) => {
                let len = self.ask(self.left);
                Next::Body("record", BodyReq::new(len, Place::Discard))
            }
        }
    }

    fn slabs(&mut self, begun: bool) -> Next {
        let before =
            self.head.len() as u64 + self.placed.map_or(0, |placed| placed.len) + self.tail.len() as u64;
        let place = if begun { Place::Continue } else { Place::Slabs { offset: 0 } };
        let len = self.ask(self.left);
        self.phase = Phase::Slabs { begun: true };
        Next::Body("record", BodyReq::new(len, place).piece_of(self.announced - before, self.last))
    }

    fn data(&mut self, left: u64, begun: bool) -> Next {
        let total = self.placed.map_or(0, |placed| placed.len);
        let key = self.identity.map_or(0, |(xid, _)| xid.into());
        let place = if begun { Place::Continue } else { Place::Target { key, at: 0 } };
        if self.ended() {
            let reason = DropReason::DataCutShort { expected: total, got: total - left };
            self.phase = Phase::Discard(reason);
            // A body that has begun needs its last piece, if only an empty one.
            return if begun {
                Next::Body("reply data", BodyReq::new(0, place))
            } else {
                Next::Dropped(reason)
            };
        }
        let len = self.ask(left.min(self.left));
        let left = left - len;
        self.phase = if left == 0 { Phase::Contiguous } else { Phase::Data { left, begun: true } };
        Next::Body("reply data", BodyReq::new(len, place).piece_of(total, left == 0))
    }

    fn ask(&mut self, len: u64) -> u64 {
        self.left -= len;
        self.wire += len;
        len
    }

    fn most(&self, room: usize) -> usize {
        usize::try_from(self.left).map_or(room, |left| room.min(left))
    }

    fn assemble(&mut self, bytes: &[u8]) {
        self.ask(bytes.len() as u64);
        if self.head.is_empty() {
            self.head.reserve(HEAD);
        }
        self.buffer().extend_from_slice(bytes);
    }

    fn buffer(&mut self) -> &mut Vec<u8> {
        if self.placed.is_some() { &mut self.tail } else { &mut self.head }
    }

    fn take(&mut self) -> Record<'static> {
        let Self { fragments, identity, head, placed, tail, rest, .. } = std::mem::take(self);
        let (xid, direction) = identity.unwrap_or((0, Direction::Reply));
        Record { xid, direction, fragments, head: head.into(), placed, tail, rest }
    }
}

/// Where data begins in a reply, from the reply's start: behind the header of one that was accepted with success.
fn locate(reply: &[u8], find: FindData) -> DataAt {
    let word = |at: usize| {
        let bytes = reply.get(at..)?.first_chunk()?;
        Some(u32::from_be_bytes(*bytes))
    };
    match word(8) {
        None => return DataAt::Need(12),
        Some(0) => {}
        Some(_) => return DataAt::Nowhere,
    }
    let results = match word(16) {
        None => return DataAt::Need(20),
        Some(verifier) if verifier > rpc::MAX_AUTH => return DataAt::Nowhere,
        Some(verifier) => 20 + (verifier as usize) + xdr::pad(verifier.into()) as usize + 4,
    };
    match word(results - 4) {
        None => return DataAt::Need(results),
        Some(0) => {}
        Some(_) => return DataAt::Nowhere,
    }
    match find(&reply[results..]) {
        DataAt::Need(more) => DataAt::Need(results.saturating_add(more)),
        DataAt::At { offset, len } => DataAt::At { offset: results.saturating_add(offset), len },
        DataAt::Nowhere => DataAt::Nowhere,
    }
}

/// Clients of other protocols that came to the wrong port: their first bytes, read as a marker, are a fragment of
/// hundreds of megabytes. "\x13Bit" is the 323119476 of many kernel logs, "GET " is 1195725856.
fn looks_like(bytes: [u8; 4]) -> Option<&'static str> {
    match &bytes {
        b"GET " | b"POST" | b"PUT " | b"HEAD" | b"OPTI" | b"HTTP" | b"CONN" => Some("HTTP"),
        b"\x13Bit" => Some("BitTorrent"),
        b"SSH-" => Some("SSH"),
        [0x16, 0x03, ..] => Some("TLS"),
        _ => None,
    }
}

/// State and counts, never the bytes.
impl fmt::Debug for RecordDeframer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecordDeframer")
            .field("pending", &self.pending)
            .field("max_record", &self.max_record)
            .field("max_fragments", &self.max_fragments)
            .field("awaiting", &self.awaiting())
            .field("fragments", &self.arriving.fragments)
            .field("dropped", &self.dropped)
            .finish_non_exhaustive()
    }
}
