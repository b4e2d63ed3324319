//! A record that has arrived: which call it belongs to, and where its bytes are.

use std::borrow::Cow;
use std::fmt;

use segchain::slab::SlabBuf;

use crate::{Error, MIN_RECORD};

/// A call or a reply (`msg_type`, RFC 5531 section 9): which of the two peers chose the transaction id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Direction {
    /// The peer calls.
    Call,
    /// The peer answers a call of ours.
    Reply,
}

impl Direction {
    pub(crate) fn word(self) -> u32 {
        match self {
            Self::Call => 0,
            Self::Reply => 1,
        }
    }
}

/// One record, its fragments joined.
///
/// Its bytes are, in this order: the [`head`](Self::head), the data that is in the caller's pages if there is any, the
/// [`tail`](Self::tail), and the [`rest`](Self::rest) in slabs. What needs no target and is in one piece of the
/// read-ahead is a head alone, borrowed; so is, copied, whatever is no longer than [`CONTIGUOUS`](crate::CONTIGUOUS).
pub struct Record<'h> {
    pub(crate) xid: u32,
    pub(crate) direction: Direction,
    pub(crate) fragments: u32,
    pub(crate) head: Cow<'h, [u8]>,
    pub(crate) placed: Option<Placed>,
    pub(crate) tail: Vec<u8>,
    pub(crate) rest: Option<SlabBuf>,
}

/// Data that was meant for the caller's pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Placed {
    /// Bytes of data, without the pad: they begin at the target's start.
    pub len: u64,
    /// Whether all of it is there: `false` if the target was taken back on the way.
    pub whole: bool,
}

/// A record of which nothing was handed out. The stream goes on behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Dropped {
    /// The transaction id.
    pub xid: u32,
    /// Whose transaction it was.
    pub direction: Direction,
    /// Why.
    pub reason: DropReason,
}

/// Why a record was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DropReason {
    /// A reply that no call waits for.
    UnknownXid,
    /// A call, though none is wanted: see [`RecordDeframer::refuse_calls`](crate::RecordDeframer::refuse_calls).
    UnwantedCall,
    /// A reply with data for a target that is not in the table.
    NoTarget,
    /// A reply with more data than its target takes.
    TargetTooSmall {
        /// Bytes of data.
        len: u64,
        /// Bytes of the target.
        target: u64,
    },
    /// A reply that ends before the data that it announces. The start of the target may have been written.
    DataCutShort {
        /// Bytes announced.
        expected: u64,
        /// Bytes that came.
        got: u64,
    },
}

impl<'h> Record<'h> {
    /// One datagram: there is no marker, and all of it is the head.
    ///
    /// # Errors
    /// [`Error::RecordTooShort`] and [`Error::NoDirection`].
    pub fn from_datagram(bytes: &'h [u8]) -> Result<Self, Error> {
        let too_short = Error::RecordTooShort { offset: 0, expected: MIN_RECORD, got: bytes.len() as u64 };
        let (xid, direction) = identity(bytes, 0).ok_or(too_short)??;
        Ok(Self::of_head(xid, direction, bytes))
    }

    pub(crate) fn of_head(xid: u32, direction: Direction, head: &'h [u8]) -> Self {
        Self { xid, direction, fragments: 1, head: head.into(), placed: None, tail: Vec::new(), rest: None }
    }

    /// The transaction id.
    pub fn xid(&self) -> u32 {
        self.xid
    }

    /// Whether it is a call or a reply. The two number their transactions apart.
    pub fn direction(&self) -> Direction {
        self.direction
    }

    /// How many fragments it came in; 1 for a datagram.
    pub fn fragments(&self) -> u32 {
        self.fragments
    }

    /// Length in bytes, placed data included and markers not.
    pub fn len(&self) -> u64 {
        let rest = self.rest.as_ref().map_or(0, SlabBuf::len);
        self.head.len() as u64 + self.placed.map_or(0, |placed| placed.len) + self.tail.len() as u64 + rest
    }

    /// Never: see [`MIN_RECORD`].
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The first bytes, in one piece: what precedes the placed data, or else the first
    /// [`CONTIGUOUS`](crate::CONTIGUOUS) bytes at least, or all.
    pub fn head(&self) -> &[u8] {
        &self.head
    }

    /// The data that was meant for the target under this [`xid`](Self::xid), if there is any.
    pub fn placed(&self) -> Option<Placed> {
        self.placed
    }

    /// What follows placed data: its pad, at least.
    pub fn tail(&self) -> &[u8] {
        &self.tail
    }

    /// What is left of a long record.
    pub fn rest(&self) -> Option<&SlabBuf> {
        self.rest.as_ref()
    }

    /// The same, to keep.
    pub fn into_rest(self) -> Option<SlabBuf> {
        self.rest
    }

    /// The bytes, piece by piece, but not those that were placed.
    pub fn parts(&self) -> impl Iterator<Item = &[u8]> {
        let rest = self.rest.iter().flat_map(SlabBuf::parts);
        [&*self.head, &*self.tail].into_iter().chain(rest).filter(|part| !part.is_empty())
    }

    /// The bytes in one piece, but not those that were placed: borrowed if they are all head, a copy otherwise.
    pub fn to_bytes(&self) -> Cow<'_, [u8]> {
        if self.tail.is_empty() && self.rest.is_none() {
            return Cow::Borrowed(&self.head);
        }
        self.parts().collect::<Vec<_>>().concat().into()
    }

    /// Copies a borrowed head, so that the record can be kept.
    #[must_use]
    pub fn into_owned(self) -> Record<'static> {
        Record { head: self.head.into_owned().into(), ..self }
    }
}

/// Transaction id and direction, at the start of a message; `None` if they are not there. `offset` is that of the message.
pub(crate) fn identity(message: &[u8], offset: u64) -> Option<Result<(u32, Direction), Error>> {
    let words: &[u8; 8] = message.first_chunk()?;
    let [xid, direction] =
        [0, 4].map(|at| u32::from_be_bytes([words[at], words[at + 1], words[at + 2], words[at + 3]]));
    Some(match direction {
        0 => Ok((xid, Direction::Call)),
        1 => Ok((xid, Direction::Reply)),
        got => Err(Error::NoDirection { offset: offset + 4, got }),
    })
}

/// Shape only, never the bytes.
impl fmt::Debug for Record<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Record")
            .field("xid", &format_args!("{:#010x}", self.xid))
            .field("direction", &self.direction)
            .field("len", &self.len())
            .field("fragments", &self.fragments)
            .field("placed", &self.placed)
            .finish_non_exhaustive()
    }
}

impl fmt::Display for Dropped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.direction {
            Direction::Call => "call",
            Direction::Reply => "reply",
        };
        write!(f, "{what} {:#010x} was dropped: ", self.xid)?;
        match self.reason {
            DropReason::UnknownXid => f.write_str("no call waits for it"),
            DropReason::UnwantedCall => f.write_str("calls are not served here"),
            DropReason::NoTarget => f.write_str("its target is gone"),
            DropReason::TargetTooSmall { len, target } => {
                write!(f, "{len} bytes of data, the target takes {target}")
            }
            DropReason::DataCutShort { expected, got } => {
                write!(f, "{expected} bytes of data announced, {got} came")
            }
        }
    }
}
