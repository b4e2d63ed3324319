//! A PDU that has arrived.

use bytes::Bytes;
use segchain::slab::SlabBuf;

use crate::{Bhs, Header};

/// A PDU that has arrived whole, its digests right.
#[derive(Debug)]
#[non_exhaustive]
pub struct Incoming {
    /// The basic header segment, as it came.
    pub bhs: Bhs,
    /// Additional header segments (RFC 7143 section 11.2.2), unread; mostly none.
    pub ahs: Bytes,
    /// Where in the PDU the data begins, in bytes: behind all headers and their digest.
    pub data_offset: u64,
    /// Where the data is.
    pub data: Data,
}

impl Incoming {
    /// The header's fields by their names.
    pub fn header(&self) -> Header {
        Header::from(&self.bhs)
    }
}

/// Where an incoming PDU's data is. The pad is not part of it.
#[derive(Debug, Default)]
#[non_exhaustive]
pub enum Data {
    /// There is none.
    #[default]
    None,
    /// In one piece: text, sense, rejected headers.
    Bytes(Bytes),
    /// In slabs.
    Slabs(SlabBuf),
    /// In the memory that [`Targets`](segchain::framer::Targets) had for this task, at the PDU's buffer offset.
    Target {
        /// How many bytes.
        len: u64,
        /// Whether all of them: `false` if the target was taken back on the way.
        whole: bool,
    },
    /// Nowhere: it would have gone past the target's end.
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
            Data::Bytes(bytes) => bytes.len() as u64,
            Data::Slabs(slabs) => slabs.len(),
            Data::Target { len, .. } | Data::Discarded { len } => *len,
        }
    }

    /// Whether the PDU had no data.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bytes, if they are here, in pieces.
    pub fn parts(&self) -> impl Iterator<Item = &[u8]> {
        let (whole, slabs) = match self {
            Data::Bytes(bytes) => (Some(&bytes[..]), None),
            Data::Slabs(slabs) => (None, Some(slabs)),
            _ => (None, None),
        };
        whole.into_iter().chain(slabs.into_iter().flat_map(SlabBuf::parts))
    }

    /// The bytes, if they are here, to keep or to send on; none is copied.
    pub fn into_parts(self) -> Vec<Bytes> {
        match self {
            Data::Bytes(bytes) => vec![bytes],
            Data::Slabs(slabs) => slabs.into_parts(),
            _ => Vec::new(),
        }
    }
}
