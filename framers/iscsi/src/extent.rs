//! One payload, sent in many PDUs: shared pages, and parts of them.

use std::sync::Arc;

use bytes::Bytes;
use segchain::chain::{ChainBuilder, Payload};

/// A payload in pages of any lengths. Cloning and cutting it copies no byte.
///
/// ```
/// use bytes::Bytes;
/// use segchain::chain::{ChainBuilder, Payload};
/// use segchain_iscsi::Pages;
///
/// let pages = Pages::from(vec![Bytes::from_static(b"first page, "), Bytes::from_static(b"second page")]);
/// let mut out = ChainBuilder::new();
/// pages.extent(6, 12).unwrap().push_to(&mut out);
/// assert_eq!(out.finish()?.seal_all().to_vec(), b"page, second");
/// # Ok::<(), segchain::chain::ChainError>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Pages(Arc<[Page]>);

#[derive(Clone, Debug)]
struct Page {
    /// Where in the payload it ends.
    end: u64,
    bytes: Bytes,
}

impl Pages {
    /// Length in bytes.
    pub fn len(&self) -> u64 {
        self.0.last().map_or(0, |page| page.end)
    }

    /// Whether there are no bytes at all.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The `len` bytes from `at` on; `None` if there are not so many.
    pub fn extent(&self, at: u64, len: u64) -> Option<Extent> {
        let inside = at.checked_add(len).is_some_and(|end| end <= self.len());
        inside.then(|| Extent { pages: self.clone(), at, len })
    }
}

impl From<Vec<Bytes>> for Pages {
    fn from(pages: Vec<Bytes>) -> Self {
        let mut end = 0;
        let ending = |bytes: Bytes| {
            end += bytes.len() as u64;
            Page { end, bytes }
        };
        Self(pages.into_iter().map(ending).collect())
    }
}

impl From<Bytes> for Pages {
    fn from(bytes: Bytes) -> Self {
        Self(Arc::new([Page { end: bytes.len() as u64, bytes }]))
    }
}

/// A part of a payload, or all of it, as the data of one PDU.
#[derive(Clone, Debug, Default)]
pub struct Extent {
    pages: Pages,
    at: u64,
    len: u64,
}

impl<P: Into<Pages>> From<P> for Extent {
    fn from(pages: P) -> Self {
        let pages = pages.into();
        Self { len: pages.len(), pages, at: 0 }
    }
}

impl Payload for Extent {
    fn len(&self) -> u64 {
        self.len
    }

    fn push_to<'m>(self, out: &mut ChainBuilder<'m>)
    where
        Self: 'm,
    {
        let (mut at, end) = (self.at, self.at + self.len);
        let first = self.pages.0.partition_point(|page| page.end <= at);
        for page in &self.pages.0[first..] {
            if at == end {
                break;
            }
            let start = page.end - page.bytes.len() as u64;
            let to = end.min(page.end);
            out.push(page.bytes.slice((at - start) as usize..(to - start) as usize));
            at = to;
        }
    }
}
