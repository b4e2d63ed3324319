//! A message, apart from how a version of the messenger frames it.

use bytes::Bytes;
use segchain::chain::Payload;
use segchain::queue::Queued;
use segchain::slab::SlabBuf;

/// Who sends: what kind of entity, and which.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct EntityName {
    /// 1 monitor, 2 MDS, 4 OSD, 8 client.
    pub kind: u8,
    /// A daemon's number, or a client's global id.
    pub num: i64,
}

impl EntityName {
    /// An entity of any kind.
    pub fn new(kind: u8, num: i64) -> Self {
        Self { kind, num }
    }

    /// A client.
    pub fn client(global_id: u64) -> Self {
        Self::new(8, global_id.cast_signed())
    }

    /// An OSD.
    pub fn osd(num: i64) -> Self {
        Self::new(4, num)
    }
}

/// What stands in a message's header besides its lengths, its sequence number and its checksum: those are found when it
/// is framed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Header {
    /// The number by which a reply finds its request; the sender's own numbering.
    pub tid: u64,
    /// The message type (`CEPH_MSG_*`).
    pub kind: u16,
    /// The higher, the sooner it is handled.
    pub priority: u16,
    /// Version of the front's encoding.
    pub version: u16,
    /// The oldest version that can read it.
    pub compat_version: u16,
    /// Where in a page the data wants to lie at the receiver, modulo the page.
    pub data_off: u16,
    /// The sender. Version 2 of the messenger does not carry it: both sides know it from the handshake.
    pub src: EntityName,
    /// Carried as it is.
    pub reserved: u16,
}

impl Header {
    /// A header of a message type; everything else is 0.
    pub fn new(kind: u16) -> Self {
        Self { kind, ..Self::default() }
    }
}

/// A message to send. Its data is any [`Payload`](segchain::chain::Payload), and leaves from where it is.
///
/// ```
/// use segchain_ceph::{Header, Message};
/// let pages: [&[u8]; 2] = [&[1; 4096], &[2; 4096]];
/// let message = Message::new(Header::new(42), b"front".as_slice().into(), &pages[..]);
/// # assert_eq!(message.front.len(), 5);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Message<D> {
    /// The header.
    pub header: Header,
    /// The encoded request. It counts as a header: below the copy threshold it is copied into the scratch arena.
    pub front: Bytes,
    /// Only MDS requests have one.
    pub middle: Bytes,
    /// The payload.
    pub data: D,
    /// The footer's signature, if the message is signed (cephx); carried as it is, and neither made nor checked here.
    /// Version 1 of the messenger only.
    pub signature: Option<u64>,
}

impl<D: Payload + Send + 'static> Queued for Message<D> {
    /// Its parts, and about what either version of the messenger adds.
    fn bytes(&self) -> u64 {
        let parts = self.front.len() as u64 + self.middle.len() as u64;
        self.data.len().saturating_add(parts + 100)
    }
}

impl<D> Message<D> {
    /// A message without middle and signature.
    pub fn new(header: Header, front: Bytes, data: D) -> Self {
        Self { header, front, middle: Bytes::new(), data, signature: None }
    }
}

/// Either of what a connection sends: for a queue, which has messages of one type. `C` is a version's own `Control`.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Outbound<D, C> {
    /// A message.
    Message(Message<D>),
    /// What travels between messages.
    Control(C),
}

impl<D: Payload + Send + 'static, C: Queued> Queued for Outbound<D, C> {
    fn bytes(&self) -> u64 {
        match self {
            Outbound::Message(message) => message.bytes(),
            Outbound::Control(control) => control.bytes(),
        }
    }
}

/// A message that has arrived whole, its checksums right.
#[derive(Debug)]
#[non_exhaustive]
pub struct Incoming {
    /// Its number on this connection.
    pub seq: u64,
    /// The header.
    pub header: Header,
    /// The encoded request or reply.
    pub front: Bytes,
    /// Mostly empty.
    pub middle: Bytes,
    /// Where the payload is.
    pub data: Data,
    /// The footer's signature, if the message is signed; not checked here.
    pub signature: Option<u64>,
    /// The number of the last message of ours that its sender had received: version 2 of the messenger says so with every
    /// message, version 1 with none (0).
    pub acked: u64,
}

/// Where an incoming message's data is.
#[derive(Debug, Default)]
#[non_exhaustive]
pub enum Data {
    /// There is none.
    #[default]
    None,
    /// In slabs, the first byte at the sender's `data_off` within a page.
    Slabs(SlabBuf),
    /// In the memory that [`Targets`](segchain::framer::Targets) had for this tid.
    Target {
        /// How many bytes.
        len: u64,
        /// Whether all of them: `false` if the target was taken back on the way.
        whole: bool,
    },
    /// Nowhere: the target was too small, or nobody waited for it.
    Discarded {
        /// How many bytes it was.
        len: u64,
    },
}

impl Data {
    /// Length in bytes, wherever they are.
    pub fn len(&self) -> u64 {
        match self {
            Data::None => 0,
            Data::Slabs(slabs) => slabs.len(),
            Data::Target { len, .. } | Data::Discarded { len } => *len,
        }
    }

    /// Whether the message had no data.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A time as Ceph writes it. Whoever answers a keepalive sends it back as it came.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stamp {
    /// Seconds since 1970.
    pub sec: u32,
    /// Nanoseconds.
    pub nsec: u32,
}

impl Stamp {
    /// A time.
    pub fn new(sec: u32, nsec: u32) -> Self {
        Self { sec, nsec }
    }
}
