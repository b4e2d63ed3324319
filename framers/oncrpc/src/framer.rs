//! Records on their way out: a head, payload that stays where it is, a tail.
//!
//! ```text
//!  [marker│head│length]  [page][page][page]  [pad│tail]      one fragment: the default
//! ```
//!
//! The marker is in the same piece of memory as the head, so that both leave in the same call: apart they cost Linux
//! about 5 % (`net/sunrpc/socklib.c`). It counts everything behind it, the pad too.

use std::borrow::Cow;

use segchain::chain::{ChainBuilder, Fragment, Payload};
use segchain::framer::Framer;
use segchain::queue::Queued;

use crate::{Error, MAX_FRAGMENT, MIN_RECORD, xdr};

/// Set in the marker of a record's last fragment (RFC 5531 section 11).
pub(crate) const LAST: u32 = 1 << 31;

/// What one record carries, without its marker: what is kept of it can be sent again, in whatever fragments.
///
/// The head is copied, so it is for headers and small arguments; payload is pushed.
#[derive(Clone, Debug)]
pub struct Message<'p, P = ()> {
    head: Cow<'p, [u8]>,
    payload: Form<P>,
    tail: Cow<'p, [u8]>,
}

#[derive(Clone, Debug)]
enum Form<P> {
    Absent,
    Opaque(P),
    Raw(P),
}

impl<'p> Message<'p> {
    /// A message that is all head.
    pub fn new(head: impl Into<Cow<'p, [u8]>>) -> Self {
        Self { head: head.into(), payload: Form::Absent, tail: Cow::Borrowed(&[]) }
    }
}

impl<'p, P> Message<'p, P> {
    /// Adds an XDR opaque of variable length behind the head: its length, its bytes, and 0 to 3 bytes of pad
    /// (RFC 4506 section 4.10). The head ends before the length.
    #[must_use]
    pub fn opaque<Q: Payload>(self, payload: Q) -> Message<'p, Q> {
        Message { head: self.head, payload: Form::Opaque(payload), tail: self.tail }
    }

    /// Adds bytes behind the head as they are: no length, no pad.
    #[must_use]
    pub fn raw<Q: Payload>(self, payload: Q) -> Message<'p, Q> {
        Message { head: self.head, payload: Form::Raw(payload), tail: self.tail }
    }

    /// What follows the payload and its pad.
    #[must_use]
    pub fn tail(mut self, tail: impl Into<Cow<'p, [u8]>>) -> Self {
        self.tail = tail.into();
        self
    }
}

impl<P: Payload + Send + 'static> Queued for Message<'static, P> {
    fn bytes(&self) -> u64 {
        let payload = match &self.payload {
            Form::Absent => 0,
            Form::Opaque(payload) => payload.len().saturating_add(4 + 3),
            Form::Raw(payload) => payload.len(),
        };
        payload.saturating_add(4 + self.head.len() as u64 + self.tail.len() as u64)
    }
}

/// Frames messages as records of a stream, or as datagrams.
///
/// A record is one fragment unless [`fragments_of`](Self::fragments_of) allows more: rpcbind 1.2.6 takes the first
/// fragment for the record and closes. So a record over [`MAX_FRAGMENT`] bytes is refused, before anything is sent, unless
/// fragments are allowed, which is the only way that RFC 5531 section 11 knows.
///
/// ```
/// use segchain::chain::ChainBuilder;
/// use segchain::framer::Framer;
/// use segchain_oncrpc::{Message, RecordFramer};
///
/// let mut out = ChainBuilder::new();
/// RecordFramer::new().frame(Message::new(b"xid.type").opaque(&b"hello"[..]), &mut out)?;
/// let bytes = out.finish()?.seal_all().to_vec();
/// assert_eq!(bytes, b"\x80\0\0\x14xid.type\0\0\0\x05hello\0\0\0");
/// # Ok::<(), segchain_oncrpc::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct RecordFramer {
    marking: Marking,
}

#[derive(Clone, Copy, Debug)]
enum Marking {
    One,
    Fragments(u64),
    Datagram,
}

impl RecordFramer {
    /// One fragment a record.
    pub fn new() -> Self {
        Self { marking: Marking::One }
    }

    /// Cuts records into fragments of at most `max` bytes. `max` is rounded down to a multiple of four, nfs-ganesha 4.3
    /// wants no other cuts inside of an RPC header, and is at least [`MIN_RECORD`], so that the first fragment says
    /// which call it belongs to.
    #[must_use]
    pub fn fragments_of(max: u32) -> Self {
        let max = u64::from(max.min(MAX_FRAGMENT)) & !3;
        Self { marking: Marking::Fragments(max.max(MIN_RECORD)) }
    }

    /// No markers: on a datagram transport the datagram is the record.
    pub fn datagram() -> Self {
        Self { marking: Marking::Datagram }
    }

    fn marker(fragment: Fragment) -> [u8; 4] {
        let last = if fragment.last { LAST } else { 0 };
        (fragment.len as u32 | last).to_be_bytes()
    }
}

impl Default for RecordFramer {
    fn default() -> Self {
        Self::new()
    }
}

impl<'p, P: Payload> Framer<Message<'p, P>> for RecordFramer {
    type Error = Error;

    /// A record has no number: it may disappear as long as nothing of it has left.
    fn accepts_gap(&self) -> bool {
        true
    }

    /// The markers, and the length and the pad of an opaque.
    fn overhead(&self, len: u64) -> u64 {
        const OPAQUE: u64 = 4 + 3;
        let fragments = match self.marking {
            Marking::One => 1,
            Marking::Fragments(max) => len.saturating_add(OPAQUE).div_ceil(max).max(1),
            Marking::Datagram => 0,
        };
        fragments.saturating_mul(4).saturating_add(OPAQUE)
    }

    fn frame<'m>(&mut self, message: Message<'p, P>, out: &mut ChainBuilder<'m>) -> Result<(), Error>
    where
        Message<'p, P>: 'm,
    {
        let marker = match self.marking {
            Marking::One => Some(out.put_u32_be(0)),
            Marking::Fragments(max) => {
                out.fragment(max, Self::marker);
                None
            }
            Marking::Datagram => None,
        };
        let start = out.len();
        out.put(&message.head);
        match message.payload {
            Form::Absent => {}
            Form::Opaque(payload) => {
                let length = out.put_u32_be(0);
                let body = out.here();
                payload.push_to(out);
                let len = out.len() - body.position();
                let Ok(word) = u32::try_from(len) else {
                    return Err(Error::Oversize { expected: u32::MAX.into(), got: len });
                };
                out.patch(length, &word.to_be_bytes());
                out.put(&[0; 3][..xdr::pad(len) as usize]);
            }
            Form::Raw(payload) => payload.push_to(out),
        }
        out.put(&message.tail);
        out.check()?;

        let len = out.len() - start;
        if len < MIN_RECORD {
            return Err(Error::Undersize { expected: MIN_RECORD, got: len });
        }
        if let Some(marker) = marker {
            if len > MAX_FRAGMENT.into() {
                return Err(Error::Oversize { expected: MAX_FRAGMENT.into(), got: len });
            }
            out.patch(marker, &(len as u32 | LAST).to_be_bytes());
        }
        Ok(out.check()?)
    }
}
